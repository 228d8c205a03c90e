"""Is a comparison decided? Asked again after every round of repeats, so that the answer covers what it says.

Two answers are paid for in two ways. *Sure* depends on the ratio itself: who looks often finds it on one side of the
price ratio by luck. So each look has a share of the 5 % that an interval may err by, and the shares add up to 5 %.
*Known* depends on the spread alone. The mean of normal values is independent of their variances, of all looks so far:
to stop at a narrow interval leaves the mean as good as it is, and all that may be wrong is a spread that came out too
small by luck (Anscombe 1953; Starr 1966). That is what is guarded against: hosts cannot agree better than their repeats
do, a machine's few repeats must agree better than asked, and two machines, or a fleet alone, are reported at a higher
level.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.compare.cost import price_ratio
from results.compare.pairs import compare_pair
from results.stats import LEVEL, Estimate, Interval, ratio_of_estimates
from results.table.comparable import match
from results.table.fleets import FleetRate
from results.text import counted


class Answer(enum.StrEnum):
    """Why no more repeats are needed."""

    KNOWN = "known"  # the interval is as narrow as was asked
    SURE = "sure"  # all of the interval is on one side of the price ratio at which both sides cost the same
    NO_USE = "no use"  # the hosts differ by more than any number of repeats makes up for
    NO_RATIO = "no ratio"  # a side has no number, or the two measured different things


@dataclass(frozen=True)
class Look:
    """What the repeats so far say.

    Attributes:
        answer: None: more repeats are needed.
        interval: Of the ratio, or of the throughput where only one side is asked for; see `LOOKS_LEVEL` for its level,
            and where it is sure at that of this look. None where there is none yet.
        why: The answer in words; empty without one.
    """

    answer: Answer | None = None
    interval: Interval | None = None
    why: str = ""

    @property
    def width(self) -> float:
        """Half-width as a share of the value; infinite where nothing is known."""
        return math.inf if self.interval is None else self.interval.half_width / self.interval.value


TRIES = 2
"""Repeats of each host after which a side without any number is not expected to give one."""

LITTLE_GAIN = 0.8
"""Share of an interval's width that, if endless repeats would leave it and it is too wide, more are not worth their
price: a second repeat of each host then narrows it by a tenth, twice as many hosts by three tenths."""

LOOKS_LEVEL = 0.965
"""Level at which two machines are known (two queues, while every repeat had another node), or one fleet alone: looks
take the rest, so that 95 % is left however much repeats vary.

Source: Starr, The performance of a sequential procedure for the fixed-width interval estimation of the mean, 1966: what
    stopping at a narrow t-interval costs has a bound, whatever the variance, and a larger quantile makes up for it. By
    `python -m tests.benchmarks.decide`: 94 to 97 % where repeats vary by 0.3 to 2 %; 92 to 95 % without.
"""

FEWEST_DEGREES = 3
"""Degrees of freedom that the interval of one machine's repeats needs: four repeats."""

SHARES = {3: 0.2, 4: 0.4, 5: 0.6, 6: 0.8, 7: 0.9}
"""How much of the asked half-width the interval of one machine's repeats may have, by degrees of freedom; above these,
all of it. A spread of few repeats is often too small by luck.

Source: Chow and Robbins, On the asymptotic theory of fixed-width sequential confidence intervals for the mean, 1965:
    the quantile approaches its limit from above; the values by simulation. By `python -m tests.benchmarks.coverage`,
    93 to 95 % where repeats vary by 0.3 to 5 % and 2 % are asked for; quiet repeats end after the fourth or fifth.
"""


def look_level(number: int) -> float:
    """Return the level of the interval by which a look may be sure.

    Args:
        number: Of the look, from 1.

    Source: Lan and DeMets, Discrete sequential boundaries for clinical trials, 1983: the error is spent over the looks.
        Shares of 1 / (k (k + 1)) add up to 1; by Bonferroni's inequality nothing is assumed of how looks hang together,
        which they do closely here, since all see the same hosts.
    """
    return 1 - (1 - LEVEL) / (number * (number + 1))


def look(a: FleetRate, b: FleetRate | None, share: float, repeats: int, spread: float | None = None) -> Look:
    """Say whether a comparison is decided.

    Args:
        a: What the first side measured; its hosts have the same number of repeats.
        b: Likewise the second side; None: only the throughput of the first is asked for.
        share: Half-width that is asked for, as a share of the ratio, e.g. 0.02.
        repeats: Of each host so far.
        spread: Relative variance of repeats, from another case of the same hosts; for hosts with one repeat, whose own
            is not known. It may only show that more repeats are of no use. None: not known.
    """
    sides = [a] if b is None else [a, b]
    if missing := [side.fleet for side in sides if not side.rates]:
        why = f"no repeat on {' and '.join(missing)} succeeded ({repeats} of each host)"
        return Look(Answer.NO_RATIO, None, why) if repeats >= TRIES else Look()
    found = match(a, a if b is None else b)
    if not found.comparable:
        return Look(Answer.NO_RATIO, None, found.reason)
    first = 1 if all(side.of_fleet for side in sides) else 2
    estimates = [side.estimate for side in sides if side.estimate is not None]
    if repeats < first or len(estimates) < len(sides):
        return Look()
    return _answered(sides, estimates, share, repeats, look_level(repeats - first + 1), spread)


def narrow_enough(interval: Interval, degrees: float, share: float) -> bool:
    """Return whether the interval of values that came one by one is as narrow as was asked, and not by luck.

    Args:
        interval: Of the throughput of a machine.
        degrees: Of freedom: repeats less one.
        share: Half-width that is asked for, as a share of the throughput.
    """
    allowed = SHARES.get(round(degrees), 1.0) * share
    return degrees >= FEWEST_DEGREES and interval.half_width <= allowed * interval.value


def spread_of_repeats(sides: Sequence[FleetRate]) -> float | None:
    """Return the variance of repeats over the squared throughput, pooled over hosts; None with one repeat each.

    Source: Searle, Casella and McCulloch 1992, chapter 3: the mean square within groups of a balanced design.
    """
    hosts = [[value for of_run in runs.values() for value in of_run] for side in sides for runs in side.rates.values()]
    known = [statistics.variance(of_host) / statistics.fmean(of_host) ** 2 for of_host in hosts if len(of_host) > 1]
    return statistics.fmean(known) if known else None


def _answered(
    sides: list[FleetRate],
    estimates: list[Estimate],
    share: float,
    repeats: int,
    sure_level: float,
    spread: float | None,
) -> Look:
    one_by_one = all(_one_by_one(side, repeats) for side in sides)
    alone = len(sides) == 1
    level = LEVEL if one_by_one == alone else LOOKS_LEVEL
    interval = _interval(sides, estimates, level)
    width = interval.half_width / interval.value
    width_text = f"± {width:.1%}" if level == LEVEL else f"± {width:.1%} (level {level:.1%})"
    rounds = f"{counted(repeats, 'repeat')} of each host"
    names = " / ".join(side.fleet for side in sides)
    if one_by_one and alone:
        known = narrow_enough(interval, estimates[0].degrees_of_freedom, share)
    else:
        honest = _interval(sides, [_no_luck(*of_side) for of_side in zip(sides, estimates, strict=True)], level)
        known = honest.half_width <= share * honest.value
    if known:
        why = f"{names} is known to {width_text} after {rounds} (target: {share:.1%})"
        return Look(Answer.KNOWN, interval, why)
    break_even = None if alone else price_ratio(compare_pair(*sides))
    bounds = _interval(sides, estimates, sure_level)
    if break_even is not None and not bounds.contains(break_even):
        side = "above" if bounds.low > break_even else "below"
        why = f"{names} is {bounds.low:.2f} to {bounds.high:.2f} after {rounds}, {side} its price ratio of "
        return Look(Answer.SURE, bounds, f"{why}{break_even:.2f}")
    lasting = _lasting_share(sides, estimates, spread)
    if lasting > LITTLE_GAIN and lasting * width > share:
        why = (
            f"{names} is known to {width_text} after {rounds}; more repeats would hardly narrow it, because the "
            f"hosts of a fleet differ. To reach {share:.1%}, add hosts"
        )
        return Look(Answer.NO_USE, interval, why)
    return Look(None, interval)


def _one_by_one(side: FleetRate, repeats: int) -> bool:
    """Return whether a round adds one value: a repeat of one machine, or of a queue while each has another node."""
    count = sum(len(of_run) for runs in side.rates.values() for of_run in runs.values())
    return count <= repeats and len(side.rates) in (1, count)


def _interval(sides: list[FleetRate], estimates: list[Estimate], level: float) -> Interval:
    """Return the interval of the ratio of two sides, as `compare_pair` does, or of the throughput of one."""
    if len(sides) == 1:
        return estimates[0].interval(level)
    return ratio_of_estimates(*estimates, level=level, alike=sides[0].repeated == sides[1].repeated)


def _lasting_share(sides: list[FleetRate], estimates: list[Estimate], spread: float | None) -> float:
    """Return the share of the interval's width that endless repeats would leave: hosts stay as different as they are.

    Returns:
        0 with one repeat of each host and no spread from elsewhere: theirs cannot be separated from that of the hosts.

    Source: variance components of a balanced design; Searle, Casella and McCulloch 1992, chapter 3.
    """
    now = later = 0.0
    for side, known in zip(sides, estimates, strict=True):
        of_repeats = _of_repeats(side) if side.of_fleet else known.variance
        if of_repeats is None and spread is not None:
            of_repeats = spread * known.mean**2 / len(side.rates)
        if of_repeats is None:
            return 0.0
        now += known.variance / known.mean**2
        later += max(0.0, known.variance - of_repeats) / known.mean**2
    return math.sqrt(later / now) if now else 0.0


def _no_luck(side: FleetRate, known: Estimate) -> Estimate:
    """Return the estimate of a side with no less variance than its repeats alone give the mean of its hosts.

    Hosts that agree better than that do so by luck. Their own spread rests on few hosts, that of the repeats on all.

    Source: a variance component is not negative; Searle, Casella and McCulloch 1992, chapter 3.
    """
    of_repeats = _of_repeats(side) if side.of_fleet else None
    return known if of_repeats is None else replace(known, variance=max(known.variance, of_repeats))


def _of_repeats(side: FleetRate) -> float | None:
    """Return the variance that the repeats of several hosts give their mean; None with one repeat of a host."""
    values = [[value for of_run in runs.values() for value in of_run] for runs in side.rates.values()]
    if any(len(of_host) < 2 for of_host in values):
        return None
    return statistics.fmean(statistics.variance(of_host) / len(of_host) for of_host in values) / len(values)

"""Is a comparison decided? Asked again after every round of repeats, so that the looks together err in 5 % at most.

Who looks often and stops at the first narrow interval stops at lucky ones. So each look has a share of the 5 % that an
interval may err by, and its own interval is so much wider; the shares of all looks add up to 5 %, however many there
are. What is reported at the end is the usual interval of all repeats (`pairs.py`).
"""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass

from results.compare.cost import price_ratio
from results.compare.pairs import compare_pair
from results.stats import LEVEL, Estimate, Interval
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
        interval: Of the ratio, or of the throughput where only one side is asked for; at the level of this look. None
            where there is none yet.
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

LITTLE_GAIN = 0.9
"""Share of an interval's width that, if endless repeats would leave it, more repeats are not worth their price."""


def look_level(number: int) -> float:
    """Return the level of the interval of a look.

    Args:
        number: Of the look, from 1.

    Source: Lan and DeMets, Discrete sequential boundaries for clinical trials, 1983: the error is spent over the looks.
        Shares of 1 / (k (k + 1)) add up to 1; by Bonferroni's inequality nothing is assumed of how looks hang together,
        which they do closely here, since all see the same hosts.
    """
    return 1 - (1 - LEVEL) / (number * (number + 1))


def look(a: FleetRate, b: FleetRate | None, share: float, repeats: int) -> Look:
    """Say whether a comparison is decided.

    Args:
        a: What the first side measured; its hosts have the same number of repeats.
        b: Likewise the second side; None: only the throughput of the first is asked for.
        share: Half-width that is asked for, as a share of the ratio, e.g. 0.02.
        repeats: Of each host so far.
    """
    sides = [a] if b is None else [a, b]
    if missing := [side.fleet for side in sides if not side.rates]:
        why = f"no repeat on {' and '.join(missing)} succeeded ({repeats} of each host)"
        return Look(Answer.NO_RATIO, None, why) if repeats >= TRIES else Look()
    found = match(a, a if b is None else b)
    if not found.comparable:
        return Look(Answer.NO_RATIO, None, found.reason)
    first = 1 if all(side.of_fleet for side in sides) else 2
    if repeats < first:
        return Look()
    level = look_level(repeats - first + 1)
    interval = _interval(a, b, level)
    if interval is None:
        return Look()
    return _answered(sides, interval, share, repeats, None if b is None else price_ratio(compare_pair(a, b)))


def _interval(a: FleetRate, b: FleetRate | None, level: float) -> Interval | None:
    if b is not None:
        return compare_pair(a, b, level=level).interval
    return a.estimate.interval(level) if a.estimate else None


def _answered(sides: list[FleetRate], interval: Interval, share: float, repeats: int, break_even: float | None) -> Look:
    width = interval.half_width / interval.value
    rounds = f"{counted(repeats, 'repeat')} of each host"
    names = " / ".join(side.fleet for side in sides)
    if width <= share:
        why = f"{names} is known to ± {width:.1%} after {rounds} (asked: {share:.1%})"
        return Look(Answer.KNOWN, interval, why)
    if break_even is not None and not interval.contains(break_even):
        side = "above" if interval.low > break_even else "below"
        why = f"{names} is {interval.low:.2f} to {interval.high:.2f} after {rounds}, {side} its price ratio of "
        return Look(Answer.SURE, interval, f"{why}{break_even:.2f}")
    if _lasting_share(sides) > LITTLE_GAIN:
        why = (
            f"{names} is known to ± {width:.1%} after {rounds}; more repeats would hardly narrow it, because the "
            f"hosts of a fleet differ. To reach {share:.1%}, add hosts"
        )
        return Look(Answer.NO_USE, interval, why)
    return Look(None, interval)


def _lasting_share(sides: list[FleetRate]) -> float:
    """Return the share of the interval's width that endless repeats would leave: hosts stay as different as they are.

    Returns:
        0 with one repeat of each host: their spread cannot be separated from that of the hosts.

    Source: variance components of a balanced design; Searle, Casella and McCulloch 1992, chapter 3.
    """
    now = later = 0.0
    for side in sides:
        known = side.estimate
        lasting = _between_hosts(side, known) if known is not None else None
        if known is None or lasting is None:
            return 0.0
        now += known.variance / known.mean**2
        later += lasting / known.mean**2
    return math.sqrt(later / now) if now else 0.0


def _between_hosts(side: FleetRate, known: Estimate) -> float | None:
    """Return how much of the variance of a fleet's mean is due to its hosts; None where only one repeat is known."""
    if not side.of_fleet:
        return 0.0
    values = [[value for of_run in runs.values() for value in of_run] for runs in side.rates.values()]
    if any(len(of_host) < 2 for of_host in values):
        return None
    within = statistics.fmean(statistics.variance(of_host) / len(of_host) for of_host in values) / len(values)
    return max(0.0, known.variance - within)

"""Is a comparison decided? Checked after every round of repeats, so that the interval keeps its coverage.

Two answers are paid for in two ways. *Decided by price* depends on the ratio itself: who analyses often finds it on one
side of the price ratio by luck. So each interim analysis has a share of the 5 % that an interval may err by, and the
shares add up to 5 %. *Known* depends on the spread alone. The mean of normal values is independent of their variances
at all analyses so far: to stop at a narrow interval leaves the mean as good as it is, and all that may be wrong is a
spread that came out too small by luck (Anscombe 1953; Starr 1966). Two things guard against that: hosts cannot agree
better than their repeats do, and two single machines are reported at a higher level.
"""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, replace

from results.compare.pairs import compare_pair
from results.stats import LEVEL, Estimate, Interval, ratio_of_estimates
from results.table.comparable import match
from results.table.fleets import FleetRate
from results.text import counted


class Reason(enum.StrEnum):
    """Why a comparison needs no more repeats."""

    KNOWN = "known"  # the interval is as narrow as was asked
    PRICE = "price"  # all of the interval is on one side of the price ratio at which both sides cost the same
    NO_RATIO = "no ratio"  # a side has no number, or the two measured different things


@dataclass(frozen=True)
class InterimAnalysis:
    """The result of the repeats so far.

    Attributes:
        reason: None: more repeats are needed.
        interval: Of the ratio; None where there is none yet.
        text: The answer in words; empty without one.
    """

    reason: Reason | None = None
    interval: Interval | None = None
    text: str = ""

    @property
    def width(self) -> float:
        """Half-width as a share of the value; infinite where nothing is known."""
        return math.inf if self.interval is None else self.interval.half_width / self.interval.value


TRIES = 2
"""Repeats of each host after which a side without any number is not expected to give one."""

SINGLE_MACHINES_LEVEL = 0.965
"""Level at which two machines are known (two queues, while every repeat had another node): interim analyses take the
rest, so that 95 % is left however much repeats vary.

Source: Starr, The performance of a sequential procedure for the fixed-width interval estimation of the mean, 1966: what
    stopping at a narrow t-interval costs has a bound, whatever the variance, and a larger quantile makes up for it. By
    `python -m tests.benchmarks.stop_early`: 94 to 97 % where repeats vary by 0.3 to 2 %; 92 to 95 % without.
"""


def analysis_level(number: int) -> float:
    """Return the level of the interval by which an interim analysis may decide by price.

    Args:
        number: Of the analysis, from 1.

    Source: Lan and DeMets, Discrete sequential boundaries for clinical trials, 1983: the error is spent over the
        analyses. Shares of 1 / (k (k + 1)) add up to 1; by Bonferroni's inequality nothing is assumed of how analyses
        depend on each other, which they do closely here, since all see the same hosts.
    """
    return 1 - (1 - LEVEL) / (number * (number + 1))


def analyse(a: FleetRate, b: FleetRate, share: float, repeats: int) -> InterimAnalysis:
    """Return whether a comparison is decided.

    Args:
        a: What the first side measured; its hosts have the same number of repeats.
        b: Likewise the second side.
        share: Half-width that is asked for, as a share of the ratio, e.g. 0.02.
        repeats: Of each host so far.
    """
    if missing := [side.fleet for side in (a, b) if not side.rates]:
        text = f"no repeat on {' and '.join(missing)} succeeded ({repeats} of each host)"
        return InterimAnalysis(Reason.NO_RATIO, None, text) if repeats >= TRIES else InterimAnalysis()
    found = match(a, b)
    if not found.comparable:
        return InterimAnalysis(Reason.NO_RATIO, None, found.reason)
    first = 1 if a.of_fleet and b.of_fleet else 2
    estimates = a.estimate, b.estimate
    if repeats < first or estimates[0] is None or estimates[1] is None:
        return InterimAnalysis()
    singles = _one_by_one(a, repeats) and _one_by_one(b, repeats)
    level = SINGLE_MACHINES_LEVEL if singles else LEVEL
    alike = a.repeated == b.repeated
    interval = ratio_of_estimates(estimates[0], estimates[1], level=level, alike=alike)
    guarded = ratio_of_estimates(_no_luck(a, estimates[0]), _no_luck(b, estimates[1]), level=level, alike=alike)
    rounds = f"{counted(repeats, 'repeat')} of each host"
    names = f"{a.fleet} / {b.fleet}"
    if guarded.half_width <= share * guarded.value:
        width = f"± {interval.half_width / interval.value:.1%}" + (f" (level {level:.1%})" if singles else "")
        return InterimAnalysis(Reason.KNOWN, interval, f"{names} is known to {width} after {rounds}")
    equal_cost = compare_pair(a, b).price_ratio
    level = analysis_level(repeats - first + 1)
    bounds = ratio_of_estimates(estimates[0], estimates[1], level=level, alike=alike)
    if equal_cost is not None and not bounds.contains(equal_cost):
        word = "above" if bounds.low > equal_cost else "below"
        text = f"{names} is {bounds.low:.2f} to {bounds.high:.2f} after {rounds}, {word} its price ratio of "
        return InterimAnalysis(Reason.PRICE, bounds, f"{text}{equal_cost:.2f}")
    return InterimAnalysis(None, interval)


def _one_by_one(side: FleetRate, repeats: int) -> bool:
    """Return whether a round adds one value: a repeat of one machine, or of a queue while each has another node."""
    count = sum(len(of_run) for runs in side.rates.values() for of_run in runs.values())
    return count <= repeats and len(side.rates) in (1, count)


def _no_luck(side: FleetRate, known: Estimate) -> Estimate:
    """Return the estimate of a side, its variance at least that of its hosts' mean by the repeats alone.

    Hosts that agree better than that do so by luck. Their own spread rests on few hosts, that of the repeats on all.

    Source: a variance component is not negative; Searle, Casella and McCulloch 1992, chapter 3.
    """
    values = [[value for of_run in runs.values() for value in of_run] for runs in side.rates.values()]
    if not side.of_fleet or any(len(of_host) < 2 for of_host in values):
        return known
    of_repeats = statistics.fmean(statistics.variance(of_host) / len(of_host) for of_host in values) / len(values)
    return replace(known, variance=max(known.variance, of_repeats))

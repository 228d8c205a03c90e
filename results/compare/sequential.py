"""Decides after each round of repeats whether a comparison needs more, while intervals keep their coverage.

There are two stopping rules. *Decided by price* depends on the ratio, which with many interim analyses would be on one
side of the price ratio by chance. So each analysis spends a share of the 5 % error probability, and the shares add up
to 5 %. *Known* depends only on the spread. The mean of normal values is independent of their variance, so stopping at a
narrow interval does not bias the mean; only the spread may be too small by chance (Anscombe 1953; Starr 1966). Two
measures prevent that: the variance between hosts is at least that implied by their repeats, and single machines are
reported at a higher level.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import NamedTuple

from results.compare.comparison import compare_pair
from results.compare.decide import cheaper
from results.stats import LEVEL, Estimate, Interval, ratio_of_estimates
from results.table.comparable import match
from results.table.fleets import FleetRate
from results.text import counted


class InterimAnalysis(NamedTuple):
    """The result of the repeats so far.

    Attributes:
        text: Why no more repeats are needed: the interval is as narrow as requested, it excludes the price ratio at
            which both sides cost the same, or there is no ratio; empty: more are needed.
        interval: Interval of the ratio; None: not yet known.
    """

    text: str = ""
    interval: Interval | None = None


TRIES = 2
"""Repeats of each host after which a side without a number is given up."""

SINGLE_MACHINES_LEVEL = 0.965
"""Level of intervals between two machines, or two queues with a new node per repeat, so that 95 % remain after interim
analyses for any variance of repeats.

Source: Starr, The performance of a sequential procedure for the fixed-width interval estimation of the mean, 1966: the
    loss of coverage by stopping at a narrow t-interval is bounded for any variance, and a larger quantile compensates
    for it. By `python -m studies.stop_early`: coverage 94 to 97 % if repeats vary by 0.3 to 2 %; 92 to 95 %
    without.
"""


def analysis_level(number: int) -> float:
    """Return the level of the interval with which an interim analysis may decide by price.

    Args:
        number: Number of the analysis, from 1.

    Source: Lan and DeMets, Discrete sequential boundaries for clinical trials, 1983: the error is spent over the
        analyses. Shares of 1 / (k (k + 1)) add up to 1. Bonferroni's inequality allows any dependence between analyses,
        which is strong here because all use the same hosts.
    """
    return 1 - (1 - LEVEL) / (number * (number + 1))


def analyse(a: FleetRate, b: FleetRate, share: float, repeats: int) -> InterimAnalysis:
    """Return whether a comparison is decided.

    Args:
        a: First side; its hosts have the same number of repeats.
        b: Second side, likewise.
        share: Requested half-width as a share of the ratio, e.g. 0.02.
        repeats: Repeats of each host so far.
    """
    if missing := [side.fleet for side in (a, b) if not side.rates]:
        text = f"no repeat on {' and '.join(missing)} succeeded ({repeats} of each host)"
        return InterimAnalysis(text if repeats >= TRIES else "")
    if reason := match(a, b)[0]:
        return InterimAnalysis(reason)
    first = 1 if a.of_fleet and b.of_fleet else 2
    if repeats < first or a.estimate is None or b.estimate is None:
        return InterimAnalysis()
    singles = _one_by_one(a, repeats) and _one_by_one(b, repeats)
    level = SINGLE_MACHINES_LEVEL if singles else LEVEL
    guarded = ratio_of_estimates(_no_luck(a, a.estimate), _no_luck(b, b.estimate), level)
    interval = ratio_of_estimates(a.estimate, b.estimate, level)
    bounds = ratio_of_estimates(a.estimate, b.estimate, analysis_level(repeats - first + 1))
    rounds = f"{counted(repeats, 'repeat')} of each host"
    names = f"{a.fleet} / {b.fleet}"
    if guarded.half_width <= share * guarded.value:
        width = f"± {interval.half_width / interval.value:.1%}" + (f" (level {level:.1%})" if singles else "")
        return InterimAnalysis(f"{names} is known to {width} after {rounds}", interval)
    equal_cost = compare_pair(a, b).price_ratio
    if equal_cost is not None and (side := cheaper(bounds, equal_cost)):
        word = "above" if side > 0 else "below"
        text = f"{names} is {bounds.low:.2f} to {bounds.high:.2f} after {rounds}, {word} its price ratio of "
        return InterimAnalysis(f"{text}{equal_cost:.2f}", bounds)
    return InterimAnalysis(interval=interval)


def _one_by_one(side: FleetRate, repeats: int) -> bool:
    """Return whether a round adds one value: one machine, or a queue that gave each repeat another node."""
    count = sum(len(of_run) for runs in side.rates.values() for of_run in runs.values())
    return count <= repeats and len(side.rates) in (1, count)


def _no_luck(side: FleetRate, known: Estimate) -> Estimate:
    """Return the estimate of a side, with at least the variance that its repeats imply.

    Hosts that agree better do so by chance: their spread comes from few hosts, that of the repeats from all.

    Source: variance components are not negative; Searle, Casella and McCulloch 1992, chapter 3.
    """
    values = [[value for of_run in runs.values() for value in of_run] for runs in side.rates.values()]
    if not side.of_fleet or any(len(of_host) < 2 for of_host in values):
        return known
    of_repeats = statistics.fmean(statistics.variance(of_host) / len(of_host) for of_host in values) / len(values)
    return replace(known, causes=((max(known.variance, of_repeats), known.degrees_of_freedom),))

"""Compares two sides case by case: ratio, interval, and differences in software.

A side is a fleet, or a fleet at another time (a baseline). `results.table.comparable` decides what may be compared.
With several hosts, intervals include the spread between hosts and describe fleets; with one host they include the
spread between its repeats and describe the machine. Value and interval come from the same hosts. If a fleet is compared
with itself (a baseline, other software), each common host is compared with itself. Scaling efficiency is a comparison
of a fleet with itself on one GPU.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from results.compare.decide import THRESHOLD
from results.stats import (
    Estimate,
    Interval,
    divided,
    estimate,
    estimate_of_runs,
    exponential,
    ratio_of_estimates,
    sum_of_estimates,
)
from results.table.columns import SOFTWARE_COLUMNS, Software
from results.table.comparable import CLUSTER_COLUMNS, SharedSetting, differences, differing, grouped, match, setting_of
from results.table.fleets import FleetRate, log_means, ratio_of_rates

K = TypeVar("K")
"""A host, or a run and round of one."""


class Mark(enum.StrEnum):
    """Result of a comparison."""

    FASTER = "+"
    SLOWER = "-"
    SMALL = "≈"  # a significant difference below the threshold
    SAME = "~"
    UNKNOWN = "?"  # a side has one repeat
    FAILED = "!"  # only the second side has a number
    WORKS = "*"  # only the first side has a number
    NOT_COMPARABLE = "x"


MEANINGS = {
    Mark.FASTER: "faster",
    Mark.SLOWER: "slower",
    Mark.SMALL: "significant, but below 1 %",
    Mark.SAME: "no significant difference",
    Mark.UNKNOWN: "unknown: one repeat has no interval",
    Mark.FAILED: "failed",
    Mark.WORKS: "works, the other failed",
    Mark.NOT_COMPARABLE: "not comparable",
}


@dataclass(frozen=True)
class Comparison:
    """Ratio of the throughputs of sides `a` and `b` in one case.

    Attributes:
        a: First side, with only the compared hosts.
        b: Second side, likewise.
        value: a over b; None: one of them has no number, or they are not comparable.
        interval: 95 % interval of `value`; None with fewer than two repeats on a side.
        reason: Reason for the mark, if the ratio does not explain it.
        differs: Columns of the software identity in which the two differ.
    """

    a: FleetRate
    b: FleetRate
    value: float | None = None
    interval: Interval | None = None
    reason: str = ""
    differs: tuple[str, ...] = ()

    @property
    def mark(self) -> Mark:
        """The result; a ratio below 1 % is small even if it is significant."""
        if self.value is not None:
            return mark_of(self.interval) if self.interval else Mark.UNKNOWN
        if bool(self.a.rates) == bool(self.b.rates):
            return Mark.NOT_COMPARABLE
        return Mark.WORKS if self.a.rates else Mark.FAILED

    @property
    def paired(self) -> bool:
        """Whether each host was compared with itself."""
        return _paired(self.a, self.b)

    @property
    def lost(self) -> dict[str, str]:
        """Failed repeats of side `a`, by host, where those of side `b` had a number."""
        return {host: why for host, why in self.a.failed.items() if self.b.rates and host not in self.b.failed}

    @property
    def price_ratio(self) -> float | None:
        """Price of a's GPU over that of b's; below `value`, samples are cheaper on a. None: unknown."""
        a, b = self.a.usd_per_gpu_hour, self.b.usd_per_gpu_hour
        return a / b if a and b else None

    @property
    def per_dollar(self) -> Interval | None:
        """Samples per dollar of `a` over those of `b`; None without a ratio or prices.

        Prices are exact, so the interval is that of `value` divided by `price_ratio`; unbounded without an interval.
        """
        if self.value is None or self.price_ratio is None:
            return None
        return divided(self.interval or Interval(self.value, -math.inf, math.inf), self.price_ratio)

    @property
    def covers(self) -> str:
        """What the interval describes if it is not fleets, because a side has a single host; else empty."""
        if self.a.of_fleet and self.b.of_fleet:
            return ""
        if self.paired:
            return "the same machine"
        return "one machine on one side" if self.a.of_fleet or self.b.of_fleet else "one machine each"


def fleets_of(rates: Sequence[FleetRate]) -> list[str]:
    """Return the names of the fleets, in order of appearance."""
    return list(dict.fromkeys(rate.fleet for rate in rates))


def compare(a: Sequence[FleetRate], b: Sequence[FleetRate], *, by: Sequence[str] = ()) -> list[Comparison]:
    """Compare two sides in every case that both tried, each case once.

    Args:
        a: First side.
        b: Second side.
        by: Identity columns that must be equal within a pair; a case may have several pairs.
    """
    left, right = _by_case(a, by), _by_case(b, by)
    return [_compared(of_a, right[key]) for key, of_a in left.items() if key in right]


def _by_case(rates: Sequence[FleetRate], by: Sequence[str]) -> dict[object, list[FleetRate]]:
    """Group rates by case and the columns `by`; failures only if the group has no number."""
    groups = grouped(((rate.case, rate.software.only(by)), rate) for rate in rates)
    return {key: [rate for rate in group if rate.rates] or group[:1] for key, group in groups.items()}


def unmatched(a: Sequence[FleetRate], b: Sequence[FleetRate], by: Sequence[str] = ()) -> list[FleetRate]:
    """Return the rates of `a` without a counterpart in `b`, of the same case and columns `by`."""
    tried = _by_case(b, by)
    return [rate for rate in a if (rate.case, rate.software.only(by)) not in tried]


def regressions(comparisons: Sequence[Comparison], tolerance: float) -> list[Comparison]:
    """Return cases where repeats of side `a` alone fail, or it is significantly slower and by more than `tolerance`.

    Args:
        comparisons: With the new side as `a`.
        tolerance: Accepted relative loss, e.g. 0.05.
    """
    return [
        item
        for item in comparisons
        if item.lost or item.mark is Mark.FAILED or (item.mark is Mark.SLOWER and (item.value or 0.0) < 1 - tolerance)
    ]


def geometric_mean(comparisons: Sequence[Comparison]) -> Interval | None:
    """Return the geometric mean of the ratios with its interval; None: no ratio has an interval.

    Cases measured on the same hosts are correlated; so are cases of one host measured in the same run or round.
    Therefore logarithms are first averaged over the cases within each host, run or round, with missing cases imputed. A
    single case keeps its own interval.

    Source: Fleming and Wallace, How not to lie with statistics, 1986; interval by the delta method.
    """
    usable = [item for item in comparisons if item.interval is not None]
    if len(usable) < 2:
        return usable[0].interval if usable else None
    if all(item.paired for item in usable):
        levels = levels_of([log_ratios(item.a, item.b) for item in usable])
        if levels is not None:
            return exponential(estimate([*levels.values()]))
    left = _mean_logarithm([item.a for item in usable])
    right = _mean_logarithm([item.b for item in usable])
    if left is None or right is None:
        return None
    alike = usable[0].a.repeated == usable[0].b.repeated
    return exponential(sum_of_estimates([left, right], [1.0, -1.0], alike=alike))


def compare_pair(a: FleetRate, b: FleetRate) -> Comparison:
    """Compare two comparable rates; see `results.table.comparable`.

    If a fleet is compared with itself, only hosts of both sides count: each is its own best baseline. If both sides
    have the same hosts, the comparison is paired: a host that is slow on both days cancels.

    Args:
        a: First side, with a number.
        b: Second side, with a number.
    """
    shared = [host for host in a.rates if host in b.rates]
    if a.fleet == b.fleet and shared and _same_machines(a, b):
        a, b = (side.only(shared, "not on both sides") for side in (a, b))
    differs = match(a, b).differs
    if a.of_fleet and _paired(a, b):
        interval: Interval | None = exponential(estimate([*log_ratios(a, b).values()]))
    else:
        interval = ratio_of_rates(a, b)
    if interval is not None:
        return Comparison(a, b, interval.value, interval, differs=differs)
    assert a.mean is not None and b.mean is not None, "callers check `rates` first"
    reason = "fewer than 2 repeats on a side: no interval"
    return Comparison(a, b, a.mean / b.mean, reason=reason, differs=differs)


def _compared(left: Sequence[FleetRate], right: Sequence[FleetRate]) -> Comparison:
    """Compare both sides in one case; not comparable if a side has several software identities."""
    a, b = left[0], right[0]
    several = dict.fromkeys(name for side in (left, right) for name in differing(side, SOFTWARE_COLUMNS))
    if several:
        values = dict.fromkeys(filter(None, (differences(side, [*several]) for side in (left, right))))
        reason = f"measured with several {', '.join(values)}: split with --by {','.join(several)}"
        a, b = (replace(side, rates={}, per_joule={}, failures={}) for side in (a, b))
        return Comparison(a, b, reason=reason)
    failures = [", ".join(dict.fromkeys(side.failures.values())) for side in (a, b) if not side.rates]
    if failures:
        return Comparison(a, b, reason=failures[0] if len(failures) == 1 else f"both failed: {' / '.join(failures)}")
    found = match(a, b)
    return Comparison(a, b, reason=found.reason, differs=found.differs) if found.reason else compare_pair(a, b)


def mark_of(ratio: Interval) -> Mark:
    """Mark a ratio as faster or slower if it is significant and exceeds the threshold."""
    if ratio.contains(1.0):
        return Mark.SAME
    if abs(ratio.value - 1) < THRESHOLD:
        return Mark.SMALL
    return Mark.FASTER if ratio.value > 1 else Mark.SLOWER


def _same_machines(a: FleetRate, b: FleetRate) -> bool:
    """Return whether hosts with equal names are the same machine; other fleets, or other GPUs, may reuse names."""
    own = [(side.split_from or side.fleet, side.software.gpu, side.software.cpu) for side in (a, b)]
    return own[0] == own[1]


def log_ratios(a: FleetRate, b: FleetRate) -> dict[str, float]:
    """Return the logarithm of each host's ratio in a paired comparison."""
    right = b.host_means
    return {host: math.log(mean / right[host]) for host, mean in a.host_means.items()}


def _paired(a: FleetRate, b: FleetRate) -> bool:
    return bool(a.rates) and a.rates.keys() == b.rates.keys() and _same_machines(a, b)


def levels_of(by_case: Sequence[Mapping[K, float]]) -> dict[K, float] | None:
    """Return the mean over cases of each host, run or round, with missing values imputed.

    The spread of the means is then that between hosts, even if they measured different cases.

    Args:
        by_case: A value, such as the logarithm of throughput, by host, run or round; at least one for each case.

    Returns:
        None: there is only one, or they cannot be separated from cases, because some share no case with the others,
        directly or through a third one.

    Source: Yates, The analysis of replicated experiments when the field results are incomplete, 1933: fitted values of
        the least squares of host + case replace missing ones.
    """
    import numpy as np

    names = list(dict.fromkeys(name for values in by_case for name in values))
    if len(names) < 2:
        return None
    cells = np.array([[values.get(name, math.nan) for values in by_case] for name in names])
    hosts, cases = np.nonzero(~np.isnan(cells))
    if len(hosts) < cells.size:
        design = np.hstack([np.eye(len(names))[hosts], np.eye(len(by_case))[cases]])
        effects, _, rank, _ = np.linalg.lstsq(design, cells[hosts, cases], rcond=None)
        if rank < sum(cells.shape) - 1:
            return None
        cells = np.where(np.isnan(cells), np.add.outer(effects[: len(names)], effects[len(names) :]), cells)
    return dict(zip(names, map(float, cells.mean(axis=1)), strict=True))


def _mean_logarithm(rates: Sequence[FleetRate]) -> Estimate | None:
    """Estimate the mean over cases of the logarithm of throughput, from its hosts, or the runs and rounds of one.

    Returns:
        None: several hosts share too few cases to separate hosts from cases.
    """
    if len({host for rate in rates for host in rate.rates}) > 1:
        levels = levels_of([log_means(rate) for rate in rates])
        return estimate([*levels.values()]) if levels else None
    for across in (False, True):
        if rounds := levels_of([_by_round(rate, across=across) for rate in rates]):
            runs = grouped((run, level) for (run, _), level in rounds.items())
            return estimate_of_runs([*runs.values()])
    return None


def _by_round(rate: FleetRate, *, across: bool) -> dict[tuple[str, float], float]:
    """Return the logarithm of one host's throughput by run and round, to first order around the mean of all runs.

    Args:
        rate: Of one host.
        across: Whether rounds of several runs with the same number are one, for runs that share no case.
    """
    ((host, runs),) = rate.rates.items()
    mean = rate.host_means[host]
    values = grouped(
        (("" if across else run, number), value)
        for run, of_run in runs.items()
        for number, value in zip(rate.rounds[host][run], of_run, strict=True)
    )
    return {key: math.log(mean) + statistics.fmean(of_round) / mean - 1 for key, of_round in values.items()}


CEILING = 1.05
"""Higher efficiency is a measurement error, usually of the one-GPU baseline."""


def efficiencies(rates: Sequence[FleetRate]) -> list[Comparison]:
    """Return the scaling efficiency of each case with several GPUs and a baseline.

    Side `b` is the baseline: the same fleet's case with one GPU and all else equal: batch per GPU, XLA, software, ….
    The value is the ratio over the number of GPUs, 1 if scaling is perfect. It has no interval with fewer than two
    repeats on a side, or if a machine's baseline is another machine.
    """
    baselines = {_but_count(rate): rate for rate in rates if rate.case.replicas == 1 and rate.rates}
    several = [rate for rate in rates if rate.case.replicas > 1 and rate.rates]
    return [_efficiency(rate, baselines[key]) for rate in several if (key := _but_count(rate)) in baselines]


def _but_count(rate: FleetRate) -> tuple[str, SharedSetting, Software]:
    """Return what a rate shares with its baseline: everything but the number of devices."""
    return rate.fleet, setting_of(rate, across=CLUSTER_COLUMNS), rate.software


def _efficiency(rate: FleetRate, baseline: FleetRate) -> Comparison:
    """Compare each host with itself, and a multi-host job `a+b` with its hosts alone, which cancels host differences.

    If the baseline is of other hosts of the fleet, the interval needs several hosts on both sides.
    """
    count, is_job = rate.case.replicas, rate.case.num_hosts > 1
    members = {
        host: [name for name in (host.split("+") if is_job else [host]) if name in baseline.rates]
        for host in rate.rates
    }
    shared = [host for host, names in members.items() if names]
    if not shared:
        ratio = ratio_of_rates(rate, baseline) if rate.of_fleet and baseline.of_fleet else None
    else:
        rate = rate.only(shared, "no one-GPU case")
        baseline = baseline.only({name for host in shared for name in members[host]}, "no such case")
        if rate.of_fleet:
            alone = {host: statistics.fmean(baseline.host_means[name] for name in members[host]) for host in shared}
            ratio = exponential(estimate([math.log(mean / alone[host]) for host, mean in rate.host_means.items()]))
        else:
            known, these = rate.estimate, _of_these_machines(baseline)
            alike = rate.repeated == baseline.repeated
            ratio = ratio_of_estimates(known, these, alike=alike) if known and these else None
    assert rate.mean is not None and baseline.mean is not None, "callers check `rates` first"
    value = ratio.value if ratio else rate.mean / baseline.mean
    return Comparison(rate, baseline, value / count, divided(ratio, count) if ratio else None)


def _of_these_machines(rate: FleetRate) -> Estimate | None:
    """Estimate the mean of these particular hosts, with only their repeats as a source of uncertainty."""
    parts = [rate.only([host], "").estimate for host in rate.rates]
    known = [part for part in parts if part is not None]
    return sum_of_estimates(known, [1 / len(known)] * len(known)) if len(known) == len(parts) else None

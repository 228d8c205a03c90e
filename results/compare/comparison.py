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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from results.compare.decide import THRESHOLD
from results.stats import Estimate, Interval, Nested, difference_of, estimate, estimate_of_runs, levels_of
from results.table.columns import SOFTWARE_COLUMNS, Software
from results.table.comparable import CLUSTER_COLUMNS, SharedSetting, differences, differing, grouped, match, setting_of
from results.table.fleets import FleetRate


class Mark(enum.StrEnum):
    """Result of a comparison."""

    FASTER = "faster"
    SLOWER = "slower"
    SMALL = "significant, but below 1 %"
    SAME = "no significant difference"
    UNKNOWN = "unknown: one repeat has no interval"
    FAILED = "failed"
    WORKS = "works, the other failed"
    NOT_COMPARABLE = "not comparable"


SIGNS = dict(zip(Mark, "+-≈~?!*x", strict=True))
"""Signs of the results in tables."""


@dataclass(frozen=True)
class Comparison:
    """Ratio of the throughputs of sides `a` and `b` in one case.

    Attributes:
        a: First side, with only the compared hosts.
        b: Second side, likewise.
        ratio: a over b, with its 95 % interval, unbounded with fewer than two repeats on a side; None: one of them has
            no number, or they are not comparable.
        reason: Reason for the mark, if the ratio does not explain it.
        differs: Columns of the software identity in which the two differ.
    """

    a: FleetRate
    b: FleetRate
    ratio: Interval | None = None
    reason: str = ""
    differs: tuple[str, ...] = ()

    @property
    def mark(self) -> Mark:
        """The result; a ratio below 1 % is small even if it is significant."""
        if self.ratio is not None:
            return mark_of(self.ratio)
        if bool(self.a.rates) == bool(self.b.rates):
            return Mark.NOT_COMPARABLE
        return Mark.WORKS if self.a.rates else Mark.FAILED

    @property
    def paired(self) -> bool:
        """Whether each host is compared with itself."""
        return bool(self.a.rates) and self.a.rates.keys() == self.b.rates.keys() and _same_machines(self.a, self.b)

    @property
    def lost(self) -> dict[str, str]:
        """Failed repeats of side `a`, by host, where those of side `b` had a number."""
        return {host: why for host, why in self.a.failed.items() if self.b.rates and host not in self.b.failed}

    @property
    def price_ratio(self) -> float | None:
        """Price of a's GPU over that of b's; below `ratio`, samples are cheaper on a. None: unknown."""
        a, b = self.a.usd_per_gpu_hour, self.b.usd_per_gpu_hour
        return a / b if a and b else None

    @property
    def per_dollar(self) -> Interval | None:
        """Samples per dollar of `a` over those of `b`; None without a ratio or prices.

        Prices are exact, so it is `ratio` divided by `price_ratio`.
        """
        return self.ratio.divided(self.price_ratio) if self.ratio and self.price_ratio else None

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
    groups = grouped(((rate.case, *map(rate.named, by)), rate) for rate in rates)
    return {key: [rate for rate in group if rate.rates] or group[:1] for key, group in groups.items()}


def unmatched(a: Sequence[FleetRate], b: Sequence[FleetRate], by: Sequence[str] = ()) -> list[FleetRate]:
    """Return the rates of `a` without a counterpart in `b`, of the same case and columns `by`."""
    tried = _by_case(b, by)
    return [rate for rate in a if (rate.case, *map(rate.named, by)) not in tried]


def regressions(comparisons: Sequence[Comparison], tolerance: float) -> list[Comparison]:
    """Return cases where repeats of side `a` alone fail, or it is significantly slower and by more than `tolerance`.

    Args:
        comparisons: With the new side as `a`.
        tolerance: Accepted relative loss, e.g. 0.05.
    """
    return [
        item
        for item in comparisons
        if item.lost
        or item.mark is Mark.FAILED
        or (item.mark is Mark.SLOWER and item.ratio and item.ratio.value < 1 - tolerance)
    ]


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
    found = Comparison(a, b, differs=match(a, b)[1])
    if ratio := mean_ratio([found]):
        return replace(found, ratio=ratio)
    assert a.mean is not None and b.mean is not None, "callers check `rates` first"
    return replace(found, ratio=Interval(a.mean / b.mean), reason="fewer than 2 repeats on a side: no interval")


def mean_ratio(pairs: Sequence[Comparison]) -> Interval | None:
    """Return the geometric mean of the ratios of pairs, of a single one its ratio, with its interval.

    Cases measured on the same hosts are correlated; so are cases of one host measured in the same run or round.
    Therefore logarithms are first averaged over the cases within each host, run or round, with missing cases imputed.
    Pairs of the same hosts are compared host by host.

    Args:
        pairs: Comparable sides with a number.

    Returns:
        None: a side has fewer than two values, or its hosts share too few cases.

    Source: Fleming and Wallace, How not to lie with statistics, 1986; interval by the delta method.
    """
    if all(item.paired for item in pairs):
        hosts = levels_of([log_ratios(item.a, item.b) for item in pairs])
        if hosts is not None:
            return estimate([*hosts.values()], "hosts").exponential()
    a, b = (_mean_logarithm(side) for side in zip(*((item.a, item.b) for item in pairs), strict=True))
    return difference_of(a, b).exponential() if a and b else None


def _mean_logarithm(rates: Sequence[FleetRate]) -> Estimate | None:
    """Estimate the mean over cases of the logarithm of throughput, from its hosts, or the runs and rounds of one."""
    if len(rates) == 1:
        return rates[0].estimate and rates[0].estimate.logarithm
    if len({host for rate in rates for host in rate.rates}) > 1:
        hosts = levels_of([rate.log_means for rate in rates])
        return estimate([*hosts.values()], "hosts") if hosts else None
    levels = levels_of([_by_round(rate) for rate in rates]) or {}
    runs = grouped((run, level) for (run, _), level in levels.items())
    return estimate_of_runs([*runs.values()]) if runs else None


def _by_round(rate: FleetRate) -> dict[tuple[str, float], float]:
    """Return the logarithm of one host's throughput by run and round, to first order around the mean of all runs."""
    ((host, runs),) = rate.rates.items()
    mean = rate.host_means[host]
    return {
        (run, number): math.log(mean) + value / mean - 1
        for run, of_run in runs.items()
        for number, value in zip(rate.rounds[host][run], of_run, strict=True)
    }


def _compared(left: Sequence[FleetRate], right: Sequence[FleetRate]) -> Comparison:
    """Compare both sides in one case; not comparable if a side has several software identities."""
    a, b = left[0], right[0]
    softwares = [[rate.software for rate in side] for side in (left, right)]
    several = dict.fromkeys(name for side in softwares for name in differing(side, SOFTWARE_COLUMNS))
    if several:
        values = dict.fromkeys(filter(None, (differences(side, several) for side in softwares)))
        reason = f"measured with several {', '.join(values)}: split with --by {','.join(several)}"
        a, b = (replace(side, rates={}, per_joule={}, failures={}) for side in (a, b))
        return Comparison(a, b, reason=reason)
    failures = [", ".join(dict.fromkeys(side.failures.values())) for side in (a, b) if not side.rates]
    if failures:
        return Comparison(a, b, reason=failures[0] if len(failures) == 1 else f"both failed: {' / '.join(failures)}")
    reason, differs = match(a, b)
    return Comparison(a, b, reason=reason, differs=differs) if reason else compare_pair(a, b)


def mark_of(ratio: Interval) -> Mark:
    """Mark a ratio as faster or slower if it is significant and exceeds the threshold."""
    if not ratio.known:
        return Mark.UNKNOWN
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
    right = b.log_means
    return {host: logarithm - right[host] for host, logarithm in a.log_means.items()}


CEILING = 1.05
"""Higher efficiency is a measurement error, usually of the one-GPU baseline."""


def efficiencies(rates: Sequence[FleetRate]) -> list[Comparison]:
    """Return the scaling efficiency of each case with several GPUs and a baseline.

    Side `b` is the baseline: the same fleet's case with one GPU and all else equal: batch per GPU, XLA, software, ….
    The ratio is that over the number of GPUs, 1 if scaling is perfect. It is unbounded with fewer than two repeats on
    a side, or if a machine's baseline is another machine.
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
    alone = _alone(baseline, rate.rates) if rate.case.num_hosts > 1 else {}
    found = compare_pair(rate, replace(baseline, rates=alone) if alone else baseline)
    assert found.ratio is not None, "both sides have a number"
    ratio = found.ratio if found.paired or (found.a.of_fleet and found.b.of_fleet) else Interval(found.ratio.value)
    return replace(found, ratio=ratio.divided(rate.case.replicas))


def _alone(baseline: FleetRate, jobs: Iterable[str]) -> Nested:
    """Return the mean of the hosts of each job that were measured alone, repeat by repeat, by job and run."""
    found: Nested = {}
    for job in jobs:
        hosts = [baseline.rates[host] for host in job.split("+") if host in baseline.rates]
        for run in hosts[0] if hosts else ():
            repeats = zip(*(of_host.get(run, ()) for of_host in hosts), strict=False)
            if means := [statistics.fmean(of_repeat) for of_repeat in repeats]:
                found.setdefault(job, {})[run] = means
    return found

"""Computes scaling efficiency: throughput of N GPUs over N times that of one GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from results.stats import Estimate, Interval, divided, estimate, exponential, ratio_of_estimates, sum_of_estimates
from results.table.columns import Software
from results.table.comparable import CLUSTER_COLUMNS, SharedSetting, setting_of
from results.table.fleets import FleetRate

CEILING = 1.05
"""Higher efficiency is a measurement error, usually of the one-GPU baseline."""


@dataclass(frozen=True)
class Efficiency:
    """Scaling efficiency of one fleet in one case.

    Attributes:
        rate: Throughput of N GPUs, with only the compared hosts.
        baseline: Throughput of one GPU, likewise.
        count: Number of replicas, over all hosts of a multi-host job.
        value: Efficiency; 1 is perfect.
        interval: 95 % interval of `value`; None with fewer than two repeats on a side, or if a machine's baseline is
            another machine.
    """

    rate: FleetRate
    baseline: FleetRate
    count: int
    value: float
    interval: Interval | None

    @property
    def suspect(self) -> bool:
        """Whether the value is impossible."""
        return self.value > CEILING


def efficiencies(rates: Sequence[FleetRate]) -> list[Efficiency]:
    """Return the scaling efficiency of each case with several GPUs and a baseline.

    The baseline is the same fleet's case with one GPU and all else equal: batch per GPU, XLA, software, ….
    """
    baselines = {_but_count(rate): rate for rate in rates if rate.case.replicas == 1 and rate.rates}
    found = []
    for rate in rates:
        count = rate.case.replicas
        baseline = baselines.get(_but_count(rate)) if rate.rates and count > 1 else None
        if baseline is not None:
            found.append(_efficiency(rate, baseline, count))
    return found


def _but_count(rate: FleetRate) -> tuple[str, SharedSetting, Software]:
    """Return what a rate shares with its baseline: everything but the number of devices."""
    return rate.fleet, setting_of(rate, across=CLUSTER_COLUMNS), rate.software


def _efficiency(rate: FleetRate, baseline: FleetRate, count: int) -> Efficiency:
    """Compare each host with itself, and a multi-host job with its hosts alone, which cancels host differences."""
    alone = {host: [name for name in _members(rate, host) if name in baseline.rates] for host in rate.rates}
    shared = [host for host, names in alone.items() if names]
    if not shared:
        return _of_other_machines(rate, baseline, count)
    used = {name for host in shared for name in alone[host]}
    rate, baseline = rate.only(shared, "no one-GPU case"), baseline.only(used, "no such case")
    one = baseline.host_means
    of_hosts = {
        host: mean / count / statistics.fmean(one[name] for name in alone[host])
        for host, mean in rate.host_means.items()
    }
    if len(shared) > 1:
        interval = exponential(estimate([math.log(value) for value in of_hosts.values()]))
        return Efficiency(rate, baseline, count, interval.value, interval)
    (value,) = of_hosts.values()
    known = rate.estimate, _of_these_machines(baseline)
    if known[0] is None or known[1] is None:
        return Efficiency(rate, baseline, count, value, None)
    ratio = divided(ratio_of_estimates(known[0], known[1], alike=rate.repeated == baseline.repeated), count)
    return Efficiency(rate, baseline, count, ratio.value, ratio)


def _members(rate: FleetRate, host: str) -> list[str]:
    """Return the machines behind a number: each host of a multi-host job `a+b`."""
    return [host] if rate.case.num_hosts == 1 else host.split("+")


def _of_these_machines(rate: FleetRate) -> Estimate | None:
    """Estimate the mean of these particular hosts, with only their repeats as a source of uncertainty."""
    parts = [rate.only([host], "").estimate for host in rate.rates]
    known = [part for part in parts if part is not None]
    return sum_of_estimates(known, [1 / len(known)] * len(known)) if len(known) == len(parts) else None


def _of_other_machines(rate: FleetRate, baseline: FleetRate, count: int) -> Efficiency:
    """Compare hosts with a baseline of other hosts of their fleet; the interval needs several hosts on both sides."""
    assert rate.mean is not None and baseline.mean is not None, "callers check `rates` first"
    known = rate.estimate, baseline.estimate
    if known[0] is None or known[1] is None or not (rate.of_fleet and baseline.of_fleet):
        return Efficiency(rate, baseline, count, rate.mean / baseline.mean / count, None)
    ratio = divided(ratio_of_estimates(known[0], known[1], alike=True), count)
    return Efficiency(rate, baseline, count, ratio.value, ratio)

"""Computes scaling efficiency: throughput of N GPUs over N times that of one GPU."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from results.stats import Estimate, Interval, divided, estimate, exponential, ratio_of_estimates, sum_of_estimates
from results.table.columns import Software
from results.table.comparable import CLUSTER_COLUMNS, SharedSetting, setting_of
from results.table.fleets import FleetRate, ratio_of_rates

CEILING = 1.05
"""Higher efficiency is a measurement error, usually of the one-GPU baseline."""


@dataclass(frozen=True)
class Efficiency:
    """Scaling efficiency of one fleet in one case.

    Attributes:
        rate: Throughput of N GPUs, with only the compared hosts.
        baseline: Throughput of one GPU, likewise.
        value: Efficiency; 1 is perfect.
        interval: 95 % interval of `value`; None with fewer than two repeats on a side, or if a machine's baseline is
            another machine.
    """

    rate: FleetRate
    baseline: FleetRate
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
    several = [rate for rate in rates if rate.case.replicas > 1 and rate.rates]
    return [_efficiency(rate, baselines[key]) for rate in several if (key := _but_count(rate)) in baselines]


def _but_count(rate: FleetRate) -> tuple[str, SharedSetting, Software]:
    """Return what a rate shares with its baseline: everything but the number of devices."""
    return rate.fleet, setting_of(rate, across=CLUSTER_COLUMNS), rate.software


def _efficiency(rate: FleetRate, baseline: FleetRate) -> Efficiency:
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
    return Efficiency(rate, baseline, value / count, divided(ratio, count) if ratio else None)


def _of_these_machines(rate: FleetRate) -> Estimate | None:
    """Estimate the mean of these particular hosts, with only their repeats as a source of uncertainty."""
    parts = [rate.only([host], "").estimate for host in rate.rates]
    known = [part for part in parts if part is not None]
    return sum_of_estimates(known, [1 / len(known)] * len(known)) if len(known) == len(parts) else None

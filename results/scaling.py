"""Scaling efficiency: how much of N times one GPU's throughput N GPUs of one or several hosts reach."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from results.clusters import CLUSTER_COLUMNS, replicas
from results.columns import CASE_COLUMNS
from results.fleets import FleetRate
from results.stats import Estimate, Interval, estimate, ratio_of_estimates

CEILING = 1.05
"""Efficiency above this is a fault of the measurement, most often of the one-GPU baseline."""


@dataclass(frozen=True)
class Efficiency:
    """Throughput of N GPUs over N times that of one, of one fleet and case.

    Attributes:
        count: Replicas, of all hosts that train together.
        value: 1 is perfect.
        interval: 95 % interval; None with fewer than two repeats on a side.
    """

    rate: FleetRate
    baseline: FleetRate
    count: int
    value: float
    interval: Interval | None

    @property
    def suspect(self) -> bool:
        """Whether the value is more than hardware can do."""
        return self.value > CEILING


def efficiencies(rates: Sequence[FleetRate]) -> list[Efficiency]:
    """Return the scaling efficiency of every case of more than one GPU that has a baseline.

    The baseline is the same fleet's case of one GPU of one host with everything else equal: same batch per GPU, same
    XLA, same software.
    """
    baselines = {_but_count(rate): rate for rate in rates if replicas(rate) == 1 and rate.rates}
    found = []
    for rate in rates:
        count = replicas(rate)
        baseline = baselines.get(_but_count(rate))
        if count > 1 and rate.rates and baseline is not None:
            found.append(_efficiency(rate, baseline, count))
    return found


def _but_count(rate: FleetRate) -> tuple[Hashable, ...]:
    case = (value for name, value in zip(CASE_COLUMNS, rate.case, strict=True) if name not in CLUSTER_COLUMNS)
    return (rate.fleet, *case, rate.identity)


def _efficiency(rate: FleetRate, baseline: FleetRate, count: int) -> Efficiency:
    assert rate.mean is not None and baseline.mean is not None, "callers look at `rates` first"
    value = rate.mean / baseline.mean / count
    # Each host is its own baseline: what it has of its own is in both numbers and cancels.
    shared = [host for host in rate.host_means if host in baseline.host_means]
    if len(shared) > 1:
        of_hosts = [rate.host_means[host] / baseline.host_means[host] / count for host in shared]
        interval = estimate(of_hosts).interval()
        return Efficiency(rate, baseline, count, value, Interval(value, interval.low, interval.high))
    many, one = rate.estimate, baseline.estimate
    if many is None or one is None:
        return Efficiency(rate, baseline, count, value, None)
    of_total = ratio_of_estimates(many, Estimate(one.mean * count, one.variance * count**2, one.degrees_of_freedom))
    return Efficiency(rate, baseline, count, value, of_total)

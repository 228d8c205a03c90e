"""Scaling efficiency: how much of N times one GPU's throughput N GPUs of one or several hosts reach."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from results.clusters import CLUSTER_COLUMNS, replicas
from results.comparable import setting_of
from results.fleets import FleetRate
from results.stats import Interval, estimate, ratio_of_estimates

CEILING = 1.05
"""Efficiency above this is a fault of the measurement, most often of the one-GPU baseline."""


@dataclass(frozen=True)
class Efficiency:
    """Throughput of N GPUs over N times that of one, of one fleet and case.

    Attributes:
        rate: N GPUs; the hosts that were compared.
        baseline: One GPU, likewise.
        count: Replicas, of all hosts that train together.
        value: 1 is perfect.
        interval: 95 % interval of `value`; None with fewer than two repeats on a side, and where a machine's baseline
            is another machine.
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
        baseline = baselines.get(_but_count(rate)) if rate.rates and count > 1 else None
        if baseline is not None:
            found.append(_efficiency(rate, baseline, count))
    return found


def _but_count(rate: FleetRate) -> tuple[Hashable, ...]:
    return (rate.fleet, setting_of(rate, across=CLUSTER_COLUMNS), rate.identity)


def _efficiency(rate: FleetRate, baseline: FleetRate, count: int) -> Efficiency:
    """Compare each host with itself: what it has of its own is in both numbers and cancels."""
    shared = [host for host in rate.rates if host in baseline.rates]
    if shared:
        rate, baseline = rate.only(shared, "no one-GPU case"), baseline.only(shared, "no such case")
    many, one = rate.host_means, baseline.host_means
    if len(shared) > 1:
        of_hosts = estimate([many[host] / one[host] / count for host in shared]).interval()
        return Efficiency(rate, baseline, count, of_hosts.value, of_hosts)
    assert rate.mean is not None and baseline.mean is not None, "callers look at `rates` first"
    value = rate.mean / baseline.mean / count
    known = rate.estimate, baseline.estimate
    of_one_kind = bool(shared) or (rate.of_fleet and baseline.of_fleet)
    if known[0] is None or known[1] is None or not of_one_kind:
        return Efficiency(rate, baseline, count, value, None)
    ratio = ratio_of_estimates(known[0], known[1], alike=rate.repeated == baseline.repeated)
    return Efficiency(
        rate, baseline, count, ratio.value / count, Interval(ratio.value / count, ratio.low / count, ratio.high / count)
    )

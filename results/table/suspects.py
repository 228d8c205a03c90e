"""Finds impossible records, by their own hardware and by other records of the fleet.

Records come from hosts, which may be broken or hostile. Suspect records are in no mean; their row has the reason.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable

from results.reference.gpus import CLOCK_MARGIN, PEAKS, specifications, specified_gpus
from results.reference.networks import work_of
from results.schema import Device, Measurement, Precision, Record
from results.schema.words import SUSPECT

FEWEST_DISTINCT_STEPS = 3
"""Two records with equal step times are copies if at least this many of the times are distinct."""

FLEET_FACTOR = 10.0
"""A host this many times as fast as the median of its fleet's other hosts (at least two) is suspect."""

WINOGRAD = 2.25
"""Reduction of multiplications by Winograd's algorithm in a 3×3 convolution: the factor by which a device may exceed
its peak.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016, F(2×2, 3×3).
"""

CPUS, CPU_CLOCK_HZ = 512, 6e9
"""More than any host has, because the number of CPUs in a record is as untrusted as its throughput."""

CPU_FLOP_PER_CYCLE = {Precision.FP32: 64, Precision.TF32: 64, Precision.FP16: 2048, Precision.BF16: 2048}
"""Per core: two AVX-512 units, or AMX tiles. Source: Intel 64 and IA-32 Optimization Reference Manual."""


class Suspects:
    """Finds suspect repeats incrementally.

    Attributes:
        why: Reasons, by index of the repeat in the order of `add`.
    """

    def __init__(self) -> None:
        self.why: dict[int, str] = {}
        self._count = 0
        self._first: dict[int, int] = {}  # hash of the step times → index of the first repeat with them

    def add(self, record: Record, measured: Measurement, most: float) -> None:
        """Add a repeat with a throughput, whose hardware allows at most `most` samples per second."""
        index, self._count = self._count, self._count + 1
        if record.warnings and (warned := [warning.message for warning in record.warnings if warning.code == SUSPECT]):
            self.why[index] = warned[0]
        if measured.samples_per_second > most:
            rate = f"{measured.samples_per_second:.3g} {measured.unit}/s"
            self.why.setdefault(index, f"{rate}, but its hardware can compute at most {most:.3g}")
        steps = tuple(measured.step_seconds)
        first = self._first.setdefault(hash(steps), index)
        if first != index and len(set(steps)) >= FEWEST_DISTINCT_STEPS:
            for copy in (first, index):
                self.why.setdefault(copy, "another repeat has exactly the same step times")


def highest_rate(record: Record) -> float:
    """Return the samples per second that the peak arithmetic of a record's hardware allows; infinite if unknown."""
    case, measured, environment = record.case, record.measurement, record.environment
    work = work_of(case)
    if work is None or not work[0] or measured is None or environment is None:
        return math.inf
    if case.device is Device.CPU:
        limit = CPUS * CPU_CLOCK_HZ * CPU_FLOP_PER_CYCLE[case.precision]
    else:
        named = [gpu for device in environment.gpus for gpu in specified_gpus(device.name)]
        peaks = [specifications()[gpu].get(PEAKS[case.precision][0], 0.0) for gpu in named or specifications()]
        limit = case.num_gpus * max(peaks) * 1e12 or math.inf  # 0: the reference lacks this arithmetic
    steps_per_second = limit * CLOCK_MARGIN * WINOGRAD / (work[0] * case.num_gpus)
    return steps_per_second * measured.samples / measured.num_steps


def above_fleet(repeats: Iterable[tuple[int, str, float]]) -> dict[int, str]:
    """Find repeats of one case that are `FLEET_FACTOR` times as fast as those of the fleet's other hosts.

    Args:
        repeats: Index, host and rate of each.

    Returns:
        Reasons, by index.
    """
    by_host, found = defaultdict[str, list[tuple[int, float]]](list), dict[int, str]()
    for index, host, rate in repeats:
        by_host[host].append((index, rate))
    rates = {host: statistics.median(rate for _, rate in own) for host, own in by_host.items()}
    if len(rates) < 3 or max(rates.values()) <= FLEET_FACTOR * min(rates.values()):
        return found
    for host, own in by_host.items():
        others = statistics.median(rate for other, rate in rates.items() if other != host)
        if rates[host] > FLEET_FACTOR * others:
            times = rates[host] / others
            found |= {index: f"{times:.3g} × the median of the fleet's other hosts" for index, _ in own}
    return found

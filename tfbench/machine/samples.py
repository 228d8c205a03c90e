"""Samples of the GPUs taken while timing, and their sums, means and shares; pure arithmetic."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

POWER_REASONS = 0x4
"""NVML's clock event bits: software power cap."""

THERMAL_REASONS = 0x20 | 0x40
"""Software and hardware thermal slowdown."""

HARDWARE_SLOWDOWN = 0x8
"""Also set by heat. Source: nvml.h, nvmlClocksEventReasonHwSlowdown: "temperature being too high"."""

HARDWARE_REASONS = HARDWARE_SLOWDOWN | 0x80
"""Hardware slowdown without a thermal one, and hardware power brake."""

LEAST_COVERAGE = 0.9
"""Power is integrated only if samples span at least this share of the interval: a driver can fail meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One GPU at one moment; None: not supported.

    Attributes:
        at: `time.perf_counter` in seconds.
        reasons: NVML's clock event bits.
    """

    at: float
    power_watts: float | None = None
    temperature_celsius: float | None = None
    sm_clock_mhz: float | None = None
    reasons: int | None = None
    memory_used_bytes: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None


Samples = Sequence[Sequence[Sample]]
"""For each GPU its samples, in order of time."""


def integrated_joules(samples: Samples, seconds: float) -> float | None:
    """Integrate power over an interval of `seconds` by the trapezoidal rule, all GPUs together.

    The mean over the span of the samples is extrapolated to the whole interval. None if a GPU has fewer than two
    samples or they span too little of it.
    """
    means = [_mean_power(gpu, seconds) for gpu in samples]
    return total([None if mean is None else mean * seconds for mean in means])


def mean_powers_watts(samples: Samples, joules: Sequence[float | None], seconds: float) -> list[float | None]:
    """Return each GPU's mean power over an interval: by its energy counter, or else by its samples.

    Before NVIDIA's driver 530, GPUs since Ampere report a mean over the last second, so that samples lag.
    """
    pairs = zip(samples, joules, strict=False)
    return [energy / seconds if energy else _mean_power(gpu, seconds) for gpu, energy in pairs]


def reason_share(samples: Samples, bits: int) -> float | None:
    """Return the share of samples in which one of `bits` was set, on the worst GPU."""
    shares = []
    for gpu in samples:
        known = [sample.reasons for sample in gpu if sample.reasons is not None]
        if known:
            shares.append(sum(has_reason(reasons, bits) for reasons in known) / len(known))
    return max(shares, default=None)


def has_reason(reasons: int, bits: int) -> bool:
    """Return whether one of `bits` is set; a hardware slowdown in addition to a thermal one does not count."""
    explained = HARDWARE_SLOWDOWN if reasons & THERMAL_REASONS else 0
    return bool(reasons & bits & ~explained)


def steady_temperature_celsius(samples: Samples) -> float | None:
    """Return the mean over the last third of the samples of the hottest GPU."""
    means = []
    for gpu in samples:
        known = [s.temperature_celsius for s in gpu if s.temperature_celsius is not None]
        if known:
            means.append(statistics.fmean(known[-max(1, len(known) // 3) :]))
    return max(means, default=None)


def mean(gpu: Sequence[Sample], name: str) -> float | None:
    """Return the mean of a field of one GPU's samples."""
    known = [value for sample in gpu if (value := getattr(sample, name)) is not None]
    return statistics.fmean(known) if known else None


def extreme(samples: Samples, field: str, choose: Callable[..., int]) -> int | None:
    """Return `min` or `max` of a field over all samples of all GPUs; None if no sample has it."""
    known = [getattr(s, field) for gpu in samples for s in gpu if getattr(s, field) is not None]
    return choose(known) if known else None


def _mean_power(gpu: Sequence[Sample], seconds: float) -> float | None:
    known = [(s.at, s.power_watts) for s in gpu if s.power_watts is not None]
    if len(known) < 2:
        return None
    span = known[-1][0] - known[0][0]
    if span <= 0 or span < LEAST_COVERAGE * seconds:
        return None
    pairs = itertools.pairwise(known)
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairs) / span


def total(values: Sequence[float | None]) -> float | None:
    """Add up; None if there are none or one of them does not report."""
    known = _known(values)
    return sum(known) if known and len(known) == len(values) else None


def of_all(values: Sequence[bool | None]) -> bool | None:
    """Return whether all are true; None if there are none or one of them does not report."""
    known = _known(values)
    return all(known) if known and len(known) == len(values) else None


def smallest(values: Sequence[float | None]) -> float | None:
    """Return the smallest of those that report."""
    return min(_known(values), default=None)


def largest(values: Sequence[float | None]) -> float | None:
    """Return the largest of those that report."""
    return max(_known(values), default=None)


def _known(values: Sequence[T | None]) -> list[T]:
    return [value for value in values if value is not None]


REDUCERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys(("energy_joules", "energy_integrated_joules", "power_mean_watts", "power_limit_watts"), total),
    **dict.fromkeys(("ecc_uncorrected_errors", "other_processes"), total),
    **dict.fromkeys(("sm_clock_mean_mhz", "sm_clock_max_mhz", "samples"), smallest),
    **dict.fromkeys(("pcie_generation", "pcie_width", "pcie_width_max"), smallest),
    "ecc_enabled": of_all,
}
"""By field of `Telemetry`, how the values of several GPUs, and those of several hosts, become one; else the largest."""


def reduced(values: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Reduce the values of each field."""
    return {name: REDUCERS.get(name, largest)(of) for name, of in values.items()}


def differences(before: Sequence[float | None], after: Sequence[float | None]) -> list[float | None]:
    """Return the increase of each GPU's counter; None if it was not reported both times."""
    pairs = itertools.zip_longest(before, after)
    return [None if start is None or end is None else end - start for start, end in pairs]

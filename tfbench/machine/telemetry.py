"""Observes the GPUs and the CPU while steps are timed, in a thread of its own, and sums up what was seen."""

from __future__ import annotations

import itertools
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from results.schema import Telemetry
from results.schema.health import START_CELSIUS, GPUFacts
from tfbench.machine.host import other_cpu_share_since, read_cpu_use
from tfbench.machine.nvml import HARDWARE_REASONS, POWER_REASONS, THERMAL_REASONS, GPUs, Sample, has_reason

T = TypeVar("T")
Number = TypeVar("Number", int, float)

SAMPLE_PERIOD_SECONDS = 0.1
"""The driver averages power over up to a second, so more frequent samples would add nothing."""

COOLING_POLL_SECONDS = 1.0

LEAST_COVERAGE = 0.9
"""Power is integrated only if samples span at least this share of the interval: a driver can fail meanwhile."""


def mean_watts(taken: Sequence[Sample], seconds: float) -> float | None:
    """Integrate power by the trapezoidal rule, over the span of the samples.

    None if there are fewer than two samples or they span too little of an interval of `seconds`.
    """
    reported = [(sample.at, sample.power_watts) for sample in taken if sample.power_watts is not None]
    if len(reported) < 2:
        return None
    span = reported[-1][0] - reported[0][0]
    if span <= 0 or span < LEAST_COVERAGE * seconds:
        return None
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in itertools.pairwise(reported)) / span


def reason_share(taken: Sequence[Sample], bits: int) -> float | None:
    """Return the share of samples in which one of `bits` was set."""
    reported = _reported(sample.reasons for sample in taken)
    return sum(has_reason(reasons, bits) for reasons in reported) / len(reported) if reported else None


def steady_celsius(taken: Sequence[Sample]) -> float | None:
    """Return the mean temperature over the last third of the samples."""
    reported = _reported(sample.temperature_celsius for sample in taken)
    return statistics.fmean(reported[-max(1, len(reported) // 3) :]) if reported else None


def _reported(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]


def total(values: Sequence[float | None]) -> float | None:
    """Add up; None if there are none or one of them is not reported."""
    reported = _reported(values)
    return sum(reported) if reported and len(reported) == len(values) else None


def of_all(values: Sequence[bool | None]) -> bool | None:
    """Return whether all are true; None if there are none or one of them is not reported."""
    reported = _reported(values)
    return all(reported) if reported and len(reported) == len(values) else None


def smallest(values: Iterable[Number | None]) -> Number | None:
    """Return the smallest of those that are reported."""
    return min(_reported(values), default=None)


def largest(values: Iterable[Number | None]) -> Number | None:
    """Return the largest of those that are reported."""
    return max(_reported(values), default=None)


@dataclass(frozen=True)
class ObservedGPU:
    """A GPU over an interval.

    Attributes:
        facts: Its settings, and its figures over the interval.
        samples: In order of time.
        joules: By its energy counter; None: not reported.
        seconds: Duration of the interval.
    """

    facts: GPUFacts
    samples: Sequence[Sample]
    joules: float | None
    seconds: float

    @property
    def integrated_joules(self) -> float | None:
        """Energy by sampled power."""
        watts = mean_watts(self.samples, self.seconds)
        return None if watts is None else watts * self.seconds


FIELDS: dict[str, tuple[Callable[[ObservedGPU], Any] | None, Callable[[Sequence[Any]], Any]]] = {
    "device_memory_used_peak_bytes": (lambda gpu: largest(one.memory_used_bytes for one in gpu.samples), largest),
    "energy_joules": (lambda gpu: gpu.joules, total),
    "energy_integrated_joules": (lambda gpu: gpu.integrated_joules, total),
    "power_mean_watts": (lambda gpu: gpu.facts.power_watts, total),
    "power_limit_watts": (lambda gpu: gpu.facts.power_limit_watts, total),
    "temperature_start_celsius": (lambda gpu: gpu.facts.temperature_start_celsius, largest),
    "temperature_steady_celsius": (lambda gpu: steady_celsius(gpu.samples), largest),
    "sm_clock_mean_mhz": (None, smallest),
    "sm_clock_max_mhz": (None, smallest),
    "throttle_power_share": (lambda gpu: gpu.facts.throttle_power_share, largest),
    "throttle_thermal_share": (lambda gpu: gpu.facts.throttle_thermal_share, largest),
    "throttle_hardware_share": (lambda gpu: gpu.facts.throttle_hardware_share, largest),
    "other_processes": (None, total),
    "ecc_enabled": (lambda gpu: gpu.facts.ecc, of_all),
    "ecc_uncorrected_errors": (lambda gpu: gpu.facts.ecc_uncorrected_errors, total),
    "pcie_generation": (lambda gpu: smallest(one.pcie_generation for one in gpu.samples), smallest),
    "pcie_width": (lambda gpu: smallest(one.pcie_width for one in gpu.samples), smallest),
    "pcie_width_max": (lambda gpu: gpu.facts.pcie_width_max, smallest),
    "samples": (lambda gpu: len(gpu.samples), smallest),
}
"""By field of `Telemetry`: its value of one GPU (None: read otherwise), and how the values of several GPUs, and those
of several hosts, become one. Of any other field, the largest of several hosts counts."""


def reduced(of_hosts: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Reduce each field's values of several hosts."""
    return {name: FIELDS.get(name, (None, largest))[1](values) for name, values in of_hosts.items()}


@dataclass(frozen=True)
class Cooling:
    """The wait for GPUs to cool down before a measurement.

    Attributes:
        seconds: How long; None without GPUs.
        celsius: Temperature of each GPU afterwards; empty: there was no wait.
    """

    seconds: float | None = None
    celsius: Sequence[float | None] = ()


class Observer:
    """Observes one interval.

    Attributes:
        gpus: Figures of each GPU over the interval, once it has ended.

    Args:
        gpus: Those of the case; none on a CPU.
        period_seconds: Between two samples.
    """

    def __init__(self, gpus: GPUs, period_seconds: float = SAMPLE_PERIOD_SECONDS) -> None:
        self._gpus, self._period_seconds = gpus, period_seconds
        self.gpus: list[GPUFacts] = []
        self._samples: list[list[Sample]] = [[] for _ in range(len(gpus))]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin the interval."""
        self._cpu_use = read_cpu_use()
        self._energy = self._gpus.energy_joules()
        self._begin = time.perf_counter()
        self._take_sample()
        self._errors = self._gpus.ecc_uncorrected_errors()  # not all facts: that is 60 calls per GPU
        if len(self._gpus):
            self._thread.start()

    def stop(self, cooling: Cooling = Cooling()) -> Telemetry:
        """End the interval and sum it up.

        Args:
            cooling: The wait before it.
        """
        seconds = time.perf_counter() - self._begin
        joules = _differences(self._energy, self._gpus.energy_joules())
        other_cpu_share = other_cpu_share_since(self._cpu_use)
        self._over.set()
        if len(self._gpus):
            self._thread.join()
            self._take_sample()
        self.gpus = self._over_interval(cooling, joules, seconds)
        clocks = [(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) for gpu in self.gpus if gpu.sm_clock_mhz is not None]
        slowest_clock, its_maximum = min(clocks, key=lambda clock: clock[0], default=(None, None))
        each = [
            ObservedGPU(facts, taken, energy, seconds)
            for facts, taken, energy in zip(self.gpus, self._samples, joules, strict=False)
        ]
        figures = {name: reduce([of(gpu) for gpu in each]) for name, (of, reduce) in FIELDS.items() if of is not None}
        return Telemetry(
            **figures,
            host_memory_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            cooling_seconds=cooling.seconds,
            sm_clock_mean_mhz=slowest_clock,
            sm_clock_max_mhz=its_maximum,
            other_cpu_share=other_cpu_share,
        )

    def _over_interval(self, cooling: Cooling, joules: Sequence[float | None], seconds: float) -> list[GPUFacts]:
        """Describe each GPU: its current settings, its figures over the interval, its use before this process.

        The driver's current memory, processes and utilisation would be those of this process. Mean power is by the
        energy counter, or else by samples, which lag on GPUs since Ampere before NVIDIA's driver 530: they are means
        over the last second.
        """
        now = self._gpus.facts()
        starts = cooling.celsius or [None] * len(now)
        errors = _differences(self._errors, [gpu.ecc_uncorrected_errors for gpu in now])
        each = zip(now, self._gpus.at_start, errors, self._samples, joules, starts, strict=False)
        return [
            replace(
                gpu,
                place=place,
                utilisation=before.utilisation,
                memory_used_bytes=before.memory_used_bytes,
                processes=before.processes,
                process_names=before.process_names,
                ecc_uncorrected_errors=None if new is None else int(new),
                power_watts=energy / seconds if energy else mean_watts(taken, seconds),
                temperature_celsius=largest(sample.temperature_celsius for sample in taken),
                temperature_start_celsius=start,
                sm_clock_mhz=statistics.fmean(clocks) if clocks else None,
                throttle_power_share=reason_share(taken, POWER_REASONS),
                throttle_thermal_share=reason_share(taken, THERMAL_REASONS),
                throttle_hardware_share=reason_share(taken, HARDWARE_REASONS),
                pcie_generation=largest(sample.pcie_generation for sample in taken),
                pcie_width=largest(sample.pcie_width for sample in taken),
            )
            for place, (gpu, before, new, taken, energy, start) in enumerate(each)
            for clocks in [_reported(sample.sm_clock_mhz for sample in taken)]
        ]

    def _watch(self) -> None:
        while not self._over.wait(self._period_seconds):
            self._take_sample()

    def _take_sample(self) -> None:
        for kept, sample in zip(self._samples, self._gpus.sample(), strict=False):
            kept.append(sample)


def _differences(before: Sequence[float | None], after: Sequence[float | None]) -> list[float | None]:
    """Return the increase of each GPU's counter; None if it was not reported both times."""
    pairs = itertools.zip_longest(before, after)
    return [None if start is None or end is None else end - start for start, end in pairs]


def cool_gpus(gpus: GPUs, max_seconds: float) -> Cooling:
    """Wait until the hottest GPU of a case is at most at `START_CELSIUS`; see `cool_down`."""
    seconds = cool_down(gpus.temperatures_celsius, START_CELSIUS, max_seconds)
    return Cooling(seconds if len(gpus) else None, gpus.temperatures_celsius())


def cool_down(
    temperatures: Callable[[], Sequence[float | None]],
    max_celsius: float,
    max_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until the hottest GPU is at most at `max_celsius`, but not longer than `max_seconds`.

    A warm GPU runs at lower clocks, so consecutive cases would not start under equal conditions.

    Args:
        temperatures: Reads all GPUs; None: not reported. If none reports a temperature, there is no wait.
        max_celsius: Target temperature.
        max_seconds: Longest wait.
        sleep: Waits.

    Returns:
        Seconds waited.
    """
    waited = 0.0
    while waited < max_seconds and (largest(temperatures()) or max_celsius) > max_celsius:
        sleep(COOLING_POLL_SECONDS)
        waited += COOLING_POLL_SECONDS
    return waited

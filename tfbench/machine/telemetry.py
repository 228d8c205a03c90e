"""Observes the GPUs and the processor while steps are timed, in a thread of its own."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from results.schema import Telemetry
from tfbench.machine import gpu_samples, rapl
from tfbench.machine.gpu_samples import Sample
from tfbench.machine.nvml import GPUs

SAMPLE_PERIOD_SECONDS = 0.1
"""Power is averaged by the driver itself, over up to a second: more often would add nothing."""

COOLING_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Cooling:
    """How the GPUs came to the start of a measurement.

    Attributes:
        seconds: Waited until they were cool; None without GPUs.
        celsius: The hottest one then; None where none reports it.
    """

    seconds: float | None = None
    celsius: float | None = None


class Observer:
    """Observes one interval.

    Args:
        gpus: Those of the case; the null object on a CPU.
        period_seconds: Between two samples.
    """

    def __init__(self, gpus: GPUs, period_seconds: float = SAMPLE_PERIOD_SECONDS) -> None:
        self._gpus, self._period_seconds = gpus, period_seconds
        self._samples: list[list[Sample]] = [[] for _ in range(len(gpus))]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)

    @property
    def samples(self) -> list[list[Sample]]:
        """What was sampled of each GPU."""
        return self._samples

    def start(self) -> None:
        """Begin the interval."""
        self._packages = rapl.read_packages()
        self._errors = self._gpus.ecc_uncorrected_errors()
        self._take_sample()
        self._energy = self._gpus.energy_joules()
        self._begin = time.perf_counter()
        if len(self._gpus):
            self._thread.start()

    def stop(self, cooling: Cooling = Cooling()) -> Telemetry:
        """End the interval and sum it up.

        Args:
            cooling: What came before it.
        """
        seconds = time.perf_counter() - self._begin
        energy = self._gpus.energy_joules()
        packages = rapl.read_packages()
        self._over.set()
        if len(self._gpus):
            self._thread.join()
            self._take_sample()
        samples = self._samples
        clocks = gpu_samples.mean_clocks_mhz(samples)
        known = [(clock, index) for index, clock in enumerate(clocks) if clock is not None]
        slowest_clock, slowest = min(known, default=(None, None))
        errors = self._gpus.ecc_uncorrected_errors()
        return Telemetry(
            host_memory_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            device_memory_used_peak_bytes=gpu_samples.extreme(samples, "memory_used_bytes", max),
            energy_joules=_difference(self._energy, energy),
            energy_integrated_joules=gpu_samples.integrated_joules(samples, seconds),
            cpu_energy_joules=rapl.joules_between(self._packages, packages),
            power_mean_watts=gpu_samples.mean_power_watts(samples, seconds),
            power_limit_watts=_sum(self._gpus.power_limits_watts()),
            temperature_start_celsius=cooling.celsius,
            cooling_seconds=cooling.seconds,
            temperature_steady_celsius=gpu_samples.steady_temperature_celsius(samples),
            sm_clock_mean_mhz=slowest_clock,
            sm_clock_max_mhz=None if slowest is None else _at(self._gpus.max_clocks_mhz(), slowest),
            throttle_power_share=gpu_samples.reason_share(samples, gpu_samples.POWER_REASONS),
            throttle_thermal_share=gpu_samples.reason_share(samples, gpu_samples.THERMAL_REASONS),
            throttle_hardware_share=gpu_samples.reason_share(samples, gpu_samples.HARDWARE_REASONS),
            ecc_enabled=self._gpus.ecc_enabled(),
            ecc_uncorrected_errors=None if errors is None or self._errors is None else errors - self._errors,
            pcie_generation=gpu_samples.extreme(samples, "pcie_generation", min),
            pcie_width=gpu_samples.extreme(samples, "pcie_width", min),
            pcie_width_max=self._gpus.pcie_width_max(),
            samples=min((len(gpu) for gpu in samples), default=None),
        )

    def _watch(self) -> None:
        while not self._over.wait(self._period_seconds):
            self._take_sample()

    def _take_sample(self) -> None:
        for kept, sample in zip(self._samples, self._gpus.sample(), strict=False):
            kept.append(sample)


def cool_gpus(gpus: GPUs, max_celsius: float, max_seconds: float) -> Cooling:
    """Wait until the hottest of a case's GPUs is at most `max_celsius`: see `cool_down`."""
    seconds = cool_down(gpus.temperatures_celsius, max_celsius, max_seconds)
    return Cooling(seconds if len(gpus) else None, max(gpus.temperatures_celsius(), default=None))


def cool_down(
    temperatures: Callable[[], list[float]],
    max_celsius: float,
    max_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait until the hottest GPU is at most `max_celsius`, but not longer than `max_seconds`.

    A warm GPU clocks lower, and two cases that follow each other would not start alike.

    Args:
        temperatures: Reads all GPUs; empty where none reports one, and then there is nothing to wait for.
        max_celsius: Start at this or below.
        max_seconds: Bound of the wait.
        sleep: Waits.

    Returns:
        Seconds waited.
    """
    waited = 0.0
    while waited < max_seconds and max(temperatures(), default=max_celsius) > max_celsius:
        sleep(COOLING_POLL_SECONDS)
        waited += COOLING_POLL_SECONDS
    return waited


def _difference(before: list[float | None], after: list[float | None]) -> float | None:
    """Add up what counters gained; None where there is none, or one of them does not report."""
    pairs = list(zip(before, after, strict=False))
    known = [end - start for start, end in pairs if start is not None and end is not None]
    return sum(known) if known and len(known) == len(before) else None


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _at(values: list[float | None], index: int) -> float | None:
    return values[index] if index < len(values) else None

"""Observes the GPUs and the CPU while steps are timed, in a thread of its own."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from results.schema import Telemetry
from results.schema.health import START_CELSIUS, GPUFacts
from tfbench.machine import samples
from tfbench.machine.host import other_cpu_share_since, read_cpu_use
from tfbench.machine.nvml import GPUs
from tfbench.machine.samples import Sample

SAMPLE_PERIOD_SECONDS = 0.1
"""The driver averages power over up to a second, so more frequent samples would add nothing."""

COOLING_POLL_SECONDS = 1.0


_SAME = ("power_limit_watts", "ecc_uncorrected_errors", "pcie_width_max")
_SHARES = ("throttle_power_share", "throttle_thermal_share", "throttle_hardware_share")
OF_FACTS = {"ecc_enabled": "ecc", **{name: name for name in (*_SAME, *_SHARES)}}
"""Fields of `Telemetry` that follow from a field of each GPU's facts over the interval."""


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
        joules = samples.differences(self._energy, self._gpus.energy_joules())
        other_cpu_share = other_cpu_share_since(self._cpu_use)
        self._over.set()
        if len(self._gpus):
            self._thread.join()
            self._take_sample()
        taken = self._samples
        powers = samples.mean_powers_watts(taken, joules, seconds)
        self.gpus = self._over_interval(cooling, powers)
        clocks = [(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) for gpu in self.gpus if gpu.sm_clock_mhz is not None]
        slowest_clock, its_maximum = min(clocks, key=lambda clock: clock[0], default=(None, None))
        of_gpus = {
            **{name: [getattr(gpu, source) for gpu in self.gpus] for name, source in OF_FACTS.items()},
            **{
                name: [samples.extreme([gpu], name, min) for gpu in taken] for name in ("pcie_generation", "pcie_width")
            },
            "device_memory_used_peak_bytes": [samples.extreme([gpu], "memory_used_bytes", max) for gpu in taken],
            "energy_joules": joules,
            "power_mean_watts": powers,
            "temperature_start_celsius": cooling.celsius,
            "samples": [len(gpu) for gpu in taken],
        }
        return Telemetry(
            **samples.reduced(of_gpus),
            host_memory_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            energy_integrated_joules=samples.integrated_joules(taken, seconds),
            temperature_steady_celsius=samples.steady_temperature_celsius(taken),
            cooling_seconds=cooling.seconds,
            sm_clock_mean_mhz=slowest_clock,
            sm_clock_max_mhz=its_maximum,
            other_cpu_share=other_cpu_share,
        )

    def _over_interval(self, cooling: Cooling, powers: Sequence[float | None]) -> list[GPUFacts]:
        """Describe each GPU: its current settings, its figures over the interval, its use before this process.

        The driver's current memory, processes and utilisation would be those of this process.
        """
        now = self._gpus.facts()
        starts = cooling.celsius or [None] * len(now)
        errors = samples.differences(self._errors, [gpu.ecc_uncorrected_errors for gpu in now])
        return [
            replace(
                gpu,
                place=place,
                utilisation=before.utilisation,
                memory_used_bytes=before.memory_used_bytes,
                processes=before.processes,
                process_names=before.process_names,
                ecc_uncorrected_errors=None if new is None else int(new),
                power_watts=power,
                temperature_celsius=samples.extreme([taken], "temperature_celsius", max),
                temperature_start_celsius=start,
                sm_clock_mhz=samples.mean(taken, "sm_clock_mhz"),
                throttle_power_share=samples.reason_share([taken], samples.POWER_REASONS),
                throttle_thermal_share=samples.reason_share([taken], samples.THERMAL_REASONS),
                throttle_hardware_share=samples.reason_share([taken], samples.HARDWARE_REASONS),
                pcie_generation=samples.extreme([taken], "pcie_generation", max),
                pcie_width=samples.extreme([taken], "pcie_width", max),
            )
            for place, (gpu, before, new, taken, power, start) in enumerate(
                zip(now, self._gpus.at_start, errors, self._samples, powers, starts, strict=False)
            )
        ]

    def _watch(self) -> None:
        while not self._over.wait(self._period_seconds):
            self._take_sample()

    def _take_sample(self) -> None:
        for kept, sample in zip(self._samples, self._gpus.sample(), strict=False):
            kept.append(sample)


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
    while waited < max_seconds and (samples.largest(temperatures()) or max_celsius) > max_celsius:
        sleep(COOLING_POLL_SECONDS)
        waited += COOLING_POLL_SECONDS
    return waited

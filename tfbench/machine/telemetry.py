"""Observes the GPUs and the CPU while steps are timed, in a thread of its own, and sums up what was seen."""

from __future__ import annotations

import itertools
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from results.schema import Telemetry
from results.schema.health import START_CELSIUS, GPUFacts, WorstOfGPUs
from tfbench.machine.host import cpu_limit, other_cpu_share, read_cpu_use
from tfbench.machine.nvml import ENERGY_JOULES, READINGS, THROTTLING, GPUs, Sample

SAMPLE_PERIOD_SECONDS = 0.1
"""The driver averages power over up to a second, so more frequent samples would add nothing."""

COOLING_POLL_SECONDS = 1.0

LEAST_COVERAGE = 0.9
"""Power is integrated only if samples span at least this share of the interval: a driver can fail meanwhile."""


def mean_watts(taken: Sequence[Sample], seconds: float) -> float | None:
    """Integrate power by the trapezoidal rule, over the span of the samples.

    None if there are fewer than two samples or they span too little of an interval of `seconds`.
    """
    reported = [(at, gpu.power_watts) for at, gpu in taken if gpu.power_watts is not None]
    span = reported[-1][0] - reported[0][0] if reported else 0.0
    if span <= 0 or span < LEAST_COVERAGE * seconds:
        return None
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in itertools.pairwise(reported)) / span


def _reported(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _of_all(values: Sequence[Any], reduce: Callable[[Sequence[Any]], Any]) -> Any:  # noqa: ANN401
    """Reduce values; None if there are none or one of them is not reported."""
    return None if not values or None in values else reduce(values)


def total(values: Sequence[Any]) -> Any:  # noqa: ANN401
    """Add up; None if there are none or one of them is not reported."""
    return _of_all(values, sum)


def smallest(values: Sequence[Any]) -> Any:  # noqa: ANN401
    """Return the smallest of those that are reported."""
    return min(_reported(values), default=None)


def largest(values: Sequence[Any]) -> Any:  # noqa: ANN401
    """Return the largest of those that are reported."""
    return max(_reported(values), default=None)


REDUCERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys(("energy_joules", "energy_integrated_joules", "power_mean_watts", "power_limit_watts"), total),
    **dict.fromkeys(("other_processes", "ecc_uncorrected_errors"), total),
    **dict.fromkeys(("sm_clock_mean_mhz", "sm_clock_max_mhz", "samples"), smallest),
    **dict.fromkeys(("pcie_generation", "pcie_width", "pcie_width_max"), smallest),
    "ecc_enabled": lambda values: _of_all(values, all),
}
"""By field of `Telemetry`: how the values of several GPUs or hosts become one; of any other, the largest counts."""


def combined(parts: Sequence[Telemetry]) -> Telemetry:
    """Return the telemetry of several GPUs, or of several hosts, together."""
    names = [item.name for item in fields(Telemetry)]
    return Telemetry(**{name: REDUCERS.get(name, largest)([getattr(part, name) for part in parts]) for name in names})


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
        self._cooling_seconds: float | None = None
        self._start_celsius: list[float | None] = [None] * len(gpus)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)

    def cool(self, max_seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until the hottest GPU is at most at `START_CELSIUS`, but not longer than `max_seconds`.

        A warm GPU runs at lower clocks, so consecutive cases would not start under equal conditions.
        """
        read = READINGS["temperature_celsius"]
        waited, celsius = 0.0, self._gpus.read(read)
        while waited < max_seconds and (largest(celsius) or START_CELSIUS) > START_CELSIUS:
            sleep(COOLING_POLL_SECONDS)
            waited, celsius = waited + COOLING_POLL_SECONDS, self._gpus.read(read)
        self._cooling_seconds, self._start_celsius = waited if celsius else None, celsius

    def start(self) -> None:
        """Begin the interval."""
        self._cpu_use = read_cpu_use()
        self._energy = self._gpus.read(ENERGY_JOULES)
        self._begin = time.perf_counter()
        self._take_sample()
        self._errors = self._gpus.read(READINGS["ecc_uncorrected_errors"])  # not all facts: that is 60 calls per GPU
        if len(self._gpus):
            self._thread.start()

    def stop(self) -> Telemetry:
        """End the interval and sum it up."""
        seconds = time.perf_counter() - self._begin
        energy = self._gpus.read(ENERGY_JOULES)
        of_others = other_cpu_share(self._cpu_use, read_cpu_use(), cpu_limit())
        self._over.set()
        if len(self._gpus):
            self._thread.join()
            self._take_sample()
        parts = []
        for place, now in enumerate(self._gpus.facts()):
            taken, joules = self._samples[place], _increase(self._energy[place], energy[place])
            facts = replace(
                now,
                **_over_interval(taken),
                **{name: getattr(self._gpus.at_start[place], name) for name in BEFORE},
                place=place,
                ecc_uncorrected_errors=_increase(self._errors[place], now.ecc_uncorrected_errors),
                # Samples lag on GPUs since Ampere before driver 530: they are means over the last second.
                power_watts=joules / seconds if joules else mean_watts(taken, seconds),
                temperature_start_celsius=self._start_celsius[place],
            )
            self.gpus.append(facts)
            parts.append(_telemetry_of(facts, taken, joules, seconds))
        return replace(
            combined(parts),
            host_memory_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            cooling_seconds=self._cooling_seconds,
            other_cpu_share=of_others,
        )

    def _watch(self) -> None:
        while not self._over.wait(self._period_seconds):
            self._take_sample()

    def _take_sample(self) -> None:
        for kept, sample in zip(self._samples, self._gpus.sample(), strict=False):
            kept.append(sample)


BEFORE = ("utilisation", "memory_used_bytes", "processes", "process_names")
"""Fields of `GPUFacts` as they were before this process used the GPU: later ones would be those of this process."""


def _series(taken: Sequence[Sample], name: str) -> list[Any]:
    """Return the values of a field in order of time."""
    return _reported(getattr(gpu, name) for _, gpu in taken)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _over_interval(taken: Sequence[Sample]) -> dict[str, Any]:
    """Return the fields of `GPUFacts` that samples of a GPU give."""
    means = {name: _mean(_series(taken, name)) for name in ("sm_clock_mhz", *THROTTLING)}
    most = {name: largest(_series(taken, name)) for name in ("temperature_celsius", "pcie_generation", "pcie_width")}
    return means | most


IN_BOTH = ("power_limit_watts", *(item.name for item in fields(WorstOfGPUs)))
"""Fields of `Telemetry` that one GPU's `GPUFacts` have, too."""


def _telemetry_of(facts: GPUFacts, taken: Sequence[Sample], joules: float | None, seconds: float) -> Telemetry:
    """Return the telemetry of one GPU.

    Args:
        facts: Over the interval.
        taken: Its samples.
        joules: By its energy counter; None: not reported.
        seconds: Duration of the interval.
    """
    watts, celsius = mean_watts(taken, seconds), _series(taken, "temperature_celsius")
    return Telemetry(
        **{name: getattr(facts, name) for name in IN_BOTH},
        device_memory_used_peak_bytes=largest(_series(taken, "memory_used_bytes")),
        energy_joules=joules,
        energy_integrated_joules=None if watts is None else watts * seconds,
        power_mean_watts=facts.power_watts,
        temperature_steady_celsius=_mean(celsius[-max(1, len(celsius) // 3) :]),
        sm_clock_mean_mhz=facts.sm_clock_mhz,
        ecc_enabled=facts.ecc,
        pcie_generation=smallest(_series(taken, "pcie_generation")),
        pcie_width=smallest(_series(taken, "pcie_width")),
        samples=len(taken),
    )


def _increase(before: Any, after: Any) -> Any:  # noqa: ANN401
    """Return the increase of a counter; None if it was not reported both times."""
    return None if before is None or after is None else after - before

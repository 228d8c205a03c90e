"""What the NVIDIA driver says of itself and its GPUs; no driver is an answer, not an error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from results.schema import GPU
from tfbench.gpu_samples import Sample

T = TypeVar("T")

_NOT_OFFERED = (pynvml.NVMLError, getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError))
"""An old driver lacks the newest version of a query; the package says so by an error of its own."""

Handle = Any
"""What NVML calls a device by."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver of a machine.

    Attributes:
        version: e.g. `550.54.14`; None: no driver.
        cuda: Newest CUDA that it serves, e.g. `12.4`.
        gpus: GPUs that this process may see, in its own order.
    """

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[GPU, ...] = ()


def read_driver() -> Driver:
    """Ask the driver once; an empty `Driver` where there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Driver()
    try:
        cuda = offered(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return Driver(
            version=offered(pynvml.nvmlSystemGetDriverVersion),
            cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            gpus=tuple(_describe(index, handle) for index, handle in enumerate(visible_handles())),
        )
    finally:
        pynvml.nvmlShutdown()


def offered(query: Callable[..., T], *arguments: object) -> T | None:
    """Return what a query of NVML answers; None where this card or driver does not offer it."""
    try:
        return query(*arguments)
    except _NOT_OFFERED:
        return None


def visible_handles() -> list[Handle]:
    """Return the handles of the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in that order.

    NVML itself ignores the variable. CUDA stops at the first entry that it does not know.
    """
    count = offered(pynvml.nvmlDeviceGetCount) or 0
    handles = [offered(pynvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [handle for handle in handles if handle is not None]
    visible = []
    for entry in (text.strip() for text in chosen.split(",")):
        if entry.isdigit() and int(entry) < len(handles):
            handle = handles[int(entry)]
        else:
            handle = next((h for h in handles if h and entry and (_uuid(h) or "").startswith(entry)), None)
        if handle is None:
            break
        visible.append(handle)
    return visible


def _describe(index: int, handle: Handle) -> GPU:
    capability = offered(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, handle)
    limit = offered(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GPU(
        index=index,
        name=offered(pynvml.nvmlDeviceGetName, handle) or "unknown",
        uuid=_uuid(handle),
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_bytes=None if memory is None else int(memory.total),
        power_limit_watts=None if limit is None else limit / 1000,
    )


def _uuid(handle: Handle) -> str | None:
    return offered(pynvml.nvmlDeviceGetUUID, handle)


class GPUs:
    """The GPUs of a case through one handle of the driver; without a driver or GPU it answers nothing.

    Args:
        count: So many of the visible GPUs, from the first; 0 makes the null object of a CPU.
    """

    def __init__(self, count: int) -> None:
        self._handles: list[Handle] = []
        self._open = False
        if count == 0:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        self._open = True
        self._handles = visible_handles()[:count]

    def close(self) -> None:
        """Let the driver go; what is asked later has no answer."""
        if self._open:
            offered(pynvml.nvmlShutdown)
        self._open, self._handles = False, []

    def __len__(self) -> int:
        return len(self._handles)

    def sample(self) -> list[Sample]:
        """Read every GPU once."""
        return [_sample(handle) for handle in self._handles]

    def energy_joules(self) -> list[float | None]:
        """Return each GPU's energy counter: joules since the driver was loaded."""
        counters = [offered(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle) for handle in self._handles]
        return [None if counter is None else counter / 1000 for counter in counters]

    def power_limits_watts(self) -> list[float | None]:
        """Return each GPU's enforced power limit."""
        limits = [offered(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle) for handle in self._handles]
        return [None if limit is None else limit / 1000 for limit in limits]

    def max_clocks_mhz(self) -> list[float | None]:
        """Return each GPU's largest SM clock."""
        return [offered(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM) for handle in self._handles]

    def temperatures_celsius(self) -> list[float]:
        """Return the temperatures of those GPUs that tell it."""
        return [s.temperature_celsius for s in self.sample() if s.temperature_celsius is not None]

    def processes(self) -> int | None:
        """Count the processes that compute on these GPUs; None where no GPU tells."""
        lists = [offered(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) for handle in self._handles]
        known = [{process.pid for process in found} for found in lists if found is not None]
        return len(set().union(*known)) if known else None

    def ecc_enabled(self) -> bool | None:
        """Say whether all GPUs correct memory errors."""
        modes = [offered(pynvml.nvmlDeviceGetEccMode, handle) for handle in self._handles]
        known = [mode[0] for mode in modes if mode is not None]
        return all(known) if known and len(known) == len(modes) else None

    def ecc_uncorrected_errors(self) -> int | None:
        """Count the uncorrected memory errors since the driver was loaded, all GPUs together."""
        kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        counts = [offered(pynvml.nvmlDeviceGetTotalEccErrors, handle, *kinds) for handle in self._handles]
        known = [count for count in counts if count is not None]
        return sum(known) if known and len(known) == len(counts) else None

    def pcie_width_max(self) -> int | None:
        """Return the fewest lanes that one of the GPUs could use in its slot."""
        widths = [offered(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle) for handle in self._handles]
        return min((width for width in widths if width is not None), default=None)


def _sample(handle: Handle) -> Sample:
    power = offered(pynvml.nvmlDeviceGetPowerUsage, handle)
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return Sample(
        at=time.perf_counter(),
        power_watts=None if power is None else power / 1000,
        temperature_celsius=offered(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        sm_clock_mhz=offered(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        reasons=offered(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
        memory_used_bytes=None if memory is None else int(memory.used),
        pcie_generation=offered(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_width=offered(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    )

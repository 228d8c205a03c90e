"""Everything that NVML reports about the driver and its GPUs, read in one place; without a driver, nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from results.schema import GPU, SoftWarning
from results.schema.health import GPUFacts, GPUSlice, driver_fix
from tfbench.machine.cuda_devices import ask_cuda
from tfbench.machine.driver_gpus import (
    DriverGPU,
    Handle,
    T,
    offered,
    offered_devices,
    problems_of,
    read_driver_gpus,
    visible_devices,
)

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

CLOCK_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}
"""Why clocks are not at their maximum. Source: nvml.h, nvmlClocksEventReasons."""


POWER_REASONS = 0x4
"""NVML's clock event bits: software power cap."""

THERMAL_REASONS = 0x20 | 0x40
"""Software and hardware thermal slowdown."""

HARDWARE_SLOWDOWN = 0x8
"""Also set by heat. Source: nvml.h, nvmlClocksEventReasonHwSlowdown: "temperature being too high"."""

HARDWARE_REASONS = HARDWARE_SLOWDOWN | 0x80
"""Hardware slowdown without a thermal one, and hardware power brake."""

VGPU_NAME = re.compile(r"-\d+[ABCQ](ME)?$")
"""Ends a vGPU's name: `NVIDIA A10-24Q`, `GRID A100-1-5CME`. Source: NVIDIA vGPU Software User Guide, "vGPU types"."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver of a machine.

    Attributes:
        problem: Why it does not answer: `Driver/library version mismatch (NVML 18)`; None: it does, or there is none.
        version: e.g. `550.54.14`; None: no driver.
        cuda: Newest CUDA that it supports, e.g. `12.4`.
        gpus: GPUs that this process may use, in its own order, by the driver's indices.
        problems: GPUs that no process can use: `7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost`.
    """

    problem: str | None = None
    version: str | None = None
    cuda: str | None = None
    gpus: tuple[GPUFacts, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        """Why a process may not get the GPUs that it needs."""
        silent = (
            [f"the NVIDIA driver does not work: {self.problem}: {driver_fix(self.problem)}"] if self.problem else []
        )
        return [*silent, *self.problems]


NO_LIBRARY = "NVML Shared Library Not Found"
"""There is no driver."""


@contextmanager
def opened() -> Iterator[str | None]:
    """Open NVML for the duration of a block; yields why it does not answer, in the driver's words, or None."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            yield NO_LIBRARY
        else:
            yield f"{offered(pynvml.nvmlErrorString, error.value) or error} (NVML {error.value})"
        return
    try:
        yield None
    finally:
        offered(pynvml.nvmlShutdown)


def read_driver(*, by_cuda: bool = False) -> Driver:
    """Query the driver once; an empty `Driver` where there is none.

    Args:
        by_cuda: Return the GPUs of this process as CUDA reports them, for a process that uses them; otherwise those
            that the machine offers, without initialising CUDA.
    """
    with opened() as problem:
        if problem is not None:
            return Driver(problem=None if problem == NO_LIBRARY else problem)
        gpus = read_driver_gpus()
        devices = devices_of_this_process(gpus) if by_cuda else offered_devices(gpus)
        return Driver(
            version=offered(pynvml.nvmlSystemGetDriverVersion),
            cuda=cuda_version(offered(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
            gpus=tuple(map(read_gpu, devices)),
            problems=(*problems_of(gpus), *([] if by_cuda else _excluded(gpus, devices))),
        )


def free_gpu_memory_bytes(count: int) -> int | None:
    """Return the free memory of the fullest of the first `count` GPUs of this process, by the driver; None: unknown.

    TensorFlow's allocator returns no memory while its process runs, so this is also what was free when an operation
    failed. It distinguishes a full GPU from a broken library.
    """
    with opened() as problem:
        devices = visible_devices(read_driver_gpus()) if problem is None else []
        memories = [offered(pynvml.nvmlDeviceGetMemoryInfo, device.handle) for device in devices[:count]]
        return min((int(memory.free) for memory in memories if memory is not None), default=None)


def cuda_version(number: int | None) -> str | None:
    """Format CUDA's version number: 12040 is `12.4`."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def devices_of_this_process(gpus: list[DriverGPU]) -> list[DriverGPU]:
    """Return the devices that this process may use, by CUDA or, if it does not answer, by CUDA_VISIBLE_DEVICES.

    Initialises CUDA in this process.
    """
    devices, problem = ask_cuda()
    return visible_devices(gpus, devices if problem is None else None)


def _excluded(gpus: list[DriverGPU], devices: list[DriverGPU]) -> list[str]:
    """Describe GPUs in MIG mode that are excluded because there are whole GPUs."""
    if all(device.is_slice for device in devices):
        return []
    return [f"{gpu.label} is in MIG mode, and excluded next to whole GPUs" for gpu in gpus if gpu.slices]


def as_recorded(gpu: GPUFacts) -> GPU:
    """Return a GPU's identity for the record."""
    return GPU(
        index=gpu.index,
        name=gpu.name or "unknown",
        uuid=gpu.uuid,
        compute_capability=gpu.compute_capability,
        memory_bytes=gpu.memory_bytes,
        power_limit_watts=gpu.power_limit_watts,
    )


def read_gpu(gpu: DriverGPU) -> GPUFacts:
    """Read the current state of a GPU: everything that a benchmark depends on.

    A slice has its own memory and processes. Its temperature, clocks and their limits are those of its GPU; power is
    excluded, because it includes the other slices.
    """
    handle = gpu.gpu_handle
    if gpu.problem is not None:
        return GPUFacts(index=gpu.index, bus_id=gpu.bus_id, problem=gpu.problem)

    def ask(query: Callable[..., T], *arguments: object) -> T | None:
        return offered(query, handle, *arguments)

    def watts(query: Callable[..., Any]) -> float | None:
        answer = None if gpu.is_slice else ask(query)
        return None if answer is None else answer / 1000

    mode = ask(pynvml.nvmlDeviceGetVirtualizationMode)
    virtual = mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU or bool(VGPU_NAME.search(gpu.name or ""))
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability)
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, gpu.handle)
    rates = ask(pynvml.nvmlDeviceGetUtilizationRates)  # none in MIG mode
    limits = None if gpu.is_slice else ask(pynvml.nvmlDeviceGetPowerManagementLimitConstraints)
    ecc, rows = ask(pynvml.nvmlDeviceGetEccMode), ask(pynvml.nvmlDeviceGetRemappedRows)
    # GPUs before Ampere retire pages instead of remapping rows.
    pending = ask(pynvml.nvmlDeviceGetRetiredPagesPendingStatus) if rows is None else rows[2]
    reasons = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
    links = [ask(pynvml.nvmlDeviceGetNvLinkState, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    processes = offered(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle)
    compute_mode = ask(pynvml.nvmlDeviceGetComputeMode)
    persistence = ask(pynvml.nvmlDeviceGetPersistenceMode)
    return GPUFacts(
        index=gpu.index,
        bus_id=gpu.bus_id,
        name=gpu.name,
        uuid=gpu.uuid,
        virtual=virtual,
        licensed=_is_licensed(handle) if virtual else None,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        utilisation=None if rates is None else rates.gpu / 100,
        processes=None if processes is None else len(processes),
        process_names=[f"{process.pid} {_process_name(process.pid)}".strip() for process in processes or ()],
        mig=gpu.mig,
        slices=[_slice(part) for part in ((gpu,) if gpu.is_slice else gpu.slices)],
        ecc=None if ecc is None else bool(ecc[0]),
        ecc_uncorrected_errors=_ecc_uncorrected_errors(handle),
        row_remap_pending=None if pending is None else bool(pending),
        row_remap_failed=None if rows is None else bool(rows[3]),
        persistence=None if persistence is None else bool(persistence),
        compute_mode=None if compute_mode is None else COMPUTE_MODES.get(compute_mode),
        power_watts=watts(pynvml.nvmlDeviceGetPowerUsage),
        power_limit_watts=watts(pynvml.nvmlDeviceGetEnforcedPowerLimit),
        power_limit_default_watts=watts(pynvml.nvmlDeviceGetPowerManagementDefaultLimit),
        power_limit_max_watts=None if limits is None else limits[1] / 1000,
        temperature_celsius=ask(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
        sm_clock_mhz=ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=ask(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        application_clock_mhz=ask(pynvml.nvmlDeviceGetApplicationsClock, pynvml.NVML_CLOCK_SM),
        application_clock_default_mhz=ask(pynvml.nvmlDeviceGetDefaultApplicationsClock, pynvml.NVML_CLOCK_SM),
        clock_reasons=[name for bit, name in CLOCK_REASONS.items() if (reasons or 0) & bit],
        throttle_power_share=_is_set(reasons, POWER_REASONS),
        throttle_thermal_share=_is_set(reasons, THERMAL_REASONS),
        throttle_hardware_share=_is_set(reasons, HARDWARE_REASONS),
        pcie_generation=ask(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
        pcie_generation_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
        pcie_width=ask(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
        pcie_width_max=ask(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
        nvlinks_up=links.count(1),
        nvlinks_down=links.count(0),
    )


def _is_licensed(handle: Handle) -> bool | None:
    """Return whether a vGPU has a licence; None: not reported. Of the features of vGPU software, it has one enabled."""
    found = offered(pynvml.nvmlDeviceGetGridLicensableFeatures_v4, handle)
    if found is None or not found.isGridLicenseSupported:
        return None
    features = found.gridLicensableFeatures[: found.licensableFeaturesCount]
    return any(feature.featureState for feature in features)


def _slice(part: DriverGPU) -> GPUSlice:
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, part.handle)
    return GPUSlice(uuid=part.uuid, profile=part.profile, memory_bytes=None if memory is None else int(memory.total))


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # another user's, or outside this container


def _is_set(reasons: int | None, bits: int) -> float | None:
    return None if reasons is None else float(has_reason(reasons, bits))


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


def has_reason(reasons: int, bits: int) -> bool:
    """Return whether one of `bits` is set; a hardware slowdown in addition to a thermal one does not count."""
    explained = HARDWARE_SLOWDOWN if reasons & THERMAL_REASONS else 0
    return bool(reasons & bits & ~explained)


class GPUs:
    """The GPUs of a case; without a driver or GPU all lists are empty.

    Args:
        count: How many of this process's GPUs, from the first; 0: none, for a CPU. Initialises CUDA in this process, so
            set CUDA_VISIBLE_DEVICES first.

    Attributes:
        at_start: Facts of each GPU before this process used it, in the order of the case.
        warnings: GPUs of the machine that no process can use.
    """

    def __init__(self, count: int) -> None:
        self._devices: list[DriverGPU] = []
        self._open = False
        self.at_start: list[GPUFacts] = []
        self.warnings: list[SoftWarning] = []
        if count == 0:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        self._open = True
        gpus = read_driver_gpus()
        self._devices = devices_of_this_process(gpus)[:count]
        self.at_start = self.facts()
        hint = "python -m tfbench.doctor; restart the machine"
        self.warnings = [SoftWarning(code="gpu_unusable", message=problem, hint=hint) for problem in problems_of(gpus)]

    def close(self) -> None:
        """Close NVML; later queries return nothing."""
        if self._open:
            offered(pynvml.nvmlShutdown)
        self._open, self._devices = False, []

    def __len__(self) -> int:
        return len(self._devices)

    def facts(self) -> list[GPUFacts]:
        """Read all facts of every GPU; takes a few milliseconds."""
        return [read_gpu(device) for device in self._devices]

    def sample(self) -> list[Sample]:
        """Sample power, clocks, temperature and utilisation of every GPU."""
        return [_sample(device) for device in self._devices]

    def energy_joules(self) -> list[float | None]:
        """Return each GPU's energy counter in joules since the driver was loaded; None for a slice."""
        counters = [
            None if device.is_slice else offered(pynvml.nvmlDeviceGetTotalEnergyConsumption, device.handle)
            for device in self._devices
        ]
        return [None if counter is None else counter / 1000 for counter in counters]

    def temperatures_celsius(self) -> list[float | None]:
        """Return each GPU's temperature."""
        return [_temperature(device.gpu_handle) for device in self._devices]

    def ecc_uncorrected_errors(self) -> list[int | None]:
        """Return each GPU's uncorrected memory errors since the driver was loaded."""
        return [_ecc_uncorrected_errors(device.gpu_handle) for device in self._devices]

    def other_processes(self) -> int | None:
        """Count the processes that computed on these GPUs at the start; None if no GPU reports it."""
        known = [gpu for gpu in self.at_start if gpu.processes is not None]
        return len({name for gpu in known for name in gpu.process_names}) if known else None


def _ecc_uncorrected_errors(handle: Handle) -> int | None:
    kind, since = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    return offered(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, since)


def _temperature(handle: Handle) -> float | None:
    return offered(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU)


def _power_watts(gpu: Handle) -> float | None:
    """Return the present power; before driver 530 and since Ampere, the mean over the last second."""
    fields = offered(pynvml.nvmlDeviceGetFieldValues, gpu, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    if fields is not None and fields[0].nvmlReturn == pynvml.NVML_SUCCESS:
        return float(fields[0].value.uiVal) / 1000
    averaged = offered(pynvml.nvmlDeviceGetPowerUsage, gpu)
    return None if averaged is None else averaged / 1000


def _sample(device: DriverGPU) -> Sample:
    gpu = device.gpu_handle
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, device.handle)
    return Sample(
        at=time.perf_counter(),
        power_watts=None if device.is_slice else _power_watts(gpu),
        temperature_celsius=_temperature(gpu),
        sm_clock_mhz=offered(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        reasons=offered(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu),
        memory_used_bytes=None if memory is None else int(memory.used),
        pcie_generation=offered(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, gpu),
        pcie_width=offered(pynvml.nvmlDeviceGetCurrPcieLinkWidth, gpu),
    )

"""Everything that NVML reports about the driver and its GPUs, read in one place; without a driver, nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pynvml

from results.schema import GPU, SoftWarning
from results.schema.health import GPUFacts, driver_fix
from tfbench.machine.driver_gpus import DriverGPU, offered, problems_of, read_driver_gpus, visible_devices

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

_REASON = "nvmlClocksThrottleReason"
CLOCK_REASONS = {
    name.removeprefix(_REASON): int(getattr(pynvml, name))
    for name in dir(pynvml)
    if name.startswith(_REASON) and not name.endswith(("All", "None", "UserDefinedClocks"))
}
"""Bits by NVML's name of why clocks are not at their maximum, e.g. `SwPowerCap`."""

HARDWARE_SLOWDOWN = 0x8
"""Also set by heat. Source: nvml.h, nvmlClocksEventReasonHwSlowdown: "temperature being too high"."""

THERMAL_REASONS = 0x20 | 0x40
"""Software and hardware thermal slowdown."""

THROTTLING = {
    "throttle_power_share": 0x4,
    "throttle_thermal_share": THERMAL_REASONS,
    "throttle_hardware_share": HARDWARE_SLOWDOWN | 0x80,
}
"""Clock event bits by field: software power cap; heat; hardware slowdown without heat, and hardware power brake."""

VGPU_NAME = re.compile(r"-\d+[ABCQ](ME)?$")
"""Ends a vGPU's name: `NVIDIA A10-24Q`, `GRID A100-1-5CME`. Source: NVIDIA vGPU Software User Guide, "vGPU types"."""


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver of a machine.

    Attributes:
        problem: Why it does not answer: `Driver/library version mismatch (NVML 18)`; None: it does.
        version: e.g. `550.54.14`; None: no driver.
        cuda: Newest CUDA that it supports, e.g. `12.4`.
        gpus: By the driver's indices.
        gpu_problems: GPUs that no process can use: `7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost`.
    """

    problem: str | None = None
    version: str | None = None
    cuda: str | None = None
    gpus: Sequence[GPUFacts] = ()
    gpu_problems: Sequence[str] = ()

    @property
    def reasons(self) -> list[str]:
        """Why a process may not get the GPUs that it needs."""
        words = self.problem and f"the NVIDIA driver does not work: {self.problem}: {driver_fix(self.problem)}"
        return [*([words] if words else []), *self.gpu_problems]


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
    """Query the driver once, with the GPUs that a process may use, in its order; an empty `Driver` without a driver.

    Args:
        by_cuda: See `visible_devices`.
    """
    with opened() as problem:
        if problem is not None:
            return Driver(problem=None if problem == NO_LIBRARY else problem)
        gpus = read_driver_gpus()
        devices, cuda_problem = visible_devices(gpus, by_cuda=by_cuda)
        problems = problems_of(gpus)
        if not by_cuda and not all(device.is_slice for device in devices):
            excluded = [gpu.facts.label for gpu in gpus if gpu.parts]
            problems += [f"{label} is in MIG mode, and excluded next to whole GPUs" for label in excluded]
        if cuda_problem is not None:
            problems.append(f"CUDA does not start ({cuda_problem})")
        return Driver(**versions(), gpus=[read_gpu(device) for device in devices], gpu_problems=problems)


def versions() -> dict[str, Any]:
    """Return the `version` of the driver and the newest `cuda` that it supports, of which NVML's 12040 is `12.4`."""
    cuda = offered(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return {
        "version": offered(pynvml.nvmlSystemGetDriverVersion),
        "cuda": None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def free_gpu_memory_bytes(count: int) -> int | None:
    """Return the free memory of the fullest of the first `count` GPUs of this process, by the driver; None: unknown.

    TensorFlow's allocator returns no memory while its process runs, so this is also what was free when an operation
    failed. It distinguishes a full GPU from a broken library.
    """
    gpus = read_driver(by_cuda=True).gpus[:count]
    known = [(gpu.memory_bytes, gpu.memory_used_bytes) for gpu in gpus]
    return min((total - used for total, used in known if total is not None and used is not None), default=None)


def as_recorded(gpu: GPUFacts) -> GPU:
    """Return a GPU's identity for the record."""
    return GPU(**{item.name: getattr(gpu, item.name) for item in fields(GPU)})


Convert = Callable[..., Any]

Reading = Callable[[DriverGPU], Any]
"""Reads one figure; None: this GPU or driver does not offer it."""


def _thousandths(answer: float) -> float:
    return answer / 1000


def _query(query: Convert, *arguments: object, then: Convert | None = None, own: bool = False) -> Reading:
    """Return a reading by a query of NVML.

    Args:
        query: Gets the whole GPU's handle.
        arguments: Others.
        then: Converts an answer.
        own: For a slice, query the slice itself.
    """

    def read(gpu: DriverGPU) -> Any:  # noqa: ANN401
        answer = offered(query, gpu.handle if own else gpu.gpu_handle, *arguments)
        return then(answer) if then is not None and answer is not None else answer

    return read


def _power(query: Convert, then: Convert = _thousandths) -> Reading:
    """Return a reading that is unknown for a slice: a GPU's power and energy include its other slices."""
    reading = _query(query, then=then)
    return lambda gpu: None if gpu.is_slice else reading(gpu)


_mean_power_watts = _power(pynvml.nvmlDeviceGetPowerUsage)


def _power_watts(gpu: DriverGPU) -> Any:  # noqa: ANN401
    """Return the present power; before driver 530 and since Ampere, the mean over the last second."""
    instant = offered(pynvml.nvmlDeviceGetFieldValues, gpu.gpu_handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    if gpu.is_slice or instant is None or instant[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return _mean_power_watts(gpu)
    return float(instant[0].value.uiVal) / 1000


def _row_remap_pending(gpu: DriverGPU) -> bool | None:
    """GPUs before Ampere retire pages instead of remapping rows."""
    rows = offered(pynvml.nvmlDeviceGetRemappedRows, gpu.gpu_handle)
    pending = offered(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, gpu.gpu_handle) if rows is None else rows[2]
    return None if pending is None else bool(pending)


READINGS: dict[str, Reading] = {
    "compute_capability": _query(pynvml.nvmlDeviceGetCudaComputeCapability, then=lambda cc: f"{cc[0]}.{cc[1]}"),
    "memory_bytes": _query(pynvml.nvmlDeviceGetMemoryInfo, own=True, then=lambda memory: int(memory.total)),
    "memory_used_bytes": _query(pynvml.nvmlDeviceGetMemoryInfo, own=True, then=lambda memory: int(memory.used)),
    "utilisation": _query(pynvml.nvmlDeviceGetUtilizationRates, then=lambda rates: rates.gpu / 100),
    "ecc": _query(pynvml.nvmlDeviceGetEccMode, then=lambda modes: bool(modes[0])),
    "ecc_uncorrected_errors": _query(
        pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    ),
    "row_remap_pending": _row_remap_pending,
    "row_remap_failed": _query(pynvml.nvmlDeviceGetRemappedRows, then=lambda rows: bool(rows[3])),
    "persistence": _query(pynvml.nvmlDeviceGetPersistenceMode, then=bool),
    "compute_mode": _query(pynvml.nvmlDeviceGetComputeMode, then=COMPUTE_MODES.get),
    "power_watts": _power_watts,
    "power_limit_watts": _power(pynvml.nvmlDeviceGetEnforcedPowerLimit),
    "power_limit_default_watts": _power(pynvml.nvmlDeviceGetPowerManagementDefaultLimit),
    "power_limit_max_watts": _power(
        pynvml.nvmlDeviceGetPowerManagementLimitConstraints, lambda limits: limits[1] / 1000
    ),
    "temperature_celsius": _query(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    "sm_clock_mhz": _query(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
    "sm_clock_max_mhz": _query(pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
    "application_clock_mhz": _query(pynvml.nvmlDeviceGetApplicationsClock, pynvml.NVML_CLOCK_SM),
    "application_clock_default_mhz": _query(pynvml.nvmlDeviceGetDefaultApplicationsClock, pynvml.NVML_CLOCK_SM),
    "pcie_generation": _query(pynvml.nvmlDeviceGetCurrPcieLinkGeneration),
    "pcie_generation_max": _query(pynvml.nvmlDeviceGetMaxPcieLinkGeneration),
    "pcie_width": _query(pynvml.nvmlDeviceGetCurrPcieLinkWidth),
    "pcie_width_max": _query(pynvml.nvmlDeviceGetMaxPcieLinkWidth),
}
"""By field of `GPUFacts`. Temperature, clocks and links of a slice are those of its GPU."""

ENERGY_JOULES = _power(pynvml.nvmlDeviceGetTotalEnergyConsumption)
"""Counter of a GPU since the driver was loaded."""

SAMPLED = ("power_watts", "temperature_celsius", "sm_clock_mhz", "memory_used_bytes", "pcie_generation", "pcie_width")
"""Fields of `GPUFacts` that are sampled under load."""

CLOCK_BITS = _query(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons)
"""Bits of `CLOCK_REASONS`."""


def read_gpu(gpu: DriverGPU) -> GPUFacts:
    """Read the current state of a GPU: everything that a benchmark depends on."""
    if gpu.facts.problem is not None:
        return gpu.facts
    mode = offered(pynvml.nvmlDeviceGetVirtualizationMode, gpu.gpu_handle)
    virtual = mode == pynvml.NVML_GPU_VIRTUALIZATION_MODE_VGPU or bool(VGPU_NAME.search(gpu.facts.name or ""))
    bits = CLOCK_BITS(gpu)
    links = [offered(pynvml.nvmlDeviceGetNvLinkState, gpu.gpu_handle, i) for i in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    processes = offered(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle)
    return replace(
        gpu.facts,
        virtual=virtual,
        licensed=_is_licensed(gpu) if virtual else None,
        processes=None if processes is None else len(processes),
        process_names=[f"{process.pid} {_process_name(process.pid)}".strip() for process in processes or ()],
        clock_reasons=[name for name, bit in CLOCK_REASONS.items() if (bits or 0) & bit],
        nvlinks_up=links.count(1),
        nvlinks_down=links.count(0),
        **_throttling(bits),
        **{name: read(gpu) for name, read in READINGS.items()},
    )


def _read_sample(gpu: DriverGPU) -> GPUFacts:
    readings = {name: READINGS[name](gpu) for name in SAMPLED}
    return GPUFacts(index=gpu.facts.index, **readings, **_throttling(CLOCK_BITS(gpu)))


def _throttling(bits: int | None) -> dict[str, Any]:
    """Return the fields of `THROTTLING` at one moment, 0 or 1; heat explains a hardware slowdown."""
    if bits is None:
        return dict.fromkeys(THROTTLING)
    explained = bits & ~HARDWARE_SLOWDOWN if bits & THERMAL_REASONS else bits
    return {name: float(bool(explained & wanted)) for name, wanted in THROTTLING.items()}


def _is_licensed(gpu: DriverGPU) -> bool | None:
    """Return whether a vGPU has a licence; None: not reported. Of the features of vGPU software, it has one enabled."""
    found = offered(pynvml.nvmlDeviceGetGridLicensableFeatures_v4, gpu.gpu_handle)
    if found is None or not found.isGridLicenseSupported:
        return None
    features = found.gridLicensableFeatures[: found.licensableFeaturesCount]
    return any(feature.featureState for feature in features)


def _process_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # another user's, or outside this container


Sample = tuple[float, GPUFacts]
"""A moment by `time.perf_counter`, and the fields of `SAMPLED` and `THROTTLING` of a GPU."""


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
        self._nvml = ExitStack()
        self.at_start: list[GPUFacts] = []
        self.warnings: list[SoftWarning] = []
        if count == 0 or self._nvml.enter_context(opened()) is not None:
            return
        gpus = read_driver_gpus()
        self._devices = visible_devices(gpus, by_cuda=True)[0][:count]
        self.at_start = self.facts()
        hint = "python -m tfbench.doctor; restart the machine"
        self.warnings = [SoftWarning(code="gpu_unusable", message=problem, hint=hint) for problem in problems_of(gpus)]

    def close(self) -> None:
        """Close NVML; later queries return nothing."""
        self._nvml.close()
        self._devices = []

    def __len__(self) -> int:
        return len(self._devices)

    def facts(self) -> list[GPUFacts]:
        """Read all facts of every GPU; takes a few milliseconds."""
        return [read_gpu(device) for device in self._devices]

    def sample(self) -> list[Sample]:
        """Sample power, clocks, temperature and memory of every GPU."""
        return [(time.perf_counter(), _read_sample(device)) for device in self._devices]

    def read(self, reading: Reading) -> list[Any]:
        """Read one figure of every GPU."""
        return [reading(device) for device in self._devices]

    def other_processes(self) -> int | None:
        """Count the processes that computed on these GPUs at the start; None if no GPU reports it."""
        known = [gpu for gpu in self.at_start if gpu.processes is not None]
        return len({name for gpu in known for name in gpu.process_names}) if known else None

"""What the GPUs do at this moment, and all else that their driver reports: for `check`, before a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pynvml

from tfbench.machine.boards import Handle, Visible, offered, offered_devices, read_boards

_QUERIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "name": ("nvmlDeviceGetName", ()),
    "uuid": ("nvmlDeviceGetUUID", ()),
    "vbios": ("nvmlDeviceGetVbiosVersion", ()),
    "architecture": ("nvmlDeviceGetArchitecture", ()),
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability", ()),
    "cores": ("nvmlDeviceGetNumGpuCores", ()),
    "memory": ("nvmlDeviceGetMemoryInfo", ()),
    "bar1_memory": ("nvmlDeviceGetBAR1MemoryInfo", ()),
    "memory_bus_bits": ("nvmlDeviceGetMemoryBusWidth", ()),
    "ecc_mode": ("nvmlDeviceGetEccMode", ()),
    "mig_mode": ("nvmlDeviceGetMigMode", ()),
    "compute_mode": ("nvmlDeviceGetComputeMode", ()),
    "persistence_mode": ("nvmlDeviceGetPersistenceMode", ()),
    "display_active": ("nvmlDeviceGetDisplayActive", ()),
    "performance_state": ("nvmlDeviceGetPerformanceState", ()),
    "power_milliwatts": ("nvmlDeviceGetPowerUsage", ()),
    "power_limit_milliwatts": ("nvmlDeviceGetEnforcedPowerLimit", ()),
    "power_limit_default_milliwatts": ("nvmlDeviceGetPowerManagementDefaultLimit", ()),
    "power_limits_possible_milliwatts": ("nvmlDeviceGetPowerManagementLimitConstraints", ()),
    "temperature_celsius": ("nvmlDeviceGetTemperature", ("NVML_TEMPERATURE_GPU",)),
    "temperature_slowdown_celsius": ("nvmlDeviceGetTemperatureThreshold", ("NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",)),
    "fan_percent": ("nvmlDeviceGetFanSpeed", ()),
    "utilisation_percent": ("nvmlDeviceGetUtilizationRates", ()),
    "throttle_reasons": ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_SM",)),
    "sm_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_SM",)),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", ("NVML_CLOCK_MEM",)),
    "memory_clock_max_mhz": ("nvmlDeviceGetMaxClockInfo", ("NVML_CLOCK_MEM",)),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration", ()),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    "pci": ("nvmlDeviceGetPciInfo", ()),
}
"""By key of `raw_facts`: a function of NVML and its further arguments, all by name: old packages lack some."""


@dataclass(frozen=True, kw_only=True)
class GPUState:
    """What a GPU does at this moment; what it does not report is None.

    Attributes:
        index: As in `results.schema.GPU`.
        utilisation: Share of the last moments in which a kernel ran, 0 to 1.
        memory_used_bytes: By all processes of the machine.
        processes: Those that compute or draw; in a container only its own are listed.
        power_limit_default_watts: The card's default; the enforced limit is in `GPU`. None for a MIG slice.
    """

    index: int
    utilisation: float | None
    memory_used_bytes: int | None
    processes: int | None
    temperature_celsius: float | None
    power_watts: float | None
    power_limit_default_watts: float | None


def read_states() -> tuple[list[GPUState], list[dict[str, Any]]]:
    """Ask the driver once.

    Returns:
        For each visible GPU its state, and its raw facts: plain data for JSON by the names of `_QUERIES`. Both are
        empty where there is no driver.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], []
    try:
        devices = offered_devices(read_boards())
        return [_state(device) for device in devices], [_raw(device.board.handle) for device in devices]
    finally:
        pynvml.nvmlShutdown()


def _state(device: Visible) -> GPUState:
    """Read a GPU; a slice has its own memory and processes, and neither power nor utilisation."""
    board, is_slice = device.board.handle, device.slice is not None
    rates = offered(pynvml.nvmlDeviceGetUtilizationRates, board)  # a board in MIG mode has none
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, device.handle)
    power = None if is_slice else offered(pynvml.nvmlDeviceGetPowerUsage, board)
    limit = None if is_slice else offered(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, board)
    return GPUState(
        index=device.board.index,
        utilisation=None if rates is None else rates.gpu / 100,
        memory_used_bytes=None if memory is None else int(memory.used),
        processes=_processes(device.handle),
        temperature_celsius=offered(pynvml.nvmlDeviceGetTemperature, board, pynvml.NVML_TEMPERATURE_GPU),
        power_watts=None if power is None else power / 1000,
        power_limit_default_watts=None if limit is None else limit / 1000,
    )


def _processes(handle: Handle) -> int | None:
    kinds = (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses)
    reported = [found for kind in kinds if (found := offered(kind, handle)) is not None]
    return len({process.pid for found in reported for process in found}) if reported else None


def _raw(handle: Handle) -> dict[str, Any]:
    """Return all that this card and driver offer, of what is asked."""
    found = {}
    for key, (name, arguments) in _QUERIES.items():
        query: Callable[..., Any] | None = getattr(pynvml, name, None)
        values = [getattr(pynvml, argument, None) for argument in arguments]
        if query is None or None in values:
            continue
        if (answer := offered(query, handle, *values)) is not None:
            found[key] = _plain(answer)
    return found


def _plain(answer: object) -> object:
    """Turn what NVML answers into plain data: its structures have fields, some of them bytes."""
    fields = getattr(answer, "_fields_", None)
    if fields is not None:
        return {name: _plain(getattr(answer, name)) for name, *_ in fields}
    if isinstance(answer, bytes):
        return answer.decode("utf-8", "replace")
    if isinstance(answer, list | tuple):
        return [_plain(item) for item in answer]
    return answer if isinstance(answer, str | int | float | bool) else str(answer)

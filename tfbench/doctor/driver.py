"""What the NVIDIA driver says of every GPU of the machine: `python -m tfbench.doctor.driver` prints it as JSON.

A process of its own, because a driver that has lost a GPU can hang in any of these questions.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import pynvml

from tfbench.machine.boards import Board, Handle, offered, problems_of, read_boards
from tfbench.machine.cuda_devices import ask_cuda
from tfbench.machine.nvml import cuda_version

P2P_READ = 0
"""Which capability of a pair is asked: reading the other's memory. (nvidia-ml-py's own constant is a tuple.)"""

P2P_STATUS = {
    0: "ok",
    1: "chipset not supported",
    2: "GPU not supported",
    3: "topology not supported",
    4: "disabled by registry key",
    5: "not supported",
    6: "unknown",
}
"""Source: nvml.h, nvmlGpuP2PStatus_t."""

TOPOLOGY = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""What a transfer crosses, in the letters of `nvidia-smi topo -m`. Source: nvml.h, nvmlGpuTopologyLevel_t."""

COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}

REASONS = {
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


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process that computes on a GPU; in a container the driver may hide those outside of it."""

    pid: int
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class SliceFacts:
    """A slice of a GPU in MIG mode."""

    uuid: str | None
    profile: str | None
    memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class GPUFacts:
    """One GPU of the machine; what it does not offer is None.

    Attributes:
        index: The driver's, as `nvidia-smi` shows it.
        problem: Why it does not answer: `is lost`; None: it does.
        ecc_uncorrected: Errors since the driver was loaded.
        rows_pending: Memory rows that will be replaced at the next reset.
        reasons: Why its clocks are below their maximum at this moment.
        pcie_generation: At this moment: an idle GPU lowers it.
        nvlinks_up: Links that carry data.
        nvlinks_down: Links that the card has, without a partner or broken.
    """

    index: int
    bus_id: str | None
    problem: str | None = None
    name: str | None = None
    uuid: str | None = None
    compute_capability: str | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    mig: bool | None = None
    slices: list[SliceFacts] = field(default_factory=list)
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    rows_remapped: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None
    persistence: bool | None = None
    compute_mode: str | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    power_default_watts: float | None = None
    power_max_watts: float | None = None
    temperature_celsius: float | None = None
    utilisation: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    application_clock_mhz: int | None = None
    application_clock_default_mhz: int | None = None
    reasons: list[str] = field(default_factory=list)
    processes: list[Process] | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    nvlinks_up: int = 0
    nvlinks_down: int = 0

    @property
    def label(self) -> str:
        """Name it for a person: `GPU 3 (0000:3B:00.0)`."""
        return f"GPU {self.index}" + (f" ({self.bus_id})" if self.bus_id else "")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two GPUs, and how they reach each other.

    Attributes:
        p2p: Whether one reads the other's memory: a word of `P2P_STATUS`.
        topology: What a transfer crosses: a word of `TOPOLOGY`.
    """

    first: int
    second: int
    p2p: str | None
    topology: str | None


@dataclass(frozen=True, kw_only=True)
class DriverFacts:
    """The driver and its GPUs.

    Attributes:
        problem: Why NVML does not answer; None: it does.
        cuda: Newest CUDA that it serves.
        cuda_problem: Why the CUDA driver does not start, e.g. `cuInit failed with … (802)`; None: it does.
        cuda_devices: Names of the devices that a process here gets, in its order.
        gpu_problems: As `tfbench.probe` prints them.
    """

    problem: str | None = None
    version: str | None = None
    cuda: str | None = None
    cuda_problem: str | None = None
    cuda_devices: list[str] = field(default_factory=list)
    gpus: list[GPUFacts] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    gpu_problems: list[str] = field(default_factory=list)


def read_nvml() -> DriverFacts:
    """Ask NVML for all GPUs."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return DriverFacts(problem=str(error))
    try:
        boards = read_boards()
        return DriverFacts(
            version=offered(pynvml.nvmlSystemGetDriverVersion),
            cuda=cuda_version(offered(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
            gpus=list(map(read_gpu, boards)),
            pairs=read_pairs(boards),
            gpu_problems=problems_of(boards),
        )
    finally:
        pynvml.nvmlShutdown()


def read_gpu(board: Board) -> GPUFacts:
    """Ask one GPU for all that a benchmark depends on."""
    if board.problem is not None:
        return GPUFacts(index=board.index, bus_id=board.bus_id, problem=board.problem)
    handle = board.handle
    capability = offered(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = offered(pynvml.nvmlDeviceGetUtilizationRates, handle)
    up, down = _nvlinks(handle)
    return GPUFacts(
        index=board.index,
        bus_id=board.bus_id,
        name=board.name,
        uuid=board.uuid,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        mig=board.mig,
        slices=_slices(board),
        compute_mode=COMPUTE_MODES.get(_number(pynvml.nvmlDeviceGetComputeMode, handle)),
        persistence=_flag(pynvml.nvmlDeviceGetPersistenceMode, handle),
        temperature_celsius=offered(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        utilisation=None if rates is None else rates.gpu / 100,
        processes=_processes(handle),
        pcie_generation=offered(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_generation_max=offered(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
        pcie_width=offered(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
        pcie_width_max=offered(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        nvlinks_up=up,
        nvlinks_down=down,
        **_memory_health(handle),
        **_power(handle),
        **_clocks(handle),
    )


class _MemoryHealth(TypedDict):
    ecc: bool | None
    ecc_uncorrected: int | None
    rows_remapped: int | None
    rows_pending: bool | None
    rows_failed: bool | None


def _memory_health(handle: Handle) -> _MemoryHealth:
    """Read errors of the GPU's memory: by remapped rows from Ampere on, by retired pages before."""
    mode = offered(pynvml.nvmlDeviceGetEccMode, handle)
    kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
    rows = offered(pynvml.nvmlDeviceGetRemappedRows, handle)
    pending = _flag(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle) if rows is None else bool(rows[2])
    return {
        "ecc": None if mode is None else bool(mode[0]),
        "ecc_uncorrected": offered(pynvml.nvmlDeviceGetTotalEccErrors, handle, *kinds),
        "rows_remapped": None if rows is None else rows[0] + rows[1],
        "rows_pending": pending,
        "rows_failed": None if rows is None else bool(rows[3]),
    }


class _Power(TypedDict):
    power_watts: float | None
    power_limit_watts: float | None
    power_default_watts: float | None
    power_max_watts: float | None


def _power(handle: Handle) -> _Power:
    constraints = offered(pynvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    return {
        "power_watts": _watts(offered(pynvml.nvmlDeviceGetPowerUsage, handle)),
        "power_limit_watts": _watts(offered(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        "power_default_watts": _watts(offered(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)),
        "power_max_watts": None if constraints is None else _watts(constraints[1]),
    }


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


class _Clocks(TypedDict):
    sm_clock_mhz: int | None
    sm_clock_max_mhz: int | None
    application_clock_mhz: int | None
    application_clock_default_mhz: int | None
    reasons: list[str]


def _clocks(handle: Handle) -> _Clocks:
    sm = pynvml.NVML_CLOCK_SM
    bits = offered(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle) or 0
    return {
        "sm_clock_mhz": offered(pynvml.nvmlDeviceGetClockInfo, handle, sm),
        "sm_clock_max_mhz": offered(pynvml.nvmlDeviceGetMaxClockInfo, handle, sm),
        "application_clock_mhz": offered(pynvml.nvmlDeviceGetApplicationsClock, handle, sm),
        "application_clock_default_mhz": offered(pynvml.nvmlDeviceGetDefaultApplicationsClock, handle, sm),
        "reasons": [name for bit, name in REASONS.items() if bits & bit],
    }


def _number(query: Callable[..., Any], handle: Handle) -> int:
    answer = offered(query, handle)
    return -1 if answer is None else int(answer)


def _flag(query: Callable[..., Any], handle: Handle) -> bool | None:
    answer = offered(query, handle)
    return None if answer is None else bool(answer)


def _slices(board: Board) -> list[SliceFacts]:
    found = []
    for part in board.slices:
        memory = offered(pynvml.nvmlDeviceGetMemoryInfo, part.handle)
        total = None if memory is None else int(memory.total)
        found.append(SliceFacts(uuid=part.uuid, profile=part.profile, memory_bytes=total))
    return found


def _processes(handle: Handle) -> list[Process] | None:
    listed = offered(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if listed is None:
        return None
    return [Process(pid=p.pid, name=_process_name(p.pid), memory_bytes=p.usedGpuMemory) for p in listed]


def _process_name(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None  # of another user, or outside of this container


def _nvlinks(handle: Handle) -> tuple[int, int]:
    states = [offered(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(pynvml.NVML_NVLINK_MAX_LINKS)]
    return states.count(1), states.count(0)


def read_pairs(boards: list[Board]) -> list[Pair]:
    """Ask how each two GPUs reach each other; those in MIG mode never do."""
    able = [board for board in boards if board.problem is None and not board.mig]
    found = []
    for first, second in itertools.combinations(able, 2):
        status = offered(pynvml.nvmlDeviceGetP2PStatus, first.handle, second.handle, P2P_READ)
        level = offered(pynvml.nvmlDeviceGetTopologyCommonAncestor, first.handle, second.handle)
        found.append(
            Pair(
                first=first.index,
                second=second.index,
                p2p=None if status is None else P2P_STATUS.get(status, "unknown"),
                topology=None if level is None else TOPOLOGY.get(level, "unknown"),
            )
        )
    return found


def main() -> None:
    """Print what NVML says, and then, because CUDA may hang where NVML does not, what CUDA says."""
    facts = dataclasses.asdict(read_nvml())
    _say(facts)
    if facts["problem"] is None:
        cuda = ask_cuda()
        _say({"cuda_problem": cuda.problem, "cuda_devices": [device.name for device in cuda.devices]})


def _say(reported: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(reported) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""What the NVIDIA driver says of itself and its GPUs; no driver is an answer, not an error."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pynvml

from results.schema import GPU, SoftWarning
from tfbench.machine.boards import (
    Board,
    Handle,
    Visible,
    offered,
    offered_devices,
    problems_of,
    read_boards,
    visible_devices,
)
from tfbench.machine.cuda_devices import ask_cuda
from tfbench.machine.gpu_samples import Sample


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The NVIDIA driver of a machine.

    Attributes:
        version: e.g. `550.54.14`; None: no driver.
        cuda: Newest CUDA that it serves, e.g. `12.4`.
        gpus: GPUs that this process may use, in its own order, by the driver's indices.
        problems: GPUs that no process can use: `7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost`.
    """

    version: str | None = None
    cuda: str | None = None
    gpus: tuple[GPU, ...] = ()
    problems: tuple[str, ...] = ()


def read_driver(*, by_cuda: bool = False) -> Driver:
    """Ask the driver once; an empty `Driver` where there is none.

    Args:
        by_cuda: Return the GPUs of this process, as CUDA says: for a process that uses them. Else return what the
            machine offers, without initialising CUDA.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Driver()
    try:
        boards = read_boards()
        devices = devices_of_this_process(boards) if by_cuda else offered_devices(boards)
        return Driver(
            version=offered(pynvml.nvmlSystemGetDriverVersion),
            cuda=cuda_version(offered(pynvml.nvmlSystemGetCudaDriverVersion_v2)),
            gpus=tuple(map(describe, devices)),
            problems=(*problems_of(boards), *([] if by_cuda else _left_out(boards, devices))),
        )
    finally:
        pynvml.nvmlShutdown()


def cuda_version(number: int | None) -> str | None:
    """Write CUDA's number of a version: 12040 is `12.4`."""
    return None if number is None else f"{number // 1000}.{number % 1000 // 10}"


def devices_of_this_process(boards: list[Board]) -> list[Visible]:
    """Return what this process may use, as CUDA says or, where it does not answer, by CUDA_VISIBLE_DEVICES.

    Initialises CUDA in this process.
    """
    answer = ask_cuda()
    return visible_devices(boards, answer.devices if answer.problem is None else None)


def _left_out(boards: list[Board], devices: list[Visible]) -> list[str]:
    """Name boards in MIG mode that are not offered next to whole GPUs."""
    if not any(device.slice is None for device in devices):
        return []
    return [f"{board.label} is in MIG mode, and left out next to whole GPUs" for board in boards if board.slices]


def describe(device: Visible) -> GPU:
    """Describe a GPU, or a slice of one with its own name and memory; it has no power limit of its own."""
    capability = offered(pynvml.nvmlDeviceGetCudaComputeCapability, device.board.handle)
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, device.handle)
    limit = None if device.slice else offered(pynvml.nvmlDeviceGetEnforcedPowerLimit, device.handle)
    return GPU(
        index=device.board.index,
        name=device.name,
        uuid=device.uuid,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_bytes=None if memory is None else int(memory.total),
        power_limit_watts=None if limit is None else limit / 1000,
    )


class GPUs:
    """The GPUs of a case through one handle of the driver; without a driver or GPU it answers nothing.

    Of a MIG slice, temperature, clocks and their limits are those of its board, with which it shares a chip; power and
    energy are the board's with all that its other slices do, so they are left out.

    Args:
        count: How many of this process's GPUs, from the first; 0 makes the null object of a CPU. Asking initialises
            CUDA in this process, so set CUDA_VISIBLE_DEVICES before.
    """

    def __init__(self, count: int) -> None:
        self._devices: list[Visible] = []
        self._open = False
        self.warnings: list[SoftWarning] = []
        """What the reader of the numbers should know about these GPUs, and of those that do not answer."""
        if count == 0:
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return
        self._open = True
        boards = read_boards()
        self._devices = devices_of_this_process(boards)[:count]
        self.warnings = _warnings(boards, self._devices)

    def close(self) -> None:
        """Let the driver go; what is asked later has no answer."""
        if self._open:
            offered(pynvml.nvmlShutdown)
        self._open, self._devices = False, []

    def __len__(self) -> int:
        return len(self._devices)

    @property
    def _boards(self) -> list[Handle]:
        return [device.board.handle for device in self._devices]

    @property
    def devices(self) -> tuple[Visible, ...]:
        """The GPUs in the order of the case."""
        return tuple(self._devices)

    def sample(self) -> list[Sample]:
        """Read every GPU once."""
        return [_sample(device) for device in self._devices]

    def energy_joules(self) -> list[float | None]:
        """Return each GPU's energy counter: joules since the driver was loaded; None for a slice."""
        counters = [
            None if device.slice else offered(pynvml.nvmlDeviceGetTotalEnergyConsumption, device.handle)
            for device in self._devices
        ]
        return [None if counter is None else counter / 1000 for counter in counters]

    def power_limits_watts(self) -> list[float | None]:
        """Return each GPU's enforced power limit; None for a slice."""
        limits = [
            None if device.slice else offered(pynvml.nvmlDeviceGetEnforcedPowerLimit, device.handle)
            for device in self._devices
        ]
        return [None if limit is None else limit / 1000 for limit in limits]

    def max_clocks_mhz(self) -> list[float | None]:
        """Return each GPU's largest SM clock."""
        return [offered(pynvml.nvmlDeviceGetMaxClockInfo, board, pynvml.NVML_CLOCK_SM) for board in self._boards]

    def temperatures_celsius(self) -> list[float]:
        """Return the temperatures of those GPUs that report it."""
        return [s.temperature_celsius for s in self.sample() if s.temperature_celsius is not None]

    def processes(self) -> int | None:
        """Count the processes that compute on these GPUs; None where no GPU reports it."""
        lists = [offered(pynvml.nvmlDeviceGetComputeRunningProcesses, device.handle) for device in self._devices]
        known = [{process.pid for process in found} for found in lists if found is not None]
        return len(set().union(*known)) if known else None

    def ecc_enabled(self) -> bool | None:
        """Say whether all GPUs correct memory errors."""
        modes = [offered(pynvml.nvmlDeviceGetEccMode, board) for board in self._boards]
        known = [mode[0] for mode in modes if mode is not None]
        return all(known) if known and len(known) == len(modes) else None

    def ecc_uncorrected_errors(self) -> int | None:
        """Count the uncorrected memory errors since the driver was loaded, all GPUs together."""
        kinds = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        counts = [offered(pynvml.nvmlDeviceGetTotalEccErrors, board, *kinds) for board in self._boards]
        known = [count for count in counts if count is not None]
        return sum(known) if known and len(known) == len(counts) else None

    def pcie_width_max(self) -> int | None:
        """Return the fewest lanes that one of the GPUs could use in its slot."""
        widths = [offered(pynvml.nvmlDeviceGetMaxPcieLinkWidth, board) for board in self._boards]
        return min((width for width in widths if width is not None), default=None)


def _warnings(boards: list[Board], devices: list[Visible]) -> list[SoftWarning]:
    found = [
        SoftWarning(code="gpu_unusable", message=problem, hint="python -m tfbench.doctor; restart the machine")
        for problem in problems_of(boards)
    ]
    slices = [device for device in devices if device.slice]
    if slices:
        found.append(
            SoftWarning(
                code="mig_slice",
                message=f"{slices[0].name} is a slice of GPU {slices[0].board.index}: power and energy are "
                "measured for the whole board only, so they are left out; other slices share its clock and temperature",
                hint=f"to measure the whole GPU: sudo nvidia-smi -i {slices[0].board.index} -mig 0",
            )
        )
    return found


def _sample(device: Visible) -> Sample:
    board = device.board.handle
    power = None if device.slice else offered(pynvml.nvmlDeviceGetPowerUsage, board)
    memory = offered(pynvml.nvmlDeviceGetMemoryInfo, device.handle)
    return Sample(
        at=time.perf_counter(),
        power_watts=None if power is None else power / 1000,
        temperature_celsius=offered(pynvml.nvmlDeviceGetTemperature, board, pynvml.NVML_TEMPERATURE_GPU),
        sm_clock_mhz=offered(pynvml.nvmlDeviceGetClockInfo, board, pynvml.NVML_CLOCK_SM),
        reasons=offered(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, board),
        memory_used_bytes=None if memory is None else int(memory.used),
        pcie_generation=offered(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, board),
        pcie_width=offered(pynvml.nvmlDeviceGetCurrPcieLinkWidth, board),
    )

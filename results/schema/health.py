"""GPU health: the facts of a GPU, and the table of rules that evaluates them.

Standard library only, because this file also runs in every container. `tfbench.machine.nvml` reads the facts. The
rules are evaluated before anything runs (`IDLE`: `doctor`, `check`, `plan`), over the timed steps of a repeat
(`TIMING`) and under the load of a deep check (`LOAD`). A new rule is one row of `RULES`.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from results.schema import bounds
from results.schema.bounds import RecordPart

DRIVER_FIXES = {
    "(NVML 4)": "give this user access to /dev/nvidia* (ls -l /dev/nvidia*), and the container or job its GPUs",
    "(NVML 9)": "the driver is not loaded: sudo modprobe nvidia; sudo dmesg | grep -i nvrm shows why not",
    "(NVML 18)": "the driver was updated under the loaded kernel module: restart the machine",
    "": "restart the machine; sudo dmesg | grep -i nvrm may show why",
}
"""Fixes by the end of a problem, the code of NVML's error; the first match counts. Source: nvml.h, nvmlReturn_t."""


def driver_fix(problem: str) -> str:
    """Return what to do about a driver that does not answer.

    Args:
        problem: As `tfbench.probe` prints it under `driver_problem`.
    """
    return next(fix for code, fix in DRIVER_FIXES.items() if problem.endswith(code))


class Moment(enum.Flag):
    """When facts were read."""

    IDLE = enum.auto()
    TIMING = enum.auto()
    LOAD = enum.auto()


class GPUSlice(RecordPart):
    """A slice of a GPU in MIG mode.

    Attributes:
        profile: E.g. `1g.10gb`.
    """

    uuid: bounds.Text | None = None
    profile: bounds.Text | None = None
    memory_bytes: bounds.Bytes | None = None


class GPUIdentity(RecordPart):
    """What the driver reports of any GPU; values it does not report are None.

    Attributes:
        index: The driver's index, as in `nvidia-smi`, which in a container counts only the GPUs given to it; of a MIG
            slice: its GPU's.
        compute_capability: E.g. `8.6`.
        power_limit_watts: Enforced limit.
    """

    index: bounds.CountOrZero
    uuid: bounds.Text | None = None
    compute_capability: bounds.Text | None = None
    memory_bytes: bounds.Bytes | None = None
    power_limit_watts: bounds.Watts | None = None


class WorstOfGPUs(RecordPart):
    """Readings of a GPU, or of the worst of several; values that are not reported are None.

    Attributes:
        temperature_start_celsius: At the start of warm-up.
        sm_clock_max_mhz: Maximum clock.
        throttle_power_share: Share of readings in which the power limit lowered the clock.
        throttle_thermal_share: Likewise for a temperature limit, by software or hardware.
        throttle_hardware_share: Likewise for a power brake or another hardware slowdown.
        ecc_uncorrected_errors: Memory errors over the interval; at one moment: since the driver was loaded.
        pcie_width_max: Lanes that GPU and slot support.
    """

    temperature_start_celsius: bounds.Celsius | None = None
    sm_clock_max_mhz: bounds.Megahertz | None = None
    throttle_power_share: bounds.Share | None = None
    throttle_thermal_share: bounds.Share | None = None
    throttle_hardware_share: bounds.Share | None = None
    ecc_uncorrected_errors: bounds.Errors | None = None
    pcie_width_max: bounds.CountOrZero | None = None


class GPUFacts(GPUIdentity, WorstOfGPUs):
    """One GPU at one moment or over an interval; values that its driver does not report are None.

    Over an interval, power and clock are means, temperature is the maximum and the PCIe link is the widest; memory,
    utilisation and processes are those before the benchmark used it.

    Attributes:
        place: Index among the GPUs of a case, as `DeviceResult.gpu`.
        bus_id: `0000:3B:00.0`.
        problem: Why it does not respond, e.g. `is lost`; None: it does.
        name: Includes the profile of a MIG slice: `NVIDIA H100 80GB HBM3 MIG 1g.10gb`.
        virtual: Whether it is a vGPU: a share of a GPU that the host's hypervisor gives to this virtual machine.
        licensed: Whether a vGPU has a licence; None: not reported.
        memory_used_bytes: By all processes of the machine.
        utilisation: Share of the driver's last sample period in which a kernel ran, 0 to 1.
        processes: Number of compute processes; those outside a container may be hidden from it.
        process_names: The same processes as `PID NAME`.
        mig: Whether MIG mode is on; None: not supported.
        row_remap_pending: Whether a faulty row of its memory will be replaced at the next reset.
        row_remap_failed: Whether a faulty row could not be replaced.
        power_limit_default_watts: Factory default.
        clock_reasons: Why its clock is below the maximum at this moment.
        product_teraflops_per_second: Rate of matrix products while all GPUs of a case multiplied, after its interval.
        product_median_teraflops_per_second: Median of these GPUs, the upper one of an even number.
        pcie_generation: Lower on an idle GPU.
        pcie_width: Lanes in use.
        nvlinks_up: Active links.
        nvlinks_down: Unconnected or broken links.
    """

    place: bounds.CountOrZero = 0
    bus_id: bounds.Text | None = None
    problem: bounds.Text | None = None
    name: bounds.Text | None = None
    virtual: bounds.Flag = False
    licensed: bounds.Flag | None = None
    utilisation: bounds.Share | None = None
    memory_used_bytes: bounds.Bytes | None = None
    processes: bounds.CountOrZero | None = None
    process_names: bounds.ListOf[bounds.Text] = field(default_factory=list)
    mig: bounds.Flag | None = None
    slices: bounds.ListOf[GPUSlice] = field(default_factory=list)
    ecc: bounds.Flag | None = None
    row_remap_pending: bounds.Flag | None = None
    row_remap_failed: bounds.Flag | None = None
    persistence: bounds.Flag | None = None
    compute_mode: bounds.Text | None = None
    temperature_celsius: bounds.Celsius | None = None
    power_watts: bounds.Watts | None = None
    power_limit_default_watts: bounds.Watts | None = None
    power_limit_max_watts: bounds.Watts | None = None
    sm_clock_mhz: bounds.Megahertz | None = None
    application_clock_mhz: bounds.Megahertz | None = None
    application_clock_default_mhz: bounds.Megahertz | None = None
    clock_reasons: bounds.ListOf[bounds.Text] = field(default_factory=list)
    product_teraflops_per_second: bounds.PerSecond | None = None
    product_median_teraflops_per_second: bounds.PerSecond | None = None
    pcie_generation: bounds.CountOrZero | None = None
    pcie_generation_max: bounds.CountOrZero | None = None
    pcie_width: bounds.CountOrZero | None = None
    nvlinks_up: bounds.CountOrZero = 0
    nvlinks_down: bounds.CountOrZero = 0

    @property
    def label(self) -> str:
        """Display name: `GPU 3 (0000:3B:00.0)`."""
        return f"GPU {self.index}" + (f" ({self.bus_id})" if self.bus_id else "")

    @property
    def address(self) -> str:
        """For `nvidia-smi -i` on the host, whose indices may differ from those in a container: the bus id, if known."""
        return self.bus_id or self.uuid or str(self.index)

    @property
    def is_busy(self) -> bool:
        """Whether it is in use; ignores values that are not reported, and the memory of a MIG slice.

        Without persistence mode, utilisation is ignored: the driver has just started the GPU, and an idle one may show
        90 % and more. Source: issue 254 of jina-ai/clip-as-service.
        """
        memory = 0 if self.mig else self.memory_used_bytes or 0
        utilisation = 0.0 if self.persistence is False else self.utilisation or 0.0
        return bool(self.processes) or utilisation > MAX_IDLE_UTILISATION or memory > MAX_IDLE_BYTES

    @property
    def use(self) -> str:
        """Current use: `idle`, `busy, 87% used, 12.3 GB taken, 3 processes`."""
        if not self.is_busy:
            return "idle"
        parts = ["busy"]
        if self.utilisation is not None:
            parts.append(f"{self.utilisation:.0%} used")
        if self.memory_used_bytes is not None:
            parts.append(f"{self.memory_used_bytes / 1e9:.1f} GB taken")
        if self.processes:
            names = f" ({', '.join(self.process_names)})" if self.process_names else ""
            parts.append(f"{self.processes} process{'es' if self.processes > 1 else ''}{names}")
        return ", ".join(parts)

    @property
    def clock_and_temperature(self) -> str:
        """`, 1040 MHz, 91 °C`; empty if unknown."""
        clock = "" if self.sm_clock_mhz is None else f", {self.sm_clock_mhz:.0f} MHz"
        return clock + ("" if self.temperature_celsius is None else f", {self.temperature_celsius:.0f} °C")

    @property
    def link(self) -> str:
        """`PCIe ×8 of ×16`, with the generation if it is below the maximum."""
        now, most = self.pcie_generation, self.pcie_generation_max
        lower = f", generation {now} of {most} at this moment" if now and most and now < most else ""
        return f"PCIe ×{self.pcie_width} of ×{self.pcie_width_max}{lower}"

    @property
    def licence_state(self) -> str:
        """`licensed`, `unlicensed`, `its licence unknown`."""
        return {True: "licensed", False: "unlicensed", None: "its licence unknown"}[self.licensed]

    @property
    def slice_names(self) -> str:
        """`1g.10gb, 3g.40gb`; `none`."""
        return ", ".join(part.profile or "unnamed" for part in self.slices) or "none"


MAX_IDLE_UTILISATION = 0.05
"""Also of the CPUs of a process: see `tfbench.machine.host`."""

MAX_IDLE_BYTES = 1 << 30
"""An idle GPU has a few hundred MB in use, by the driver and a desktop."""

MAX_IDLE_CELSIUS = 65.0
"""Fans of workstation GPUs stop below about 60 °C (our choice)."""

START_CELSIUS = 50.0
"""Temperature to which GPUs cool down before warm-up."""

THROTTLE_SHARE, THROTTLE_REJECT_SHARE = 0.05, 0.50
"""In fewer than 5 % of readings a lower clock cannot change a mean by 1 % (our choice)."""

PRODUCT_SHORTFALL = 0.10
"""Equal GPUs at their power limit vary by 8 % from the fastest to the slowest, on average over five clusters (Sinha et
al., Not all GPUs are created equal, SC 2022); below the median, by about half of that. Lambda's 39 H100 hosts differ by
0.07 to 0.63 %."""

POWER_CAP_SHARE = 0.02
"""How far the enforced limit may be below the default. They are equal unless the GPU was capped; a cap of 5 % lowers
the clock by 1 to 2 %, which comparisons resolve."""


_ALWAYS = Moment.IDLE | Moment.TIMING | Moment.LOAD
_WITHOUT_TIMING = Moment.IDLE | Moment.LOAD


@dataclass(frozen=True, kw_only=True)
class HealthRule:
    """One row of `RULES`.

    Attributes:
        moments: When it is evaluated.
        value: The compared value; None: not reported, so there is no warning.
        limit: A higher value is a warning.
        reject: A higher value rejects the GPU; None: never.
        seen: The finding, a template over `gpu` and `value`.
        why: Why it matters for a benchmark.
        fix: A command or step, a template likewise.
    """

    value: Callable[[GPUFacts], float | None]
    moments: Moment = _ALWAYS
    limit: float = 0.0
    reject: float | None = None
    seen: str
    why: str
    fix: str


class HealthWarning(NamedTuple):
    """A rule's finding about a GPU.

    Attributes:
        code: Identifies the rule; `why`, `value` and `limit` are the rule's.
        seen: The finding with its figures, to follow the GPU's name and a colon.
        fix: A command or step.
        rejects: Whether this GPU must not be used; else its numbers may be too low or not comparable.
    """

    code: str
    gpu: GPUFacts
    seen: str
    why: str
    fix: str
    value: float
    limit: float
    rejects: bool


def health_warnings(gpu: GPUFacts, moment: Moment) -> list[HealthWarning]:
    """Evaluate all rules of a moment, in the order of `RULES`."""
    found = []
    for code, rule in RULES.items():
        value = rule.value(gpu) if moment in rule.moments else None
        if value is not None and not value <= rule.limit:
            seen, fix = rule.seen.format(gpu=gpu, value=value), rule.fix.format(gpu=gpu)
            rejects = rule.reject is not None and not value <= rule.reject
            found.append(HealthWarning(code, gpu, seen, rule.why, fix, value, rule.limit, rejects))
    return found


def grouped_warnings(gpus: Iterable[GPUFacts], moment: Moment) -> list[tuple[str, HealthWarning]]:
    """Evaluate all rules of a moment for several GPUs, and group equal warnings.

    Returns:
        For each group the names of the GPUs, `GPU 7 (0000:DB:00.0)` or `GPUs 0, 1, 7`, and one of the warnings.
    """
    same: defaultdict[tuple[str, str, str], list[HealthWarning]] = defaultdict(list)
    for gpu in gpus:
        for warning in health_warnings(gpu, moment):
            same[warning.code, warning.seen, warning.fix].append(warning)
    names = {key: ", ".join(str(warning.gpu.index) for warning in group) for key, group in same.items()}
    return [(first.gpu.label if not others else f"GPUs {names[key]}", first) for key, (first, *others) in same.items()]


def _shortfall(value: float | None, usual: float | None) -> float | None:
    """Return the share by which a value is below the usual one; None: one of them is unknown."""
    return None if value is None or not usual else 1 - value / usual


_HELD_BACK = "numbers would be those of a GPU that is too hot or gets too little power"

RULES: dict[str, HealthRule] = {
    "gpu_unusable": HealthRule(
        value=lambda gpu: float(gpu.problem is not None),
        seen="{gpu.problem}",
        why="cases that need it fail, and a GPU that fell off the bus may slow the driver down for the others",
        fix="sudo dmesg | grep -i xid shows why; then restart the machine, and replace the GPU if it happens again",
    ),
    "mig_slice": HealthRule(
        moments=Moment.IDLE | Moment.TIMING,
        value=lambda gpu: float(bool(gpu.mig)),
        seen="MIG mode is on, slices: {gpu.slice_names}",
        why="a process uses one slice, and no whole GPU next to it; power and energy are known of the whole GPU only, "
        "so they are excluded; other slices share its clock and temperature",
        fix="to measure the whole GPU: sudo nvidia-smi -i {gpu.address} -mig 0; to choose a slice, or other GPUs: "
        "CUDA_VISIBLE_DEVICES with the UUIDs of nvidia-smi -L",
    ),
    "vgpu": HealthRule(
        moments=Moment.IDLE | Moment.TIMING,
        value=lambda gpu: float(gpu.virtual),
        seen="{gpu.name} is a vGPU, {gpu.licence_state}",
        why="other virtual machines may use the same GPU; without a licence, the driver makes it slower after some "
        "minutes; power and energy are unknown",
        fix="nvidia-smi -q shows License Status; for the speed of a whole GPU, use a machine with GPU passthrough",
    ),
    "row_remap_failed": HealthRule(
        value=lambda gpu: gpu.row_remap_failed,
        reject=0.0,
        seen="a faulty row of its memory could not be replaced",
        why="expect wrong results and crashes",
        fix="replace the GPU",
    ),
    "ecc_errors": HealthRule(
        value=lambda gpu: gpu.ecc_uncorrected_errors,
        reject=0.0,
        seen="{gpu.ecc_uncorrected_errors} uncorrected memory errors",
        why="an uncorrected error ends the process that it hits",
        fix="sudo nvidia-smi -i {gpu.address} --gpu-reset; if errors come back, replace the GPU (nvidia-smi -q -d ECC)",
    ),
    "row_remap_pending": HealthRule(
        value=lambda gpu: gpu.row_remap_pending,
        seen="a faulty row of its memory will be replaced at the next reset",
        why="an uncorrected error ends the process that it hits",
        fix="sudo nvidia-smi -i {gpu.address} --gpu-reset",
    ),
    "compute_mode": HealthRule(
        moments=Moment.IDLE,
        value=lambda gpu: float(gpu.compute_mode == "prohibited"),
        seen="compute mode is prohibited",
        why="no process can use it",
        fix="sudo nvidia-smi -i {gpu.address} -c DEFAULT",
    ),
    "power_cap": HealthRule(
        value=lambda gpu: None if gpu.mig else _shortfall(gpu.power_limit_watts, gpu.power_limit_default_watts),
        limit=POWER_CAP_SHARE,
        seen="capped at {gpu.power_limit_watts:.0f} W (default {gpu.power_limit_default_watts:.0f} W)",
        why="its clock falls under load, so it is slower than others of its kind",
        fix="sudo nvidia-smi -i {gpu.address} -pl {gpu.power_limit_default_watts:.0f}",
    ),
    "application_clocks": HealthRule(
        moments=_WITHOUT_TIMING,
        value=lambda gpu: _shortfall(gpu.application_clock_mhz, gpu.application_clock_default_mhz),
        seen="application clock is {gpu.application_clock_mhz:.0f} MHz (default "
        "{gpu.application_clock_default_mhz:.0f} MHz)",
        why="its clock cannot rise above that",
        fix="sudo nvidia-smi -i {gpu.address} -rac (and -rgc, if clocks were locked by -lgc)",
    ),
    "throttled_power": HealthRule(
        moments=Moment.TIMING,
        value=lambda gpu: gpu.throttle_power_share,
        limit=THROTTLE_SHARE,
        seen="at its power limit in {value:.0%} of the readings{gpu.clock_and_temperature}",
        why="normal under full load at the default limit, which then sets the clock of any such GPU",
        fix="nothing to do, unless nvidia-smi -q -d POWER shows a lowered limit",
    ),
    "throttled_thermal": HealthRule(
        value=lambda gpu: gpu.throttle_thermal_share,
        limit=THROTTLE_SHARE,
        reject=THROTTLE_REJECT_SHARE,
        seen="held back by heat in {value:.0%} of the readings{gpu.clock_and_temperature}",
        why=_HELD_BACK,
        fix="check fans and airflow; nvidia-smi -q -d TEMPERATURE",
    ),
    "throttled_hardware": HealthRule(
        value=lambda gpu: gpu.throttle_hardware_share,
        limit=THROTTLE_SHARE,
        reject=THROTTLE_REJECT_SHARE,
        seen="held back by a power brake or another hardware slowdown in {value:.0%} of the readings"
        "{gpu.clock_and_temperature}",
        why=_HELD_BACK,
        fix="check power cables; nvidia-smi -q -d PERFORMANCE",
    ),
    "slow_gpu": HealthRule(
        moments=Moment.TIMING,
        value=lambda gpu: _shortfall(gpu.product_teraflops_per_second, gpu.product_median_teraflops_per_second),
        limit=PRODUCT_SHORTFALL,
        seen="{value:.0%} below the median of the case's GPUs in matrix products "
        "({gpu.product_teraflops_per_second:.3g} of {gpu.product_median_teraflops_per_second:.3g} TFLOP/s)",
        why="all replicas wait for the slowest one",
        fix="tfbench check --deep measures each GPU; exclude it with CUDA_VISIBLE_DEVICES or gpus:",
    ),
    "hot": HealthRule(
        moments=Moment.IDLE,
        value=lambda gpu: None if gpu.is_busy else gpu.temperature_celsius,
        limit=MAX_IDLE_CELSIUS,
        seen="{value:.0f} °C without work",
        why="a hot GPU clocks lower, and has less time until it throttles",
        fix="check fans and airflow, or wait until it has cooled down",
    ),
    "hot_start": HealthRule(
        moments=Moment.TIMING,
        value=lambda gpu: gpu.temperature_start_celsius,
        limit=START_CELSIUS,
        seen="{value:.0f} °C when warm-up began",
        why="a hot GPU clocks lower than a cold one",
        fix="--max_cooling_seconds=600",
    ),
    "gpu_shared": HealthRule(
        moments=Moment.IDLE | Moment.TIMING,
        value=lambda gpu: float(gpu.is_busy),
        seen="{gpu.use}",
        why="a benchmark shares its time, memory and power",
        fix="end the processes (nvidia-smi lists them; sudo kill PID), or exclude this GPU with CUDA_VISIBLE_DEVICES "
        "or gpus:",
    ),
    "pcie_width": HealthRule(
        moments=_WITHOUT_TIMING,
        value=lambda gpu: _shortfall(gpu.pcie_width or None, gpu.pcie_width_max),
        reject=0.7,
        seen="{gpu.link}",
        why="input from the host, and all-reduces without NVLink, are slower in proportion",
        fix="reseat the GPU, use another slot or riser, and check bifurcation in the BIOS",
    ),
    "persistence_off": HealthRule(
        moments=Moment.IDLE,
        value=lambda gpu: float(gpu.persistence is False),
        seen="persistence mode is off",
        why="the driver shuts the GPU down between two processes: each start waits for seconds, and limits of clock "
        "and power are lost",
        fix="sudo nvidia-smi -pm 1",
    ),
}
"""By code. `throttled_power` is for `TIMING` only: in a deep check any healthy GPU reaches its power limit."""

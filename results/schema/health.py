"""GPU health: the facts of a GPU, and the rules of `health.toml` that evaluate them.

Standard library only, because this file also runs in every container. `tfbench.machine.nvml` reads the facts. The
rules are evaluated before anything runs (`IDLE`: `doctor`, `check`, `plan`), over the timed steps of a repeat
(`TIMING`) and under the load of a deep check (`LOAD`). A new rule is a table of that file, and a property of `GPUFacts`
unless its fact is one already.
"""

from __future__ import annotations

import enum
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
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


class Moment(enum.StrEnum):
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
    def is_unusable(self) -> bool:
        """Whether it does not respond."""
        return self.problem is not None

    @property
    def is_prohibited(self) -> bool:
        """Whether no process may use it."""
        return self.compute_mode == "prohibited"

    @property
    def lacks_persistence(self) -> bool:
        """Whether the driver shuts it down between two processes."""
        return self.persistence is False

    @property
    def celsius_without_work(self) -> float | None:
        """Its temperature; None: unknown, or it is in use."""
        return None if self.is_busy else self.temperature_celsius

    @property
    def power_shortfall(self) -> float | None:
        """Share by which its power limit is below the default; None: unknown, or a slice, which has none."""
        return None if self.mig else _shortfall(self.power_limit_watts, self.power_limit_default_watts)

    @property
    def application_clock_shortfall(self) -> float | None:
        """Likewise of its application clock."""
        return _shortfall(self.application_clock_mhz, self.application_clock_default_mhz)

    @property
    def product_shortfall(self) -> float | None:
        """Share by which its matrix products are slower than the median's."""
        return _shortfall(self.product_teraflops_per_second, self.product_median_teraflops_per_second)

    @property
    def pcie_width_shortfall(self) -> float | None:
        """Share of its PCIe lanes that are not in use."""
        return _shortfall(self.pcie_width or None, self.pcie_width_max)

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


def _shortfall(value: float | None, usual: float | None) -> float | None:
    """Return the share by which a value is below the usual one; None: one of them is unknown."""
    return None if value is None or not usual else 1 - value / usual


@dataclass(frozen=True, kw_only=True)
class HealthRule:
    """One rule of `health.toml`.

    Attributes:
        fact: The compared value, an attribute of `GPUFacts`; None: not reported, so there is no warning.
        moments: When it is evaluated.
        limit: A higher value is a warning.
        reject: A higher value rejects the GPU; None: never.
        seen: The finding, a template over `gpu` and `value`.
        why: Why it matters for a benchmark.
        fix: A command or step, a template likewise.
    """

    fact: str
    moments: Collection[str] = tuple(Moment)
    limit: float = 0.0
    reject: float | None = None
    seen: str
    why: str
    fix: str


RULES = {
    code: HealthRule(**rule)
    for code, rule in tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8")).items()
}
"""By code, in the order of the file."""

START_CELSIUS = RULES["hot_start"].limit
"""Temperature to which GPUs cool down before warm-up."""

PRODUCT_SHORTFALL = RULES["slow_gpu"].limit
"""Share by which a GPU of a case may be below the median in matrix products."""


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
        value = getattr(gpu, rule.fact) if moment in rule.moments else None
        if value is not None and not value <= rule.limit:
            seen, fix = rule.seen.format(gpu=gpu, value=value), rule.fix.format(gpu=gpu)
            rejects = rule.reject is not None and not value <= rule.reject
            found.append(HealthWarning(code, gpu, seen, rule.why, fix, float(value), rule.limit, rejects))
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

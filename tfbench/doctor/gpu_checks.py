"""Judges every GPU: its health, its settings, its slot, and how the GPUs reach each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tfbench.doctor.driver import DriverFacts, GPUFacts, Pair
from tfbench.doctor.findings import Finding, Level

LOW_POWER_SHARE = 0.95
"""As in `check`: below this share of the default limit a card is slower than others of its kind."""

MAX_IDLE_CELSIUS = 65.0
BUSY_UTILISATION = 0.05
BUSY_MEMORY_BYTES = 1 << 30
"""An idle GPU has some hundred MB in use: the driver's own, and a desktop's."""

HELD_BACK = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake")
"""Reasons for low clocks that are no setting: heat, or a power supply that gave up."""

NEAR = ("internal", "PIX", "PXB", "PHB", "NODE")
"""Topologies within one socket, where PCIe GPUs can reach each other."""

SHOWN_PAIRS = 4


def check_gpus(driver: DriverFacts) -> list[Finding]:
    """Judge all GPUs that the driver counts."""
    answering = [gpu for gpu in driver.gpus if gpu.problem is None]
    found = [finding for gpu in driver.gpus if gpu.problem for finding in _silent(gpu, driver)]
    for gpu in answering:
        for check in EACH:
            found.extend(check(gpu))
    for together in (_differ, _nvlinks, _persistence, _ecc_mode):
        found.extend(together(answering))
    found.extend(_p2p(driver.pairs))
    return found


def _silent(gpu: GPUFacts, driver: DriverFacts) -> Iterator[Finding]:
    summary = next((text for text in driver.gpu_problems if "GPUs answer" in text), "").partition(":")[0]
    yield Finding(
        level=Level.DOUBT,
        code="gpu_silent",
        subject=gpu.label,
        seen=f"GPU {gpu.index} {gpu.problem} ({summary})",
        why="cases that need it fail, and a GPU that fell off the bus may slow the driver down for the others",
        fix="sudo dmesg | grep -i xid shows why; then restart the machine, and replace the card if it happens again",
    )


def _mig(gpu: GPUFacts) -> Iterator[Finding]:
    if not gpu.mig:
        return
    slices = ", ".join(part.profile or "unnamed" for part in gpu.slices) or "none"
    yield Finding(
        level=Level.DOUBT,
        code="mig",
        subject=gpu.label,
        seen=f"MIG mode is on, slices: {slices}",
        why="a process can use one slice, but not also a whole GPU; power and energy of a slice are not measured",
        fix=f"to measure the whole GPU: sudo nvidia-smi -i {gpu.index} -mig 0; to choose a slice, or other GPUs: "
        "CUDA_VISIBLE_DEVICES with the UUIDs of nvidia-smi -L",
    )


def _memory_errors(gpu: GPUFacts) -> Iterator[Finding]:
    if gpu.rows_failed:
        yield Finding(
            level=Level.DOUBT,
            code="rows_failed",
            subject=gpu.label,
            seen="a damaged row of memory could not be replaced",
            why="wrong results and crashes are to be expected",
            fix="replace the card",
        )
    if gpu.ecc_uncorrected or gpu.rows_pending:
        parts = []
        if gpu.ecc_uncorrected:
            parts.append(f"{gpu.ecc_uncorrected} uncorrected memory errors since the driver was loaded")
        if gpu.rows_pending:
            parts.append("rows of memory wait to be replaced")
        yield Finding(
            level=Level.DOUBT,
            code="ecc_errors",
            subject=gpu.label,
            seen=", ".join(parts),
            why="an uncorrected error ends the process that it hits",
            fix=f"sudo nvidia-smi -i {gpu.index} --gpu-reset; if errors come back, replace the card",
        )


def _compute_mode(gpu: GPUFacts) -> Iterator[Finding]:
    if gpu.compute_mode in (None, "default"):
        return
    prohibited = gpu.compute_mode == "prohibited"
    yield Finding(
        level=Level.DOUBT if prohibited else Level.NOTE,
        code="compute_mode",
        subject=gpu.label,
        seen=f"compute mode is {gpu.compute_mode}",
        why="no process can use it" if prohibited else "only one process at a time can use it",
        fix=f"sudo nvidia-smi -i {gpu.index} -c DEFAULT",
    )


def _power_limit(gpu: GPUFacts) -> Iterator[Finding]:
    limit, default = gpu.power_limit_watts, gpu.power_default_watts
    if limit is None or default is None or gpu.mig or limit >= default * LOW_POWER_SHARE:
        return
    yield Finding(
        level=Level.DOUBT,
        code="power_cap",
        subject=gpu.label,
        seen=f"capped at {limit:.0f} W (default {default:.0f} W)",
        why="its clock falls under load, so it is slower than others of its kind",
        fix=f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}",
    )


def _application_clocks(gpu: GPUFacts) -> Iterator[Finding]:
    clock, default = gpu.application_clock_mhz, gpu.application_clock_default_mhz
    if clock is None or default is None or clock >= default:
        return
    yield Finding(
        level=Level.DOUBT,
        code="application_clocks",
        subject=gpu.label,
        seen=f"application clock is {clock} MHz (default {default} MHz)",
        why="its clock cannot rise above that",
        fix=f"sudo nvidia-smi -i {gpu.index} -rac (and -rgc, if clocks were locked by -lgc)",
    )


def _held_back(gpu: GPUFacts) -> Iterator[Finding]:
    reasons = [reason for reason in gpu.reasons if reason in HELD_BACK]
    if not reasons:
        return
    yield Finding(
        level=Level.DOUBT,
        code="throttled",
        subject=gpu.label,
        seen=f"held back at this moment by {', '.join(reasons)}",
        why="numbers would be those of a GPU that is too hot or gets too little power",
        fix="check fans, airflow and power cables; nvidia-smi -q -d PERFORMANCE,TEMPERATURE",
    )


def _hot(gpu: GPUFacts) -> Iterator[Finding]:
    if (gpu.temperature_celsius or 0.0) > MAX_IDLE_CELSIUS and not _is_busy(gpu):
        yield Finding(
            level=Level.DOUBT,
            code="hot",
            subject=gpu.label,
            seen=f"{gpu.temperature_celsius:.0f} °C without work",
            why="a hot GPU clocks lower, and has less time until it throttles",
            fix="check fans and airflow, or wait until it has cooled down",
        )


def _is_busy(gpu: GPUFacts) -> bool:
    return (
        bool(gpu.processes)
        or (gpu.utilisation or 0.0) > BUSY_UTILISATION
        or (not gpu.mig and (gpu.memory_used_bytes or 0) > BUSY_MEMORY_BYTES)
    )


def _busy(gpu: GPUFacts) -> Iterator[Finding]:
    if not _is_busy(gpu):
        return
    parts = [f"{p.pid} {p.name or ''}".strip() for p in gpu.processes or ()]
    who = f"by {len(parts)} process{'es' if len(parts) > 1 else ''} ({', '.join(parts)})" if parts else ""
    memory = f"{(gpu.memory_used_bytes or 0) / 1e9:.1f} GB taken"
    used = f"{gpu.utilisation:.0%} used" if gpu.utilisation is not None else ""
    yield Finding(
        level=Level.DOUBT,
        code="busy",
        subject=gpu.label,
        seen=", ".join(part for part in (f"in use {who}".strip(), used, memory) if part),
        why="a benchmark would share its time, memory and power",
        fix="end them (nvidia-smi lists them; sudo kill PID), or leave this GPU out with CUDA_VISIBLE_DEVICES or gpus:",
    )


def _pcie(gpu: GPUFacts) -> Iterator[Finding]:
    width, most = gpu.pcie_width, gpu.pcie_width_max
    if width is None or most is None or width >= most:
        return
    yield Finding(
        level=Level.DOUBT,
        code="pcie_width",
        subject=gpu.label,
        seen=f"PCIe ×{width} of ×{most}" + _generation(gpu),
        why="input from the host, and all-reduces without NVLink, are slower in proportion",
        fix="reseat the card, use another slot or riser, and check bifurcation in the BIOS",
    )


def _generation(gpu: GPUFacts) -> str:
    """Add the generation where it is lower than it could be; an idle GPU lowers its own, so it is no finding alone."""
    now, most = gpu.pcie_generation, gpu.pcie_generation_max
    return f", generation {now} of {most} at this moment" if now and most and now < most else ""


EACH: tuple[Callable[[GPUFacts], Iterable[Finding]], ...] = (
    _mig,
    _memory_errors,
    _compute_mode,
    _power_limit,
    _application_clocks,
    _held_back,
    _hot,
    _busy,
    _pcie,
)
"""What is checked of each GPU by itself."""


def _named(gpus: Sequence[GPUFacts]) -> str:
    """Name some GPUs: `GPU 7 (0000:DB:00.0)`, `GPUs 0, 1, 7`."""
    return gpus[0].label if len(gpus) == 1 else f"GPUs {', '.join(str(gpu.index) for gpu in gpus)}"


def _persistence(gpus: Sequence[GPUFacts]) -> Iterator[Finding]:
    off = [gpu for gpu in gpus if gpu.persistence is False]
    if off:
        yield Finding(
            level=Level.DOUBT,
            code="persistence_off",
            subject=_named(off),
            seen="persistence mode is off",
            why="the driver shuts the GPU down between two processes: each start waits for seconds, and limits of "
            "clock and power are lost",
            fix="sudo nvidia-smi -pm 1",
        )


def _ecc_mode(gpus: Sequence[GPUFacts]) -> Iterator[Finding]:
    off = [gpu for gpu in gpus if gpu.ecc is False]
    if off:
        mixed = len({gpu.ecc for gpu in gpus if gpu.ecc is not None}) > 1
        yield Finding(
            level=Level.DOUBT if mixed else Level.NOTE,
            code="ecc_off",
            subject=_named(off),
            seen="ECC is off" + (", of others here it is on" if mixed else ""),
            why="on cards with GDDR memory ECC costs memory and bandwidth: compare like with like",
            fix=f"sudo nvidia-smi -i {','.join(str(gpu.index) for gpu in off)} -e 1, then restart" if mixed else None,
        )


def _differ(gpus: Sequence[GPUFacts]) -> Iterator[Finding]:
    names = dict.fromkeys(gpu.name for gpu in gpus)
    if len(names) > 1:
        yield Finding(
            level=Level.DOUBT,
            code="gpus_differ",
            subject="GPUs",
            seen="different kinds: " + ", ".join(name or "unknown" for name in names),
            why="in a case of several GPUs the slowest sets the pace of all",
            fix="choose equal ones with CUDA_VISIBLE_DEVICES, or gpus: in hosts.yml",
        )


def _nvlinks(gpus: Sequence[GPUFacts]) -> Iterator[Finding]:
    """Compare with other GPUs of the same kind: a card whose bridge is not fitted has links that are down, too."""
    for gpu in gpus:
        most = max((other.nvlinks_up for other in gpus if other.name == gpu.name and not other.mig), default=0)
        if gpu.nvlinks_up < most and not gpu.mig:
            yield Finding(
                level=Level.DOUBT,
                code="nvlink_down",
                subject=gpu.label,
                seen=f"{gpu.nvlinks_up} NVLinks are up, {gpu.nvlinks_down} down; others here have {most} up",
                why="all-reduces run at the pace of the slowest GPU's links",
                fix="nvidia-smi nvlink --status; with NVSwitches sudo systemctl restart nvidia-fabricmanager",
            )


def _p2p(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """Judge pairs that cannot read each other's memory; across sockets, or of consumer cards, that is as expected."""
    apart = [pair for pair in pairs if pair.p2p not in (None, "ok")]
    if not apart:
        return
    mendable = [pair for pair in apart if pair.topology in NEAR and pair.p2p != "GPU not supported"]
    shown = mendable or apart
    names = ", ".join(f"{pair.first}–{pair.second}" for pair in shown[:SHOWN_PAIRS])
    more = f" and {len(shown) - SHOWN_PAIRS} more" if len(shown) > SHOWN_PAIRS else ""
    reasons = ", ".join(dict.fromkeys(f"{pair.p2p}, {pair.topology}" for pair in shown))
    yield Finding(
        level=Level.DOUBT if mendable else Level.NOTE,
        code="no_p2p",
        subject="P2P",
        seen=f"{len(shown)} of {len(pairs)} pairs of GPUs cannot read each other's memory: {names}{more} ({reasons})",
        why="NCCL then copies through the host's memory, which is several times slower",
        fix="disable ACS and the IOMMU in the BIOS (sudo lspci -vvv | grep ACSCtl; kernel parameter iommu=pt)"
        if mendable
        else None,
    )

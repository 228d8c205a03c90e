"""Judges driver, libraries, TensorFlow, GPUs and host, and draws a verdict from all findings."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from results.schema.exit_codes import ExitCode
from results.schema.health import MAX_IDLE_UTILISATION, GPUFacts, Moment, driver_fix, grouped_warnings
from tfbench.doctor.driver import DriverFacts, GPUPair
from tfbench.doctor.facts import NAMES, DoctorFacts
from tfbench.doctor.machine import MachineFacts
from tfbench.machine.cuda_libraries import flags_of_the_user, is_known_cuda
from tfbench.machine.nvml import NO_LIBRARY
from tfbench.measuring.soft_warnings import needs_ptx_jit


class Level(enum.StrEnum):
    """Severity of a finding."""

    BLOCKER = "blocker"  # cases cannot run, or their numbers would be worthless
    WARNING = "warning"  # cases run, but their numbers may be too low or hard to compare
    NOTE = "note"  # does not affect the verdict


class Readiness(enum.StrEnum):
    """The verdict."""

    READY = "ready"
    WARNING = "warning"
    NOT_READY = "not ready"


EXIT_CODES = {
    Readiness.READY: ExitCode.OK,
    Readiness.WARNING: ExitCode.SOME_FAILED,
    Readiness.NOT_READY: ExitCode.NO_HOST,
}


@dataclass(frozen=True, kw_only=True)
class DoctorFinding:
    """One thing to know before trusting this machine's numbers.

    Attributes:
        code: One word, stable.
        subject: What it is about: `GPU 3 (0000:3B:00.0)`, `TensorFlow`, `CPU`.
        seen: What was observed, with figures.
        why: Why it matters for a benchmark.
        fix: A command or a step; None: nothing to do.
        gpu_only: CPU cases are unaffected.
    """

    code: str
    subject: str
    seen: str
    why: str
    fix: str | None = None
    level: Level = Level.WARNING
    gpu_only: bool = True


def verdict_of(findings: Iterable[DoctorFinding]) -> Readiness:
    """Return the verdict, which is that of the worst finding."""
    levels = {finding.level for finding in findings}
    if Level.BLOCKER in levels:
        return Readiness.NOT_READY
    return Readiness.WARNING if Level.WARNING in levels else Readiness.READY


def verdict_line(findings: Sequence[DoctorFinding]) -> str:
    """Summarise the findings in a line: `warning: 3 findings`, `not ready: no NVIDIA driver …; CPU cases can run`."""
    verdict = verdict_of(findings)
    if verdict is Readiness.READY:
        return str(verdict)
    if verdict is Readiness.WARNING:
        count = sum(finding.level is Level.WARNING for finding in findings)
        return f"{verdict}: {count} finding{'s' if count > 1 else ''}"
    blockers = [finding for finding in findings if finding.level is Level.BLOCKER]
    on_cpu = "; CPU cases can run" if all(finding.gpu_only for finding in blockers) else ""
    return f"{verdict}: {'; '.join(finding.seen for finding in blockers)}{on_cpu}"


def judge(facts: DoctorFacts) -> list[DoctorFinding]:
    """Return all findings, those about software first, because nothing works without it."""
    return [*check_software(facts), *check_gpus(facts.driver), *check_machine(facts)]


CUDA_FIXES = {
    "(100)": "check CUDA_VISIBLE_DEVICES, and that the container was given GPUs (--gpus all)",
    "(802)": "sudo systemctl restart nvidia-fabricmanager (its version must be the driver's)",
    "(803)": "libcuda is of another version than the kernel's driver: restart after a driver update, and take CUDA's "
    "compat folder out of LD_LIBRARY_PATH",
    "(804)": "this GPU cannot use the cuda-compat package: take it out of LD_LIBRARY_PATH",
    "(999)": "sudo modprobe nvidia_uvm, or restart the machine",
}
"""Fixes by the error code of `cuInit`."""


def check_software(facts: DoctorFacts) -> list[DoctorFinding]:
    """Judge driver, libraries and TensorFlow; for CPU cases TensorFlow alone."""
    if facts.device == "cpu":
        return list(_tensorflow(facts))
    return [*_driver(facts), *_tensorflow(facts), *_libraries(facts), *_devices(facts), *_all_reduce(facts)]


def _driver(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    driver, machine = facts.driver, facts.machine
    if driver.problem is not None:
        missing = driver.problem == NO_LIBRARY
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="no_driver",
            subject="driver",
            seen=f"{'no NVIDIA driver' if missing else 'the NVIDIA driver does not work'} ({driver.problem})",
            why="no case can run on a GPU",
            fix=_driver_fix(machine) if missing else driver_fix(driver.problem),
        )
        return
    if driver.cuda_problem is not None:
        known = (fix for code, fix in CUDA_FIXES.items() if driver.cuda_problem.endswith(code))
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="cuda_not_ready",
            subject="driver",
            seen=f"CUDA does not start ({driver.cuda_problem})",
            why="nvidia-smi works without CUDA, TensorFlow does not",
            fix=next(known, "restart the machine; in a container check --gpus all and NVIDIA_DRIVER_CAPABILITIES"),
        )
    elif not any(gpu.problem is None for gpu in driver.gpus):
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="no_gpu",
            subject="driver",
            seen=f"driver {driver.version}, but no GPU answers",
            why="no case can run on a GPU",
            fix="start the container with --gpus all" if machine.container else "sudo dmesg | grep -i nvrm",
        )


def _driver_fix(machine: MachineFacts) -> str:
    on_bus = f"{len(machine.pci_gpus)} NVIDIA GPU{'s are' if len(machine.pci_gpus) > 1 else ' is'} on the PCI bus"
    if machine.container and machine.pci_gpus:
        return f"{on_bus}: start the container with --gpus all (the host needs the NVIDIA container toolkit)"
    if machine.kernel_driver is not None:
        return "the kernel module is loaded: install the libraries of the same driver version (libnvidia-ml.so.1)"
    if machine.pci_gpus:
        return f"{on_bus}: install the driver, and load it with sudo modprobe nvidia"
    hidden = ", or start the container with --gpus all if its host has one" if machine.container else ""
    return f"use a machine with an NVIDIA GPU{hidden}; python -m tfbench.doctor --device=cpu looks at the CPU only"


def _tensorflow(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    trial = facts.trial
    if trial.problem is not None:
        imported = trial.tensorflow is not None
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="tensorflow_failed",
            subject="TensorFlow",
            seen=f"TensorFlow {trial.problem}",
            why="cases would end the same way",
            fix=_trial_fix(trial.problem, facts.device)
            if imported
            else "install TensorFlow again, or use this project's image",
            gpu_only=imported and facts.device == "gpu",
        )
    elif trial.tensorflow is None:
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="no_tensorflow",
            subject="TensorFlow",
            seen="TensorFlow printed nothing",
            why="no case can run",
            fix="install TensorFlow, or use this project's image",
            gpu_only=False,
        )
    if trial.wrong:
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="wrong_product",
            subject=", ".join(trial.wrong),
            seen=f"a small matrix product on {', '.join(trial.wrong)} was wrong, or computed elsewhere",
            why="its numbers would be worthless",
            fix="replace the GPU, or exclude it with CUDA_VISIBLE_DEVICES" if facts.device == "gpu" else None,
            gpu_only=facts.device == "gpu",
        )


def _trial_fix(problem: str, device: str) -> str:
    if NAMES["all_reduce"] in problem:
        return "NCCL_DEBUG=INFO python -m tfbench.doctor.trial gpu shows why; with NCCL_P2P_DISABLE=1 it may work"
    return f"TF_CPP_MIN_LOG_LEVEL=0 python -m tfbench.doctor.trial {device} shows why; nvidia-smi -q the GPUs' state"


def _libraries(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Judge TensorFlow's build and the libraries that it opens."""
    trial = facts.trial
    if trial.tensorflow is None:
        return
    if trial.cuda is None:
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="cpu_build",
            subject="TensorFlow",
            seen=f"TensorFlow {trial.tensorflow} is a build without CUDA",
            why="it uses no GPU",
            fix="pip install 'tensorflow[and-cuda]', or one of this project's CUDA images",
        )
        return
    if not is_known_cuda(trial.cuda):
        yield DoctorFinding(
            level=Level.NOTE,
            code="unknown_cuda",
            subject="CUDA libraries",
            seen=f"TensorFlow was built for CUDA {trial.cuda}, which this version of tfbench does not know",
            why="its libraries were not checked, apart from cuDNN and NCCL",
        )
    if trial.missing:
        yield DoctorFinding(
            level=Level.WARNING if trial.gpus else Level.BLOCKER,
            code="libraries_missing",
            subject="CUDA libraries",
            seen=f"{', '.join(trial.missing)} cannot be loaded ({next(iter(trial.missing.values()))})",
            why="TensorFlow accepts no GPU where one of its libraries is missing",
            fix="pip install 'tensorflow[and-cuda]' installs them next to TensorFlow; else set LD_LIBRARY_PATH",
        )


def _devices(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Compare the GPUs that TensorFlow sees with those of the driver."""
    trial, driver = facts.trial, facts.driver
    if trial.gpus is None or trial.cuda is None or driver.problem is not None:
        return
    expected = len(driver.cuda_devices)
    if len(trial.gpus) < expected:
        yield DoctorFinding(
            level=Level.WARNING if trial.gpus else Level.BLOCKER,
            code="gpus_not_seen",
            subject="TensorFlow",
            seen=f"TensorFlow sees {len(trial.gpus)} of {expected} GPUs that CUDA offers",
            why="cases on more GPUs end with no_gpu",
            fix="TF_CPP_MIN_LOG_LEVEL=0 python -m tfbench.doctor.trial gpu shows which library is missing",
        )
    capabilities: Sequence[str | None] = [gpu.compute_capability for gpu in driver.gpus if gpu.problem is None]
    old = sorted({c for c in capabilities if c and needs_ptx_jit(c, trial.capabilities)})
    if old:
        yield DoctorFinding(
            code="ptx_jit",
            subject="TensorFlow",
            seen=f"TensorFlow {trial.tensorflow} has no machine code for compute capability {', '.join(old)}",
            why="the driver compiles its kernels from PTX at the first use: minutes, and they may be slower",
            fix="use a TensorFlow that was built for this GPU (python -m orchestrate images list)",
        )


def _all_reduce(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    trial = facts.trial
    if trial.all_reduce is False:
        yield DoctorFinding(
            level=Level.BLOCKER,
            code="all_reduce_wrong",
            subject="NCCL",
            seen=f"an all-reduce over {len(trial.gpus or ())} GPUs gave a wrong sum: {trial.all_reduce_reason}",
            why="training on several GPUs would be wrong",
            fix="NCCL_P2P_DISABLE=1 python -m tfbench.doctor; where that helps, disable ACS and the IOMMU in the BIOS",
        )


NEAR = ("internal", "PIX", "PXB", "PHB", "NODE")
"""Topologies within one socket, in which PCIe GPUs support P2P."""

SHOWN_PAIRS = 4


def check_gpus(driver: DriverFacts) -> list[DoctorFinding]:
    """Judge all GPUs of the driver: each by the rules of `results.schema.health`, then all together."""
    found = [
        DoctorFinding(
            level=Level.WARNING,
            code=warning.rule.code,
            subject=names,
            seen=warning.seen,
            why=warning.rule.why,
            fix=warning.fix,
        )
        for names, warning in grouped_warnings(driver.gpus, Moment.IDLE)
    ]
    return [*found, *_differ(driver.answering), *_nvlinks(driver.answering), *_p2p(driver.pairs)]


def _differ(gpus: Sequence[GPUFacts]) -> Iterator[DoctorFinding]:
    ecc = {True: " with ECC", False: " without ECC", None: ""}
    kinds = dict.fromkeys((gpu.name or "unknown") + ecc[gpu.ecc] for gpu in gpus)
    if len(kinds) > 1:
        yield DoctorFinding(
            code="gpus_differ",
            subject="GPUs",
            seen=f"different kinds: {', '.join(kinds)}",
            why="in a case of several GPUs the slowest sets the pace of all, and ECC costs GDDR memory bandwidth",
            fix="choose equal ones with CUDA_VISIBLE_DEVICES, or gpus: in hosts.yml; nvidia-smi -e 1 turns ECC on",
        )


def _nvlinks(gpus: Sequence[GPUFacts]) -> Iterator[DoctorFinding]:
    """Compare NVLinks with those of equal GPUs: links are also down on a GPU without a bridge."""
    for gpu in gpus:
        most = max((other.nvlinks_up for other in gpus if other.name == gpu.name and not other.mig), default=0)
        if gpu.nvlinks_up < most and not gpu.mig:
            yield DoctorFinding(
                code="nvlink_down",
                subject=gpu.label,
                seen=f"{gpu.nvlinks_up} NVLinks are up, {gpu.nvlinks_down} down; others here have {most} up",
                why="all-reduces run at the pace of the slowest GPU's links",
                fix="nvidia-smi nvlink --status; with NVSwitches sudo systemctl restart nvidia-fabricmanager",
            )


def _p2p(pairs: Sequence[GPUPair]) -> Iterator[DoctorFinding]:
    """Judge pairs without P2P, which is normal across sockets and for consumer GPUs."""
    apart = [pair for pair in pairs if pair.p2p not in (None, "ok")]
    if not apart:
        return
    fixable = [pair for pair in apart if pair.topology in NEAR and pair.p2p != "GPU not supported"]
    shown = fixable or apart
    names = ", ".join(f"{pair.first}–{pair.second}" for pair in shown[:SHOWN_PAIRS])
    more = f" and {len(shown) - SHOWN_PAIRS} more" if len(shown) > SHOWN_PAIRS else ""
    reasons = ", ".join(dict.fromkeys(f"{pair.p2p}, {pair.topology}" for pair in shown))
    yield DoctorFinding(
        level=Level.WARNING if fixable else Level.NOTE,
        code="no_p2p",
        subject="P2P",
        seen=f"{len(shown)} of {len(pairs)} pairs of GPUs cannot read each other's memory: {names}{more} ({reasons})",
        why="NCCL then copies through the host's memory, which is several times slower",
        fix="disable ACS and the IOMMU in the BIOS (sudo lspci -vvv | grep ACSCtl; kernel parameter iommu=pt)"
        if fixable
        else None,
    )


MIN_SHM_BYTES = 1 << 30
"""Source: NCCL User Guide, "Troubleshooting", "Shared memory": --shm-size=1g."""

MIN_CPUS_PER_GPU = 3.0
"""Per GPU: one thread launches kernels, two wait for steps, which CUDA does by spinning. Seen with an H100: 2.1."""

MIN_DISK_BYTES = 2_000_000_000
MIN_MEMORY_BYTES = 4_000_000_000
"""TensorFlow with CUDA's libraries takes 2 to 4 GB of host memory per process."""

VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (("", "0"), "each kernel must end before the next is launched"),
    "NVIDIA_TF32_OVERRIDE": (("",), "it overrides the precision of a case"),
    "NCCL_P2P_DISABLE": (("", "0"), "NCCL copies through the host's memory"),
    "NCCL_SHM_DISABLE": (("", "0"), "NCCL uses sockets between GPUs without P2P"),
    "XLA_FLAGS": (("",), "it changes what XLA compiles, so numbers are not comparable with others"),
    "TF_XLA_FLAGS": (("",), "it may switch XLA on despite --xla=off"),
}
"""By variable: harmless values, and the effect of any other."""


def check_machine(facts: DoctorFacts) -> list[DoctorFinding]:
    """Judge CPUs, memory, disk, limits and environment variables, relative to the number of GPUs."""
    machine = facts.machine
    gpus = sum(gpu.problem is None for gpu in facts.driver.gpus) if facts.device == "gpu" else 0
    return [*_cpus(machine, gpus), *_memory(machine), *_limits(machine, gpus), *_variables(machine)]


def _cpus(machine: MachineFacts, gpus: int) -> Iterator[DoctorFinding]:
    slow = machine.governors.get("powersave", 0)
    if slow:
        yield DoctorFinding(
            code="governor",
            subject="CPU",
            seen=f"{slow} of {machine.cpu_count} CPUs use the powersave governor",
            why="kernels are launched, and inputs prepared, at a low clock",
            fix="sudo cpupower frequency-set -g performance",
            gpu_only=False,
        )
    if gpus and machine.cpu_limit < MIN_CPUS_PER_GPU * gpus:
        yield DoctorFinding(
            code="few_cpus",
            subject="CPU",
            seen=f"{machine.cpu_limit:g} CPUs for {gpus} GPU{'s' if gpus > 1 else ''}",
            why="GPUs wait for kernels to be launched and for input",
            fix=f"give the container or job {MIN_CPUS_PER_GPU * gpus:g} CPUs (docker run --cpus, cpus: in hosts.yml)",
        )
    if machine.other_cpu_share is not None and machine.other_cpu_share > MAX_IDLE_UTILISATION:
        yield DoctorFinding(
            code="cpu_shared",
            subject="CPU",
            seen=f"other programs use {machine.other_cpu_share:.0%} of the CPUs",
            why="other work takes CPU time from the benchmark",
            fix="top shows them; wait, or end them",
            gpu_only=False,
        )


def _memory(machine: MachineFacts) -> Iterator[DoctorFinding]:
    free = machine.memory_available_bytes
    limit = machine.memory_bytes
    least = min((value for value in (free, limit) if value is not None), default=None)
    if least is not None and least < MIN_MEMORY_BYTES:
        yield DoctorFinding(
            code="little_memory",
            subject="memory",
            seen=f"{least / 1e9:.1f} GB of the host's memory are free",
            why="the kernel may kill a benchmark, or swap",
            fix="end other processes, or raise the container's limit (docker run --memory)",
            gpu_only=False,
        )
    if machine.disk_free_bytes is not None and machine.disk_free_bytes < MIN_DISK_BYTES:
        yield DoctorFinding(
            code="disk_full",
            subject="disk",
            seen=f"{machine.disk_free_bytes / 1e9:.1f} GB are free for temporary files",
            why="records, logs and compiled kernels may be lost",
            fix="df -h; docker system prune",
            gpu_only=False,
        )


def _limits(machine: MachineFacts, gpus: int) -> Iterator[DoctorFinding]:
    if gpus > 1 and machine.shm_bytes is not None and machine.shm_bytes < MIN_SHM_BYTES:
        yield DoctorFinding(
            code="little_shm",
            subject="/dev/shm",
            seen=f"/dev/shm has {machine.shm_bytes / 1e6:.0f} MB",
            why="NCCL keeps buffers there for GPUs without P2P, and fails where they do not fit",
            fix="docker run --shm-size=1g" if machine.container else "sudo mount -o remount,size=1g /dev/shm",
        )
    if gpus > 1 and machine.container and machine.memlock_bytes is not None:
        yield DoctorFinding(
            code="memlock",
            subject="limits",
            seen=f"{machine.memlock_bytes / 1e6:.1f} MB of memory may be locked",
            why="NCCL locks its buffers for GPUs and network cards, and fails where it cannot",
            fix="docker run --ulimit memlock=-1",
        )


def _variables(machine: MachineFacts) -> Iterator[DoctorFinding]:
    for name, (harmless, why) in VARIABLES.items():
        value = machine.variables.get(name)
        if name == "XLA_FLAGS" and value is not None:
            value = flags_of_the_user(value)
        if value is not None and value not in harmless:
            yield DoctorFinding(
                code="variable",
                subject=name,
                seen=f"{name}={value}",
                why=why,
                fix=f"unset {name}",
            )
    chosen = machine.variables.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        yield DoctorFinding(
            level=Level.NOTE,
            code="variable",
            subject="CUDA_VISIBLE_DEVICES",
            seen=f"CUDA_VISIBLE_DEVICES={chosen}",
            why="TensorFlow sees these GPUs only",
        )

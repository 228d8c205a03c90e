"""Judges driver, libraries, TensorFlow, GPUs and host, and draws a verdict from all findings."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from results.schema.exit_codes import ExitCode
from results.schema.health import MAX_IDLE_UTILISATION, Moment, driver_fix, grouped_warnings
from tfbench.doctor.facts import ALL_REDUCING, DoctorFacts, DriverFacts
from tfbench.machine.cuda_libraries import flags_of_the_user
from tfbench.machine.host import MachineFacts
from tfbench.machine.nvml import NO_LIBRARY
from tfbench.measuring.soft_warnings import needs_ptx_jit


class Level(enum.StrEnum):
    """Severity of a finding."""

    BLOCKER = "blocker"  # cases cannot run, or their numbers would be worthless
    WARNING = "warning"  # cases run, but their numbers may be too low or hard to compare
    NOTE = "note"  # does not affect the verdict


VERDICTS = {
    Level.BLOCKER: ("not ready", ExitCode.NO_HOST),
    Level.WARNING: ("warning", ExitCode.SOME_FAILED),
    Level.NOTE: ("ready", ExitCode.OK),
}
"""By level of the worst finding, the worst first: the verdict and the exit code."""


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


def verdict_of(findings: Iterable[DoctorFinding]) -> tuple[str, ExitCode]:
    """Return the verdict and the exit code."""
    levels = {finding.level for finding in findings}
    return next((verdict for level, verdict in VERDICTS.items() if level in levels), VERDICTS[Level.NOTE])


def verdict_line(findings: Sequence[DoctorFinding]) -> str:
    """Summarise the findings in a line: `warning: 3 findings`, `not ready: no NVIDIA driver …; CPU cases can run`."""
    verdict, _ = verdict_of(findings)
    if blockers := [finding for finding in findings if finding.level is Level.BLOCKER]:
        on_cpu = "; CPU cases can run" if all(finding.gpu_only for finding in blockers) else ""
        return f"{verdict}: {'; '.join(finding.seen for finding in blockers)}{on_cpu}"
    count = sum(finding.level is Level.WARNING for finding in findings)
    return f"{verdict}: {count} finding{'s' if count > 1 else ''}" if count else verdict


CHECKS = {
    "no_driver": ("driver", "no case can run on a GPU"),
    "cuda_not_ready": ("driver", "nvidia-smi works without CUDA, TensorFlow does not"),
    "no_gpu": ("driver", "no case can run on a GPU"),
    "tensorflow_failed": ("TensorFlow", "cases would end the same way"),
    "wrong_product": ("", "its numbers would be worthless"),
    "cpu_build": ("TensorFlow", "it uses no GPU"),
    "libraries_missing": ("CUDA libraries", "TensorFlow accepts no GPU where one of its libraries is missing"),
    "gpus_not_seen": ("TensorFlow", "cases on more GPUs end with no_gpu"),
    "ptx_jit": ("TensorFlow", "the driver compiles its kernels from PTX at the first use: minutes, maybe slower"),
    "all_reduce_wrong": ("NCCL", "training on several GPUs would be wrong"),
    "gpus_differ": ("GPUs", "the slowest GPU sets the pace of all, and ECC costs GDDR memory bandwidth"),
    "nvlink_down": ("", "all-reduces run at the pace of the slowest GPU's links"),
    "governor": ("CPU", "kernels are launched, and inputs prepared, at a low clock"),
    "few_cpus": ("CPU", "GPUs wait for kernels to be launched and for input"),
    "cpu_shared": ("CPU", "other work takes CPU time from the benchmark"),
    "little_memory": ("memory", "the kernel may kill a benchmark, or swap"),
    "disk_full": ("disk", "records, logs and compiled kernels may be lost"),
    "little_shm": ("/dev/shm", "NCCL keeps buffers there for GPUs without P2P, and fails where they do not fit"),
}
"""By code of a finding: what it is about, and why it matters. A variable has its own reason, in `VARIABLES`."""

OF_THE_CPU = {"governor", "cpu_shared", "little_memory", "disk_full"}
"""Findings that matter for cases on the CPU, too."""


def _finding(
    code: str, seen: str, fix: str | None = None, level: Level = Level.WARNING, **others: object
) -> DoctorFinding:
    """Return a finding; what is not given is that of `CHECKS`."""
    subject, why = CHECKS.get(code, ("", ""))
    values: dict[str, Any] = {"subject": subject, "why": why, "gpu_only": code not in OF_THE_CPU, **others}
    return DoctorFinding(code=code, seen=seen, fix=fix, level=level, **values)


def judge(facts: DoctorFacts) -> list[DoctorFinding]:
    """Return all findings, those about software first, because nothing works without it."""
    of_machine = [*_machine(facts.machine, len(facts.driver.answering)), *_variables(facts.machine)]
    if facts.device == "cpu":
        return [*_tensorflow(facts), *of_machine]
    of_gpus = [*_gpu_software(facts), *_gpus(facts.driver)]
    return [*_driver(facts.driver), *_tensorflow(facts), *of_gpus, *of_machine]


NO_DRIVER_FIX = (
    "start a container with --gpus all (its host needs the NVIDIA container toolkit); on a machine install the driver, "
    "or sudo modprobe nvidia; python -m tfbench.doctor --device=cpu looks at the CPU only"
)

CUDA_FIXES = {
    "(100)": "check CUDA_VISIBLE_DEVICES, and that the container was given GPUs (--gpus all)",
    "(802)": "sudo systemctl restart nvidia-fabricmanager (its version must be the driver's)",
    "(803)": "libcuda is of another version than the kernel's driver: restart after a driver update, and take CUDA's "
    "compat folder out of LD_LIBRARY_PATH",
    "(804)": "this GPU cannot use the cuda-compat package: take it out of LD_LIBRARY_PATH",
    "(999)": "sudo modprobe nvidia_uvm, or restart the machine",
    "": "restart the machine; in a container check --gpus all and NVIDIA_DRIVER_CAPABILITIES",
}
"""Fixes by the end of a problem, the error code of `cuInit`; the first match counts."""


def _driver(driver: DriverFacts) -> Iterator[DoctorFinding]:
    if driver.problem is not None:
        missing = driver.problem == NO_LIBRARY
        state = "no NVIDIA driver" if missing else "the NVIDIA driver does not work"
        fix = NO_DRIVER_FIX if missing else driver_fix(driver.problem)
        yield _finding("no_driver", f"{state} ({driver.problem})", fix, Level.BLOCKER)
    elif driver.cuda_problem is not None:
        fix = next(fix for code, fix in CUDA_FIXES.items() if driver.cuda_problem.endswith(code))
        yield _finding("cuda_not_ready", f"CUDA does not start ({driver.cuda_problem})", fix, Level.BLOCKER)
    elif not driver.answering:
        fix = "start a container with --gpus all; on a machine sudo dmesg | grep -i nvrm shows why"
        yield _finding("no_gpu", f"driver {driver.version}, but no GPU answers", fix, Level.BLOCKER)


def _tensorflow(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    trial, on_gpu = facts.trial, facts.device == "gpu"
    if trial.problem is not None:
        imported = trial.tensorflow is not None
        fix = "install TensorFlow again, or use this project's image"
        if imported and ALL_REDUCING in trial.problem:
            fix = "NCCL_DEBUG=INFO python -m tfbench.doctor.trial gpu shows why; with NCCL_P2P_DISABLE=1 it may work"
        elif imported:
            shows_why = f"TF_CPP_MIN_LOG_LEVEL=0 python -m tfbench.doctor.trial {facts.device} shows why"
            fix = f"{shows_why}; nvidia-smi -q the GPUs' state"
        seen = f"TensorFlow {trial.problem}"
        yield _finding("tensorflow_failed", seen, fix, Level.BLOCKER, gpu_only=imported and on_gpu)
    if trial.wrong:
        wrong = ", ".join(trial.wrong)
        seen = f"a small matrix product on {wrong} was wrong, or computed elsewhere"
        fix_of_gpu = "replace the GPU, or exclude it with CUDA_VISIBLE_DEVICES" if on_gpu else None
        yield _finding("wrong_product", seen, fix_of_gpu, Level.BLOCKER, subject=wrong, gpu_only=on_gpu)


def _gpu_software(facts: DoctorFacts) -> Iterator[DoctorFinding]:
    """Judge TensorFlow's build, the libraries that it opens, the GPUs that it sees and their all-reduce."""
    trial, driver = facts.trial, facts.driver
    seen_none = Level.WARNING if trial.gpus else Level.BLOCKER
    if trial.tensorflow is not None and trial.cuda is None:
        fix = "pip install 'tensorflow[and-cuda]', or one of this project's CUDA images"
        yield _finding("cpu_build", f"TensorFlow {trial.tensorflow} is a build without CUDA", fix, Level.BLOCKER)
    if trial.missing:
        seen = f"{', '.join(trial.missing)} cannot be loaded ({next(iter(trial.missing.values()))})"
        fix = "pip install 'tensorflow[and-cuda]' installs them next to TensorFlow; else set LD_LIBRARY_PATH"
        yield _finding("libraries_missing", seen, fix, seen_none)
    if trial.gpus is None or trial.cuda is None or driver.problem is not None:
        return
    if len(trial.gpus) < len(driver.cuda_devices):
        seen = f"TensorFlow sees {len(trial.gpus)} of {len(driver.cuda_devices)} GPUs that CUDA offers"
        fix = "TF_CPP_MIN_LOG_LEVEL=0 python -m tfbench.doctor.trial gpu shows which library is missing"
        yield _finding("gpus_not_seen", seen, fix, seen_none)
    capabilities = sorted({gpu.compute_capability for gpu in driver.answering if gpu.compute_capability})
    if old := ", ".join(one for one in capabilities if needs_ptx_jit(one, trial.capabilities)):
        seen = f"TensorFlow {trial.tensorflow} has no machine code for compute capability {old}"
        fix = "use a TensorFlow that was built for this GPU (python -m orchestrate images list)"
        yield _finding("ptx_jit", seen, fix)
    if trial.all_reduce is False:
        seen = f"an all-reduce over {len(trial.gpus)} GPUs gave a wrong sum: {trial.all_reduce_reason}"
        fix = "NCCL_P2P_DISABLE=1 python -m tfbench.doctor; where that helps, disable ACS and the IOMMU in the BIOS"
        yield _finding("all_reduce_wrong", seen, fix, Level.BLOCKER)


def _gpus(driver: DriverFacts) -> Iterator[DoctorFinding]:
    """Judge all GPUs of the driver: each by the rules of `results.schema.health`, then all together."""
    for names, warning in grouped_warnings(driver.gpus, Moment.IDLE):
        yield _finding(warning.code, warning.seen, warning.fix, subject=names, why=warning.why)
    ecc = {True: " with ECC", False: " without ECC", None: ""}
    kinds = dict.fromkeys((gpu.name or "unknown") + ecc[gpu.ecc] for gpu in driver.answering)
    if len(kinds) > 1:
        fix = "choose equal ones with CUDA_VISIBLE_DEVICES, or gpus: in hosts.yml; nvidia-smi -e 1 turns ECC on"
        yield _finding("gpus_differ", f"different kinds: {', '.join(kinds)}", fix)
    whole = [gpu for gpu in driver.answering if not gpu.mig]
    for gpu in whole:  # links are also down on a GPU without a bridge, so equal GPUs are compared
        most = max(peer.nvlinks_up for peer in whole if peer.name == gpu.name)
        if gpu.nvlinks_up < most:
            seen = f"{gpu.nvlinks_up} NVLinks are up, {gpu.nvlinks_down} down; others here have {most} up"
            fix = "nvidia-smi nvlink --status; with NVSwitches sudo systemctl restart nvidia-fabricmanager"
            yield _finding("nvlink_down", seen, fix, subject=gpu.label)


MIN_SHM_BYTES = 1 << 30
"""Source: NCCL User Guide, "Troubleshooting", "Shared memory": --shm-size=1g."""

MIN_CPUS_PER_GPU = 3.0
"""Per GPU: one thread launches kernels, two wait for steps, which CUDA does by spinning. Seen with an H100: 2.1."""

MIN_DISK_BYTES = 2_000_000_000
MIN_MEMORY_BYTES = 4_000_000_000
"""TensorFlow with CUDA's libraries takes 2 to 4 GB of host memory per process."""


def _machine(machine: MachineFacts, gpus: int) -> Iterator[DoctorFinding]:
    """Judge CPUs, memory, disk and limits, relative to the number of GPUs."""
    if slow := machine.governors.get("powersave", 0):
        seen = f"{slow} of {machine.cpu_count} CPUs use the powersave governor"
        yield _finding("governor", seen, "sudo cpupower frequency-set -g performance")
    needed = MIN_CPUS_PER_GPU * gpus
    if machine.cpu_limit < needed:
        seen = f"{machine.cpu_limit:g} CPUs for {gpus} GPU{'s' if gpus > 1 else ''}"
        fix = f"give the container or job {needed:g} CPUs (docker run --cpus, cpus: in hosts.yml)"
        yield _finding("few_cpus", seen, fix)
    if (share := machine.other_cpu_share or 0.0) > MAX_IDLE_UTILISATION:
        yield _finding("cpu_shared", f"other programs use {share:.0%} of the CPUs", "top shows them; wait, or end them")
    memories = [value for value in (machine.memory_available_bytes, machine.memory_bytes) if value is not None]
    if memories and min(memories) < MIN_MEMORY_BYTES:
        fix = "end other processes, or raise the container's limit (docker run --memory)"
        yield _finding("little_memory", f"{min(memories) / 1e9:.1f} GB of the host's memory are free", fix)
    if machine.disk_free_bytes is not None and machine.disk_free_bytes < MIN_DISK_BYTES:
        seen = f"{machine.disk_free_bytes / 1e9:.1f} GB are free for temporary files"
        yield _finding("disk_full", seen, "df -h; docker system prune")
    if gpus > 1 and machine.shm_bytes is not None and machine.shm_bytes < MIN_SHM_BYTES:
        fix = "docker run --shm-size=1g; without a container sudo mount -o remount,size=1g /dev/shm"
        yield _finding("little_shm", f"/dev/shm has {machine.shm_bytes / 1e6:.0f} MB", fix)


VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (("", "0"), "each kernel must end before the next is launched"),
    "NVIDIA_TF32_OVERRIDE": (("",), "it overrides the precision of a case"),
    "NCCL_P2P_DISABLE": (("", "0"), "NCCL copies through the host's memory"),
    "NCCL_SHM_DISABLE": (("", "0"), "NCCL uses sockets between GPUs without P2P"),
    "XLA_FLAGS": (("",), "it changes what XLA compiles, so numbers are not comparable with others"),
    "TF_XLA_FLAGS": (("",), "it may switch XLA on despite --xla=off"),
}
"""By variable: harmless values, and the effect of any other."""


def _variables(machine: MachineFacts) -> Iterator[DoctorFinding]:
    variables = {**machine.variables, "XLA_FLAGS": flags_of_the_user(machine.variables.get("XLA_FLAGS", ""))}
    for name, (harmless, why) in VARIABLES.items():
        if (value := variables.get(name, "")) not in harmless:
            yield _finding("variable", f"{name}={value}", f"unset {name}", subject=name, why=why)

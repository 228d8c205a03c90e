"""Facts about this machine, read without TensorFlow: CPU, limits, memory, driver, GPUs, and what other programs use."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import platform
import re
import resource
import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfbench.machine import nvml

CPU_INFO = Path("/proc/cpuinfo")


def host_facts(*, by_cuda: bool = False) -> dict[str, Any]:
    """Read the facts of this machine, as `python -m tfbench.probe` prints them, in about 10 ms.

    Args:
        by_cuda: List the GPUs of this process in CUDA's order, for a process that uses them; otherwise those that the
            machine offers.

    Returns:
        `cpu`: Name of the CPU.
        `cpu_count`: Logical processors of the machine.
        `cpu_limit`: CPUs that this process may use, by affinity and container limit; may be fractional.
        `memory_bytes`: Memory that this process may use: the machine's, or the container's limit.
        `kernel`, `operating_system`, `python`: Name or version.
        `tensorflow`, `keras`: Installed version; None: not installed.
        `driver`: NVIDIA driver, e.g. `550.54.14`; None without one.
        `cuda_driver`: Newest CUDA that the driver supports, e.g. `12.4`; None without a driver.
        `gpus`: GPUs visible to this process, in its order, by the driver's indices, each a `GPU`.
        `gpu_states`: The same GPUs with everything that the driver currently reports, each a `GPUFacts`.
        `gpu_problems`: GPUs that no process can use: `7 of 8 GPUs answer: GPU 3 (0000:3B:00.0) is lost`.
        `driver_problem`: Why an installed NVIDIA driver does not answer: `Driver/library version mismatch (NVML 18)`;
            `results.schema.health.driver_fix` has the remedy.
    """
    driver = nvml.read_driver(by_cuda=by_cuda)
    return {
        "cpu": _found(CPU_INFO, r"^model name\s*: (.+)$") or platform.processor() or platform.machine(),
        "cpu_count": os.cpu_count() or 1,
        "cpu_limit": cpu_limit(),
        "memory_bytes": memory_limit_bytes(),
        "kernel": platform.release(),
        "operating_system": _found(Path("/etc/os-release"), r'^PRETTY_NAME="?([^"\n]+)') or platform.system(),
        "python": platform.python_version(),
        "tensorflow": _installed("tensorflow", "tensorflow-cpu"),
        "keras": _installed("keras"),
        "driver": driver.version,
        "cuda_driver": driver.cuda,
        "gpus": [nvml.as_recorded(gpu) for gpu in driver.gpus],
        "gpu_states": driver.gpus,
        "gpu_problems": driver.gpu_problems,
        "driver_problem": driver.problem,
    }


def cpu_limit(root: Path = Path("/")) -> float:
    """Return how many CPUs this process may use: the smaller of its affinity and its control groups' quotas.

    Args:
        root: Parent of `proc` and `sys`.
    """
    of_version_1 = (_control_group_files(root, f"cpu.cfs_{name}_us", "cpu") for name in ("quota", "period"))
    texts = [*_control_group_files(root, "cpu.max", "cpu"), *map(" ".join, zip(*of_version_1, strict=False))]
    # "200000 100000" is 2 CPUs; "max 100000", and "-1 100000" in version 1, are no limit.
    quotas = [int(found[1]) / int(found[2]) for text in texts if (found := re.fullmatch(r"(\d+) (\d+)", text))]
    return min([float(len(os.sched_getaffinity(0))), *quotas])


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return how much memory this process may use: the machine's, or a control group's smaller limit.

    Args:
        root: Parent of `proc` and `sys`.
    """
    files = ("memory.max", "memory.limit_in_bytes")  # of version 2 and of version 1
    texts = [text for name in files for text in _control_group_files(root, name, "memory")]
    limits = [int(text) for text in texts if text.isdigit()]
    total = _memory_bytes(root, "MemTotal")
    return min(limits if total is None else [*limits, total], default=None)


def out_of_memory_kills(root: Path = Path("/")) -> int | None:
    """Count the processes of this control group that the kernel's out-of-memory killer ended; None: not reported.

    Args:
        root: Parent of `proc` and `sys`.
    """
    counts = re.findall(r"^oom_kill (\d+)$", "\n".join(_control_group_files(root, "memory.events", "memory")), re.M)
    return int(counts[0]) if counts else None


def _control_group_files(root: Path, name: str, controller: str) -> list[str]:
    """Read a file of each control group from this process's own up to the root, if it exists."""
    texts = []
    mounted = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mounted / controllers if controllers else mounted
        groups = [base / path.lstrip("/")]
        while groups[-1] != base and base in groups[-1].parents:
            groups.append(groups[-1].parent)
        texts += [text for group in groups if (text := read_text(group / name).strip())]
    return texts


def read_text(path: Path) -> str:
    """Return a file's text; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _found(path: Path, pattern: str) -> str:
    """Return what the group of a pattern matches in a file, with ^ and $ around a line; empty: nothing."""
    match = re.search(pattern, read_text(path), re.MULTILINE)
    return match[1] if match else ""


def _memory_bytes(root: Path, key: str) -> int | None:
    kibibytes = _found(root / "proc/meminfo", rf"^{key}:\s*(\d+) kB")
    return int(kibibytes) * 1024 if kibibytes else None


def _installed(*packages: str) -> str | None:
    """Return the version of the first of these packages that is installed."""
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return None


PRODUCT_SECONDS = 0.25
"""Duration of the matrix products."""

ROWS = 512
LOOP_STEPS = 1_000_000
LOOPS = 3


def processor_speed() -> dict[str, float | None]:
    """Measure the CPU for less than a second; means, which include the effect of other programs.

    Call in a process of its own: it sets the number of NumPy's threads.

    Returns:
        `cpu_flops_per_second`: fp32 matrix products on all cores of this process; None: NumPy is missing.
        `cpu_loop_seconds`: A loop of Python code on one core.
        `cpu_vector_bits`: See `vector_bits`.
    """
    bits = vector_bits(_found(CPU_INFO, r"^flags\s*: (.+)$"))
    return {"cpu_flops_per_second": _product_rate(), "cpu_loop_seconds": loop_seconds(), "cpu_vector_bits": bits}


def vector_bits(flags: str) -> int | None:
    """Return the width of a CPU's vector instructions by the kernel's flags; None: neither AVX2 nor AVX-512."""
    return next((bits for flag, bits in {"avx512f": 512, "avx2": 256}.items() if flag in flags.split()), None)


def _product_rate() -> float | None:
    """Multiply on each core separately: waiting threads would lose more to other programs than training does."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = "1"
    try:
        import numpy as np
    except ImportError:
        return None
    factor = np.ones((ROWS, ROWS), np.float32)
    begin = time.perf_counter()

    def multiply(_: int) -> int:
        count = 0
        while time.perf_counter() - begin < PRODUCT_SECONDS:
            factor @ factor
            count += 1
        return count

    cores = max(1, int(cpu_limit()))
    with ThreadPoolExecutor(cores) as pool:
        count = sum(pool.map(multiply, range(cores)))
    return 2.0 * ROWS**3 * count / (time.perf_counter() - begin)


def loop_seconds() -> float:
    """Return how long a loop of Python code takes on one core: the mean of a few."""
    total, begin = 0, time.perf_counter()
    for step in range(LOOPS * LOOP_STEPS):
        total += step & 3
    return (time.perf_counter() - begin) / LOOPS


TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Unit of /proc/stat."""

CPU_USE_SECONDS = 0.5
"""Shortest interval over which the use of the CPUs is read before a measurement."""

STANDARD_ERRORS = 4.0
"""The kernel counts who runs at each tick, so that a short interval is a small sample; exceeded by 1 in 30,000."""

_USED = (0, 1, 2, 7)
"""Columns of /proc/stat: user, nice, system, and steal by other virtual machines. Interrupts may be ours."""


@dataclass(frozen=True, kw_only=True)
class CPUUse:
    """CPU time used since the start of the machine and of this process.

    Attributes:
        at: `time.perf_counter`.
        cpus: CPUs that this process may run on.
        all_seconds: Used by all programs on these CPUs.
        own_seconds: Used by this process and the processes that it started and that have ended.
    """

    at: float
    cpus: int
    all_seconds: float
    own_seconds: float


def read_cpu_use(root: Path = Path("/")) -> CPUUse:
    """Read the counters.

    Args:
        root: Parent of `proc`.
    """
    allowed = os.sched_getaffinity(0)
    rows = re.findall(r"^cpu(\d+) (.+)$", read_text(root / "proc/stat"), re.MULTILINE)
    ticks = [[int(text) for text in row.split()] for cpu, row in rows if int(cpu) in allowed]
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return CPUUse(
        at=time.perf_counter(),
        cpus=len(ticks),
        all_seconds=sum(row[column] for row in ticks for column in _USED) / TICKS_PER_SECOND,
        own_seconds=sum(part.ru_utime + part.ru_stime for part in own),
    )


def other_cpu_share(before: CPUUse, after: CPUUse, limit: float) -> float | None:
    """Return the share of the CPUs of this process that other programs surely used over an interval.

    CPUs beyond the limit of a control group do not count: a process that may use 2 of 8 CPUs loses nothing if others
    use 6. The error of the kernel's ticks is subtracted.

    Args:
        before: At the start of the interval.
        after: At its end.
        limit: CPUs that this process may use; may be fractional.

    Returns:
        0 to 1; None: the kernel does not report it.
    """
    seconds, cpus = after.at - before.at, after.cpus
    used = after.all_seconds - before.all_seconds
    if seconds <= 0 or used <= 0:
        return None
    ticks = cpus * seconds * TICKS_PER_SECOND
    busy = min(1.0, used / (cpus * seconds))
    error = cpus * (STANDARD_ERRORS * math.sqrt(busy * (1 - busy) / ticks) + cpus / ticks)
    others = (used - (after.own_seconds - before.own_seconds)) / seconds - error
    return min(1.0, max(0.0, (others - (cpus - limit)) / limit))


WATCHED = ("CUDA_", "NVIDIA_", "NCCL_", "TF_", "XLA_", "LD_")
"""Beginnings of environment variables that change which devices a benchmark sees, or its speed."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The machine, as this process sees it; None: unknown.

    Attributes:
        cpu_limit: CPUs that this process may use; may be fractional.
        load: Load average of the last minute, of the whole machine.
        other_cpu_share: Share of the CPUs that other programs used for half a second.
        governors: Number of CPUs by frequency governor; empty if the kernel offers no choice.
        memory_available_bytes: The kernel's estimate of available memory.
        shm_bytes: Size of /dev/shm.
        disk_free_bytes: Of the file system for temporary files.
        variables: Those that begin with one of `WATCHED`.
    """

    cpu_count: int = 1
    cpu_limit: float = 1.0
    load: float | None = None
    other_cpu_share: float | None = None
    governors: dict[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    shm_bytes: int | None = None
    disk_free_bytes: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


def read_machine(root: Path = Path("/")) -> MachineFacts:
    """Read the facts of this machine.

    Args:
        root: Parent of `proc`, `sys` and `dev`.
    """
    before = read_cpu_use(root)
    time.sleep(CPU_USE_SECONDS)
    load = _found(root / "proc/loadavg", r"^(\S+)")
    governors = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    shm = root / "dev/shm"
    return MachineFacts(
        cpu_count=os.cpu_count() or 1,
        cpu_limit=cpu_limit(root),
        load=float(load) if load else None,
        other_cpu_share=other_cpu_share(before, read_cpu_use(root), cpu_limit(root)),
        governors=dict(Counter(text for file in governors if (text := read_text(file).strip()))),
        memory_bytes=memory_limit_bytes(root),
        memory_available_bytes=_memory_bytes(root, "MemAvailable"),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        disk_free_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
        variables={name: value[:500] for name, value in os.environ.items() if name.startswith(WATCHED)},
    )

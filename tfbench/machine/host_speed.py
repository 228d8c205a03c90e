"""How fast this host's processor and disk are, in seconds: for estimates and deep checks, not for results."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tfbench.machine.host import cpu_limit

PRODUCT_SECONDS = 0.5
"""Time for matrix products."""

ROWS = 512
LOOP_STEPS = 1_000_000
LOOPS = 5

FILE_BYTES = 128 << 20
"""Below the largest file that a container may write."""

CHUNK = 8 << 20
IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True, kw_only=True)
class ProcessorSpeed:
    """What the probe measured.

    Attributes:
        cpu_flops_per_second: fp32 matrix products on all cores of this process; None: NumPy is missing.
        cpu_loop_seconds: A loop of Python code on one core.
    """

    cpu_flops_per_second: float | None
    cpu_loop_seconds: float


def processor_speed() -> ProcessorSpeed:
    """Measure for less than a second, and return means: they include the effect of other programs on the machine.

    For a process of its own: it decides how many threads NumPy uses.
    """
    return ProcessorSpeed(cpu_flops_per_second=_product_rate(), cpu_loop_seconds=loop_seconds())


def _product_rate() -> float | None:
    """Multiply on each core by itself: threads that wait for each other lose more to other work than training does."""
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


def disk_bytes_per_second(folder: Path | None = None) -> float | None:
    """Write a file, have the system forget it and read it, as a data pipeline does.

    None where the folder is in memory, full or read-only.

    Args:
        folder: Where; None: where temporary files go.
    """
    place = folder or Path(tempfile.gettempdir())
    if file_system(place) in IN_MEMORY:
        return None
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            block = os.urandom(CHUNK)
            for _ in range(FILE_BYTES // CHUNK):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            begin = time.perf_counter()
            while file.read(CHUNK):
                pass
            return FILE_BYTES / (time.perf_counter() - begin)
    except OSError:
        return None


def file_system(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """Return the type of the file system that a folder is on; None: not known."""
    best, kind, wanted = -1, None, str(folder.resolve())
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].rstrip("/") + "/"
        if f"{wanted}/".startswith(point) and len(point) > best:
            best, kind = len(point), fields[2]
    return kind

"""How fast this host's processor is: for estimates and deep checks, not for results."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfbench.machine.host import cpu_limit

PRODUCT_SECONDS = 0.5
"""Time for matrix products."""

ROWS = 512
LOOP_STEPS = 1_000_000
LOOPS = 5


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

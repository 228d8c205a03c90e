"""How fast this processor is, in two seconds: for an estimate of what a run takes, not for results."""

from __future__ import annotations

import time
from dataclasses import dataclass

PRODUCT_SECONDS = 1.5
"""Time for matrix products; the best counts, as for the peaks of a repeat."""

ROWS = 1024
LOOP_STEPS = 1_000_000


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
    """Measure for about two seconds; of each the mean, so that other work on the machine counts as it will later."""
    return ProcessorSpeed(cpu_flops_per_second=_product_rate(), cpu_loop_seconds=_loop_seconds())


def _product_rate() -> float | None:
    try:
        import numpy as np
    except ImportError:
        return None
    factor = np.ones((ROWS, ROWS), np.float32)
    factor @ factor  # its threads exist now
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < PRODUCT_SECONDS:
        factor @ factor
        count += 1
    return 2.0 * ROWS**3 * count / (time.perf_counter() - begin)


def _loop_seconds() -> float:
    total, begin = 0, time.perf_counter()
    for step in range(LOOP_STEPS):
        total += step & 3
    return time.perf_counter() - begin

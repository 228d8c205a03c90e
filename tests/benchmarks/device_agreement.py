# ruff: noqa: T201 (a script prints its result)
"""`--model=device` against independent programs on this machine's CPU, side by side.

Matrix products against NumPy's BLAS, memory against a C program of the same operation; same sizes, same threads, one
after the other in turn, so that a busy machine slows both. Needs gcc.

    python -m tests.benchmarks.device_agreement --rounds=25
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_name("device_add.c")
TOLERANCE = 0.10
MEMORY_ROUNDS = 4
"""Times as many for memory: a neighbour takes up to half of it from one moment to the next."""

NUMPY_PRODUCTS = """
import sys, time
import numpy as np
kind, size, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
factor = np.random.default_rng(1).random((size, size)).astype(kind)
result, seconds = np.empty_like(factor), []
for _ in range(rounds + 1):
    begin = time.perf_counter()
    np.matmul(factor, factor, out=result)
    seconds.append(time.perf_counter() - begin)
print(2.0 * size**3 / min(seconds[1:]))
"""
"""In a process of its own: its threads and TensorFlow's must not wait for each other."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parsed = parser.parse_args(arguments)
    os.environ |= {name: str(parsed.threads) for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from tfbench.roofline import peaks

    tf.config.threading.set_intra_op_parallelism_threads(parsed.threads)
    tf.config.threading.set_inter_op_parallelism_threads(parsed.threads)
    print(
        f"{parsed.threads} threads, {parsed.rounds} rounds in turn, {MEMORY_ROUNDS} times as many of memory; "
        "ratio = tfbench / other, median (lowest, highest)"
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "device_add"
        subprocess.run(["gcc", "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)], check=True)
        outside = []
        for arithmetic in ("fp32", "fp64"):
            outside.append(_compare(f"product {arithmetic}", parsed.rounds, *_products(peaks, arithmetic)))
        elements = peaks.COPY_ELEMENTS["CPU"]
        # As many passes a round as ours makes calls: the best round of a longer one meets more busy moments.
        passes = max(1, round(peaks.MEASURE_SECONDS / peaks.ROUNDS / (peaks.memory_add("CPU:0").seconds or 1.0)))
        command = [str(program), str(elements), str(parsed.threads), str(peaks.ROUNDS), str(passes)]
        outside.append(
            _compare(
                "memory a += b",
                MEMORY_ROUNDS * parsed.rounds,
                lambda: peaks.memory_add("CPU:0").value or 0.0,
                lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout),
            )
        )
    return int(any(outside))


def _products(peaks, arithmetic: str) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return what measures products with tfbench and with NumPy, of the size that is tfbench's best.

    Args:
        peaks: The module; imports TensorFlow.
        arithmetic: `fp32` or `fp64`.
    """
    size = peaks.matrix_product(arithmetic, "CPU:0").size
    kind = {"fp32": "float32", "fp64": "float64"}[arithmetic]
    command = [sys.executable, "-c", NUMPY_PRODUCTS, kind, str(size), str(peaks.ROUNDS)]

    def numpy_rate() -> float:
        return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)

    def our_rate() -> float:
        factor = peaks.matrix_factor(size, arithmetic, "CPU:0")
        return 2.0 * size**3 / min(peaks.seconds_per_call(peaks.product_call(factor, arithmetic, "CPU:0"), ["CPU:0"]))

    return our_rate, numpy_rate


def _compare(name: str, rounds: int, ours: Callable[[], float], theirs: Callable[[], float]) -> bool:
    """Print both and their ratio; return whether it is outside of the tolerance."""
    pairs = []
    for index in range(rounds):
        if index % 2:
            other, own = theirs(), ours()
        else:
            own, other = ours(), theirs()
        pairs.append((own, other))
    ratios = [own / other for own, other in pairs]
    median = statistics.median(ratios)
    outside = abs(median - 1.0) > TOLERANCE
    # Both are peaks: the best of all rounds is what each can do, however busy the machine was in the others.
    best = max(own for own, _ in pairs) / max(other for _, other in pairs)
    print(
        f"{name:<13} tfbench {max(own for own, _ in pairs) / 1e9:8.2f} G/s, other "
        f"{max(other for _, other in pairs) / 1e9:8.2f} G/s, ratio {median:.3f} ({min(ratios):.3f}, {max(ratios):.3f}), "
        f"of the bests {best:.3f}{'  OUTSIDE of 10 %' if outside else ''}"
    )
    return outside


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

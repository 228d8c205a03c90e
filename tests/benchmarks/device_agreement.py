# ruff: noqa: T201 (a script prints its result)
"""`--model=device` against independent programs on this machine's CPU, side by side.

Matrix products against NumPy's BLAS, memory against a C program of the same operation; same sizes, same threads, one
after the other in turn, so that a busy machine slows both. Needs gcc.

    python -m tests.benchmarks.device_agreement --rounds=7
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
PASSES = 12
"""Of a round of the C program: as long as a round of ours, so that a busy moment is in both."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parsed = parser.parse_args(arguments)
    os.environ |= {name: str(parsed.threads) for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    from tfbench import peaks

    tf.config.threading.set_intra_op_parallelism_threads(parsed.threads)
    tf.config.threading.set_inter_op_parallelism_threads(parsed.threads)
    print(
        f"{parsed.threads} threads, {parsed.rounds} rounds in turn; ratio = tfbench / other, median (lowest, highest)"
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "device_add"
        subprocess.run(["gcc", "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)], check=True)
        outside = [
            _compare(f"matrix product {arithmetic}", parsed.rounds, *_products(peaks, arithmetic))
            for arithmetic in ("fp32", "fp64")
        ]
        elements = peaks.COPY_ELEMENTS["CPU"]
        command = [str(program), str(elements), str(parsed.threads), str(peaks.ROUNDS), str(PASSES)]
        outside.append(
            _compare(
                "memory a += b",
                parsed.rounds,
                lambda: peaks.memory_add("CPU:0").value or 0.0,
                lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout),
            )
        )
    return int(any(outside))


def _products(peaks, arithmetic: str) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return what measures products with tfbench and with NumPy, of the size that is tfbench's best."""
    import numpy as np

    size = peaks.matrix_product(arithmetic, "CPU:0").size
    factor = np.random.default_rng(1).random((size, size)).astype({"fp32": np.float32, "fp64": np.float64}[arithmetic])
    result = np.empty_like(factor)

    def multiply() -> list[object]:
        np.matmul(factor, factor, out=result)
        return []  # nothing to wait for

    def numpy_rate() -> float:
        return 2.0 * size**3 / min(peaks.seconds_per_call(multiply))

    def our_rate() -> float:
        factor_here = peaks._factor(size, arithmetic, "CPU:0")
        return 2.0 * size**3 / min(peaks.seconds_per_call(peaks._product(factor_here, arithmetic, "CPU:0")))

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
        f"{name:<20} tfbench {max(own for own, _ in pairs) / 1e9:8.2f} G/s, other "
        f"{max(other for _, other in pairs) / 1e9:8.2f} G/s, ratio {median:.3f} ({min(ratios):.3f}, {max(ratios):.3f}), "
        f"of the bests {best:.3f}{'  OUTSIDE of 10 %' if outside else ''}"
    )
    return outside


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# ruff: noqa: T201 (a script prints its result)
"""Compares throughput with tf_cnn_benchmarks on this machine: equal networks, batch and threads, in alternating pairs.

    python -m studies.compare_tf_cnn --checkout=…/benchmarks/scripts/tf_cnn_benchmarks [--python=…]

tf_cnn_benchmarks is not part of this project. It needs `tf_keras` in addition to TensorFlow ≥ 2.16, so `--python` is
usually the interpreter of another virtual environment. Ratios above 1 mean that tfbench is faster. Use an idle machine;
otherwise ratios are meaningless. `peak_share` is tfbench's share of the rate of plain matrix products, measured in the
same processes, which limits the ratio.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from results.runs.reading import from_json
from studies.tf_cnn_benchmarks import (
    PAIRINGS,
    PROGRAM,
    Pairing,
    cpu_flags,
    flags,
    images_per_second,
    variables,
)
from tfbench.devices import threads_for
from tfbench.machine.host import cpu_limit


@dataclass(frozen=True)
class Rate:
    """Throughput of one run.

    Attributes:
        images: Images per second.
        peak_share: Share of the rate of matrix products in the same process; None: not measured.
    """

    images: float
    peak_share: float | None = None


def our_rate(pairing: Pairing, options: argparse.Namespace) -> Rate:
    """Run tfbench."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "record.json"
        command = [
            *(sys.executable, "-m", "tfbench", f"--model={pairing.ours}", f"--batch_norm={pairing.batch_norm}"),
            *(f"--device={options.device}", f"--precision={options.precision}", f"--xla={options.xla}"),
            *(f"--batch_size={options.batch_size}", f"--num_steps={options.steps}"),
            *(f"--warmup_steps={options.warmup}", f"--max_warmup_steps={options.warmup}"),
            f"--output={output}",
        ]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)
        record = from_json(output.read_bytes())
    if record.measurement is None:
        raise SystemExit(f"tfbench: {record.status}: {record.cause}")
    return Rate(record.measurement.samples_per_second, record.measurement.flops_utilisation)


def their_rate(pairing: Pairing, options: argparse.Namespace) -> Rate:
    """Run tf_cnn_benchmarks."""
    command = [
        *(options.python, PROGRAM),
        *flags(pairing, options.precision, options.batch_size, options.steps, options.warmup, options.xla),
    ]
    if options.device == "cpu":
        threads = threads_for(cpu_limit())
        command += cpu_flags(threads, threads)
    done = subprocess.run(
        command,
        cwd=options.checkout,
        env={**os.environ, **variables(options.precision)},
        capture_output=True,
        text=True,
        check=False,
    )
    images = images_per_second(done.stdout)
    if images is None:
        raise SystemExit(f"tf_cnn_benchmarks gave no figure:\n{done.stderr[-2000:]}")
    return Rate(images)


def compare(name: str, options: argparse.Namespace) -> float:
    """Measure all pairs of a network; print and return the ratio of medians."""
    ours: list[Rate] = []
    theirs: list[Rate] = []
    for pair in range(options.pairs):
        order = ((our_rate, ours), (their_rate, theirs))
        for rate, kept in order if pair % 2 == 0 else reversed(order):
            kept.append(rate(PAIRINGS[name], options))
        share = "" if ours[-1].peak_share is None else f", {ours[-1].peak_share:.2f} of the matrix product's rate"
        print(f"{name} pair {pair + 1}: {ours[-1].images:.2f} / {theirs[-1].images:.2f}{share}", file=sys.stderr)
    images = {
        "tfbench": [round(rate.images, 3) for rate in ours],
        "tf_cnn_benchmarks": [round(rate.images, 3) for rate in theirs],
    }
    ratio = statistics.median(images["tfbench"]) / statistics.median(images["tf_cnn_benchmarks"])
    shares = [rate.peak_share for rate in ours if rate.peak_share is not None]
    share = round(statistics.median(shares), 3) if shares else None
    print(json.dumps({"network": name, "ratio": round(ratio, 4), **images, "peak_share": share}), flush=True)
    return ratio


def main() -> int:
    """Compare the requested networks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="folder with tf_cnn_benchmarks.py")
    parser.add_argument("--python", default=sys.executable, help="interpreter with TensorFlow and tf_keras")
    parser.add_argument("--networks", default=",".join(PAIRINGS))
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "tf32", "fp16"], default="fp32")
    parser.add_argument("--xla", choices=["off", "auto"], default="off")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=3)
    options = parser.parse_args()
    ratios = [compare(name, options) for name in options.networks.split(",")]
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    print(json.dumps({"geometric_mean": round(mean, 4), "pairs": options.pairs, "batch": options.batch_size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

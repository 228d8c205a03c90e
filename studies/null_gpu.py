"""Compares a step with that of tf_cnn_benchmarks on null GPUs: CUDA calls and host time.

    python -m studies.null_gpu --checkout=…/benchmarks/scripts/tf_cnn_benchmarks [--networks=…] [--gpus=1,2,8]

Needs the null GPU's environment (`python -m tests.support.null_gpu`); installs `tf_keras` there. Measures the cases that
the table does not have yet, alternating between both programs. Each line is one step of all replicas. Counts do not
depend on other load. Because kernels take no time, `host_ms` is the host's time of the median step, which is meaningless
on a busy machine; `cpu_ms` is the CPU time of all its threads.
"""

import argparse
import csv
import ctypes
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from studies.null_gpu_counts import Counter, row
from studies.tf_cnn_benchmarks import PAIRINGS, Pairing, flags, variables
from tests.support import PROJECT
from tests.support.null_gpu import FOLDER, environment, pip_install

PEER_PACKAGES = FOLDER / "peer"
TABLE = PROJECT / "docs" / "validation" / "null-gpu.csv"
KEY = ("network", "precision", "gpus", "program")
PROGRAMS = ("tfbench", "tf_cnn_benchmarks")
COUNTED = ("launches", "library_calls", "h2d", "d2h", "d2d", "d2d_bytes", "waits", "all_reduces", "peak_mib")
COLUMNS = (*KEY, *COUNTED, "host_ms", "cpu_ms")
STEPS, WARM_STEPS = 20, 5
MEMORY = {"NULLGPU_DEVICES": 8, "NULLGPU_MEMORY_MIB": 8192}
"""Enough for small batches: without memory growth, TensorFlow's allocator takes a 32nd of a GPU's memory of the host."""


def ours(counter: Counter, pairing: Pairing, precision: str, gpus: int, batch: int) -> dict[str, str]:
    """Count the CUDA calls of a step of tfbench."""
    found = counter.count(
        [
            *(f"--model={pairing.ours}", f"--batch_norm={pairing.batch_norm}", f"--precision={precision}"),
            *(f"--num_gpus={gpus}", f"--batch_size={batch}", f"--num_steps={STEPS}", f"--warmup_steps={WARM_STEPS}"),
            *(f"--max_warmup_steps={WARM_STEPS}", "--notelemetry", "--nopeaks", "--output=unused"),
        ]
    )
    return _columns(found)


def theirs(checkout: Path, pairing: Pairing, precision: str, gpus: int, batch: int) -> dict[str, str]:
    """Count the CUDA calls of a step of tf_cnn_benchmarks."""
    with tempfile.NamedTemporaryFile() as output:
        settings = environment(**MEMORY, **variables(precision))
        settings["PYTHONPATH"] += f":{PEER_PACKAGES}"
        command = [
            *(sys.executable, "-m", "studies.null_gpu", "--peer", output.name, str(checkout)),
            *flags(pairing, precision, batch, STEPS, WARM_STEPS),
            "--init_learning_rate=0.1",  # its schedule asserts a value that a GPU has to compute
            *(f"--num_gpus={gpus}", *(["--all_reduce_spec=nccl"] if gpus > 1 else [])),
        ]
        done = subprocess.run(command, cwd=PROJECT, env=settings, capture_output=True, text=True, check=False)
        text = Path(output.name).read_text(encoding="utf-8")
    if not text:
        said = [line for line in done.stderr.splitlines() if not re.match(r"[IWE]\d{4} ", line)]
        raise SystemExit("\n".join(["tf_cnn_benchmarks ended without a result:", *said[:40]]))
    return _columns(json.loads(text))


def _columns(found: dict[str, Any]) -> dict[str, str]:
    key = {"gradient_bytes": 0, **found}
    times = {"host_ms": statistics.median(found["step_seconds"]), "cpu_ms": found["cpu_seconds"] / found["steps"]}
    return {**row({}, key), **{name: f"{seconds * 1000:.1f}" for name, seconds in times.items()}}


def run_peer(output: str, checkout: str, arguments: list[str]) -> None:
    """Run tf_cnn_benchmarks in this process and count its timed steps."""
    null = ctypes.CDLL("libcuda.so.1")
    null.nullgpu_counts.restype = ctypes.c_char_p
    os.chdir(checkout)
    sys.path.insert(0, checkout)
    sys.argv = ["tf_cnn_benchmarks.py", *arguments]
    import benchmark_cnn
    import tensorflow as tf
    import tf_cnn_benchmarks
    from absl import app

    take = benchmark_cnn.benchmark_one_step
    step_seconds: list[float] = []
    cpu_before: list[float] = []

    def take_counted(session: Any, fetches: Any, step: int, *others: Any, **named: Any) -> Any:
        if step == 0:
            step_seconds.clear()  # of the warm-up
            null.nullgpu_reset()
            cpu_before.append(time.process_time())
        begin = time.perf_counter()
        result = take(session, fetches, step, *others, **named)
        step_seconds.append(time.perf_counter() - begin)
        if step == STEPS - 1:
            found = {"steps": STEPS, "step_seconds": step_seconds, **json.loads(null.nullgpu_counts())}
            found["cpu_seconds"] = time.process_time() - cpu_before[-1]
            found["peak_bytes"] = tf.config.experimental.get_memory_info("GPU:0")["peak"]
            Path(output).write_text(json.dumps(found), encoding="utf-8")
        return result

    benchmark_cnn.benchmark_one_step = take_counted
    tf.compat.v1.disable_v2_behavior()
    app.run(tf_cnn_benchmarks.main)


def main() -> None:
    """Add a line to the table for each network, precision, number of GPUs and program that it does not have yet."""
    if sys.argv[1:2] == ["--peer"]:
        run_peer(sys.argv[2], sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", type=Path, required=True, help="folder with tf_cnn_benchmarks.py")
    parser.add_argument("--networks", default=",".join(PAIRINGS))
    parser.add_argument("--precisions", default="fp32,fp16")
    parser.add_argument("--gpus", default="1,2,8")
    parser.add_argument("--programs", default=",".join(PROGRAMS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further case after this time")
    options = parser.parse_args()
    if not PEER_PACKAGES.exists():
        pip_install(PEER_PACKAGES, ["tf_keras"])
    table: list[dict[str, str]] = []
    if options.table.exists():
        with options.table.open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
    known = {tuple(line[name] for name in KEY) for line in table}
    counter, begin = Counter(**MEMORY), time.monotonic()
    chosen = (options.gpus, options.networks, options.precisions, options.programs)
    for gpus, network, precision, program in itertools.product(*(names.split(",") for names in chosen)):
        key = dict(zip(KEY, (network, precision, gpus, program), strict=True))
        if tuple(key.values()) in known or time.monotonic() - begin > options.seconds:
            continue
        case = (PAIRINGS[network], precision, int(gpus), options.batch)
        found = ours(counter, *case) if program == PROGRAMS[0] else theirs(options.checkout.resolve(), *case)
        table.append({**key, **found})
        with options.table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
    counter.close()


if __name__ == "__main__":
    main()

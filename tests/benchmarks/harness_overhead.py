# ruff: noqa: T201 (a script prints its result)
"""Measures the harness's overhead: its throughput against a bare loop over the same compiled step, in one process.

    python -m tests.benchmarks.harness_overhead [--model=googlenet] [--batch_size=8] [--steps=20] [--rounds=7]

Alternates between the bare loop, the harness with timing and progress lines, and the same with telemetry from the NVIDIA
driver, or from a fake driver if there is none. Prints the ratios of median throughputs; 1 means no overhead.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results.schema import Case, Device
from tests.support.fake_driver import build, two_a4000
from tfbench.machine.host import cpu_limit
from tfbench.machine.nvml import GPUs
from tfbench.machine.telemetry import Observer
from tfbench.measuring.timing import print_steps, take_steps, wait_for_loss
from tfbench.models import NETWORKS
from tfbench.setup.devices import configure, create_strategy, threads_for
from tfbench.workload import Repeat
from tfbench.workload import build as build_step


def measure(options: argparse.Namespace) -> dict[str, float]:
    """Return the ratios of median throughputs."""
    case = Case(
        model=options.model,
        device=Device(options.device),
        batch_per_gpu=options.batch_size,
        image_size=options.image_size,
    )
    configure(case, threads_for(cpu_limit()))
    repeat = Repeat(case=case, network=NETWORKS[case.model], strategy=create_strategy(case))
    step = build_step(repeat).step
    report = print_steps(repeat.samples_per_step, repeat.network.unit)
    gpus = GPUs(2)

    def bare() -> float:
        begin = time.perf_counter()
        for _ in range(options.steps):
            loss = step()
        wait_for_loss(loss)
        return time.perf_counter() - begin

    def harness() -> float:
        return take_steps(step, options.steps, report).seconds

    def observed() -> float:
        observer = Observer(gpus)
        observer.start()
        seconds = harness()
        observer.stop()
        return seconds

    ways = {"bare": bare, "harness": harness, "harness_and_telemetry": observed}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for _ in range(options.rounds):
        for name, way in ways.items():
            seconds[name].append(way())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "reported_to_bare": medians["bare"] / medians["harness"],
        "telemetry_on_to_off": medians["harness"] / medians["harness_and_telemetry"],
        "gpus_sampled": len(gpus),
        "step_seconds": medians["bare"] / options.steps,
    }


def with_fake_driver(folder: Path) -> dict[str, str]:
    """Build the fake driver and return the environment for using it."""
    build(two_a4000(), folder)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "TFBENCH_FAKE_DRIVER": "1"}


def main() -> int:
    """Measure, with the fake driver if there is no other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="googlenet", choices=list(NETWORKS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--image_size", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if len(GPUs(1)) == 0 and "TFBENCH_FAKE_DRIVER" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.benchmarks.harness_overhead", *sys.argv[1:]]
            return subprocess.run(command, env=with_fake_driver(Path(folder)), check=False).returncode
    print(json.dumps(measure(options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

# ruff: noqa: T201 (a script prints its result)
"""Measures the harness's overhead: its throughput against a bare loop over the same compiled step, in one process.

    python -m tests.benchmarks.harness_overhead [--model=googlenet] [--batch_size=8] [--steps=20] [--rounds=7]

Alternates between the bare loop, the harness with timing and progress lines, and the same with telemetry from the NVIDIA
driver if there is one. Prints the ratios of median throughputs; 1 means no overhead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from results.schema import Case, Device
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


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="googlenet", choices=list(NETWORKS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--image_size", type=int)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()

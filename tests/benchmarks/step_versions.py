"""Is a step faster or slower than in another version of tfbench? Both take steps in turn, each in a process of its own.

    git worktree add ../before COMMIT
    python -m tests.benchmarks.step_versions --other=../before

A line per network: throughput of this version over the other's, the median over the rounds, and its quartiles. While
one process takes steps the other waits, so that both see the same moments of a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from results.schema import Precision

HERE = Path(__file__).parents[2]
NETWORKS = ("googlenet", "resnet50", "inception_v3", "resnet152")

WORKER = """
import json, sys
options = json.loads(sys.argv[1])
import tensorflow as tf
from results.schema import Case, Device, Precision
from tfbench.setup.devices import configure, create_strategy, threads_for
from tfbench.machine.host import cpu_limit
from tfbench.training.inputs import batch_source
from tfbench.models import NETWORKS
from tfbench.training.tasks import TASKS
from tfbench.measuring.timing import take_steps
from tfbench.training.step import Training
case = Case(
    model=options["model"], precision=Precision(options["precision"]), device=Device.CPU,
    batch_per_gpu=options["batch_size"], num_gpus=options["replicas"], image_size=options["image_size"],
)
network = NETWORKS[case.model]
size, task = network.size(case), TASKS[network.task]
configure(case, threads_for(cpu_limit()))
strategy = create_strategy(case)
training = Training(case, network.build(case.batch_norm, size, strategy), strategy, task=task)
next_batch = batch_source(case, size, network.classes, strategy, task)
for line in sys.stdin:
    print(take_steps(lambda: training.step(next_batch()), int(line)).seconds, flush=True)
"""


class Version:
    """One version of tfbench, ready to take steps of one case."""

    def __init__(self, folder: Path, case: dict[str, object]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, json.dumps(case)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def seconds(self, steps: int) -> float:
        """Take steps, and return how long they took."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(steps, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def ratios(other: Path, case: dict[str, object], rounds: int, steps: int) -> list[float]:
    """Return this version's throughput over the other's, for each round."""
    ours, theirs = Version(HERE, case), Version(other, case)
    try:
        for version in (ours, theirs):
            version.seconds(2)
        found = []
        for number in range(rounds):
            order = (ours, theirs) if number % 2 else (theirs, ours)
            took = {version: version.seconds(steps) for version in order}
            found.append(took[theirs] / took[ours])
        return found
    finally:
        ours.close()
        theirs.close()


def main() -> int:
    """Compare, and print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--other", type=Path, required=True, help="checkout of the other version")
    parser.add_argument("--models", nargs="+", default=NETWORKS)
    parser.add_argument("--precision", default="fp32", choices=list(Precision))
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--image_size", type=int)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    for model in options.models:
        case = {name: getattr(options, name) for name in ("precision", "batch_size", "image_size", "replicas")}
        found = ratios(options.other.resolve(), {"model": model, **case}, options.rounds, options.steps)
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{model:<14} this / other {middle:.3f}  quartiles {low:.3f} to {high:.3f}", flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

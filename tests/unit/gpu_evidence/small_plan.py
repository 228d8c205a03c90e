"""A plan of steps that take no time, around the real driver; `python -m tests.unit.gpu_evidence.small_plan FILE …` runs one.

Each step's process leaves a mark in a file, so that a test can count how often it ran.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmarks.gpu_evidence.__main__ import main
from tests.benchmarks.gpu_evidence.steps import Run, Step

COUNTING = """
import json, sys, time
marks, name, value, seconds, output = sys.argv[1:6]
with open(marks, "a") as file:
    file.write(name + chr(10))
time.sleep(float(seconds))
figure = {"name": "answer", "value": float(value), "unit": "apples"}
open(output.removeprefix("--output="), "w").write(json.dumps({"figures": [figure]}))
"""

RATE = "import sys; print('total images/sec: ' + sys.argv[1])"


def counting_run(marks: Path, name: str, value: float = 1.0, seconds: float = 0.0, **changes) -> Run:
    """Return a run that marks that it ran, sleeps, and writes a figure in apples."""
    command = ("{python}", "-c", COUNTING, str(marks), name, str(value), str(seconds), "--output={record}")
    return Run(**{"name": "probe", "command": command, "cpu": (), **changes})


def counting_step(
    marks: Path, name: str, *, value: float = 1.0, seconds: float = 0.0, on_cpu: bool = True, **changes
) -> Step:
    """Return a step of one such run; without a CPU form where `on_cpu` is False."""
    run = counting_run(marks, name, value, seconds, cpu=() if on_cpu else None)
    values = {"question": "how many", "figure": "probe", "limit": 30.0, "runs": (run,), **changes}
    return Step(name=name, **values)


def rate_run(name: str, rate: float) -> Run:
    """Return a run that prints a throughput as tf_cnn_benchmarks does."""
    return Run(name=name, command=("{python}", "-c", RATE, str(rate)), cpu=(), reads_log=True)


def interrupted_plan(marks: Path) -> tuple[Step, ...]:
    """Return two steps, of which the second waits while the first mark of its name is the only one."""
    waits = COUNTING.replace(
        "time.sleep(float(seconds))", "time.sleep(60 if open(marks).read().split().count(name) == 1 else 0)"
    )
    command = ("{python}", "-c", waits, str(marks), "b.slow", "2", "0", "--output={record}")
    slow = Step(
        name="b.slow",
        question="how many",
        runs=(Run(name="probe", command=command, cpu=()),),
        figure="probe",
        limit=90.0,
    )
    return (counting_step(marks, "a.quick"), slow, counting_step(marks, "c.last", value=3.0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], interrupted_plan(Path(sys.argv[1]))))

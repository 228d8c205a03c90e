"""The runner end to end, as a command line, with steps that take no time."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from studies.gpu_validation.__main__ import main
from studies.gpu_validation.steps import Run, Step
from tests.support import PROJECT
from tests.support.engines.processes import wait_until, with_variables
from tests.support.patience import patience

pytestmark = pytest.mark.slow  # starts programs and waits for them


INTERPRETER = """#!/bin/sh
case "$*" in
  *"-m tfbench.probe") cat {facts} ;;
  *) exec {python} "$@" ;;
esac
"""

COUNTING = """
import json, sys, time
marks, name, value, seconds = sys.argv[1:5]
with open(marks, "a") as file:
    file.write(name + chr(10))
first = open(marks).read().split().count(name) == 1
time.sleep(float(seconds) if first else 0.0)
print(json.dumps({"figures": {"answer": [float(value), "apples"]}}))
"""


def counting_step(marks: Path, name: str, value: float = 1.0, seconds: float = 0.0, cpu=(), **changes) -> Step:
    command = ("{python}", "-c", COUNTING, str(marks), name, str(value), str(seconds), "--batch_size=8")
    runs = (Run(command=command, cpu=cpu),)
    return Step(**{"name": name, "question": "", "answer": "answer", "limit": 900.0, "runs": runs, **changes})


def interrupted_plan(marks: Path) -> list[Step]:
    """Return three steps, of which the second is slow the first time."""
    return [counting_step(marks, name, seconds=600.0 * (name == "b.slow")) for name in ("a.quick", "b.slow", "c.last")]


class Bench:
    """One output folder and calls of the runner."""

    def __init__(self, folder: Path, capsys) -> None:
        self.out, self.marks, self.capsys = folder / "out", folder / "marks", capsys
        self.python, self.facts = folder / "python", folder / "facts.json"
        self.python.write_text(INTERPRETER.format(python=sys.executable, facts=self.facts))
        self.python.chmod(0o755)
        self.marks.touch()
        self.arguments = [f"--out={self.out}", f"--python={self.python}"]
        self.show()

    def show(self, *gpus: str) -> None:
        """Have the machine show these GPUs."""
        rows = [{"name": name, "memory_bytes": 80 << 30} for name in gpus]
        self.facts.write_text(json.dumps({"tensorflow": "2.21.0", "gpus": rows}))

    def step(self, name: str, *given, **changes) -> Step:
        return counting_step(self.marks, name, *given, **changes)

    def call(self, steps, *arguments: str) -> str:
        """Call the runner; return what it printed on stdout, or stderr where it failed."""
        code = main([*self.arguments, *arguments], tuple(steps))
        printed = self.capsys.readouterr()
        return printed.out if code == 0 else f"{code}: {printed.err}"

    def result(self, step: str) -> dict:
        return json.loads((self.out / "results" / f"{step}.json").read_text())

    def outcomes(self) -> dict[str, str]:
        return {path.stem: self.result(path.stem)["outcome"] for path in sorted((self.out / "results").glob("*"))}

    def ran(self) -> Counter[str]:
        return Counter(self.marks.read_text().split())


@pytest.fixture
def bench(tmp_path: Path, capsys) -> Bench:
    return Bench(tmp_path, capsys)


def test_every_step_ends_in_one_outcome_and_a_line_of_the_summary(bench: Bench):
    failing = Run(command=("{python}", "-c", "import sys; sys.exit('no luck')"), cpu=())
    steps = [
        bench.step("a.figure", 1234.5),
        bench.step("b.gpu", cpu=None),
        bench.step("c.peer", runs=(Run(command=("tf_cnn_benchmarks.py",), cpu=()),)),
        bench.step("d.fails", runs=(failing,)),
        bench.step("e.slow", seconds=60.0, limit=1.0),
    ]
    assert "5 steps done. " in bench.call(steps)
    assert list(bench.outcomes().values()) == ["figure", "no_gpu", "no_peer", "failed", "timeout"]
    summary = (bench.out / "summary.md").read_text()
    assert "| a.figure | 1,234 apples | 8 |" in summary and "| d.fails | failed: exit code 1: no luck |" in summary
    bench.call(steps)
    assert bench.ran() == {"a.figure": 1, "e.slow": 1}  # neither a figure nor a timeout is tried again


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_call_that_ends_leaves_no_process_and_the_next_goes_on(bench: Bench, how: int):
    command = [sys.executable, "-m", "tests.unit.gpu_validation.test_session", str(bench.marks), *bench.arguments]
    environment = {**os.environ, "MARKS": str(bench.marks)}
    ended = subprocess.Popen(command, cwd=PROJECT, env=environment, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bench.ran()["b.slow"] == 1, "the slow step")
    assert bench.call([bench.step("a.one")]).startswith("2: gpu_validation: another call is using")
    ended.send_signal(how)
    _, errors = ended.communicate(timeout=patience())
    assert "stopped; call again to go on" in errors or ended.returncode == -signal.SIGKILL
    assert "b.slow" not in bench.outcomes()
    wait_until(lambda: not with_variables(f"MARKS={bench.marks}"), "the end of its benchmark")
    assert "3 steps done. " in bench.call(interrupted_plan(bench.marks))
    assert bench.ran() == {"a.quick": 1, "b.slow": 2, "c.last": 1}


def test_a_step_needs_its_gpus_and_a_folder_one_kind_of_machine(bench: Bench):
    bench.show("NVIDIA H200")
    steps = [bench.step("a.one"), bench.step("a.two", gpus=2), bench.step("b.one")]
    assert "2 steps done. " in bench.call(steps, "--only", "a")
    assert bench.outcomes() == {"a.one": "figure", "a.two": "no_gpu"}
    assert bench.result("a.two")["cause"] == "needs 2 GPUs, this machine has 1"
    assert bench.call(steps, "--only", "a.three").startswith("2: gpu_validation: no step is named 'a.three'")
    bench.show()
    refusal = bench.call([bench.step("a.one")])
    assert refusal.startswith("2: ") and "GPUs: NVIDIA H200. This one has: none. Use another --out" in refusal


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], interrupted_plan(Path(sys.argv[1]))))

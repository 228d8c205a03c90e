"""One call: runs what is not done yet, in order, as long as the time lasts."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.benchmarks.gpu_evidence.figures import Reading, read_figure
from tests.benchmarks.gpu_evidence.folder import FORMAT, Folder, write_json
from tests.benchmarks.gpu_evidence.runner import Ended, Programs, run_step
from tests.benchmarks.gpu_evidence.steps import FINAL, Machine, NoFigure, Outcome, Run, Step, definition, resolve
from tests.benchmarks.gpu_evidence.summary import Line, answer, write_summary

START = "environment.tensorflow"
"""The step that shows whether TensorFlow computes on the GPU; where it does not, no other is tried on one."""

CAUTION = 1.5
"""A step is expected to take so many times what a process of its group took at most."""

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What one call is to do.

    Attributes:
        steps: All of the plan: the summary has a line for each.
        only: Names, groups or patterns of steps; empty: all.
        again: Likewise, of steps that are run also when they are done.
        budget: Seconds of this call.
        pairs: Of each comparison on GPUs.
        gpus: Names of the machine's.
        version: Of this project.
    """

    steps: Sequence[Step]
    programs: Programs
    only: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    budget: float = 540.0
    pairs: int = 2
    gpus: tuple[str, ...] = ()
    version: str = ""


class Session:
    """A call at work.

    Args:
        request: What to do.
        machine: Where.
        folder: Created.
        say: Prints a line.
    """

    def __init__(self, request: Request, machine: Machine, folder: Folder, say: Say) -> None:
        self._request, self._machine, self._folder, self._say = request, machine, folder, say
        self._begin = time.perf_counter()
        self._ran = 0

    def work(self) -> tuple[int, int]:
        """Run the steps.

        Returns:
            How many of those asked for are done, and how many that is out of.
        """
        steps = [step for step in self._request.steps if not self._request.only or matches(step, self._request.only)]
        self._summarise()
        for step in steps:
            self._visit(step)
            self._believe_tensorflow(step)
        self._summarise()
        return sum(self._line(step).result is not None for step in steps), len(steps)

    def _visit(self, step: Step) -> None:
        """Run a step if it can run, is not done, and would end in time."""
        try:
            resolved = resolve(step, self._machine, self._request.pairs)
        except NoFigure as refusal:
            self._refuse(step, refusal)
            return
        again = matches(step, self._request.again) or (step.name == START and not self._has_figure(START))
        if not again and self._folder.finished(resolved) is not None:
            return
        # Not what it runs now: until it has, it is not done, also when this call is killed.
        self._folder.result(step.name).unlink(missing_ok=True)
        left = self._left()
        if self._ran and self.expected(resolved) > left:
            return
        self._run(resolved, left)

    def _run(self, step: Step, left: float) -> None:
        limit = min(step.limit, left)
        cut_by_budget = limit < step.limit
        first = self._ran == 0
        self._ran += 1
        self._say(f"{step.name}: {step.question} (at most {limit:.0f} s)")
        started_at, begin = _now(), time.perf_counter()
        runs = run_step(step, self._machine, self._request.programs, self._folder, limit)
        seconds = time.perf_counter() - begin
        reading, failure = _read(step, runs)
        if failure is not None and failure.outcome is Outcome.TIMEOUT and cut_by_budget and not first:
            self._say(f"{step.name}: cut by --budget-seconds after {seconds:.0f} s, another call runs it again")
            return
        self._write(step, reading, failure, runs=runs, seconds=seconds, started_at=started_at)

    def _refuse(self, step: Step, refusal: NoFigure) -> None:
        """Note that a step cannot run here, unless it has run."""
        result = self._folder.read_result(step.name)
        if result is None or result["outcome"] not in FINAL:
            self._write(step, None, refusal, quietly=result is not None)

    def _write(
        self,
        step: Step,
        reading: Reading | None,
        failure: NoFigure | None,
        *,
        runs: Sequence[Ended] = (),
        seconds: float = 0.0,
        started_at: str | None = None,
        quietly: bool = False,
    ) -> None:
        result: dict[str, Any] = {
            "format": FORMAT,
            "step": step.name,
            "question": step.question,
            "definition": definition(step),
            "outcome": Outcome.FIGURE if failure is None else failure.outcome,
            "cause": None if failure is None else failure.cause,
            "figures": [] if reading is None else [dataclasses.asdict(figure) for figure in reading.figures],
            "note": "" if reading is None else reading.note,
            "details": {} if reading is None else reading.details,
            "seconds": round(seconds, 1),
            "limit": step.limit,
            "started_at": started_at or _now(),
            "version": self._request.version,
            "commands": [_shown(run) for run in step.runs],
            "runs": [self._shown_end(run) for run in runs],
        }
        write_json(self._folder.result(step.name), result)
        self._summarise()
        if not quietly:
            self._say(f"{step.name}: {answer(result)}, {seconds:.0f} s")

    def _shown_end(self, run: Ended) -> dict[str, Any]:
        return {
            "name": run.name,
            "seconds": round(run.seconds, 1),
            "exit_code": run.exit_code,
            "record": _inside(run.record, self._folder) if run.record.exists() else None,
            "log": _inside(run.log, self._folder),
        }

    def _has_figure(self, name: str) -> bool:
        result = self._folder.read_result(name)
        return result is not None and result["outcome"] == Outcome.FIGURE

    def _believe_tensorflow(self, step: Step) -> None:
        """Take no other step to a GPU on which TensorFlow cannot compute: each would pay for finding that out."""
        if step.name != START or self._machine.gpus == 0:
            return
        result = self._folder.read_result(START)
        if result is not None and result["outcome"] != Outcome.FIGURE:
            why = f"step {START}: {result['cause']}"
            self._machine = dataclasses.replace(self._machine, gpus=0, why_no_gpu=why, cpu_forms=False)

    def _left(self) -> float:
        return self._request.budget - (time.perf_counter() - self._begin)

    def expected(self, step: Step) -> float:
        """Return how long a step is expected to take at most, by what others of its group took."""
        took: list[float] = []  # also 0.0, of what ends within a tenth of a second
        for other in self._request.steps:
            result = self._folder.read_result(other.name) if other.group == step.group else None
            if result is not None and result["outcome"] == Outcome.FIGURE:
                took += [run["seconds"] for run in result["runs"]]
        return min(step.limit, CAUTION * max(took) * len(step.runs)) if took else step.limit

    def _line(self, step: Step) -> Line:
        return Line(step=step, result=self._folder.read_result(step.name))

    def _summarise(self) -> None:
        machine = {"gpus": list(self._request.gpus), "peer": self._machine.peer is not None}
        write_summary(self._folder, [self._line(step) for step in self._request.steps], machine)


def matches(step: Step, patterns: Iterable[str]) -> bool:
    """Say whether a step is meant by a name, a group or a pattern."""
    return any(pattern == step.group or fnmatchcase(step.name, pattern) for pattern in patterns)


def _read(step: Step, runs: Sequence[Ended]) -> tuple[Reading | None, NoFigure | None]:
    try:
        return read_figure(step.figure, runs), None
    except NoFigure as failure:
        return None, failure


def _shown(run: Run) -> str:
    """Return a command as a person would repeat it, without this machine's paths."""
    environment = [f"{name}={value}" for name, value in run.variables.items()]
    command = [part.replace("{python}", "python").replace("{peer_python}", "python") for part in run.command]
    return " ".join([*environment, *command])


def _inside(path: Path, folder: Folder) -> str:
    return path.relative_to(folder.path).as_posix()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

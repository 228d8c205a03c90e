"""Every command of `python -m results`, run in this process through its main, with a time limit, and judged.

A command may refuse: it says so in a line and ends with a code that the documentation names. It may never raise, hang,
or send a control character to whoever reads what it prints.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from hypothesis import strategies as st

import results.__main__ as program
from tests.unit.results.fuzzing.folders import Folder, folders

GOOD_CODES = frozenset({0, 2, 3, 5})
"""Done; usage or a file that is no table; something failed; a regression."""

LIMIT_SECONDS = 120.0
"""Far above what any command takes with a dozen records, so that a busy machine makes no false alarm."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but ends of lines and tabs."""


class TookTooLong(BaseException):
    """A command did not end; no handler of exceptions may keep this from the runner."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        code: Its exit code; None: it never returned one.
        fault: What it did that it must not; empty: nothing.
    """

    arguments: tuple[str, ...]
    code: int | None = None
    fault: str = ""


VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "validate": ((), ("run-1", "run-2")),
    "show": (("run-1",), ("run-1", "run-2")),
    "export": (
        ("run-1",),
        ("run-1", "run-2", "--by=all"),
        *(("run-1", "--by=all", f"--format={name}", "--output=table.out") for name in ("json", "markdown", "wide")),
    ),
    "compare": (
        ("run-1", "--by=all"),
        ("run-1", "run-2", "--by=all", "--format=markdown"),
        ("{first}", "{last}", "run-1", "--by=all"),
        ("{first}", "{last}", "run-1", "--strict"),
        ("{first}", "{last}", "run-1", "run-2", "--by=all"),
        ("run-1", "--baseline=run-2", "--by=all", "--fail-on=5%"),
        ("x" * 300, "a5000", "run-1"),
    ),
    "recommend": tuple(
        ("run-1", f"--model={model}", f"--precision={precision}", *more)
        for model in ("{model}", "{model},")
        for precision in ("fp32", "fp16")
        for more in (
            (),
            ("--format=json",),
            ("--format=markdown", "--gpus=A4000,A5000"),
            ("--num-gpus=8", "--budget=1"),
        )
    ),
    "report": (("run-1", "--format=md"),) * 5 + (("run-1", "run-2", "--format=md"), ("run-1", "--output=report.html")),
    "audit": (("table.csv",), ("table.csv", "--format=json"), ("table.csv", "--format=markdown")),
    "prices": (("table.csv", "--provider=x", "--retrieved-on=2026-11-01"),),
}
"""Of each command the arguments to draw from; `table.csv` is what `export` printed."""


SLOW = frozenset({"recommend"})
"""Commands of seconds each, whatever the records are: asked for in one folder of twenty."""


@st.composite
def tries(draw: st.DrawFn) -> tuple[Folder, list[tuple[str, ...]]]:
    """Draw a folder, and one line for each command that asks for what the folder holds."""
    folder = draw(folders())
    fleets = list(folder.world.gpus)
    asked = {"first": fleets[0], "last": fleets[-1], "model": folder.world.models[0]}
    rarely = draw(st.integers(0, 19)) == 0
    drawn = [(name, *draw(st.sampled_from(VARIANTS[name]))) for name in VARIANTS if rarely or name not in SLOW]
    return folder, [tuple(part.format_map(asked) for part in line) for line in drawn]


def run_all(parent: Path, lines: list[tuple[str, ...]]) -> list[Outcome]:
    """Run commands on the runs in a folder."""
    environment = {"TFBENCH_RUNS_DIR": str(parent), "TFBENCH_DEBUG": "1", "COLUMNS": "80"}
    with contextlib.chdir(parent), mock.patch.dict(os.environ, environment):
        return [run(line) for line in lines]


def run(line: tuple[str, ...]) -> Outcome:
    """Run one command in the current folder."""
    output, errors = _stream(), _stream()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), _limit(LIMIT_SECONDS):
            code = program.main(["results", *line])
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 2
    except (Exception, TookTooLong):  # noqa: BLE001 (what it is for)
        return Outcome(line, fault=traceback.format_exc())
    text = _text(output)
    if line[0] == "export" and "--output=table.out" not in line:
        Path("table.csv").write_text(text, encoding="utf-8")
    if code not in GOOD_CODES:
        return Outcome(line, code, f"exit code {code}: {_text(errors)}")
    hidden = _CONTROLS.search(text + _text(errors))
    return Outcome(line, code, f"printed {hidden.group()!r}" if hidden else "")


def _stream() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TookTooLong(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

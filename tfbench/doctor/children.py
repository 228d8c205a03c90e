"""Questions that can crash or hang are asked in a process of their own, with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]

LAST_WORDS = 3
"""Lines of a child's stderr that explain its end."""

MAX_LINE = 300


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a child printed before it ended.

    Attributes:
        lines: The JSON objects that it printed, in order.
        problem: How it ended where that was not well: `crashed with SIGSEGV`, `did not answer in 20 s`.
        last_words: The end of its stderr; empty where it ended well.
    """

    lines: list[dict[str, Any]]
    problem: str | None = None
    last_words: str = ""


def ask(module: str, arguments: Sequence[str], seconds: float, **variables: str) -> Answers:
    """Run `python -m MODULE ARGUMENTS`, which prints JSON objects, one a line.

    Args:
        module: One of the doctor's own.
        arguments: Its arguments.
        seconds: Until it is killed, with all that it started.
        variables: Added to the environment.
    """
    # In an image the packages lie where PYTHONPATH says.
    paths = [str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
    child = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    problem = None
    try:
        reported, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(child)
        problem = f"did not answer in {seconds:.0f} s"
        reported, errors = _rest(child)
    if problem is None and child.returncode:
        code = child.returncode
        problem = f"crashed with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return Answers(lines=_objects(reported), problem=problem, last_words=_last_words(errors) if problem else "")


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        child.kill()


def _rest(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return what a killed child printed; one that hangs in the kernel cannot be killed, and is left behind."""
    try:
        return child.communicate(timeout=2.0)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", error.stderr or b""


def _objects(reported: bytes) -> list[dict[str, Any]]:
    found = []
    for line in reported.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue  # a library's own words
        if isinstance(value, dict):
            found.append(value)
    return found


def _last_words(errors: bytes) -> str:
    lines = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    return " | ".join(line[:MAX_LINE] for line in lines[-LAST_WORDS:])

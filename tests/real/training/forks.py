"""Repeats, perhaps with something planted in them, as forks of one process that has imported TensorFlow: that takes 4 s of a processor.

A repeat forks anyway, before it trains; it finds TensorFlow imported, and none of its threads.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace

from tests.support.patience import patience

_CONTEXT = multiprocessing.get_context("forkserver")


def start_repeat(
    planted: str, arguments: Sequence[str], log: Path, stdout: Path | None = None, **variables: str
) -> ForkServerProcess:
    """Start a repeat in a session of its own.

    Args:
        planted: Python that runs before the program does.
        arguments: Of `python -m tfbench`.
        log: Where its output goes.
        stdout: Where its standard output goes, if not there.
        variables: Of its environment.
    """
    _CONTEXT.set_forkserver_preload(["tests.real.training.preloaded"])
    process = _CONTEXT.Process(target=_measure, args=(planted, list(arguments), log, stdout or log, variables))
    process.start()
    return process


def run_repeat(folder: Path, *arguments: str, planted: str = "", **variables: str) -> SimpleNamespace:
    """Run a repeat to its end, with its output in two files in a folder; return its exit code and output."""
    stdout, stderr = folder / "stdout", folder / "stderr"
    process = start_repeat(planted, arguments, stderr, stdout, **variables)
    process.join(patience(600))
    return SimpleNamespace(returncode=process.exitcode, stdout=stdout.read_text(), stderr=stderr.read_text())


def _measure(planted: str, arguments: list[str], log: Path, stdout: Path, variables: dict[str, str]) -> None:
    os.setsid()
    for path, number in ((stdout, 1), (log, 2)):
        with path.open("ab", buffering=0) as file:
            os.dup2(file.fileno(), number)
    os.environ.update(variables)
    exec(planted, {})
    main = importlib.import_module("tfbench.__main__")
    sys.exit(main.main(arguments))

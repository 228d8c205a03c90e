"""Ranks, perhaps with something planted in them, as forks of one process that has imported TensorFlow: that takes 4 s of a processor.

A rank forks anyway, before it trains; it finds TensorFlow imported, and none of its threads.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")


def start_rank(planted: str, arguments: Sequence[str], cluster: str, log: Path) -> ForkServerProcess:
    """Start a rank in a session of its own.

    Args:
        planted: Python that runs before the program does.
        arguments: Of `python -m tfbench`.
        cluster: For `TF_CONFIG`.
        log: Where its output goes.
    """
    _CONTEXT.set_forkserver_preload(["tests.real.training.preloaded"])
    process = _CONTEXT.Process(target=_be_a_rank, args=(planted, list(arguments), cluster, log))
    process.start()
    return process


def _be_a_rank(planted: str, arguments: list[str], cluster: str, log: Path) -> None:
    os.setsid()
    with log.open("wb", buffering=0) as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ["TF_CONFIG"] = cluster
    exec(planted, {})
    main = importlib.import_module("tfbench.__main__")
    sys.exit(main.main(arguments))

"""Where records come from: names on the command line and the records behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from results.errors import NotARun
from results.runs.store import RunFolder, StoredRecord, is_folder, latest_run, read_stored
from results.text import path_text

DEFAULT_RUNS_DIR = "runs"

MAX_SHOWN = 200
"""Characters of a name that leads nowhere which a message repeats."""


def runs_dir() -> Path:
    """Return where runs lie: TFBENCH_RUNS_DIR, or `runs` in the current folder."""
    return Path(os.environ.get("TFBENCH_RUNS_DIR") or DEFAULT_RUNS_DIR)


def stored_records(names: Sequence[str]) -> Iterator[StoredRecord]:
    """Yield the records of runs.

    Args:
        names: Run folders, run ids, or single record files; none: the latest run. One that is named twice is
            read once.

    Raises:
        NotARun: A name leads nowhere; raised before the first record is read.
    """
    found = dict.fromkeys([_find(name) for name in names] or [latest_run(runs_dir())])
    runs = [map(read_stored, [path]) if _is_file(path) else RunFolder.open(path).records() for path in found]
    return chain.from_iterable(runs)


def report_place(names: Sequence[str]) -> tuple[str, Path]:
    """Return the title of a report on these runs, and where it is written unless another file is named.

    Raises:
        NotARun: A name leads nowhere.
    """
    found = [_find(name) for name in names] or [latest_run(runs_dir())]
    title = "Results of " + ", ".join(path_text(Path(path.resolve().name)) for path in found)
    only = found[0] if len(found) == 1 and is_folder(found[0]) else None
    return title, RunFolder.open(only).report_path if only else Path("report.html")


def has_runs() -> bool:
    """Return whether there is any run where runs lie."""
    try:
        latest_run(runs_dir())
    except NotARun:
        return False
    return True


def is_run(name: str) -> bool:
    """Return whether a name leads to a run or a record file; a folder of a fleet's name is neither."""
    return any(_is_file(path) or is_folder(path / "records") for path in (Path(name), runs_dir() / name))


def _find(name: str) -> Path:
    """Return what a name means: a path that exists, else a run id."""
    for path in (Path(name), runs_dir() / name):
        if _is_file(path) or is_folder(path):
            return path
    shown = path_text(Path(name[:MAX_SHOWN]))
    raise NotARun(f"{shown}: neither a path nor a run in {runs_dir()}/. Name a run folder, e.g. runs/<run-id>.")


def _is_file(path: Path) -> bool:
    """Return whether a path leads to a regular file; a name that is too long for one does not."""
    try:
        return path.is_file()
    except OSError:
        return False

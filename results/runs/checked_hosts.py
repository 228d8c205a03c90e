"""The table of a deep check, kept with the run that began with it (`run --accept`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from results.grid import Grid
from results.runs.store import StoredRecord, read_file

FILE = "deep_check.json"
TITLE = "Deep check of the hosts before the run"

MAX_BYTES = 1 << 20
"""Of the file; one of 500 hosts with 8 GPUs each has about half of that."""


def keep_check(run: Path, grid: Grid) -> None:
    """Write the table of a check into the folder of a run."""
    (run / FILE).write_text(json.dumps({"version": 1, **asdict(grid)}), encoding="utf-8")


def kept_checks(stored: Iterable[StoredRecord]) -> list[Grid]:
    """Return the tables of the checks that the runs of records began with, each run's once.

    A file that is no such table is passed over: nothing that is measured depends on it.
    """
    runs = dict.fromkeys(item.path.parent.parent for item in stored)
    return [grid for run in runs if (grid := _read(run / FILE)) is not None]


def _read(path: Path) -> Grid | None:
    try:
        content = read_file(path, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            return None
        document = json.loads(content)
        columns, rows, notes = (document[key] for key in ("columns", "rows", "notes"))
        table = [columns, *rows]
        if not all(isinstance(line, list) and all(isinstance(text, str) for text in line) for line in [*table, notes]):
            return None
        return Grid(TITLE, columns, rows, notes) if all(len(row) == len(columns) for row in table) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None

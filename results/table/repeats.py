"""All repeats as a table, those that failed too: what a notebook plots and counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter

import pandas as pd

from results.runs.store import StoredRecord
from results.schema import Record
from results.table.columns import CASE_COLUMNS, COLUMNS, NUMBER, REPEAT_NUMBERS, TEXT, WHOLE, Value
from results.table.merge import repeat_numbers
from results.table.rows import NO_ORIGIN
from results.text import path_text, printable

REPEAT_COLUMNS: dict[str, str] = {
    "fleet": TEXT,
    "host": TEXT,
    "run": TEXT,
    "repeat": WHOLE,
    "started_at": TEXT,
    "status": TEXT,
    "cause": TEXT,
    **{name: COLUMNS[name].dtype for name in CASE_COLUMNS},
    "unit": TEXT,
    **dict.fromkeys(REPEAT_NUMBERS, NUMBER),
}
"""Columns of the table of repeats and their pandas types; units and meanings as in `COLUMNS`."""

_case = attrgetter(*CASE_COLUMNS)


class RepeatTable:
    """Keeps of each record what the table of repeats needs, while the records are read for something else."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, ...], list[Value]] = {}

    def watched(self, stored: Iterable[StoredRecord]) -> Iterator[StoredRecord]:
        """Yield records as they come, and keep a row of each; one that came before, or is not a record, has none."""
        for item in stored:
            if item.record is not None:
                self._rows.setdefault(_identity(item, item.record), _row(item, item.record))
            yield item

    def frame(self) -> pd.DataFrame:
        """Return one row per record, in the order they came; columns and types are `REPEAT_COLUMNS`."""
        return pd.DataFrame(list(self._rows.values()), columns=list(REPEAT_COLUMNS), dtype=object).astype(
            REPEAT_COLUMNS
        )


def _identity(item: StoredRecord, record: Record) -> tuple[str, ...]:
    """Return what makes a repeat the same one: its run, place, case and number; its file where nobody placed it."""
    origin = record.origin
    if origin is None:
        return (item.where, record.case.name)
    return origin.run_id, origin.fleet, origin.host, record.case.name, str(origin.repeat)


def _row(item: StoredRecord, record: Record) -> list[Value]:
    origin, measurement = record.origin, record.measurement
    if origin is None:
        place: tuple[Value, ...] = (NO_ORIGIN, NO_ORIGIN, path_text(item.path), 1)
    else:
        place = (origin.fleet, origin.host, origin.run_id, origin.repeat)
    numbers = repeat_numbers(measurement, record.telemetry) if measurement else (None,) * len(REPEAT_NUMBERS)
    unit = measurement.unit if measurement else None
    cells = (*place, record.started_at, record.status, record.cause, *_case(record.case), unit, *numbers)
    return [printable(str(cell)) if isinstance(cell, str) else cell for cell in cells]

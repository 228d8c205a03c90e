"""Builds pandas frames: the merged table and its statistics, and the table of all repeats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from results.runs.store import StoredRecord
from results.schema import Record, Status
from results.stats import LEVEL
from results.table.columns import (
    CASE_COLUMNS,
    COLUMNS,
    NO_NUMBERS,
    NUMBER,
    OF_REPEAT,
    READERS,
    REPEAT_TYPES,
    TEXT,
    WHOLE,
    Row,
    Value,
    place_of,
    repeat_numbers,
)
from results.text import path_text, printable


def repeats_frame(measured: Sequence[tuple[Value, ...]], order: Sequence[int]) -> pd.DataFrame:
    """Return one row per record with a number, sorted by `row`.

    Args:
        measured: Values of `REPEAT_TYPES` of each record; `row` is an index in the unsorted rows.
        order: These indices in sorted order.
    """
    repeats = pd.DataFrame(measured, columns=list(REPEAT_TYPES)).astype(REPEAT_TYPES)
    repeats["row"] = np.argsort(order)[repeats["row"].to_numpy()]
    return repeats.sort_values("row", kind="stable", ignore_index=True)


def table_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the merged table with the columns `COLUMNS`; a value of None is an empty cell."""
    # Column by column, because converting the whole table copies each of its 70 arrays.
    return pd.DataFrame(
        {name: _column(list(map(READERS[name], rows)), column.dtype) for name, column in COLUMNS.items()}
    )


def _column(cells: list[Value], dtype: str) -> ExtensionArray:
    if dtype == TEXT:
        cells = [None if value is None else str(value) for value in cells]
    return pd.array(cells, dtype=dtype)  # type: ignore[call-overload, no-any-return]  # the stubs know literals only


def row_numbers(repeats: pd.DataFrame) -> dict[int, dict[str, float | None]]:
    """Return the numbers of each `row` that has any.

    Source: `stats.estimate_of_runs`, vectorised.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    groups = repeats.groupby("row", sort=False)
    runs = repeats.groupby(["row", "run"], sort=False)["samples_per_second"].agg(["mean", "var", "count"])
    runs = runs.assign(freedom=runs["count"] - 1, squares=runs["var"].fillna(0) * (runs["count"] - 1))
    runs["reciprocal"] = 1 / runs["count"]
    of_runs = runs.groupby(level="row", sort=False)
    sums, count, mean = of_runs.sum(), of_runs.size(), of_runs["mean"].mean()
    freedom = sums["freedom"]
    of_repeats = (sums["squares"] / freedom.clip(lower=1)) * sums["reciprocal"] / count**2
    beyond = (of_runs["mean"].var() / count - of_repeats).clip(lower=0).fillna(0)
    quantiles = (stdtrit(np.maximum(degrees, 1), 0.5 + LEVEL / 2) for degrees in (freedom, count - 1))
    half = np.sqrt(sum(part * t**2 for part, t in zip((of_repeats, beyond), quantiles, strict=True)))
    half = half.where(freedom + count > 1)
    frame = groups.agg({name: COLUMNS[name].over for name in OF_REPEAT})
    frame = frame.assign(samples_per_second=mean, ci95_low=mean - half, ci95_high=mean + half)
    columns = [[None if math.isnan(value) else value for value in frame[name].tolist()] for name in NO_NUMBERS]
    cells = (dict(zip(NO_NUMBERS, values, strict=True)) for values in zip(*columns, strict=True))
    return dict(zip(frame.index.tolist(), cells, strict=True))


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
    **dict.fromkeys(OF_REPEAT, NUMBER),
}
"""Columns of the table of repeats and their pandas types; units and meanings are those of `COLUMNS`."""

_case = attrgetter(*CASE_COLUMNS)


def all_repeats(stored: Iterable[StoredRecord], suspicions: Mapping[Path, str]) -> pd.DataFrame:
    """Return one row per record, including failures, with the columns `REPEAT_COLUMNS`.

    Duplicates have one row: the same run, host, case and repeat, or the same file if there was no orchestrator.
    Only `ok` rows have numbers, so that no mean over the rows includes others.

    Args:
        stored: The records.
        suspicions: Why records are suspect, by file.
    """
    rows: dict[tuple[Value, ...], list[Value]] = {}
    for item in stored:
        if item.record is not None:
            row = _row(item, item.record, suspicions.get(item.path))
            rows.setdefault((*row[:4], item.record.case.name), row)
    return pd.DataFrame(list(rows.values()), columns=list(REPEAT_COLUMNS), dtype=object).astype(REPEAT_COLUMNS)


def _row(item: StoredRecord, record: Record, suspicion: str | None) -> list[Value]:
    origin = record.origin
    measurement = record.measurement if record.status is Status.OK and not suspicion else None
    run, repeat = (path_text(item.path), 1) if origin is None else (origin.run_id, origin.repeat)
    where = place_of(record)
    numbers = repeat_numbers(measurement, record.telemetry) if measurement else [None] * len(OF_REPEAT)
    unit = measurement.unit if measurement else None
    cells = (
        where.fleet,
        where.host,
        run,
        repeat,
        record.started_at,
        Status.INVALID if suspicion else record.status,
        suspicion or record.cause,
        *_case(record.case),
        unit,
        *numbers,
    )
    return [printable(str(cell)) if isinstance(cell, str) else cell for cell in cells]

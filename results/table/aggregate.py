"""The statistics of all rows at once, and the tables that are exported (pandas and numpy)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from results.stats import LEVEL
from results.table.columns import COLUMNS, REPEAT_TYPES, TEXT, Value
from results.table.rows import READERS, STATISTICS, Row, Statistics


def repeats_frame(measured: Sequence[Value], order: Sequence[int]) -> pd.DataFrame:
    """Return one row per record with a number, sorted by `row`.

    Args:
        measured: The values of `REPEAT_TYPES`, in that order, of one record after the other; `row` is an index in the
            rows before they are sorted.
        order: Those indices, in their new order.
    """
    width = len(REPEAT_TYPES)
    repeats = pd.DataFrame({name: measured[i::width] for i, name in enumerate(REPEAT_TYPES)}).astype(REPEAT_TYPES)
    repeats["row"] = np.argsort(order)[repeats["row"].to_numpy()]
    return repeats.sort_values("row", kind="stable", ignore_index=True)


def table_frame(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the merged table: a column for each of `COLUMNS`; a cell is empty where its value is None."""
    # Column by column: converting the whole table copies each of its 70 arrays.
    return pd.DataFrame(
        {name: _column(list(map(READERS[name], rows)), column.dtype) for name, column in COLUMNS.items()}
    )


def _column(cells: list[Value], dtype: str) -> ExtensionArray:
    if dtype == TEXT:
        cells = [None if value is None else str(value) for value in cells]
    return pd.array(cells, dtype=dtype)  # type: ignore[call-overload, no-any-return]  # the stubs know literals only


def row_statistics(repeats: pd.DataFrame) -> dict[int, Statistics]:
    """Return mean, interval and step times of each `row` that has a number.

    Source: Student 1908, as `stats.t_interval`, for all rows at once.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    groups = repeats.groupby("row", sort=False)
    rates = groups["samples_per_second"].agg(["mean", "std", "count"])
    count = rates["count"].to_numpy()
    # One repeat has no spread: its interval stays empty, because `std` is NaN there.
    quantile = stdtrit(np.maximum(count - 1, 1), 0.5 + LEVEL / 2)
    half = quantile * rates["std"] / np.sqrt(count)
    means = ["samples_per_joule", "power_mean_watts", "temperature_steady_celsius", "all_reduce_bytes_per_second"]
    power = groups[means].mean()
    steps = groups[[name for name in REPEAT_TYPES if name.startswith(("step_", "latency_"))]].median()
    frame = steps.join(power).assign(
        samples_per_second=rates["mean"], ci95_low=rates["mean"] - half, ci95_high=rates["mean"] + half
    )
    columns = [[None if math.isnan(value) else value for value in frame[name].tolist()] for name in STATISTICS]
    cells = (dict(zip(STATISTICS, values, strict=True)) for values in zip(*columns, strict=True))
    return {row: Statistics(**of_row) for row, of_row in zip(frame.index.tolist(), cells, strict=True)}

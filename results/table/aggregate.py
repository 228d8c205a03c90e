"""The statistics of the merged table, for all rows at once (pandas and numpy)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from results.stats import LEVEL
from results.table.columns import COLUMNS, REPEAT_TYPES

ORDER = [
    "fleet",
    "device",
    "model",
    "batch_norm",
    "precision",
    "xla",
    "data",
    "mode",
    "sequence_length",
    "batch_per_gpu",
    "num_gpus",
    "num_hosts",
    "host",
]
"""Rows are sorted by these, then by the order in which they came."""


def repeats_frame(measured: Sequence[Any]) -> pd.DataFrame:
    """Return one row per record with a number.

    Args:
        measured: The values of `REPEAT_TYPES`, in that order, of one record after the other.
    """
    width = len(REPEAT_TYPES)
    return pd.DataFrame(
        {name: pd.Series(measured[i::width], dtype=kind) for i, (name, kind) in enumerate(REPEAT_TYPES.items())}
    )


def table_frame(rows: Sequence[dict[str, Any]], repeats: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the merged table, and the repeats with `row` pointing into it.

    Args:
        rows: Cells of each row that are not statistics.
        repeats: As `repeats_frame` returns it; `row` is an index in `rows`.
    """
    order = _order(rows)
    statistics = _statistics(repeats).reindex(order)
    # Column by column in the final order: sorting or converting the whole table copies each of its 70 arrays.
    table = pd.DataFrame(
        {
            name: pd.array(  # type: ignore[call-overload]  # the stubs know dtypes as literals only
                statistics[name].to_numpy() if name in statistics else [rows[i].get(name) for i in order],
                dtype=column.dtype,
            )
            for name, column in COLUMNS.items()
        }
    )
    new_row = pd.Series(range(len(order)), index=order)
    repeats = repeats.assign(row=repeats["row"].map(new_row)) if len(repeats) else repeats
    return table, repeats.sort_values("row", kind="stable", ignore_index=True)


def _order(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Return the indices of rows in the order of the table; an empty cell comes last."""

    def place(row: int) -> list[tuple[bool, Any]]:
        cells = [rows[row].get(name) for name in ORDER]
        return [(cell is None, 0 if cell is None else cell) for cell in cells]

    return sorted(range(len(rows)), key=place)


def _statistics(repeats: pd.DataFrame) -> pd.DataFrame:
    """Return mean, interval and step times for each `row` that has a number.

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
    return steps.join(power).assign(
        samples_per_second=rates["mean"], ci95_low=rates["mean"] - half, ci95_high=rates["mean"] + half
    )

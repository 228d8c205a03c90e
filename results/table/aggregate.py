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
    table = pd.DataFrame(list(rows), columns=list(COLUMNS), dtype=object)
    statistics = _statistics(repeats)
    for name in statistics.columns:
        table[name] = statistics[name].reindex(table.index)
    table = table.astype({name: column.dtype for name, column in COLUMNS.items()})
    order = table.sort_values(ORDER, kind="stable").index
    new_row = pd.Series(range(len(order)), index=order)
    repeats = repeats.assign(row=repeats["row"].map(new_row)) if len(repeats) else repeats
    return table.loc[order].reset_index(drop=True), repeats.sort_values("row", kind="stable", ignore_index=True)


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

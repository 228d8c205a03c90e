"""Finds repeats that differ from the others of their case by more than noise explains.

A process may choose another algorithm than its siblings: cuDNN did in one of five processes of ResNet50 in FP32 on an
H100, which was 3.4 % slower, while the steps of each process varied by 0.1 %. Such a repeat remains in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from results.number_format import significant
from results.stats import t_quantile
from results.table.columns import Row
from results.table.comparable import case_label
from results.text import counted

if TYPE_CHECKING:
    import pandas as pd

SMALLEST = 0.02
"""Smallest relative difference that is named."""

STEADY = 5.0
"""Smallest difference that is named, in coefficients of variation of the steps: noisy machines vary anyhow."""

USUAL, USUAL_DEGREES = 0.004, 10
"""Usual standard deviation between repeats, as a share of their mean, and its weight in degrees of freedom.

Source: 22 cases on an H100 and an H200 (results/reference/measured), 0.03 to 0.53 %.
"""

FALSE_ALARMS = 0.001
"""Share of tables of equal repeats in which a repeat is named, by the t-test."""

NAMED = 3
"""Number of repeats that are named; the others are counted."""


def unusual_repeats(rows: Sequence[Row], repeats: pd.DataFrame) -> list[str]:
    """Return a line for each case with an unusual repeat, the largest difference first.

    The difference from the mean of the case's other repeats must be significant, above `SMALLEST`, and above `STEADY`
    coefficients of variation of the case's steps. The noise is that of the other repeats, if larger the median of all
    other cases, together with `USUAL`: three repeats alone say little.

    Args:
        rows: `Merged.rows`.
        repeats: `Merged.repeats`.

    Source: moderated t-test, Smyth 2004; Bonferroni's correction for the number of repeats.
    """
    frame = repeats[["row", "run", "round", "samples_per_second", "step_cv"]]
    frame = frame.assign(log=np.log(frame["samples_per_second"]))
    groups = frame.groupby("row")["log"]
    cases = groups.agg(["mean", "var", "count"])
    count, residual = groups.transform("count"), frame["log"] - groups.transform("mean")
    with np.errstate(divide="ignore", invalid="ignore"):
        frame["difference"] = residual * count / (count - 1)  # from the mean of the others
    noise = frame.groupby("row")["step_cv"].transform("max").fillna(math.inf)
    large = frame[frame["difference"].abs() > np.maximum(SMALLEST, STEADY * noise)]
    largest = large["difference"].abs().sort_values(ascending=False).index
    cases = cases[cases["count"] > 1]
    lines = []
    for _, repeat in large.loc[largest].drop_duplicates("row").head(10 * NAMED).iterrows():
        if abs(repeat["difference"]) > _most_by_chance(cases, repeat, len(frame)):
            lines.append(_line(rows, repeat, frame[frame["row"] == repeat["row"]]))
    more = len(lines) - NAMED
    return lines[:NAMED] if more <= 0 else [*lines[:NAMED], f"and {counted(more, 'more case')} with such a repeat"]


def _most_by_chance(cases: pd.DataFrame, repeat: pd.Series, tested: int) -> float:
    """Return the largest difference that noise explains.

    Args:
        cases: Mean, variance and number of the logarithms of each case's repeats.
        repeat: The tested one: its `row`, and its `difference` from the mean of the others of its case.
        tested: Number of repeats that are tested.
    """
    from scipy.special import chdtri  # type: ignore[import-untyped]

    case, others = cases.loc[repeat["row"]], cases.drop(index=repeat["row"])
    degrees = others["count"] - 1
    weights = [(USUAL**2, USUAL_DEGREES)]
    if len(others):
        weights.append((float((others["var"] * degrees / chdtri(degrees, 0.5)).median()), int(degrees.sum())))
    total = sum(weight for _, weight in weights)
    variance = sum(value * weight for value, weight in weights) / total
    count = case["count"]
    if count > 2:
        squares = case["var"] * (count - 1) - repeat["difference"] ** 2 * (count - 1) / count
        variance = max(variance, squares / (count - 2))
    return t_quantile(total, 1 - FALSE_ALARMS / tested) * math.sqrt(variance * (1 + 1 / (count - 1)))


def _line(rows: Sequence[Row], unusual: pd.Series, repeats: pd.DataFrame) -> str:
    row = rows[unusual["row"]]
    several = repeats["run"].nunique() > 1

    def named(repeat: pd.Series) -> str:
        of = f" of {repeat['run']}" if several else ""
        return f"{repeat['round']}{of} ({significant(repeat['samples_per_second'], 4)} {row.unit}/s)"

    others = repeats.drop(index=unusual.name)
    share, steps = abs(math.expm1(unusual["difference"])), f"{unusual['step_cv']:.1%}"
    if len(others) == 1:
        what = f"repeats {named(unusual)} and {named(others.iloc[0])} differ by {share:.1%}"
    else:
        direction = "slower" if unusual["difference"] < 0 else "faster"
        what = f"repeat {named(unusual)} is {share:.1%} {direction} than the {len(others)} others"
    return (
        f"{row.place}, {case_label(row, rows)}: {what}, though its steps vary by {steps}: perhaps another algorithm. "
        "Measure more repeats"
    )

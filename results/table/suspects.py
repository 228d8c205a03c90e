"""Finds records to doubt: impossible ones, and repeats that differ from the others of their case.

Records come from hosts, which may be broken or hostile. Suspect records contradict their own hardware or other records;
they are in no mean, and their row has the reason. A repeat may also be unusual, because a process may choose another
algorithm than its siblings: cuDNN did in one of five processes of ResNet50 in FP32 on an H100, which was 3.4 % slower,
while the steps of each process varied by 0.1 %. Such a repeat is named and remains in the mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from results.reference.gpus import CLOCK_MARGIN, PEAKS, specifications, specified_gpus
from results.reference.networks import WINOGRAD, work_of
from results.schema import Case, Device, Measurement, Record
from results.schema.enums import SUSPECT
from results.stats import t_quantile
from results.table.columns import CaseOnHost, Row
from results.table.comparable import case_labels, grouped
from results.text import counted, significant

if TYPE_CHECKING:
    import pandas as pd

FEWEST_DISTINCT_STEPS = 3
"""Two records with equal step times are copies if at least this many of the times are distinct."""

FLEET_FACTOR = 10.0
"""A host this many times as fast as the median of its fleet's other hosts (at least two) is suspect."""


def own_doubt(record: Record, measured: Measurement, most: float) -> str | None:
    """Return why a repeat is suspect by itself; None: it is not.

    Args:
        record: The record.
        measured: Its measurement.
        most: Samples per second that its hardware allows; see `highest_rate`.
    """
    if warned := [warning.message for warning in record.warnings if warning.code == SUSPECT]:
        return warned[0]
    if measured.samples_per_second <= most:
        return None
    return f"{measured.samples_per_second:.3g} {measured.unit}/s, but its hardware can compute at most {most:.3g}"


def step_times(measured: Measurement) -> int | None:
    """Return a hash of the step times, by which copies are found; None: too few of them are distinct."""
    steps = measured.step_seconds
    first_differ = len({*steps[:10]}) >= FEWEST_DISTINCT_STEPS  # a tenth of the time
    return hash(tuple(steps)) if first_differ or len({*steps}) >= FEWEST_DISTINCT_STEPS else None


def suspicions(repeats: pd.DataFrame) -> pd.Series:
    """Return why repeats are suspect, by the index of those that are.

    Args:
        repeats: Measured ones, with the columns of `merge.Merged.records`.
    """
    copies = repeats["steps"].notna() & repeats.duplicated("steps", keep=False)
    why = repeats["doubt"].mask(repeats["doubt"].isna() & copies, "another repeat has exactly the same step times")
    rest = repeats[why.isna()]
    medians: dict[Any, float] = rest.groupby("number")["samples_per_second"].median().to_dict()
    places: dict[Any, CaseOnHost] = rest.drop_duplicates("number").set_index("number")["place"].to_dict()
    hosts = grouped(((place.fleet, place.case), (number, medians[number])) for number, place in places.items())
    fast = {number: reason for of_case in hosts.values() for number, reason in _above_fleet(dict(of_case)).items()}
    why = why.fillna(repeats["number"].map(fast)).dropna()
    return SUSPECT + ": " + why.astype(str)


def _above_fleet(rates: Mapping[int, float]) -> dict[int, str]:
    """Return which hosts are `FLEET_FACTOR` times as fast as the others of their fleet.

    Args:
        rates: Median of each host.
    """
    if len(rates) < 3 or max(rates.values()) <= FLEET_FACTOR * min(rates.values()):
        return {}
    others = {own: statistics.median(rate for host, rate in rates.items() if host != own) for own in rates}
    return {
        host: f"{rate / others[host]:.3g} × the median of the fleet's other hosts"
        for host, rate in rates.items()
        if rate > FLEET_FACTOR * others[host]
    }


def highest_rate(record: Record) -> float:
    """Return the samples per second that the peak arithmetic of a record's GPUs allows; infinite if unknown."""
    case, measured, environment = record.case, record.measurement, record.environment
    work = work_of(case)
    if case.device is Device.CPU or not work or not work[0] or measured is None or environment is None:
        return math.inf
    named = [gpu for device in environment.gpus for gpu in specified_gpus(device.name)]
    peaks = [specifications()[gpu].get(PEAKS[case.precision][0], 0.0) for gpu in named or specifications()]
    limit = case.num_gpus * max(peaks) * 1e12 or math.inf  # 0: the reference lacks this arithmetic
    steps_per_second = limit * CLOCK_MARGIN * WINOGRAD / (work[0] * case.num_gpus)
    return steps_per_second * measured.samples / measured.num_steps


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
        repeats: Those with a number, with their `row`.

    Source: moderated t-test, Smyth 2004; Bonferroni's correction for the number of repeats.
    """
    from scipy.special import chdtri  # type: ignore[import-untyped]

    frame = repeats[["row", "run", "round", "samples_per_second", "step_cv"]]
    frame = frame.assign(log=np.log(frame["samples_per_second"]))
    groups = frame.groupby("row")
    count, log = groups["log"].transform("count"), groups["log"]
    frame["difference"] = (frame["log"] - log.transform("mean")) * count / (count - 1)  # from the mean of the others
    steps = groups["step_cv"].transform("max").fillna(math.inf)
    large = frame[frame["difference"].abs() > np.maximum(SMALLEST, STEADY * steps)]
    largest = large.sort_values("difference", key=abs, ascending=False, kind="stable").drop_duplicates("row")
    cases = log.agg(["var", "count"])[lambda case: case["count"] > 1]
    degrees = cases["count"] - 1
    cases = cases.assign(degrees=degrees, noise=cases["var"] * degrees / chdtri(degrees, 0.5))  # neither low nor high
    labels = case_labels(row.case for row in rows) if len(largest) else {}
    differing: list[Any] = list(largest.head(10 * NAMED).itertuples())  # (rows of pandas)
    lines = [
        _line(rows[repeat.row], repeat, labels)
        for repeat in differing
        if abs(repeat.difference) > _most_by_chance(cases, repeat, len(frame))
    ]
    more = len(lines) - NAMED
    return lines if more <= 0 else [*lines[:NAMED], f"and {counted(more, 'more case')} with such a repeat"]


def _most_by_chance(cases: pd.DataFrame, repeat: Any, tested: int) -> float:  # noqa: ANN401 (a row of pandas)
    """Return the largest difference that noise explains.

    Args:
        cases: Variance and number of the logarithms of each case's repeats, degrees of freedom, and the variance that
            is as likely too low as too high (`noise`).
        repeat: The tested one: its `row`, and its `difference` from the mean of the others of its case.
        tested: Number of repeats that are tested.
    """
    case, others = cases.loc[repeat.row], cases.drop(index=repeat.row)
    total, variance = USUAL_DEGREES, USUAL**2
    if len(others):
        total += int(others["degrees"].sum())
        variance += (float(others["noise"].median()) - variance) * (1 - USUAL_DEGREES / total)
    count = case["count"]
    if count > 2:
        squares = case["var"] * (count - 1) - repeat.difference**2 * (count - 1) / count
        variance = max(variance, squares / (count - 2))
    return t_quantile(total, 1 - FALSE_ALARMS / tested) * math.sqrt(variance * (1 + 1 / (count - 1)))


def _line(row: Row, repeat: Any, labels: Mapping[Case, str]) -> str:  # noqa: ANN401 (a row of pandas)
    of = f" of {repeat.run}" if row.runs > 1 else ""
    rate = f"{significant(repeat.samples_per_second, 4)} {row.unit}/s"
    differs = f"differs by {math.expm1(repeat.difference):+.1%} from the {counted(row.repeats_ok - 1, 'other')}"
    return (
        f"{row.place}, {labels[row.case]}: repeat {repeat.round}{of} ({rate}) {differs}, though its steps vary by "
        f"{repeat.step_cv:.1%}: perhaps another algorithm. Measure more repeats"
    )

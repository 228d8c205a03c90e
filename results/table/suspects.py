"""Finds impossible records, by their own hardware and by other records of the fleet.

Records come from hosts, which may be broken or hostile. Suspect records are in no mean; their row has the reason.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from results.reference.gpus import CLOCK_MARGIN, PEAKS, specifications, specified_gpus
from results.reference.networks import WINOGRAD, work_of
from results.schema import Device, Measurement, Record
from results.schema.enums import SUSPECT
from results.table.columns import CaseOnHost
from results.table.comparable import grouped

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
    return hash(tuple(steps)) if len(set(steps)) >= FEWEST_DISTINCT_STEPS else None


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

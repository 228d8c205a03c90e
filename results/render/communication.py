"""What it costs that hosts and GPUs add up their gradients: the same case with and without all-reduce."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from results.compare.pairs import case_label, compare_pair
from results.digits import significant, with_error
from results.grid import Grid
from results.schema import Case
from results.stats import Interval
from results.table.cells import rate_text
from results.table.fleets import FleetRate
from results.table.merge import Merged
from results.table.software import Software


@dataclass(frozen=True)
class _Key:
    """What a rate with and without all-reduce share; `case` is as it trains."""

    fleet: str
    case: Case
    software: Software


@dataclass(frozen=True)
class Share:
    """One case with and without all-reduce.

    Attributes:
        whole: As it trains.
        apart: Its replicas training apart: no throughput of anything, only what communication is seen by.
        value: Share of the step that communication takes: 1 − throughput with / throughput without; None where one
            of them is missing.
        interval: 95 % interval; None with fewer than two repeats on a side.
        bytes_per_second: Bus bandwidth of an all-reduce between the hosts; None: one host.
    """

    whole: FleetRate | None
    apart: FleetRate
    value: float | None
    interval: Interval | None
    bytes_per_second: float | None


def shares(merged: Merged) -> list[Share]:
    """Return the share of communication of every case that was measured without all-reduce."""
    if merged.apart is None:
        return []
    wholes = {_key(rate): rate for rate in merged.rates}
    bandwidths = _bandwidths(merged)
    return [_share(wholes.get(_key(rate)), rate, bandwidths) for rate in merged.apart.rates]


def communication_grid(merged: Merged) -> Grid | None:
    """Return what communication costs; None where no case was measured without all-reduce."""
    found = shares(merged)
    if not found:
        return None
    labelled = [replace(item.apart, case=_with_all_reduce(item.apart.case)) for item in found]
    rows = [
        [
            item.apart.fleet,
            case_label(labelled, label),
            "" if item.whole is None else rate_text(item.whole),
            rate_text(item.apart),
            _percent(item),
            "" if item.bytes_per_second is None else significant(item.bytes_per_second / 1e9),
        ]
        for item, label in zip(found, labelled, strict=True)
    ]
    notes = [
        "share of the step: 1 − samples/s with / without all-reduce, ± 95 %; steps without all-reduce train nothing"
    ]
    columns = ["fleet", "case", "with>", "without>", "communication>", "all-reduce GB/s>"]
    return Grid("Communication", columns, rows, notes).without_empty_columns()


def _share(whole: FleetRate | None, apart: FleetRate, bandwidths: Mapping[tuple[str, Case], float]) -> Share:
    bandwidth = bandwidths.get((apart.fleet, _with_all_reduce(apart.case)))
    if whole is None or whole.mean is None or apart.mean is None:
        return Share(whole, apart, None, None, bandwidth)
    ratio = compare_pair(whole, apart)
    assert ratio.value is not None, "both sides have a number"
    value, known = 1.0 - ratio.value, ratio.interval
    return Share(whole, apart, value, known and Interval(value, 1.0 - known.high, 1.0 - known.low), bandwidth)


def _with_all_reduce(case: Case) -> Case:
    """Return the case as it trains."""
    return replace(case, all_reduce=True)


def _key(rate: FleetRate) -> _Key:
    return _Key(rate.fleet, _with_all_reduce(rate.case), rate.software)


def _bandwidths(merged: Merged) -> dict[tuple[str, Case], float]:
    """Return the mean bandwidth by fleet and case."""
    known: dict[tuple[str, Case], list[float]] = defaultdict(list)
    for row in merged.rows:
        if row.statistics.all_reduce_bytes_per_second is not None:
            known[row.fleet, row.case].append(row.statistics.all_reduce_bytes_per_second)
    return {key: statistics.fmean(values) for key, values in known.items()}


def _percent(item: Share) -> str:
    if item.value is None:
        return ""
    half = item.interval.half_width * 100 if item.interval else None
    return f"{with_error(item.value * 100, half)} %"

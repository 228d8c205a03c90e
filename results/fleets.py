"""Fleets seen as one: what the hosts of a fleet measured for one case, with the spread between hosts.

A fleet's number is the mean of its hosts' means. Hosts of different software never share one: the identity
is part of the key, and only what all cells have in common goes unsaid.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from results.columns import CASE_COLUMNS, SOFTWARE_COLUMNS
from results.errors import MixedIdentities, TooFewRepeats
from results.merge import Merged
from results.stats import Estimate, Interval, estimate, nested_estimate

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[Hashable, ...]

Nested = dict[str, dict[str, list[float]]]
"""Values of repeats, by host and run."""

ByRow = dict[int, dict[str, list[float]]]
"""Values of repeats, by row of the merged table and run."""

HOST_COLUMNS = ("cpu", "cpu_limit")
"""Columns of the identity that say what the host is, not what trains, where GPUs train."""


@dataclass(frozen=True)
class FleetRate:
    """Throughput of one case on one fleet, of one software identity.

    Attributes:
        fleet: Name of the fleet.
        case: Values of `CASE_COLUMNS`.
        identity: Values of `SOFTWARE_COLUMNS`.
        rates: Throughput of each repeat in samples per second, by host and run; empty when all failed.
        per_joule: Samples per joule of each repeat, by host and run; empty where no energy was measured.
        failures: Status of the hosts that gave no number, by host.
        unit: What a sample is; empty without a number.
        global_batch: Samples per step over all replicas.
        usd_per_gpu_hour: Price of one GPU; None when not given.
        warnings: Codes of its rows.
    """

    fleet: str
    case: Key
    identity: Key
    rates: Nested = field(default_factory=dict)
    per_joule: Nested = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unit: str = ""
    global_batch: int = 0
    usd_per_gpu_hour: float | None = None
    warnings: tuple[str, ...] = ()

    def named(self, column: str) -> Hashable:
        """Return a value of the case or of the identity by the name of its column."""
        if column in CASE_COLUMNS:
            return self.case[CASE_COLUMNS.index(column)]
        return self.identity[SOFTWARE_COLUMNS.index(column)]

    @property
    def mean(self) -> float | None:
        """Mean of the hosts' means in samples per second; None without a number."""
        return statistics.fmean(self.host_means.values()) if self.rates else None

    @property
    def host_means(self) -> dict[str, float]:
        """Mean of the means of a host's runs, in samples per second, by host."""
        return _host_means(self.rates)

    @property
    def repeated(self) -> str:
        """What the interval is over: `hosts`, `runs` or `repeats`."""
        if len(self.rates) > 1:
            return "hosts"
        return "runs" if any(len(runs) > 1 for runs in self.rates.values()) else "repeats"

    @property
    def estimate(self) -> Estimate | None:
        """Mean and its uncertainty; None with one value or none, which say nothing about uncertainty."""
        return _estimate(self.rates)

    @property
    def samples_per_joule(self) -> Estimate | None:
        """Samples per joule of GPU board energy; None where it was not measured in two repeats at least."""
        return _estimate(self.per_joule)

    @property
    def interval(self) -> Interval | None:
        """95 % interval over what is `repeated`; None with fewer than two."""
        found = self.estimate
        return found.interval() if found else None


def _host_means(values: Nested) -> dict[str, float]:
    return {host: statistics.fmean(map(statistics.fmean, runs.values())) for host, runs in values.items()}


def _estimate(values: Nested) -> Estimate | None:
    """Estimate the mean of the hosts' means, or of the runs' means of one host, or of the repeats of one run."""
    if len(values) > 1:
        return estimate(list(_host_means(values).values()))
    try:
        return nested_estimate([of_run for runs in values.values() for of_run in runs.values()]) if values else None
    except TooFewRepeats:
        return None


def fleet_rates(merged: Merged) -> list[FleetRate]:
    """Return what each fleet measured for each case, in the order of the table."""
    by_row = _by_row(merged.repeats, "samples_per_second")
    joules = _by_row(merged.repeats, "samples_per_joule")
    found: dict[Key, list[tuple[int, dict[str, Hashable]]]] = defaultdict(list)
    for row, cells in enumerate(rows_of(merged.table)):
        found[(cells["fleet"], *_case(cells), *_identity(cells))].append((row, cells))
    return _with_failures([_fleet_rate(rows, by_row, joules) for rows in found.values()])


def _by_row(repeats: pd.DataFrame, column: str) -> ByRow:
    """Return the known values of a column of the repeats, by row of the table and run."""
    found: ByRow = defaultdict(dict)
    columns = (repeats[name].tolist() for name in ("row", "run", column))
    for row, run, value in zip(*columns, strict=True):
        if not math.isnan(value):
            found[row].setdefault(run, []).append(value)
    return found


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows with None for empty cells: pandas' own NA is equal to nothing, not even to itself."""
    # A column at a time: a fifth of the time of the whole table. The stubs do not know None.
    cells = [table[name].to_numpy(dtype=object, na_value=None).tolist() for name in table.columns]  # type: ignore[call-overload]
    return [dict(zip(map(str, table.columns), row, strict=True)) for row in zip(*cells, strict=True)]


def _case(cells: dict[str, Hashable]) -> Key:
    return tuple(cells[name] for name in CASE_COLUMNS)


def _identity(cells: dict[str, Hashable]) -> Key:
    """Return the identity that hosts of a fleet must share; beside GPUs, processors may differ: that is host spread."""
    ignored = HOST_COLUMNS if cells["device"] == "gpu" else ()
    return tuple(None if name in ignored else cells[name] for name in SOFTWARE_COLUMNS)


def _fleet_rate(rows: Sequence[tuple[int, dict[str, Any]]], by_row: ByRow, joules: ByRow) -> FleetRate:
    _, first = rows[0]
    prices = [cells["usd_per_gpu_hour"] for _, cells in rows if cells["usd_per_gpu_hour"] is not None]
    return FleetRate(
        fleet=first["fleet"],
        case=_case(first),
        identity=_identity(first),
        rates={cells["host"]: by_row[row] for row, cells in rows if row in by_row},
        per_joule={cells["host"]: joules[row] for row, cells in rows if row in joules},
        failures={cells["host"]: cells["status"] for row, cells in rows if row not in by_row},
        unit=next((cells["unit"] for _, cells in rows if cells["unit"]), ""),
        global_batch=first["global_batch"],
        usd_per_gpu_hour=statistics.fmean(prices) if prices else None,
        warnings=tuple(dict.fromkeys(cells["warnings"] for _, cells in rows if cells["warnings"])),
    )


def _with_failures(rates: Sequence[FleetRate]) -> list[FleetRate]:
    """Put hosts that gave no number beside those of their fleet and case that did.

    A host that was never reached has no software identity, so it would be a line of its own. Where the fleet
    measured the case with several identities there is no telling which is meant, and it stays one.
    """
    measured: dict[Key, list[int]] = defaultdict(list)
    for index, rate in enumerate(rates):
        if rate.rates:
            measured[(rate.fleet, *rate.case)].append(index)
    joined = list(rates)
    alone = []
    for index, rate in enumerate(rates):
        partners = measured[(rate.fleet, *rate.case)]
        if rate.rates or len(partners) != 1:
            alone.append(index)
        else:
            partner = joined[partners[0]]
            joined[partners[0]] = replace(partner, failures={**partner.failures, **rate.failures})
    return [joined[index] for index in alone]


def differing(rates: Sequence[FleetRate], columns: Sequence[str]) -> list[str]:
    """Return those of the columns in which the rates are not all equal, in their order."""
    return [name for name in columns if len({rate.named(name) for rate in rates}) > 1]


def refuse_mixed(rates: Sequence[FleetRate], by: Sequence[str], remedy: str = "") -> None:
    """Refuse to put numbers of several software identities into one cell.

    Args:
        rates: Of any number of fleets.
        by: Columns that split the cells.
        remedy: What to do about it; empty: split with `--by`.

    Raises:
        MixedIdentities: A fleet measured one case with several identities that `by` does not tell apart; says which.
    """
    cells: dict[Key, list[FleetRate]] = defaultdict(list)
    for rate in rates:
        if rate.rates:
            cells[(rate.fleet, rate.case, *(rate.named(name) for name in by))].append(rate)
    found: dict[tuple[str, str], int] = defaultdict(int)
    columns: dict[str, None] = dict.fromkeys(by)
    for group in cells.values():
        different = differing(group, SOFTWARE_COLUMNS)
        columns |= dict.fromkeys(different)
        values = [f"{name} ({', '.join(sorted({str(rate.named(name)) for rate in group}))})" for name in different]
        if values:
            found[(group[0].fleet, ", ".join(values))] += 1
    if found:
        lines = [f"fleet {fleet}, {count} cases: several {values}" for (fleet, values), count in found.items()]
        remedy = remedy or f"Split them: --by {','.join(columns)}"
        raise MixedIdentities("\n".join([*lines, f"Numbers of different software share no cell. {remedy}"]))

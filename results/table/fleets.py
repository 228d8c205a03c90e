"""Fleets seen as one: what the hosts of a fleet measured for one case, with the spread between hosts.

A fleet's number is the mean of its hosts' means. Hosts of different software never share one: the identity is part of
the key. What belongs to a host and not to what is measured (`comparable.HOST_COLUMNS`: its driver, its processor) may
differ between the hosts of a fleet: it is part of their spread, and named.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from results.errors import MixedIdentities, TooFewRepeats
from results.stats import Estimate, Interval, estimate, nested_estimate
from results.table.columns import CASE_COLUMNS, SOFTWARE_COLUMNS
from results.table.comparable import HOST_COLUMNS, differing
from results.table.merge import NO_ORIGIN, Merged

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[Hashable, ...]

Nested = dict[str, dict[str, list[float]]]
"""Values of repeats, by host and run."""

ByRow = dict[int, dict[str, list[float]]]
"""Values of repeats, by row of the merged table and run."""


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
        prices: USD per GPU-hour of each host that has a price.
        warnings: Codes of its rows.
        of_hosts: Values of `HOST_COLUMNS` by column and host, where GPUs train.
    """

    fleet: str
    case: Key
    identity: Key
    rates: Nested = field(default_factory=dict)
    per_joule: Nested = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unit: str = ""
    global_batch: int = 0
    prices: dict[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    of_hosts: dict[str, dict[str, Hashable]] = field(default_factory=dict)

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
    def of_fleet(self) -> bool:
        """Whether the number speaks for a fleet: two hosts at least, so that their spread is known."""
        return len(self.rates) > 1

    @property
    def subject(self) -> str:
        """Who the number speaks of: the fleet, or with one host that machine."""
        if len(self.rates) != 1 or self.fleet == NO_ORIGIN:
            return self.fleet
        return f"{self.fleet}/{next(iter(self.rates))}"

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Price of one GPU: mean over the hosts that have a number, else over all; None when not given."""
        known = [price for host, price in self.prices.items() if host in self.rates] or list(self.prices.values())
        return statistics.fmean(known) if known else None

    @property
    def hosts_differ(self) -> dict[str, dict[str, Hashable]]:
        """Values by column and host of those `HOST_COLUMNS` in which the hosts with a number differ."""
        found = {
            column: {host: value for host, value in values.items() if host in self.rates}
            for column, values in self.of_hosts.items()
        }
        return {column: values for column, values in found.items() if len(set(values.values())) > 1}

    def only(self, hosts: Collection[str], why: str) -> FleetRate:
        """Leave out the numbers of all other hosts, and say why where failures are named."""
        left_out = {host: why for host in self.rates if host not in hosts}
        return replace(
            self,
            rates={host: runs for host, runs in self.rates.items() if host in hosts},
            per_joule={host: runs for host, runs in self.per_joule.items() if host in hosts},
            failures={**self.failures, **left_out},
        )

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


def fleet_rates(merged: Merged, *, apart: Collection[str] = ()) -> list[FleetRate]:
    """Return what each fleet measured for each case, in the order of the table.

    Args:
        merged: The records.
        apart: Columns of `HOST_COLUMNS` in which hosts that differ are not to be seen as one fleet.
    """
    by_row = _by_row(merged.repeats, "samples_per_second")
    joules = _by_row(merged.repeats, "samples_per_joule")
    rows = rows_of(merged.table)
    drivers = {} if "driver" in apart else _drivers(rows)
    found: dict[Key, list[tuple[int, dict[str, Any]]]] = defaultdict(list)
    for row, cells in enumerate(rows):
        found[(cells["fleet"], *_case(cells), *_identity(cells, drivers))].append((row, cells))
    return _with_failures([_fleet_rate(rows, by_row, joules, drivers) for rows in found.values()])


def _drivers(rows: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the drivers of each fleet whose hosts have one each, and not all the same.

    Where one host has several, they were measured one after the other: that is no spread between hosts, but two
    softwares to be compared.
    """
    known: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for cells in rows:
        if cells["device"] == "gpu" and cells["driver"] is not None:
            known[cells["fleet"]][cells["host"]].add(cells["driver"])
    found = {}
    for fleet, hosts in known.items():
        names = sorted(set().union(*hosts.values()))
        if len(names) > 1 and all(len(of_host) == 1 for of_host in hosts.values()):
            found[fleet] = " + ".join(names)
    return found


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


def _identity(cells: dict[str, Any], drivers: dict[str, str]) -> Key:
    """Return the identity that the hosts of a fleet must share; `drivers` names those of fleets that mix them."""
    on_gpu = cells["device"] == "gpu"
    values = {name: None if on_gpu and name in HOST_COLUMNS else cells[name] for name in SOFTWARE_COLUMNS}
    values["driver"] = drivers.get(cells["fleet"], cells["driver"]) if cells["driver"] is not None else None
    return tuple(values.values())


def _fleet_rate(
    rows: Sequence[tuple[int, dict[str, Any]]], by_row: ByRow, joules: ByRow, drivers: dict[str, str]
) -> FleetRate:
    _, first = rows[0]
    rates = _by_host(rows, by_row)
    on_gpu = first["device"] == "gpu"
    return FleetRate(
        fleet=first["fleet"],
        case=_case(first),
        identity=_identity(first, drivers),
        rates=rates,
        per_joule=_by_host(rows, joules),
        failures={cells["host"]: cells["status"] for _, cells in rows if cells["host"] not in rates},
        unit=next((cells["unit"] for _, cells in rows if cells["unit"]), ""),
        global_batch=first["global_batch"],
        prices={c["host"]: c["usd_per_gpu_hour"] for _, c in rows if c["usd_per_gpu_hour"] is not None},
        warnings=tuple(dict.fromkeys(cells["warnings"] for _, cells in rows if cells["warnings"])),
        of_hosts={name: {c["host"]: c[name] for _, c in rows} for name in HOST_COLUMNS} if on_gpu else {},
    )


def _by_host(rows: Sequence[tuple[int, dict[str, Any]]], by_row: ByRow) -> Nested:
    """Return the values by host and run; a host whose processor changed between its runs has several rows."""
    found: Nested = {}
    for row, cells in rows:
        for run, values in by_row.get(row, {}).items():
            found.setdefault(cells["host"], {}).setdefault(run, []).extend(values)
    return found


def _with_failures(rates: Sequence[FleetRate]) -> list[FleetRate]:
    """Put hosts that gave no number beside those of their fleet and case that did.

    A host that was never reached has no software identity, so it would be a line of its own. Where the fleet
    measured the case with several identities, which one is meant is not known, and it stays one.
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


def mixture(parts: Sequence[FleetRate], shares: Sequence[float]) -> FleetRate | None:
    """Return the throughput of one fleet for a mix of networks, host by host and repeat by repeat.

    A sample of the mix takes the weighted mean of the networks' times per sample. Repeats are put together in their
    order, run by run where a host measured all parts in one run: each then gives an independent throughput of the mix,
    so that intervals and ratios of a mixture are those of any other rate.

    Args:
        parts: One for each network, of one fleet.
        shares: Share of the samples of each; they add up to 1.

    Returns:
        None where no host measured all parts. The rate's `model` names the networks, its `parameters` are not known.
    """
    hosts = [host for host in parts[0].rates if all(host in part.rates for part in parts)]
    if not hosts:
        return None
    first = parts[0]
    named = dict(zip(CASE_COLUMNS, first.case, strict=True))
    named["model"] = " + ".join(f"{share:g} {part.named('model')}" for share, part in zip(shares, parts, strict=True))
    missing = {host: "not all networks" for part in parts for host in part.rates if host not in hosts}
    return replace(
        first,
        case=tuple(named.values()),
        identity=tuple(None if name == "parameters" else first.named(name) for name in SOFTWARE_COLUMNS),
        rates={host: _mixed_runs([part.rates[host] for part in parts], shares) for host in hosts},
        per_joule={},
        failures={**missing, **{host: status for part in parts for host, status in part.failures.items()}},
        unit=first.unit if len({part.unit for part in parts}) == 1 else "samples",
    )


def _mixed_runs(parts: Sequence[dict[str, list[float]]], shares: Sequence[float]) -> dict[str, list[float]]:
    """Return the mix's throughput of each repeat, by run; with no run in common, all repeats are one."""
    runs = [run for run in parts[0] if all(run in part for part in parts)]
    if runs:
        columns = {run: [part[run] for part in parts] for run in runs}
    else:
        columns = {"several": [[value for values in part.values() for value in values] for part in parts]}
    return {
        run: [
            1.0 / math.fsum(share / rate for share, rate in zip(shares, repeat, strict=True))
            for repeat in zip(*of_parts, strict=False)  # as many as the network with the fewest repeats has
        ]
        for run, of_parts in columns.items()
    }


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

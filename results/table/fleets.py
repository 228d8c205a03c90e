"""Combines the hosts of a fleet into one throughput per case, with the spread between hosts.

A fleet's throughput is the mean of its hosts' means. Different software is never combined. Driver, processor and
launcher (`comparable.HOST_COLUMNS`) may differ between the hosts of a fleet: this is part of their spread, and noted.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from results.schema import Case, Device
from results.stats import LEVEL, Estimate, Interval, Nested, host_means, nested_estimate, outlying, ratio_of_estimates
from results.table.columns import NO_ORIGIN, SOFTWARE_COLUMNS, CaseOnHost, Row, Software, Value
from results.table.comparable import (
    CPU_HOST_COLUMNS,
    HOST_COLUMNS,
    case_label,
    differences,
    differing,
    grouped,
    value_of,
)
from results.text import counted, enumerated

if TYPE_CHECKING:
    import pandas as pd

UTILISATION = ("flops_utilisation", "bandwidth_utilisation")
"""Columns that show how far a device is from its own limits."""


@dataclass(frozen=True)
class FleetRate:
    """Throughput of a case on a fleet with one software identity.

    Attributes:
        fleet: Name of the fleet.
        case: The measured case.
        software: Identity shared by its hosts; see `fleet_rates`.
        rates: Throughput of each repeat in samples per second, by host and run; empty if all failed.
        rounds: Round of each repeat in `rates`; in a round every case runs once.
        per_joule: Samples per joule of each repeat, by host and run; empty if no energy was measured.
        failures: Status of the hosts without a number, by host.
        failed: Failed repeats of each host that has any: `1 of 3 repeats: oom: out of memory`.
        unit: What a sample is; empty without a number.
        prices: USD per GPU-hour of each host that has a price.
        warnings: Codes of each host that has any, as in its row: `drift (2 of 3), high_cv`.
        utilisation: Mean share of the device's measured peaks, by column of `UTILISATION`; without what is unknown.
        of_hosts: Values of `HOST_COLUMNS` by column and host; on a CPU those of `CPU_HOST_COLUMNS`.
        split_from: Fleet of which it is a part; see `split_fleets`.
    """

    fleet: str
    case: Case
    software: Software
    rates: Nested = field(default_factory=dict)
    rounds: Nested = field(default_factory=dict)
    per_joule: Nested = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    unit: str = ""
    prices: dict[str, float] = field(default_factory=dict)
    warnings: dict[str, str] = field(default_factory=dict)
    utilisation: dict[str, float] = field(default_factory=dict)
    of_hosts: dict[str, dict[str, Value]] = field(default_factory=dict)
    split_from: str | None = None

    def named(self, column: str) -> Value:
        """Return the value of a column of the case or the software."""
        return value_of(self, column)

    @property
    def mean(self) -> float | None:
        """Mean of the hosts' means in samples per second; None without a number."""
        return statistics.fmean(self.host_means.values()) if self.rates else None

    @cached_property
    def host_means(self) -> dict[str, float]:
        """Mean over the means of each host's runs, in samples per second, by host."""
        return host_means(self.rates)

    @property
    def of_fleet(self) -> bool:
        """Whether the number describes a fleet: it has at least two hosts, so their spread is known."""
        return len(self.rates) > 1

    @property
    def subject(self) -> str:
        """Name of what the number describes: the fleet, or its only host."""
        hosts = [*self.rates]
        return self.fleet if len(hosts) != 1 else str(CaseOnHost(self.fleet, hosts[0], self.case))

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Price of one GPU: mean over the hosts with a number, else over all; None: not given."""
        known = [price for host, price in self.prices.items() if host in self.rates] or list(self.prices.values())
        return statistics.fmean(known) if known else None

    def only(self, hosts: Collection[str], why: str) -> FleetRate:
        """Return only the numbers of `hosts`; the others become failures with reason `why`."""
        excluded = {host: why for host in self.rates if host not in hosts}
        return replace(
            self,
            rates={host: runs for host, runs in self.rates.items() if host in hosts},
            per_joule={host: runs for host, runs in self.per_joule.items() if host in hosts},
            failures={**self.failures, **excluded},
        )

    def without(self, host: str) -> FleetRate:
        """Return only the numbers of the other hosts."""
        return self.only([name for name in self.rates if name != host], "outlier")

    @property
    def repeated(self) -> str:
        """Values that the interval is computed from: `hosts`, `runs` or `repeats`."""
        if len(self.rates) > 1:
            return "hosts"
        return "runs" if any(len(runs) > 1 for runs in self.rates.values()) else "repeats"

    @cached_property
    def estimate(self) -> Estimate | None:
        """Mean and its uncertainty; None with fewer than two values."""
        return nested_estimate(self.rates)

    @cached_property
    def samples_per_joule(self) -> Estimate | None:
        """Samples per joule of GPU energy; None: measured in fewer than two repeats."""
        return nested_estimate(self.per_joule)

    @property
    def interval(self) -> Interval | None:
        """95 % interval over `repeated`; None with fewer than two values."""
        found = self.estimate
        return found.interval() if found else None


def ratio_of_rates(a: FleetRate, b: FleetRate, *, level: float = LEVEL) -> Interval | None:
    """Return the throughput of `a` over that of `b`, as independent sides; None: a side has fewer than two values."""
    if a.estimate is None or b.estimate is None:
        return None
    return ratio_of_estimates(a.estimate, b.estimate, level=level, alike=a.repeated == b.repeated)


Key = TypeVar("Key")
_FleetKey = tuple[str, Case, Software]


def nested_values(repeats: pd.DataFrame, column: str, of_rows: Mapping[int, tuple[Key, str]]) -> dict[Key, Nested]:
    """Return the known values of a column of the repeats.

    Args:
        repeats: `merge.Merged.repeats`.
        column: A numeric column.
        of_rows: What each row is part of, and its host.
    """
    found: dict[Key, Nested] = {key: {} for key, _ in of_rows.values()}
    columns = (repeats[name].tolist() for name in ("row", "run", column))
    for row, run, value in zip(*columns, strict=True):
        if not math.isnan(value):
            key, host = of_rows[row]
            found[key].setdefault(host, {}).setdefault(run, []).append(value)
    return found


def fleet_rates(rows: Sequence[Row], repeats: pd.DataFrame, apart: Collection[str] = ()) -> list[FleetRate]:
    """Return the throughput of each fleet, case and software, in the order of the table; see `merge.Merged`.

    A host that was never reached has no software identity. It is added to the rate of its fleet and case, or remains a
    rate of its own if there are several.

    Args:
        rows: Rows in the order of the table.
        repeats: Their repeats with a number.
        apart: Columns of `HOST_COLUMNS` by which hosts are kept separate.
    """
    joined = {name: {} if name in apart else _joined(rows, name) for name in ("driver", "launcher")}
    keys = [(row.fleet, row.case, _shared(row, joined, apart)) for row in rows]
    measured = defaultdict[tuple[str, Case], set[_FleetKey]](set)
    for row, key in zip(rows, keys, strict=True):
        if row.repeats_ok:
            measured[key[:2]].add(key)
    groups, of_rows = defaultdict[_FleetKey, list[Row]](list), dict[int, tuple[_FleetKey, str]]()
    for index, (row, key) in enumerate(zip(rows, keys, strict=True)):
        likely = measured[key[:2]]
        if len(likely) == 1 and not row.repeats_ok:
            (key,) = likely
        groups[key].append(row)
        of_rows[index] = key, row.host
    names = ("samples_per_second", "round", "samples_per_joule", *UTILISATION)
    values = {name: nested_values(repeats, name, of_rows) for name in names}
    return [
        _fleet_rate(key, group, {name: of[key] for name, of in values.items()})
        for key, group in groups.items()
        if key[0] != NO_ORIGIN or values["samples_per_second"][key]  # it failed before it knew its device: no fleet
    ]


def _fleet_rate(key: _FleetKey, rows: Sequence[Row], values: Mapping[str, Nested]) -> FleetRate:
    """Return a rate from its rows and the values of their repeats by column."""
    rates = values["samples_per_second"]
    warnings = grouped((row.host, row.warnings) for row in rows if row.warnings)
    failed = grouped(
        (row.host, f"{row.repeats - row.repeats_ok} of {counted(row.repeats, 'repeat')}: {row.cause or row.status}")
        for row in rows
        if row.repeats_ok < row.repeats
    )
    return FleetRate(
        *key,
        rates=rates,
        rounds=values["round"],
        per_joule=values["samples_per_joule"],
        failures={row.host: row.status for row in rows if row.host not in rates},
        failed={host: "; ".join(texts) for host, texts in failed.items()},
        unit=next((row.unit for row in rows if row.unit), ""),
        prices={row.host: row.usd_per_gpu_hour for row in rows if row.usd_per_gpu_hour is not None},
        warnings={host: ", ".join(texts) for host, texts in warnings.items()},
        utilisation={name: statistics.fmean(host_means(values[name]).values()) for name in UTILISATION if values[name]},
        of_hosts={
            name: {row.host: getattr(row, name) for row in rows if row.repeats_ok}
            for name in (HOST_COLUMNS if key[1].device is Device.GPU else CPU_HOST_COLUMNS)
        },
    )


def _joined(rows: Iterable[Row], column: str) -> dict[str, str]:
    """Return the joined values of a column, such as `driver`, of fleets whose hosts have one value each but differ.

    A host with several values was measured several times with different software, which is not spread between hosts.
    """
    known: dict[str, dict[str, set[str]]] = {}
    for row in rows:
        value = getattr(row, column)
        if value is not None and (row.case.device is Device.GPU or column in CPU_HOST_COLUMNS):
            known.setdefault(row.fleet, {}).setdefault(row.host, set()).add(value)
    names = {fleet: sorted(set().union(*hosts.values())) for fleet, hosts in known.items()}
    single = {fleet for fleet, hosts in known.items() if all(len(of_host) == 1 for of_host in hosts.values())}
    return {fleet: " + ".join(of_fleet) for fleet, of_fleet in names.items() if len(of_fleet) > 1 and fleet in single}


def _shared(row: Row, joined: Mapping[str, Mapping[str, str]], apart: Collection[str]) -> Software:
    """Return the software identity that the hosts of a fleet must share.

    Args:
        row: A row of one host.
        joined: Joined drivers and launchers of fleets that mix them. Some hosts of a fleet with several launchers have
            no image, so the image digest is ignored; its content (TensorFlow, CUDA, …) is not.
        apart: Columns by which hosts are kept separate.
    """
    own: Software = row.software
    if own.launcher is not None and row.fleet in joined["launcher"]:
        own = own._replace(launcher=joined["launcher"][row.fleet], image_digest=None)
    if row.case.device is Device.GPU:
        if own.driver is not None:
            own = own._replace(driver=joined["driver"].get(row.fleet, own.driver))
        own = own._replace(**{name: None for name in ("cpu", "cpu_limit") if name not in apart})
    return own


def unambiguous(rates: Sequence[FleetRate], by: Sequence[str] = ()) -> tuple[list[FleetRate], list[str]]:
    """Leave out each case that a fleet measured with several software identities, which have no common number.

    Args:
        rates: Of any number of fleets.
        by: Columns by which identities may differ.

    Returns:
        The other rates, and a line for all cases that are left out for the same reason.
    """
    groups = grouped(((rate.fleet, rate.case, rate.software.only(by)), rate) for rate in rates if rate.rates).values()
    mixed = [(group, columns) for group in groups if (columns := differing(group, SOFTWARE_COLUMNS))]
    whys = ((differences(group, of), ",".join(dict.fromkeys((*by, *of)))) for group, of in mixed)
    lines = []
    for (why, split_by), cases in grouped(zip(whys, (group[0] for group, _ in mixed), strict=True)).items():
        fleets = enumerated(list(dict.fromkeys(rate.fleet for rate in cases)))
        names = list(dict.fromkeys(case_label(rate, rates) for rate in cases))
        what = names[0] if len(names) == 1 else counted(len(names), "case")
        lines.append(f"left out: {fleets}, {what}: measured with several {why}; compare --by {split_by} splits them")
    left = {(group[0].fleet, group[0].case) for group, _ in mixed}
    return [rate for rate in rates if (rate.fleet, rate.case) not in left], lines


def split_fleets(rates: Sequence[FleetRate], by: Sequence[str]) -> list[FleetRate]:
    """Give each value of the columns `by` a fleet of its own, so that they can be compared: `a4000 (keras 3.15.1)`.

    Args:
        rates: Of one fleet.
        by: Software columns; those in which the numbers do not differ are in no name.

    Returns:
        All rates, but failures of unknown software only if nothing is split.
    """
    split = differing([rate for rate in rates if rate.rates], by)
    known = [rate for rate in rates if not split or any(rate.named(name) is not None for name in split)]
    values = [", ".join(f"{name} {rate.named(name) or 'none'}" for name in split) for rate in known]
    return [
        replace(rate, fleet=f"{rate.fleet} ({value})" if value else rate.fleet, split_from=rate.fleet)
        for rate, value in zip(known, values, strict=True)
    ]


TOLERANCE = 0.03
"""Smallest relative difference of an outlier. Source: 39 hosts of one model spread by 0.3 % (ResNet50, TF32) to 6 %
(BERT-Large) in a vendor's published logs; over five centres 8 % on average (Sinha et al., SC22)."""


@dataclass(frozen=True)
class Outlier:
    """A host that is faster or slower than the rest of its fleet.

    Attributes:
        ratio: Its throughput over that of the others; the interval is the prediction interval around 1.
    """

    rate: FleetRate
    host: str
    ratio: Interval

    @property
    def difference(self) -> str:
        """Description: `a4000/node-c is 12.0% slower than the 3 other hosts of its fleet`."""
        direction = "slower" if self.ratio.value < 1 else "faster"
        return (
            f"{self.rate.fleet}/{self.host} is {abs(1 - self.ratio.value):.1%} {direction} than the "
            f"{len(self.rate.rates) - 1} other hosts of its fleet"
        )

    def __str__(self) -> str:
        """Describe it in a sentence, with advice."""
        return (
            f"{self.difference} ({self.rate.case.model}, {self.rate.case.precision}); an equal host would be within "
            f"{self.ratio.low - 1:+.1%} to {self.ratio.high - 1:+.1%}. Check its cooling, power limit and neighbours"
        )


def outliers(rates: Iterable[FleetRate]) -> list[Outlier]:
    """Return hosts that differ from the rest of their fleet significantly and by more than `TOLERANCE`.

    Args:
        rates: From `fleet_rates`: one for each fleet, case and software.
    """
    found = ((rate, outlying([log_means(rate)], TOLERANCE)) for rate in rates)
    return [outlier_of(rate, *item[1:]) for rate, item in found if item is not None]


def outlier_of(rate: FleetRate, host: str, difference: Interval) -> Outlier:
    """Return a host of a rate that differs from the others, by the logarithm of throughput, as an `Outlier`."""
    return Outlier(rate, host, Interval(*map(math.exp, (difference.value, difference.low, difference.high))))


def log_means(rate: FleetRate) -> dict[str, float]:
    """Return the logarithm of each host's mean throughput."""
    return {host: math.log(mean) for host, mean in rate.host_means.items()}

"""Combines the hosts of a fleet into one throughput per case, with the spread between hosts.

A fleet's throughput is the mean of its hosts' means. Different software is never combined. Driver, processor and
launcher may differ between the hosts of a fleet: this is part of their spread, and noted, as are warnings.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from results.reference import names
from results.schema import Case, Device
from results.schema.health import RULES, Moment
from results.stats import Estimate, Interval, Nested, host_means, levels_of, nested_estimate, outlying
from results.table.columns import NO_ORIGIN, SOFTWARE_COLUMNS, CaseOnHost, Row, Software, Value
from results.table.comparable import case_labels, differences, differing, grouped
from results.text import counted, enumerated, value_text


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
        unit: What a sample is; empty without a number.
        prices: USD per GPU-hour of each host that has a price.
        rows: The rows of its hosts; see `merge.Merged`.
        split_from: Fleet of which it is a part; see `split_fleets`.
    """

    fleet: str
    case: Case
    software: Software
    rates: Nested = field(default_factory=dict)
    rounds: Nested = field(default_factory=dict)
    per_joule: Nested = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    unit: str = ""
    prices: dict[str, float] = field(default_factory=dict)
    rows: Sequence[Row] = ()
    split_from: str | None = None

    def named(self, column: str) -> Value:
        """Return the value of a column of the case or the software, or the unit."""
        source = self if column == "unit" else self.software if column in SOFTWARE_COLUMNS else self.case
        value: Value = getattr(source, column)
        return value

    @property
    def mean(self) -> float | None:
        """Mean of the hosts' means in samples per second; None without a number."""
        return statistics.fmean(self.host_means.values()) if self.rates else None

    @cached_property
    def host_means(self) -> dict[str, float]:
        """Mean over the means of each host's runs, in samples per second, by host."""
        return host_means(self.rates)

    @property
    def log_means(self) -> dict[str, float]:
        """Logarithms of `host_means`."""
        return {host: math.log(mean) for host, mean in self.host_means.items()}

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
    def failed(self) -> dict[str, str]:
        """Failed repeats of each host that has any: `1 of 3 repeats: oom: out of memory`."""
        return {
            row.host: f"{row.repeats - row.repeats_ok} of {counted(row.repeats, 'repeat')}: {row.cause or row.status}"
            for row in self.rows
            if row.repeats_ok < row.repeats
        }

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Price of one GPU: mean over the hosts with a number, else over all; None: not given."""
        known = [price for host, price in self.prices.items() if host in self.rates] or list(self.prices.values())
        return statistics.fmean(known) if known else None

    def only(self, hosts: Collection[str], why: str) -> FleetRate:
        """Return only the numbers of `hosts`; the others become failures with reason `why`."""
        rates, joules = ({host: of[host] for host in of if host in hosts} for of in (self.rates, self.per_joule))
        excluded = {host: why for host in self.rates if host not in hosts}
        return replace(self, rates=rates, per_joule=joules, failures={**self.failures, **excluded})

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
        """95 % interval; None with fewer than two values."""
        return self.estimate.interval() if self.estimate else None


def fleet_rates(rows: Sequence[Row], apart: Collection[str] = ()) -> list[FleetRate]:
    """Return the throughput of each fleet, case and software, in the order of the table.

    A host that was never reached has no software identity. It is added to the rate of its fleet and case, or remains a
    rate of its own if there are several.

    Args:
        rows: Rows in the order of the table; see `merge.Merged`.
        apart: Columns by which hosts are kept separate, of those that may differ.
    """
    joined = _joined(rows, apart)
    keys = [(row.fleet, row.case, _shared(row, joined, apart)) for row in rows]
    measured = grouped((key[:2], key) for row, key in zip(rows, keys, strict=True) if row.repeats_ok)
    groups: dict[tuple[str, Case, Software], list[Row]] = {}
    for row, key in zip(rows, keys, strict=True):
        likely = {*measured.get(key[:2], [])}
        groups.setdefault(likely.pop() if len(likely) == 1 and not row.repeats_ok else key, []).append(row)
    rates = [_fleet_rate(*key, of_fleet) for key, of_fleet in groups.items()]
    return [rate for rate in rates if rate.fleet != NO_ORIGIN or rate.rates]  # it failed before it knew its device


def _fleet_rate(fleet: str, case: Case, software: Software, rows: Sequence[Row]) -> FleetRate:
    """Return a rate from the rows of its hosts."""
    rates, rounds, per_joule = (_nested(rows, name) for name in ("samples_per_second", "repeat", "samples_per_joule"))
    failures = {row.host: row.status for row in rows if row.host not in rates}
    unit = next((row.unit for row in rows if row.unit), "")
    prices = {row.host: row.usd_per_gpu_hour for row in rows if row.usd_per_gpu_hour is not None}
    return FleetRate(fleet, case, software, rates, rounds, per_joule, failures, unit, prices, rows)


def _nested(rows: Iterable[Row], name: str) -> Nested:
    """Return an attribute of the repeats with a number of a fleet's rows, of which a host may have several."""
    found: Nested = {}
    for one in itertools.chain.from_iterable(row.measured for row in rows):
        if (value := getattr(one, name)) is not None:
            found.setdefault(one.place.host, {}).setdefault(one.run, []).append(value)
    return found


def _joined(rows: Iterable[Row], apart: Collection[str]) -> dict[tuple[str, str], str]:
    """Return the joined drivers, and launchers, of fleets whose hosts have one each but differ, by fleet and column.

    A host with several values was measured several times with different software, which is not spread between hosts.
    """
    known = defaultdict[tuple[str, str], dict[str, set[str]]](dict)
    for row in rows:
        values = {"launcher": row.launcher} | ({"driver": row.driver} if row.case.device is Device.GPU else {})
        for name, value in values.items():
            if value is not None and name not in apart:
                known[row.fleet, name].setdefault(row.host, set()).add(value)
    of_fleets = {
        key: set().union(*hosts.values()) for key, hosts in known.items() if max(map(len, hosts.values())) == 1
    }
    return {key: " + ".join(sorted(values)) for key, values in of_fleets.items() if len(values) > 1}


def _shared(row: Row, joined: Mapping[tuple[str, str], str], apart: Collection[str]) -> Software:
    """Return the software identity that the hosts of a fleet must share.

    Args:
        row: A row of one host.
        joined: Drivers and launchers of fleets that mix them. Some hosts of a fleet with several launchers have no
            image, so the image digest is ignored; its content (TensorFlow, CUDA, …) is not.
        apart: Columns by which hosts are kept separate.
    """
    own: Software = row.software
    launcher, driver = (joined.get((row.fleet, name)) for name in ("launcher", "driver"))
    if own.launcher is not None and launcher:
        own = replace(own, launcher=launcher, image_digest=None)
    if row.case.device is Device.GPU:
        own = replace(own, **{name: None for name in ("cpu", "cpu_limit") if name not in apart})
        own = replace(own, driver=own.driver and (driver or own.driver))
    return own


def unambiguous(rates: Sequence[FleetRate], by: Sequence[str] = ()) -> tuple[list[FleetRate], list[str]]:
    """Leave out each case that a fleet measured with several software identities, which have no common number.

    Args:
        rates: Of any number of fleets.
        by: Columns by which identities may differ.

    Returns:
        The other rates, and a line for all cases that are left out for the same reason.
    """
    groups = grouped(((rate.fleet, rate.case, *map(rate.named, by)), rate) for rate in rates if rate.rates).values()
    softwares = [(group[0], [rate.software for rate in group]) for group in groups]
    mixed = [(rate, several, of) for rate, several in softwares if (of := differing(several, SOFTWARE_COLUMNS))]
    whys = grouped(((differences(several, of), ",".join(dict.fromkeys((*by, *of)))), one) for one, several, of in mixed)
    lines, labels = [], case_labels(rate.case for rate in rates)
    for (why, split_by), cases in whys.items():
        fleets = enumerated(list(dict.fromkeys(rate.fleet for rate in cases)))
        names = list(dict.fromkeys(labels[rate.case] for rate in cases))
        what = names[0] if len(names) == 1 else counted(len(names), "case")
        lines.append(f"left out: {fleets}, {what}: measured with several {why}; compare --by {split_by} splits them")
    left = {(rate.fleet, rate.case) for rate, *_ in mixed}
    return [rate for rate in rates if (rate.fleet, rate.case) not in left], lines


def split_fleets(rates: Sequence[FleetRate], by: Sequence[str]) -> list[FleetRate]:
    """Give each value of the columns `by` a fleet of its own, so that they can be compared: `a4000 (keras 3.15.1)`.

    Args:
        rates: Of one fleet.
        by: Software columns; those in which the numbers do not differ are in no name.

    Returns:
        All rates, but failures of unknown software only if nothing is split.
    """
    split = differing([rate.software for rate in rates if rate.rates], by)
    known = [rate for rate in rates if not split or any(rate.named(name) is not None for name in split)]
    values = [", ".join(f"{name} {rate.named(name) or 'none'}" for name in split) for rate in known]
    return [
        replace(rate, fleet=f"{rate.fleet} ({value})" if value else rate.fleet, split_from=rate.fleet)
        for rate, value in zip(known, values, strict=True)
    ]


TOLERANCE = 0.03
"""Smallest relative difference of an outlier. Source: 39 hosts of one model spread by 0.3 % (ResNet50, TF32) to 6 %
(BERT-Large) in a vendor's published logs; over five centres 8 % on average (Sinha et al., SC22)."""


def outliers(rates: Iterable[FleetRate]) -> list[str]:
    """Return a sentence for each fleet with a host that differs from the others; see `odd_hosts`."""
    return odd_hosts(grouped((rate.fleet, rate.log_means) for rate in rates if rate.case.num_hosts == 1))


def odd_hosts(logarithms: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """Return a sentence for each fleet with a host that differs significantly and by more than `TOLERANCE`.

    Args:
        logarithms: For each fleet and each of its cases, that of the throughput, or of a ratio, of each host.
    """
    levels = {fleet: of for fleet, by_case in logarithms.items() if (of := levels_of([*filter(None, by_case)]))}
    lines = []
    for fleet, (host, difference) in outlying(levels, TOLERANCE).items():
        share, others = math.expm1(difference.value), len(levels[fleet]) - 1
        what = f"{abs(share):.1%} {'slower' if share < 0 else 'faster'} than the {others} other hosts"
        equal = f"{math.expm1(difference.low):+.1%} to {math.expm1(difference.high):+.1%}"
        line = f"{fleet}/{host} is {what} of its fleet; an equal host would be within {equal}"
        lines.append(f"{line}. Check its cooling, power limit and neighbours")
    return lines


def rate_text(rate: FleetRate) -> str:
    """Format a fleet's throughput, marked if some hosts have none; without any, its statuses."""
    if not rate.rates:
        return ", ".join(dict.fromkeys(rate.failures.values()))
    text = value_text(rate.mean, rate.interval)
    return f"{text} †" if rate.failures else text


def missing_hosts(rates: Sequence[FleetRate]) -> list[str]:
    """Return the note that explains the mark of `rate_text`."""
    missing = {f"{host} ({status})" for rate in rates if rate.rates for host, status in rate.failures.items()}
    return [f"† without {', '.join(sorted(missing))}"] if missing else []


WARNINGS = {
    **dict(names("warning")),
    **{
        code: f"{rule.why}; {re.sub('{gpu[^}]*}', '…', rule.fix)}"
        for code, rule in RULES.items()
        if Moment.TIMING in rule.moments
    },
}
"""Meaning and remedy of each warning code. A test compares the codes with those of `tfbench`."""


def warning_notes(rows: Iterable[Row]) -> list[str]:
    """Explain each warning of rows once, in alphabetical order."""
    codes = {code for row in rows for code in row.codes}
    return [f"{code}: {WARNINGS[code]}" for code in sorted(codes & WARNINGS.keys())]


def warned(rates: Iterable[FleetRate]) -> dict[str, list[str]]:
    """Return the hosts of each warning about what has a number, by code in alphabetical order.

    With the networks, if the host has others without this warning: `a4000/node-a in vgg16 fp16`.
    """
    figures = [
        (f"{rate.fleet}/{row.host}" if rate.of_fleet else rate.subject, f"{row.case.model} {row.case.precision}", code)
        for rate in rates
        for row in rate.rows
        if row.host in rate.rates
        for code in ("", *row.codes)
    ]
    networks = grouped(((code, place), network) for place, network, code in dict.fromkeys(figures))
    every = {place: of for (code, place), of in networks.items() if not code}
    places = grouped(
        (code, place if len(of) == len(every[place]) else f"{place} in {enumerated(of, HOSTS_NAMED)}")
        for (code, place), of in networks.items()
    )
    return {code: places[code] for code in sorted(places) if code}


def warned_notes(rates: Iterable[FleetRate]) -> list[str]:
    """Return notes on warnings about figures that are compared: where, their meaning and remedy."""
    known = {code: places for code, places in warned(rates).items() if code in WARNINGS}
    return [f"{code} ({enumerated(places, HOSTS_NAMED)}): {WARNINGS[code]}" for code, places in known.items()]


HOSTS_NAMED = 4
"""Hosts that a note lists at most; of more, the others are counted."""

NAMES = {"driver": "drivers", "cpu": "processors", "launcher": "launchers"}
"""Columns in which hosts of a fleet may differ, and their names in notes."""


def fleet_notes(rates: Sequence[FleetRate], *, single_hosts: bool = True) -> list[str]:
    """Return notes on differences between hosts of fleets, and, if asked, on fleets of a single host."""
    single = list(dict.fromkeys(rate.subject for rate in rates if single_hosts and rate.rates and not rate.of_fleet))
    alone = [f"{enumerated(single, HOSTS_NAMED)}: one host each; intervals describe these machines, not fleets"]
    if len(single) == 1:
        alone = [f"{single[0]}: one host; its intervals describe this machine, not a fleet"]
    return [*_hosts_differ(rates), *price_notes(rates), *(alone if single else ())]


def _hosts_differ(rates: Sequence[FleetRate]) -> list[str]:
    rows, lines = [(rate.fleet, row) for rate in rates for row in rate.rows if row.host in rate.rates], list[str]()
    for column, name in NAMES.items():
        values = dict.fromkeys((fleet, getattr(row, column), row.host) for fleet, row in rows if row.measured)
        for fleet, pairs in grouped((fleet, (value, host)) for fleet, value, host in values).items():
            texts = [f"{value} on {enumerated(hosts, HOSTS_NAMED)}" for value, hosts in grouped(pairs).items()]
            what = f"{fleet}: {name} {', '.join(texts)}; that is part of the spread between hosts"
            lines += [what] if len(texts) > 1 else []
    return lines


def price_notes(rates: Sequence[FleetRate]) -> list[str]:
    """Return notes on fleets whose hosts have different prices."""
    fleets = grouped((rate.fleet, usd) for rate in rates for usd in rate.prices.values())
    return [
        f"{fleet}: {min(prices):g} to {max(prices):g} USD per GPU-hour; the mean of its hosts is used"
        for fleet, prices in fleets.items()
        if min(prices) < max(prices)
    ]

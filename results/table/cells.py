"""Formats the numbers of fleets for table cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from results.digits import with_error, with_interval
from results.stats import Interval
from results.table.columns import Value
from results.table.fleets import FleetRate
from results.text import spreadsheet_text

if TYPE_CHECKING:
    import pandas as pd

DIGEST_LENGTH = 19
"""Characters shown of `sha256:…`: 12 digits, as in Docker."""


def rate_text(rate: FleetRate) -> str:
    """Format a fleet's throughput, marked if some hosts have none; without any, its statuses."""
    if not rate.rates:
        return ", ".join(dict.fromkeys(rate.failures.values()))
    found = rate.estimate
    text = with_error(found.mean, found.half_width()) if found else value_text(rate.mean, None)
    return f"{text} †" if rate.failures else text


def missing_hosts(rates: Sequence[FleetRate]) -> list[str]:
    """Return the note that explains the mark of `rate_text`."""
    missing = {f"{host} ({status})" for rate in rates if rate.rates for host, status in rate.failures.items()}
    return [f"† without {', '.join(sorted(missing))}"] if missing else []


HOSTS_NAMED = 3
"""Number of hosts that a note lists; the rest are counted."""

NAMES = {"driver": "drivers", "cpu": "processors", "launcher": "launchers"}
"""Columns in which hosts of a fleet may differ, and their names in notes."""


def fleet_notes(rates: Sequence[FleetRate]) -> list[str]:
    """Return notes on differences between hosts, and on fleets of a single host.

    Args:
        rates: Of any number of fleets.
    """
    return list(dict.fromkeys([*_hosts_differ(rates), *_prices_differ(rates), *_single_hosts(rates)]))


def _hosts_differ(rates: Sequence[FleetRate]) -> list[str]:
    found: dict[tuple[str, str], dict[str, Value]] = {}
    for rate in rates:
        for column, values in rate.hosts_differ.items():
            found.setdefault((rate.fleet, column), {}).update(values)
    return [
        f"{fleet}: {NAMES[column]} {_by_value(values)}; that is part of the spread between hosts"
        for (fleet, column), values in found.items()
        if column in NAMES
    ]


def _prices_differ(rates: Sequence[FleetRate]) -> list[str]:
    prices: dict[str, dict[str, float]] = {}
    hosts: dict[str, set[str]] = {}
    for rate in rates:
        prices.setdefault(rate.fleet, {}).update(rate.prices)
        hosts.setdefault(rate.fleet, set()).update(rate.rates)
    notes = []
    for fleet, known in prices.items():
        unknown = sorted(hosts[fleet] - known.keys()) if known else []
        if len(set(known.values())) > 1:
            notes.append(f"{fleet}: USD per GPU-hour {_by_value(known)}; a dollar is spread evenly over these hosts")
        if unknown:
            notes.append(f"{fleet}: no price for {_some(unknown)}; the other hosts' mean is used")
    return notes


def _single_hosts(rates: Sequence[FleetRate]) -> list[str]:
    single = list(dict.fromkeys(rate.subject for rate in rates if rate.rates and not rate.of_fleet))
    if not single:
        return []
    if len(single) == 1:
        return [f"{single[0]}: one host; its intervals describe this machine, not a fleet"]
    return [f"{_some(single)}: one host each; intervals describe these machines, not fleets"]


def _by_value(values: Mapping[str, Value]) -> str:
    """Format values by host: `550.54 on node-a, 570.86 on node-b and node-c`."""
    hosts: dict[Value, list[str]] = {}
    for host, value in values.items():
        hosts.setdefault(value, []).append(host)
    return ", ".join(f"{value} on {_some(names)}" for value, names in hosts.items())


def _some(names: Sequence[str]) -> str:
    if len(names) <= HOSTS_NAMED:
        return " and ".join(names)
    return f"{', '.join(names[:HOSTS_NAMED])} and {len(names) - HOSTS_NAMED} more"


def value_text(value: float | None, interval: Interval | None) -> str:
    """Format a number, with its interval if known; empty without a number."""
    if value is None:
        return ""
    return with_interval(interval) if interval else with_error(value, None)


def table_csv(table: pd.DataFrame) -> str:
    """Format a table as CSV; texts that a spreadsheet would run as a formula are prefixed with an apostrophe."""
    texts = table.select_dtypes(include=["string", "object"]).columns
    safe = table.assign(**{name: table[name].map(spreadsheet_text, na_action="ignore") for name in texts})
    return safe.to_csv(index=False, lineterminator="\n")


def identity_text(column: str, value: Value) -> str:
    """Format a value of a software identity; `none` if unknown."""
    if value is None:
        return "none"
    return str(value)[:DIGEST_LENGTH] if column == "image_digest" else str(value)

"""Formats the numbers of fleets for table cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from results.schema.health import RULES, Moment
from results.stats import Interval
from results.table.columns import Row, Value
from results.table.comparable import grouped
from results.table.fleets import FleetRate
from results.text import enumerated, with_interval


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


WARNINGS: dict[str, str] = {
    "above_bandwidth": "more than the memory bandwidth allows unless caches held the activations; raise the batch",
    "above_peak": "too close to the device's peak for a whole network; measure again on an idle machine",
    "cpu_shared": "other programs used the CPUs; end them, or run one benchmark at a time on a host",
    "drift": "steps became slower or faster while timing: heat, or too short a warm-up; raise warmup_steps",
    "energy_differs": "energy by counter and by sampled power differ; time for longer (min_seconds: 60)",
    "high_cv": "steps vary more than an idle machine's; end other processes, or time for longer (min_seconds)",
    "host_bound": "the GPU waited for the host to launch its work; raise the batch, compile (xla) or take a faster CPU",
    "input_limited": "the device waited for its input; use data: synthetic, more CPUs or a faster disk",
    "ptx_jit": "this TensorFlow has no code for the GPU; the driver compiled it. Use an image built for it",
    "suspect": "a record contradicts its controller, its hardware or other records; it is in no mean, see its cause",
    "tf32_not_as_asked": "TF32 was not switched as the precision requires; check NVIDIA_TF32_OVERRIDE and the GPU",
    "warmup_not_settled": "step times still changed when warm-up ended; raise warmup_steps",
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
    found: dict[str, dict[str, Value]] = {}
    for rate in rates:
        for column, name in NAMES.items():
            values = {row.host: getattr(row, column) for row in rate.rows if row.repeats_ok and row.host in rate.rates}
            if len({*values.values()}) > 1:
                found.setdefault(f"{rate.fleet}: {name}", {}).update(values)
    return [f"{what} {_by_value(values)}; that is part of the spread between hosts" for what, values in found.items()]


def price_notes(rates: Sequence[FleetRate]) -> list[str]:
    """Return notes on fleets whose hosts have different prices."""
    fleets = grouped((rate.fleet, usd) for rate in rates for usd in rate.prices.values())
    return [
        f"{fleet}: {min(prices):g} to {max(prices):g} USD per GPU-hour; the mean of its hosts is used"
        for fleet, prices in fleets.items()
        if min(prices) < max(prices)
    ]


def _by_value(values: Mapping[str, Value]) -> str:
    """Format values by host: `550.54 on node-a, 570.86 on node-b and node-c`."""
    hosts = grouped((value, host) for host, value in values.items())
    return ", ".join(f"{value} on {enumerated(names, HOSTS_NAMED)}" for value, names in hosts.items())


def value_text(value: float | None, interval: Interval | None = None) -> str:
    """Format a number, with its interval if known; empty without a number."""
    return with_interval(interval or (None if value is None else Interval(value)))

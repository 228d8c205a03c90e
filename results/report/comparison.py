"""Builds tables that compare fleets: ratios, samples per dollar, scaling efficiency and communication."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

from results.compare.overall import Answer, answers
from results.compare.pairs import MEANINGS, Comparison, case_label, compare, compare_pair, fleets_of
from results.compare.scaling import Efficiency, efficiencies
from results.digits import significant, with_error, with_interval
from results.grid import Grid
from results.stats import LEVEL, Interval, divided
from results.table.cells import (
    fleet_notes,
    identity_text,
    missing_hosts,
    rate_text,
    value_text,
    warned_notes,
)
from results.table.comparable import cluster_name, cluster_names
from results.table.fleets import FleetRate
from results.table.merge import Merged

MANY = 3
"""Fewest cases with a note on the number expected to be marked by chance."""


def ratio_grids(merged: Merged) -> list[Grid]:
    """Return a table for each pair of fleets with a common case: the later fleet over the earlier one."""
    rates = merged.rates
    grids = []
    for first, second in itertools.combinations(fleets_of(rates), 2):
        found = compare(_of(rates, second), _of(rates, first))
        if any(item.value is not None for item in found):
            grids.append(compare_grid(found, second, first))
    return grids


def compare_grid(
    found: Sequence[Comparison], a: str, b: str, only_a: Sequence[FleetRate] = (), only_b: Sequence[FleetRate] = ()
) -> Grid:
    """Return the ratios of side `a` over side `b`, case by case.

    Args:
        found: The comparisons.
        a: Name of the first side.
        b: Name of the second side.
        only_a: Cases that only the first side tried.
        only_b: Likewise the second side.
    """
    sides = [side for item in found for side in (item.a, item.b)]
    made = answers(found)
    without = {id(item): rest for of in made for item, rest in zip(of.found, of.without, strict=False)}
    rows = [
        [
            item.mark,
            case_label(sides, item.a),
            value_text(item.value, item.interval),
            rate_text(item.a),
            rate_text(item.b),
            value_text(rest.value, rest.interval) if (rest := without.get(id(item))) else "",
            *_per_dollar(item),
            *_per_joule(item),
            _remark(item),
        ]
        for item in found
    ]
    per_dollar_of, per_joule_of = ([f"{side} {unit}" for side in (a, b)] for unit in ("1000/$", "per J"))
    numbers = ["ratio", a, b, "without outliers", *per_dollar_of, "ratio per $", *per_joule_of]
    columns = ["", "case", *(f"{name}>" for name in numbers), "notes"]
    notes, optional = _notes(found, made, sides) if found else [], [*per_joule_of, *per_dollar_of]
    notes += [*_failed(a, sides[::2]), *_failed(b, sides[1::2])]
    notes += [*_only(a, only_a, [*only_a, *only_b]), *_only(b, only_b, [*only_a, *only_b])]
    return Grid(f"{a} / {b}", columns, rows, notes, optional).without_empty_columns()


def scaling_grid(rates: Sequence[FleetRate]) -> Grid | None:
    """Return the scaling efficiency of each fleet; None if there is nothing to scale."""
    found = efficiencies(rates)
    if not found:
        return None
    names = cluster_names(item.rate.case for item in found)
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for item in found:
        label = (item.rate.fleet, case_label([other.baseline for other in found], item.baseline, count=False))
        lines.setdefault(label, {})[cluster_name(item.rate.case)] = _efficiency_text(item)
    rows = [[*label, *(cells.get(name, "") for name in names)] for label, cells in lines.items()]
    notes = ["throughput of N over N × throughput of 1, same settings, ± 95 %"]
    if any(item.rate.case.num_hosts != 1 for item in found):
        notes.append("H×N: N on each of H hosts that train together, relative to 1 on one host")
    if any(item.suspect for item in found):
        notes.append("! above 105 % is impossible: check the baseline")
    sides = [side for item in found for side in (item.rate, item.baseline)]
    notes += [*missing_hosts(sides), *fleet_notes(sides)]
    columns = ["fleet", "case", *(f"{name}>" for name in names)]
    return Grid("Scaling efficiency", columns, rows, notes)


def _of(rates: Sequence[FleetRate], fleet: str) -> list[FleetRate]:
    return [rate for rate in rates if rate.fleet == fleet]


def _per_dollar(item: Comparison) -> list[str]:
    """Format samples per dollar of both sides and their ratio; empty unless both have a price."""
    if item.price_ratio is None:
        return ["", "", ""]
    gain = item.per_dollar
    return [*(_thousands_per_usd(side) for side in (item.a, item.b)), with_interval(gain) if gain else ""]


def _thousands_per_usd(rate: FleetRate) -> str:
    price, interval = rate.usd_per_gpu_hour, rate.interval
    if rate.mean is None or not price:
        return ""
    factor = 3.6 / (price * rate.case.replicas)  # thousands of samples in an hour
    return with_error(rate.mean * factor, interval.half_width * factor if interval else None)


def _per_joule(item: Comparison) -> list[str]:
    """Format samples per joule of GPU energy; empty unless both sides measured it."""
    energies = [side.samples_per_joule for side in (item.a, item.b)]
    if any(energy is None for energy in energies):
        return ["", ""]
    return [value_text(energy.mean, energy.interval()) for energy in energies if energy is not None]


def _remark(item: Comparison) -> str:
    differs = [
        f"{name} {identity_text(name, item.a.named(name))} / {identity_text(name, item.b.named(name))}"
        for name in item.differs
    ]
    return "; ".join(part for part in (item.reason, *differs) if part)


def _failed(side: str, rates: Sequence[FleetRate]) -> list[str]:
    """Return the note on failed repeats of hosts that have a number."""
    found = [
        f"{host} in {case_label(rates, rate)}, {why}"
        for rate in rates
        for host, why in rate.failed.items()
        if host in rate.rates
    ]
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    return [f"failed on {side}: {'; '.join(found[:5])}{more}"] if found else []


def _only(side: str, rates: Sequence[FleetRate], every: Sequence[FleetRate]) -> list[str]:
    """Return the note on the cases that only one side tried, named among all such cases."""
    cases = ", ".join(case_label(every, rate) for rate in rates[:5])
    more = f" and {len(rates) - 5} more" if len(rates) > 5 else ""
    return [f"measured on {side} only: {cases}{more}"] if rates else []


def _notes(found: Sequence[Comparison], made: Sequence[Answer], sides: Sequence[FleetRate]) -> list[str]:
    marks = dict.fromkeys(item.mark for item in found)
    notes = [", ".join(f"{mark} {MEANINGS[mark]}" for mark in marks)]
    for item in made:
        kind = f" ({item.kind})" if len(made) > 1 else ""
        if len(item.found) > 1 or len(made) > 1:
            notes.append(f"{item.cases}: {with_interval(item.ratio)}{kind}")
    compared = sum(item.interval is not None for item in found)
    if compared >= MANY:
        by_chance = significant((1 - LEVEL) * compared, 2)
        notes.append(
            f"{compared} intervals of 95 %: if all cases were equal, about {by_chance} would be marked by chance"
        )
    outliers = dict.fromkeys(outlier.difference for item in made for outlier in item.outliers)
    notes += [f"without outliers: {text}" for text in outliers]
    over = [name for name in ("hosts", "runs", "repeats") if any(side.repeated == name for side in sides if side.rates)]
    how = " host by host" if any(item.paired for item in found) else " by Fieller"
    if compared:
        notes.append(f"ratio ± 95 %{how}, over {' or '.join(over)}")
    notes += missing_hosts(sides)
    notes += warned_notes(sides)
    notes += fleet_notes(sides)
    return notes


def _efficiency_text(item: Efficiency) -> str:
    percent = divided(item.interval, 0.01) if item.interval else None
    return f"{value_text(item.value * 100, percent)} %{' !' if item.suspect else ''}"


def communication_grid(merged: Merged) -> Grid | None:
    """Return the cost of communication; None: no case was measured without all-reduce.

    The share of communication in a step is 1 − throughput with / throughput without all-reduce.
    """
    if merged.apart is None:
        return None
    with_all_reduce = [replace(rate, case=replace(rate.case, all_reduce=True)) for rate in merged.apart.rates]
    wholes = {(rate.fleet, rate.case, rate.software): rate for rate in merged.rates}
    rows = []
    for apart, rate in zip(merged.apart.rates, with_all_reduce, strict=True):
        whole = wholes.get((rate.fleet, rate.case, rate.software))
        known = [
            value
            for row in merged.rows
            if (row.fleet, row.case) == (rate.fleet, rate.case)
            and (value := row.numbers["all_reduce_bytes_per_second"]) is not None
        ]
        rows.append(
            [
                rate.fleet,
                case_label(with_all_reduce, rate),
                rate_text(whole) if whole else "",
                rate_text(apart),
                _share(whole, apart) if whole and whole.rates and apart.rates else "",
                significant(statistics.fmean(known) / 1e9) if known else "",
            ]
        )
    notes = [
        "share of the step: 1 − samples/s with / without all-reduce, ± 95 %; steps without all-reduce train nothing"
    ]
    columns = ["fleet", "case", "with>", "without>", "communication>", "all-reduce GB/s>"]
    return Grid("Communication", columns, rows, notes).without_empty_columns()


def _share(whole: FleetRate, apart: FleetRate) -> str:
    """Format the share of communication in a step, with its 95 % interval."""
    ratio = compare_pair(whole, apart)
    assert ratio.value is not None, "both sides have a number"
    kept, percent = ratio.interval, (1 - ratio.value) * 100
    interval = Interval(percent, (1 - kept.high) * 100, (1 - kept.low) * 100) if kept else None
    return f"{value_text(percent, interval)} %"

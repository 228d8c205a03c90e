"""Tables that put fleets side by side: ratios, marks, scaling, and what a dollar buys."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from results.compare.clusters import cluster_name, cluster_names
from results.compare.cost import per_dollar, price_ratio, samples_per_usd
from results.compare.overall import answers
from results.compare.pairs import MEANINGS, Comparison, case_label, compare, fleets_of
from results.compare.scaling import Efficiency, efficiencies
from results.digits import with_error, with_interval
from results.grid import Grid
from results.table.cells import fleet_notes, identity_text, missing_hosts, rate_text, value_text
from results.table.fleets import FleetRate
from results.table.merge import Merged


def ratio_grids(merged: Merged) -> list[Grid]:
    """Return a table for each pair of fleets that share cases with numbers: the later one over the earlier one."""
    rates = merged.rates
    grids = []
    for first, second in itertools.combinations(fleets_of(rates), 2):
        found = compare(_of(rates, second), _of(rates, first))
        if any(item.value is not None for item in found):
            grids.append(compare_grid(found, second, first))
    return grids


def compare_grid(found: Sequence[Comparison], a: str, b: str, only: Sequence[FleetRate] = ()) -> Grid:
    """Return how fast side `a` is against side `b`, case by case.

    Args:
        found: The comparisons.
        a: What the first side is called.
        b: What the second side is called.
        only: Cases that one side never tried.
    """
    sides = [side for item in found for side in (item.a, item.b)]
    rows = [
        [
            item.mark,
            case_label(sides, item.a),
            rate_text(item.a),
            rate_text(item.b),
            value_text(item.value, item.interval),
            *_per_dollar(item),
            *_per_joule(item),
            _remark(item),
        ]
        for item in found
    ]
    columns = [
        "",
        "case",
        f"{a}>",
        f"{b}>",
        "ratio>",
        f"{a} 1000/$>",
        f"{b} 1000/$>",
        "ratio per $>",
        f"{a} per J>",
        f"{b} per J>",
    ]
    columns += ["also differs"]
    return Grid(f"{a} / {b}", columns, rows, _notes(found, sides, only)).without_empty_columns()


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
    """Write samples per dollar of both sides, where both have a price: one alone would mislead."""
    if price_ratio(item) is None:
        return ["", "", ""]
    gain = per_dollar(item)
    return [*(_thousands_per_usd(side) for side in (item.a, item.b)), with_interval(gain) if gain else ""]


def _thousands_per_usd(rate: FleetRate) -> str:
    value = samples_per_usd(rate)
    if value is None:
        return ""
    half = value.interval.half_width / 1000 if value.interval else None
    return with_error(value.samples_per_usd / 1000, half)


def _per_joule(item: Comparison) -> list[str]:
    """Write samples per joule of GPU board energy, where both sides measured it."""
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


def _notes(found: Sequence[Comparison], sides: Sequence[FleetRate], only: Sequence[FleetRate]) -> list[str]:
    marks = dict.fromkeys(item.mark for item in found)
    notes = [", ".join(f"{mark} {MEANINGS[mark]}" for mark in marks)]
    made = answers(found)
    for item in made:
        kind = f" ({item.kind})" if len(made) > 1 else ""
        if len(item.found) > 1 or len(made) > 1:
            notes.append(f"{item.cases}: {with_interval(item.ratio)}{kind}")
    over = [name for name in ("hosts", "runs", "repeats") if any(side.repeated == name for side in sides if side.rates)]
    how = " host by host" if any(item.paired for item in found) else " by Fieller"
    notes.append(f"ratio ± 95 %{how}, over {' or '.join(over) or 'repeats'}")
    notes += missing_hosts(sides)
    notes += fleet_notes(sides)
    if only:
        cases = ", ".join(case_label(only, rate) for rate in only[:5])
        more = f" and {len(only) - 5} more" if len(only) > 5 else ""
        notes.append(f"measured on one side only: {cases}{more}")
    return notes


def _efficiency_text(item: Efficiency) -> str:
    half = item.interval.half_width * 100 if item.interval else None
    return f"{with_error(item.value * 100, half)} %{' !' if item.suspect else ''}"

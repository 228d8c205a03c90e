"""Builds tables that compare fleets: ratios, samples per dollar, scaling efficiency and communication."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

from results.compare.overall import Answer, answers
from results.compare.pairs import MEANINGS, Comparison, Mark, case_label, compare, compare_pair, fleets_of, mark_of
from results.compare.scaling import Efficiency, efficiencies
from results.digits import significant, with_error, with_interval
from results.grid import Grid
from results.schema import Device, Mode
from results.stats import LEVEL, Interval, divided
from results.table.cells import (
    fleet_notes,
    identity_text,
    missing_hosts,
    price_notes,
    rate_text,
    value_text,
    warned_notes,
)
from results.table.comparable import CLUSTER_COLUMNS, case_name, cluster_name, cluster_names, mode_text
from results.table.fleets import FleetRate
from results.table.merge import Merged
from results.text import counted, enumerated

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


Pair = tuple[str, str, list[Comparison]]
"""Names of the first and the second side, and their comparisons."""

Cell = Callable[[Comparison], str]


def ratio_tables(pairs: Sequence[Pair], yours: Sequence[str] = ()) -> list[Grid]:
    """Return tables with the throughput and, if prices are known, the samples per dollar of fleets over the first one.

    Args:
        pairs: Pairs of fleets; only those with the second side of the first pair are shown.
        yours: Fleets at the user's prices; the others have those of their records.
    """
    shown = [pair for pair in pairs if pair[1] == pairs[0][1]]
    if not any(item.value is not None for _, _, found in shown for item in found):
        return []
    against = f"{shown[0][0]} / {shown[0][1]}" if len(shown) == 1 else f"each fleet / {shown[0][1]}"
    tables = [_table(f"Speed: {against}", shown, _speed, "times as fast")]
    if any(item.per_dollar for _, _, found in shown for item in found):
        priced = [side for _, _, found in shown for item in found for side in (item.a, item.b)]
        given = [name for name in yours if name in fleets_of(priced)]
        origins = [f"at your price of {enumerated(given)}"] if given else []
        origins += ["at the prices that came with the records"] if {*fleets_of(priced)} - {*given} else []
        worth = _table(
            f"Samples per dollar: {against}", shown, _worth, f"times the samples per dollar, {', else '.join(origins)}"
        )
        tables.append(replace(worth, notes=[*worth.notes, *price_notes(priced)]))
    return tables


def _table(title: str, pairs: Sequence[Pair], cell: Cell, meaning: str) -> Grid:
    """Return a row per kind of work, network and pair of fleets, grouped by kind."""
    items = [(f"{a} / {b}" if len(pairs) > 1 else "", item) for a, b, found in pairs for item in found]
    sides = [side for _, item in items for side in (item.a, item.b)]
    kinds: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    for pair, item in sorted(items, key=lambda of: of[1].a.case.mode is not Mode.TRAIN):
        case = item.a.case
        kind = f"{mode_text(case.mode)}, {case.precision}, batch {case.batch_per_gpu}"
        network = case_name(sides, item.a, known=(*CLUSTER_COLUMNS, "mode", "precision", "batch_per_gpu"))
        cells = kinds.setdefault(kind, {}).setdefault(network, {}).setdefault(pair, {})
        cells[cluster_name(case)] = cell(item)
    clusters = cluster_names(side.case for side in sides)
    rows = [
        [kind, network, pair, *(cells.get(name, "") for name in clusters)]
        for kind, networks in kinds.items()
        for network, of_pairs in networks.items()
        for pair, cells in of_pairs.items()
    ]
    device = "CPU" if all(side.case.device is Device.CPU for side in sides) else "GPU"
    columns = ["work", "network", "fleets", *(f"{counted(name, device)}>" for name in clusters)]
    return Grid(title, columns, rows, _table_notes(meaning, [item for _, item in items])).without_empty_columns()


def _speed(item: Comparison) -> str:
    return _marked(item, value_text(item.value, item.interval), item.mark)


def _worth(item: Comparison) -> str:
    gain = item.per_dollar
    mark = mark_of(gain.value, gain if item.interval else None) if gain else item.mark
    return _marked(item, with_interval(gain) if gain else "", mark)


def _marked(item: Comparison, text: str, mark: Mark) -> str:
    """Format a ratio, marked if not significant, or the failure of a side."""
    if item.mark is Mark.NOT_COMPARABLE:
        return str(item.mark)
    if item.mark in (Mark.WORKS, Mark.FAILED):
        side = item.b if item.mark is Mark.WORKS else item.a
        return f"{side.fleet}: {item.reason}"
    return f"{text} {mark}" if text and mark in (Mark.SAME, Mark.UNKNOWN) else text


def _table_notes(meaning: str, items: Sequence[Comparison]) -> list[str]:
    notes = [f"{meaning}, with its 95 % interval; {Mark.SAME} {MEANINGS[Mark.SAME]}"]
    if any(item.mark is Mark.UNKNOWN for item in items):
        notes.append(f"{Mark.UNKNOWN} {MEANINGS[Mark.UNKNOWN]}")
    reasons = dict.fromkeys(item.reason for item in items if item.mark is Mark.NOT_COMPARABLE)
    return [*notes, *(f"{Mark.NOT_COMPARABLE} {MEANINGS[Mark.NOT_COMPARABLE]}: {reason}" for reason in reasons)]


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

"""Tables that put fleets side by side: ratios, marks, scaling, what a dollar buys, what communication costs."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from results.compare.cost import per_dollar, price_ratio, samples_per_usd
from results.compare.overall import Answer, answers
from results.compare.pairs import MEANINGS, Comparison, Mark, case_label, compare, compare_pair, fleets_of
from results.compare.scaling import Efficiency, efficiencies
from results.digits import significant, with_error, with_interval
from results.grid import Grid
from results.schema import Case, Device, Mode
from results.stats import LEVEL, Interval
from results.table.cells import fleet_notes, identity_text, missing_hosts, rate_text, value_text
from results.table.columns import Software
from results.table.comparable import CLUSTER_COLUMNS, case_name, cluster_name, cluster_names, mode_text
from results.table.fleets import FleetRate
from results.table.merge import Merged

MANY = 3
"""Cases from which on a table says how many marks chance gives."""


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
    made = answers(found)
    without = {id(item): rest for of in made for item, rest in zip(of.found, of.without, strict=False)}
    rows = [
        [
            item.mark,
            case_label(sides, item.a),
            rate_text(item.a),
            rate_text(item.b),
            value_text(item.value, item.interval),
            value_text(rest.value, rest.interval) if (rest := without.get(id(item))) else "",
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
        "without outliers>",
        f"{a} 1000/$>",
        f"{b} 1000/$>",
        "ratio per $>",
        f"{a} per J>",
        f"{b} per J>",
    ]
    columns += ["also differs"]
    optional = [f"{side} {unit}" for unit in ("per J", "1000/$") for side in (a, b)]
    return Grid(f"{a} / {b}", columns, rows, _notes(found, made, sides, only), optional).without_empty_columns()


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


def _notes(
    found: Sequence[Comparison], made: Sequence[Answer], sides: Sequence[FleetRate], only: Sequence[FleetRate]
) -> list[str]:
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


Pair = tuple[str, str, list[Comparison]]
"""Names of the first and the second side, and their comparisons."""

Cell = Callable[[Comparison], str]


def ratio_tables(pairs: Sequence[Pair]) -> list[Grid]:
    """Return how fast fleets are against the first one, and what they give per dollar where prices are known.

    Args:
        pairs: Pairs of fleets; where there are several, those whose second side is that of the first pair count.
    """
    shown = [pair for pair in pairs if pair[1] == pairs[0][1]]
    if not any(item.value is not None for _, _, found in shown for item in found):
        return []
    against = f"{shown[0][0]} / {shown[0][1]}" if len(shown) == 1 else f"each fleet / {shown[0][1]}"
    tables = [_table(f"Speed: {against}", shown, _speed, "times as fast")]
    if any(per_dollar(item) for _, _, found in shown for item in found):
        worth = "times the samples per dollar, at the prices that came with the records"
        tables.append(_table(f"Samples per dollar: {against}", shown, _worth, worth))
    return tables


def _table(title: str, pairs: Sequence[Pair], cell: Cell, meaning: str) -> Grid:
    items = [(f"{a} / {b}", item) for a, b, found in pairs for item in found]
    kinds: dict[str, list[tuple[str, Comparison]]] = {}
    for pair, item in sorted(items, key=lambda of: of[1].a.case.mode is not Mode.TRAIN):
        kinds.setdefault(f"{mode_text(item.a.case.mode)}, {item.a.case.precision}", []).append((pair, item))
    sides = [side for _, item in items for side in (item.a, item.b)]
    clusters = cluster_names(side.case for side in sides)
    rows = [row for kind, of in kinds.items() for row in _rows(kind, of, clusters, cell, several=len(pairs) > 1)]
    device = "CPU" if all(side.case.device is Device.CPU for side in sides) else "GPU"
    columns = ["work", "network", *(["fleets"] if len(pairs) > 1 else [])]
    columns += [f"{name} {device}{'' if name == '1' else 's'}>" for name in clusters]
    return Grid(title, columns, rows, _table_notes(meaning, [item for _, item in items]))


def _rows(
    kind: str, items: Sequence[tuple[str, Comparison]], clusters: Sequence[str], cell: Cell, *, several: bool
) -> list[list[str]]:
    """Return the rows of one kind of work, those of a network next to each other."""
    rates = [item.a for _, item in items]
    batches = {rate.case.batch_per_gpu for rate in rates}
    batch = f", batch {batches.pop()}" if len(batches) == 1 else ""
    lines: dict[str, dict[str, dict[str, str]]] = {}
    for pair, item in items:
        network = case_name(rates, item.a, known=CLUSTER_COLUMNS)
        lines.setdefault(network, {}).setdefault(pair, {})[cluster_name(item.a.case)] = cell(item)
    return [
        [f"{kind}{batch}", network, *([pair] if several else []), *(cells.get(name, "") for name in clusters)]
        for network, of in lines.items()
        for pair, cells in of.items()
    ]


def _speed(item: Comparison) -> str:
    return _marked(item, value_text(item.value, item.interval), item.mark is Mark.SAME)


def _worth(item: Comparison) -> str:
    gain = per_dollar(item)
    return _marked(item, with_interval(gain) if gain else "", gain is not None and gain.contains(1.0))


def _marked(item: Comparison, text: str, same: bool) -> str:
    """Write a ratio, marked where it is within the noise; else which side failed and how."""
    if item.mark is Mark.NOT_COMPARABLE:
        return str(item.mark)
    if item.mark in (Mark.WORKS, Mark.FAILED):
        side = item.b if item.mark is Mark.WORKS else item.a
        return f"{side.fleet}: {item.reason}"
    return f"{text} {Mark.SAME}" if text and same else text


def _table_notes(meaning: str, items: Sequence[Comparison]) -> list[str]:
    notes = [f"{meaning}, with its 95 % interval; {Mark.SAME} {MEANINGS[Mark.SAME]}"]
    reasons = dict.fromkeys(item.reason for item in items if item.mark is Mark.NOT_COMPARABLE)
    return [*notes, *(f"{Mark.NOT_COMPARABLE} {MEANINGS[Mark.NOT_COMPARABLE]}: {reason}" for reason in reasons)]


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
        if row.numbers["all_reduce_bytes_per_second"] is not None:
            known[row.fleet, row.case].append(row.numbers["all_reduce_bytes_per_second"])
    return {key: statistics.fmean(values) for key, values in known.items()}


def _percent(item: Share) -> str:
    if item.value is None:
        return ""
    half = item.interval.half_width * 100 if item.interval else None
    return f"{with_error(item.value * 100, half)} %"

"""Builds tables that compare fleets: ratios, samples per dollar, scaling efficiency and communication."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import replace

from results.compare.comparison import MEANINGS, Comparison, compare, compare_pair, fleets_of
from results.compare.means import answers
from results.compare.scaling import Efficiency, efficiencies
from results.number_format import significant, with_interval
from results.stats import LEVEL, Interval, divided, ratio_of_estimates
from results.table.cell_text import (
    fleet_notes,
    identity_text,
    missing_hosts,
    rate_text,
    spread_notes,
    value_text,
    warned_notes,
)
from results.table.comparable import CLUSTER_COLUMNS, case_label, cluster_name, cluster_names
from results.table.fleets import FleetRate
from results.table.merge import Merged
from results.text_table import Grid

MANY = 20
"""Fewest cases with a note on the number marked by chance: at least one."""


Pair = tuple[str, str, list[Comparison]]
"""Names of the first and the second side, and their comparisons."""


def fleet_pairs(rates: Sequence[FleetRate]) -> list[Pair]:
    """Compare each two fleets that share a case, once: the later fleet over the earlier one."""
    sides = {fleet: [rate for rate in rates if rate.fleet == fleet] for fleet in fleets_of(rates)}
    pairs = ((a, b, compare(sides[a], sides[b])) for b, a in itertools.combinations(sides, 2))
    return [pair for pair in pairs if pair[2]]


def ratio_grids(pairs: Sequence[Pair]) -> list[Grid]:
    """Return a table for each pair of fleets with a ratio."""
    return [compare_grid(found, a, b) for a, b, found in pairs if any(item.value is not None for item in found)]


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
    made = [item for item in answers(found) if len(item.found) > 1]
    rows = [
        [item.mark, case_label(item.a, sides), value_text(item.value, item.interval), *ratio_cells(item), _remark(item)]
        for item in found
    ]
    rows += [
        [item.mark, f"mean of {len(item.found)}: {item.kind}", with_interval(item.ratio)] + 4 * [""] for item in made
    ]
    columns = ["", "case", *(f"{name}>" for name in ("ratio", *RATIO_COLUMNS)), "notes"]
    notes = _notes(found, sides) if found else []
    notes += [*_failed(a, sides[::2]), *_failed(b, sides[1::2])]
    notes += [*_only(a, only_a, [*only_a, *only_b]), *_only(b, only_b, [*only_a, *only_b])]
    return Grid(f"{a} / {b}", columns, rows, notes).without_empty_columns()


RATIO_COLUMNS = ("worth up to, USD/h", "per dollar", "per joule")
"""Columns of `ratio_cells`."""


def ratio_cells(item: Comparison) -> tuple[str, str, str]:
    """Return what side `a` is worth, and the ratios of samples per dollar and per joule of GPU energy.

    The price is that of a GPU-hour of `a` up to which its samples cost no more than on `b`. A cell is empty without
    the prices or the energy that it needs.
    """
    if item.value is None:
        return "", "", ""
    price, gain = item.b.usd_per_gpu_hour, item.per_dollar
    worth = divided(item.interval, 1 / price) if price and item.interval else None
    a, b = item.a.samples_per_joule, item.b.samples_per_joule
    joule = ratio_of_estimates(a, b, alike=item.a.repeated == item.b.repeated) if a and b else None
    return (
        value_text(item.value * price, worth) if price else "",
        value_text(gain.value, gain if item.interval else None) if gain else "",
        value_text(joule.value, joule) if joule else "",
    )


def scaling_grid(rates: Sequence[FleetRate]) -> Grid | None:
    """Return the scaling efficiency of each fleet; None if there is nothing to scale."""
    found = efficiencies(rates)
    if not found:
        return None
    names = cluster_names(item.rate.case for item in found)
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for item in found:
        label = (item.rate.fleet, case_label(item.baseline, [other.baseline for other in found], known=CLUSTER_COLUMNS))
        lines.setdefault(label, {})[cluster_name(item.rate.case)] = efficiency_percent(item)[0]
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


def _remark(item: Comparison) -> str:
    differs = [
        f"{name} {identity_text(name, item.a.named(name))} / {identity_text(name, item.b.named(name))}"
        for name in item.differs
    ]
    return "; ".join(part for part in (item.reason, *differs) if part)


def _failed(side: str, rates: Sequence[FleetRate]) -> list[str]:
    """Return the note on failed repeats of hosts that have a number."""
    found = [
        f"{host} in {case_label(rate, rates)}, {why}"
        for rate in rates
        for host, why in rate.failed.items()
        if host in rate.rates
    ]
    more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
    return [f"failed on {side}: {'; '.join(found[:5])}{more}"] if found else []


def _only(side: str, rates: Sequence[FleetRate], every: Sequence[FleetRate]) -> list[str]:
    """Return the note on the cases that only one side tried, named among all such cases."""
    cases = ", ".join(case_label(rate, every) for rate in rates[:5])
    more = f" and {len(rates) - 5} more" if len(rates) > 5 else ""
    return [f"measured on {side} only: {cases}{more}"] if rates else []


def _notes(found: Sequence[Comparison], sides: Sequence[FleetRate]) -> list[str]:
    marks = dict.fromkeys(item.mark for item in found)
    over = [name for name in ("hosts", "runs", "repeats") if any(side.repeated == name for side in sides if side.rates)]
    intervals = f"; 95 % intervals over {' or '.join(over)}" if any(item.interval for item in found) else ""
    notes = [f"{', '.join(f'{mark} {MEANINGS[mark]}' for mark in marks)}{intervals}"]
    if (compared := sum(item.interval is not None for item in found)) >= MANY:
        notes.append(
            f"if all cases were equal, about {significant((1 - LEVEL) * compared, 2)} would be marked by chance"
        )
    return [*notes, *missing_hosts(sides), *warned_notes(sides), *spread_notes(sides)]


def efficiency_percent(item: Efficiency) -> tuple[str, Interval | None]:
    """Return a scaling efficiency in percent, as text and as interval."""
    percent = divided(item.interval, 0.01) if item.interval else None
    return f"{value_text(item.value * 100, percent)} %{' !' if item.suspect else ''}", percent


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
            and (value := row.all_reduce_bytes_per_second) is not None
        ]
        rows.append(
            [
                rate.fleet,
                case_label(rate, with_all_reduce),
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

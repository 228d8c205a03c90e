"""Builds tables that compare fleets: ratios, samples per dollar, scaling efficiency and communication."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from results.compare.comparison import CEILING, MEANINGS, Comparison, compare, compare_pair, efficiencies, mark_of
from results.compare.means import answers
from results.stats import LEVEL, Interval, divided, ratio_of_estimates
from results.table.cell_text import fleet_notes, identity_text, missing_hosts, rate_text, value_text, warned_notes
from results.table.comparable import CLUSTER_COLUMNS, case_label, cluster_name, cluster_names, grouped, of_each_case
from results.table.fleets import FleetRate, fleet_rates
from results.table.merge import Merged
from results.text import shortened, significant, with_interval
from results.text_table import Grid, pivoted

MANY = 20
"""Fewest cases with a note on the number marked by chance: at least one."""

MOST_LISTED = 6
"""Cases in a note."""

Pair = tuple[str, str, list[Comparison]]
"""Names of the first and the second side, and their comparisons."""


def fleet_pairs(rates: Sequence[FleetRate]) -> list[Pair]:
    """Compare each two fleets that share a case, once: the later fleet over the earlier one."""
    sides = grouped((rate.fleet, rate) for rate in rates)
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
    rows = []
    for item in found:
        differs = [
            f"{name} {identity_text(name, item.a.named(name))} / {identity_text(name, item.b.named(name))}"
            for name in item.differs
        ]
        case, ratio = case_label(item.a, sides), value_text(item.value, item.interval)
        rows.append([item.mark, case, ratio, *ratio_cells(item), "; ".join(filter(None, (item.reason, *differs)))])
    for mean in answers(found):
        if len(mean.found) > 1:
            name = f"mean of {len(mean.found)}: {mean.kind}"
            rows.append([mark_of(mean.ratio), name, with_interval(mean.ratio), *4 * [""]])
    columns = ["", "case", *(f"{name}>" for name in ("ratio", *RATIO_COLUMNS)), "notes"]
    notes = _ratio_notes(found, sides) if found else []
    for side, of_side in ((a, sides[::2]), (b, sides[1::2])):
        failed = [
            f"{host} in {case_label(rate, of_side)}, {why}"
            for rate in of_side
            for host, why in rate.failed.items()
            if host in rate.rates
        ]
        notes += [f"failed on {side}: {'; '.join(shortened(failed, MOST_LISTED))}"] if failed else []
    for side, only in ((a, only_a), (b, only_b)):
        cases = [case_label(rate, [*only_a, *only_b]) for rate in only]
        notes += [f"measured on {side} only: {'; '.join(shortened(cases, MOST_LISTED))}"] if cases else []
    return Grid(f"{a} / {b}", columns, rows, notes).without_empty_columns()


def _ratio_notes(found: Sequence[Comparison], sides: Sequence[FleetRate]) -> list[str]:
    marks = ", ".join(f"{mark} {MEANINGS[mark]}" for mark in dict.fromkeys(item.mark for item in found))
    compared = sum(item.interval is not None for item in found)
    notes = [f"{marks}; 95 % intervals over {repeated(sides)}" if compared else marks]
    if compared >= MANY:
        chance = significant((1 - LEVEL) * compared, 2)
        notes.append(f"if all cases were equal, about {chance} would be marked by chance")
    return [*notes, *missing_hosts(sides), *warned_notes(sides), *fleet_notes(sides, single_hosts=False)]


def repeated(rates: Iterable[FleetRate]) -> str:
    """Return what the intervals of rates are over, e.g. `hosts or runs`; empty: there is no interval."""
    over = {rate.repeated for rate in rates if rate.interval is not None}
    return " or ".join(name for name in ("hosts", "runs", "repeats") if name in over)


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
    baselines, cells = of_each_case(item.b for item in found), []
    for item in found:
        percent = divided(item.interval, 0.01) if item.interval else None
        text = f"{value_text((item.value or 0.0) * 100, percent)} %{' !' if _is_suspect(item) else ''}"
        label = (item.a.fleet, case_label(item.b, baselines, known=CLUSTER_COLUMNS))
        cells.append((label, cluster_name(item.a.case), text))
    notes = ["throughput of N over N × throughput of 1, same settings, ± 95 %"]
    if any(item.a.case.num_hosts != 1 for item in found):
        notes.append("H×N: N on each of H hosts that train together, relative to 1 on one host")
    if any(map(_is_suspect, found)):
        notes.append("! above 105 % is impossible: check the baseline")
    sides = [side for item in found for side in (item.a, item.b)]
    names = cluster_names(item.a.case for item in found)
    columns = ["fleet", "case", *(f"{name}>" for name in names)]
    notes += [*missing_hosts(sides), *fleet_notes(sides)]
    return Grid("Scaling efficiency", columns, pivoted(cells, names), notes)


def _is_suspect(efficiency: Comparison) -> bool:
    return efficiency.value is not None and efficiency.value > CEILING


def communication_grid(merged: Merged) -> Grid | None:
    """Return the cost of communication; None: no case was measured without all-reduce.

    The share of communication in a step is 1 − throughput with / throughput without all-reduce.
    """
    wholes = {(rate.fleet, rate.case, rate.software): rate for rate in merged.rates}
    parts = [replace(rate, case=replace(rate.case, all_reduce=True)) for rate in fleet_rates(merged.without_all_reduce)]
    rows = []
    for part in parts:
        whole = wholes.get((part.fleet, part.case, part.software))
        share = _share(whole, part) if whole and whole.rates and part.rates else ""
        of_hosts = [row for row in merged.rows if (row.fleet, row.case) == (part.fleet, part.case)]
        known = [value for row in of_hosts if (value := row.all_reduce_bytes_per_second) is not None]
        bandwidth = significant(statistics.fmean(known) / 1e9) if known else ""
        with_all_reduce = rate_text(whole) if whole else ""
        rows.append([part.fleet, case_label(part, parts), with_all_reduce, rate_text(part), share, bandwidth])
    note = "share of the step: 1 − samples/s with / without all-reduce, ± 95 %; steps without all-reduce train nothing"
    columns = ["fleet", "case", "with>", "without>", "communication>", "all-reduce GB/s>"]
    return Grid("Communication", columns, rows, [note]).without_empty_columns() if rows else None


def _share(whole: FleetRate, part: FleetRate) -> str:
    """Format the share of communication in a step, with its 95 % interval."""
    ratio = compare_pair(whole, part)
    assert ratio.value is not None, "both sides have a number"
    kept, percent = ratio.interval, (1 - ratio.value) * 100
    interval = Interval(percent, (1 - kept.high) * 100, (1 - kept.low) * 100) if kept else None
    return f"{value_text(percent, interval)} %"

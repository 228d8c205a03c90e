"""Builds tables that compare fleets: ratios, samples per dollar and scaling efficiency."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from results.compare.comparison import CEILING, SIGNS, Comparison, compare, efficiencies, mark_of
from results.compare.summary import certain, means_of_kinds
from results.stats import LEVEL, ratio_of_estimates
from results.table.columns import identity_text
from results.table.comparable import CLUSTER_COLUMNS, case_labels, cluster_name, cluster_names, grouped
from results.table.fleets import FleetRate, fleet_notes, missing_hosts, warned_notes
from results.text import shortened, significant, with_interval
from results.text_table import Grid, grid_of, pivoted

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
    return [compare_grid(found, a, b) for a, b, found in pairs if any(item.ratio for item in found)]


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
    labels, rows = case_labels(item.a.case for item in found), list[dict[str, str]]()
    for item in found:
        differs = [
            f"{name} {identity_text(name, item.a.named(name))} / {identity_text(name, item.b.named(name))}"
            for name in item.differs
        ]
        row = {"": SIGNS[item.mark], "case": labels[item.a.case], "ratio>": with_interval(item.ratio)}
        rows.append({**row, **ratio_cells(item), "notes": "; ".join(filter(None, (item.reason, *differs)))})
    for kind, (mean, count) in means_of_kinds(found).items():
        if count > 1:
            rows.append({"": SIGNS[mark_of(mean)], "case": f"mean of {count}: {kind}", "ratio>": with_interval(mean)})
    notes = _ratio_notes(found) if found else []
    alone = case_labels(rate.case for rate in (*only_a, *only_b))
    for side, of_side, only in ((a, [item.a for item in found], only_a), (b, [item.b for item in found], only_b)):
        failed = [(rate, host, why) for rate in of_side for host, why in rate.failed.items() if host in rate.rates]
        places = [f"{host} in {labels[rate.case]}, {why}" for rate, host, why in failed]
        texts = {f"failed on {side}": places, f"measured on {side} only": [alone[rate.case] for rate in only]}
        notes += [f"{what}: {'; '.join(shortened(of, MOST_LISTED))}" for what, of in texts.items() if of]
    return grid_of(f"{a} / {b}", rows, notes)


def _ratio_notes(found: Sequence[Comparison]) -> list[str]:
    sides = [side for item in found for side in (item.a, item.b)]
    marks = ", ".join(f"{SIGNS[mark]} {mark}" for mark in dict.fromkeys(item.mark for item in found))
    compared = len(certain(found))
    notes = [f"{marks}; 95 % intervals over {repeated(sides)}" if compared else marks]
    if compared >= MANY:
        chance = significant((1 - LEVEL) * compared, 2)
        notes.append(f"if all cases were equal, about {chance} would be marked by chance")
    return [*notes, *missing_hosts(sides), *warned_notes(sides), *fleet_notes(sides, single_hosts=False)]


def repeated(rates: Iterable[FleetRate]) -> str:
    """Return what the intervals of rates are over, e.g. `hosts or runs`; empty: there is no interval."""
    over = {rate.estimate.over for rate in rates if rate.estimate is not None}
    return " or ".join(name for name in ("hosts", "runs", "repeats") if name in over)


def ratio_cells(item: Comparison) -> dict[str, str]:
    """Return what side `a` is worth, and the ratios of samples per dollar and per joule of GPU energy.

    The price is that of a GPU-hour of `a` up to which its samples cost no more than on `b`. A cell is empty without
    the prices or the energy that it needs.
    """
    ratio, price = item.ratio, item.b.usd_per_gpu_hour
    a, b = item.a.samples_per_joule, item.b.samples_per_joule
    return {
        "worth up to, USD/h>": with_interval(ratio.divided(1 / price) if ratio and price else None),
        "per dollar>": with_interval(item.per_dollar),
        "per joule>": with_interval(ratio_of_estimates(a, b) if ratio and a and b else None),
    }


def scaling_grid(rates: Sequence[FleetRate]) -> Grid | None:
    """Return the scaling efficiency of each fleet; None if there is nothing to scale."""
    found = efficiencies(rates)
    if not found:
        return None
    labels, cells = case_labels((item.b.case for item in found), known=CLUSTER_COLUMNS), []
    for item in found:
        percent = item.ratio and item.ratio.divided(0.01)
        text = f"{with_interval(percent)} %{' !' if _is_suspect(item) else ''}"
        label = {"fleet": item.a.fleet, "case": labels[item.b.case]}
        cells.append((label, f"{cluster_name(item.a.case)}>", text))
    notes = ["throughput of N over N × throughput of 1, same settings, ± 95 %"]
    if any(item.a.case.num_hosts != 1 for item in found):
        notes.append("H×N: N on each of H hosts that train together, relative to 1 on one host")
    if any(map(_is_suspect, found)):
        notes.append("! above 105 % is impossible: check the baseline")
    sides = [side for item in found for side in (item.a, item.b)]
    columns = [f"{name}>" for name in cluster_names(item.a.case for item in found)]
    return grid_of("Scaling efficiency", pivoted(cells, columns), [*notes, *missing_hosts(sides), *fleet_notes(sides)])


def _is_suspect(efficiency: Comparison) -> bool:
    return efficiency.ratio is not None and efficiency.ratio.value > CEILING

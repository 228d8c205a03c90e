"""The table that a comparison is read from: network by number of GPUs, with the ratio of two fleets in each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from results.compare.clusters import CLUSTER_COLUMNS, cluster_name, cluster_names
from results.compare.cost import per_dollar
from results.compare.pairs import MEANINGS, Comparison, Mark
from results.digits import with_interval
from results.grid import Grid
from results.schema import Device, Mode
from results.table.case_names import case_name
from results.table.cells import value_text
from results.table.comparable import mode_text

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
    return Grid(title, columns, rows, _notes(meaning, [item for _, item in items]))


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


def _notes(meaning: str, items: Sequence[Comparison]) -> list[str]:
    notes = [f"{meaning}, with its 95 % interval; {Mark.SAME} {MEANINGS[Mark.SAME]}"]
    reasons = dict.fromkeys(item.reason for item in items if item.mark is Mark.NOT_COMPARABLE)
    return [*notes, *(f"{Mark.NOT_COMPARABLE} {MEANINGS[Mark.NOT_COMPARABLE]}: {reason}" for reason in reasons)]

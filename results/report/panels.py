"""Builds the report's panels: tables of a value for each case and fleet, in which each value has a bar.

The page draws bars as inline SVG, which needs no chart library and wraps like text.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from results.compare.comparison import SIGNS, Comparison, Mark
from results.report.comparison import Pair, ratio_cells
from results.schema import Mode
from results.stats import Interval
from results.table.comparable import case_labels, grouped
from results.table.fleets import FleetRate, price_notes, rate_text
from results.text import with_interval
from results.text_table import Grid, grid_of


@dataclass(frozen=True)
class Panel(Grid):
    """A table whose rows have bars on one axis; columns: case, fleet, value, further ones.

    Attributes:
        name: Id of the section.
        bars: Value of each row with its interval, whose ends are the value if unknown; None: the value is missing.
        reference: Value of the dashed line; None: there is no line, and bars start at 0.
    """

    name: str = ""
    bars: Sequence[Interval | None] = ()
    reference: float | None = None

    @cached_property
    def axis(self) -> tuple[float, float]:
        """The values at both ends of the axis."""
        ends = [end for bar in self.bars if bar for end in (bar.value, bar.low, bar.high) if math.isfinite(end)]
        ends.append(self.reference or 0.0)
        margin = 0.03 * (max(ends) - min(ends))
        return (0.0 if self.reference is None else min(ends) - margin), max(ends) + margin

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, in percent of its width."""
        start, stop = self.axis
        return round(min(max(100 * (value - start) / ((stop - start) or 1.0), 0.0), 100.0), 2)

    @property
    def is_of_one(self) -> bool:
        """Whether all rows are of one fleet, each of another case, so that its name says nothing."""
        return len({row[1] for row in self.rows}) == 1 and len({row[0] for row in self.rows}) == len(self.rows)


Row = tuple[str, str, Mapping[str, str], Interval | None]
"""Case, fleet, texts by heading, and the bar; see `Panel`."""


def _panel(
    name: str, title: str, rows: Iterable[Row], notes: Sequence[str] = (), reference: float | None = None
) -> Panel:
    """Return a panel with the rows of a case next to each other, which may be in any order of cases."""
    ordered = list(itertools.chain(*grouped((row[0], row) for row in rows).values()))
    grid = grid_of(title, [{"case": case, "fleet": fleet, **texts} for case, fleet, texts, _ in ordered], notes)
    bars = [bar for *_, bar in ordered]
    return Panel(title, grid.columns, grid.rows, notes, name=name, bars=bars, reference=reference)


def ratio_panel(pairs: Sequence[Pair], yours: Iterable[str] = ()) -> Panel:
    """Return the ratios of fleets over another one, case by case; without rows if there is no ratio.

    Args:
        pairs: Comparisons with one second side.
        yours: Fleets at the user's prices; the others have those of their records.
    """
    items = [item for _, _, compared in pairs for item in compared]
    items.sort(key=lambda item: item.a.case.mode is not Mode.TRAIN)
    labels = case_labels(item.a.case for item in items)
    rows = [(labels[item.a.case], item.a.fleet, _ratio(item), _bar(item.ratio)) for item in items]
    title = f"{pairs[0][0] if len(pairs) == 1 else 'Each fleet'} / {pairs[0][1]}" if pairs else ""
    known = rows if any(item.ratio for item in items) else []
    return _panel("ratio", title, known, _ratio_notes(items, yours), 1.0)


def _ratio(item: Comparison) -> dict[str, str]:
    """Return the texts of a comparison, or the failure of a side."""
    text = with_interval(item.ratio)
    if item.mark in (Mark.SAME, Mark.UNKNOWN):
        text = f"{text} {SIGNS[item.mark]}"
    elif item.mark in (Mark.FAILED, Mark.WORKS):
        text = f"{(item.b if item.mark is Mark.WORKS else item.a).fleet}: {item.reason}"
    return {"times as fast>": text or SIGNS[item.mark], **ratio_cells(item)}


def _ratio_notes(items: Sequence[Comparison], yours: Iterable[str]) -> list[str]:
    sides = [side for item in items for side in (item.a, item.b)]
    notes = [f"with 95 % intervals; the dashed line is equal speed; {SIGNS[Mark.SAME]} {Mark.SAME}"]
    if any(item.mark is Mark.UNKNOWN for item in items):
        notes.append(f"{SIGNS[Mark.UNKNOWN]} {Mark.UNKNOWN}")
    reasons = dict.fromkeys(item.reason for item in items if item.mark is Mark.NOT_COMPARABLE)
    notes += [f"{SIGNS[Mark.NOT_COMPARABLE]} {Mark.NOT_COMPARABLE}: {reason}" for reason in reasons]
    prices = {side.fleet: side.usd_per_gpu_hour for side in sides if side.usd_per_gpu_hour}
    texts = [f"{fleet} {usd:g}{' (your price)' if fleet in yours else ''}" for fleet, usd in prices.items()]
    return [*notes, *([f"USD per GPU-hour: {', '.join(texts)}"] if prices else []), *price_notes(sides)]


def rate_panels(rates: Sequence[FleetRate]) -> list[Panel]:
    """Return the panels of throughput and energy, one for each unit, and of utilisation, that have rows."""
    labels, units = case_labels(rate.case for rate in rates), {of.case.model: of.unit for of in rates if of.unit}
    ordered = sorted(rates, key=lambda rate: (rate.case.mode is not Mode.TRAIN, rate.case.model))
    speeds, energies = dict[str, list[Row]](), dict[str, list[Row]]()
    for rate, unit in ((rate, units[rate.case.model]) for rate in ordered if rate.case.model in units):
        row = labels[rate.case], rate.fleet
        speeds.setdefault(unit, []).append((*row, {f"{unit}/s>": rate_text(rate)}, _bar(rate.interval or rate.mean)))
        if rate.samples_per_joule is not None:
            energy = rate.samples_per_joule.interval()
            energies.setdefault(unit, []).append((*row, {f"{unit}/J>": with_interval(energy)}, energy))
    shares = [(labels[rate.case], rate.fleet, *used) for rate in ordered if (used := _utilisation(rate))[0]]
    utilisation = _panel("utilisation", "Utilisation, share of measured peaks", shares, [TRAFFIC])
    return [
        *(_panel(f"speed-{unit}", f"Speed, {unit} per second", rows) for unit, rows in speeds.items()),
        *([utilisation] if shares else []),
        *(_panel(f"energy-{unit}", f"Energy, {unit} per joule of the GPUs", rows) for unit, rows in energies.items()),
    ]


TRAFFIC = "bandwidth: of unfused traffic, so fusion or caches may exceed 100 %; near 100 % of either, it sets the speed"


def _utilisation(rate: FleetRate) -> tuple[dict[str, str], Interval | None]:
    """Return the texts of the mean shares of peak FLOP/s and of bandwidth that are known, and the bar of the first."""
    shares = [[getattr(row, f"{of}_utilisation") for row in rate.rows] for of in ("flops", "bandwidth")]
    known = [[share for share in of_rows if share is not None] for of_rows in shares]
    flops, bandwidth = (statistics.fmean(of_rows) if of_rows else None for of_rows in known)
    values = {"of peak FLOP/s>": flops, "of bandwidth>": bandwidth}
    return {name: f"{100 * share:.0f} %" for name, share in values.items() if share is not None}, _bar(flops)


def _bar(quantity: Interval | float | None) -> Interval | None:
    """Return the bar of a value, whose interval may be unknown; see `Panel`."""
    if isinstance(quantity, Interval) and not quantity.known:
        quantity = quantity.value
    return Interval(quantity, quantity, quantity) if isinstance(quantity, float) else quantity

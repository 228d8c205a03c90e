"""Builds the report's panels: tables of a value for each case and fleet, in which each value has a bar.

The page draws bars as inline SVG, which needs no chart library and wraps like text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from results.compare.comparison import MEANINGS, Comparison, Mark
from results.report.comparison import RATIO_COLUMNS, Pair, ratio_cells
from results.schema import Mode
from results.stats import Interval
from results.table.cell_text import price_notes, rate_text, value_text
from results.table.comparable import case_label, grouped, of_each_case
from results.table.fleets import UTILISATION, FleetRate
from results.text_table import Grid


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


Figures = tuple[Sequence[str], Interval | None]
"""Texts of a value and of further columns, and the bar; see `Panel`."""

Row = tuple[str, str, Figures]
"""Case, fleet and figures."""


def _panel(name: str, title: str, columns: Sequence[str], rows: Iterable[Row], notes: Sequence[str] = ()) -> Panel:
    """Return a panel with the rows of a case next to each other.

    Args:
        name: See `Panel`.
        title: Heading of the section; the list of sections shows it up to its comma.
        columns: Headings of the value and of further columns.
        rows: In any order of cases.
        notes: Lines below the panel.
    """
    ordered = list(itertools.chain(*grouped((row[0], row) for row in rows).values()))
    texts = [[case, fleet, *cells] for case, fleet, (cells, _) in ordered]
    bars = [bar for _, _, (_, bar) in ordered]
    headings = ["case", "fleet", *(f"{column}>" for column in columns)]
    return Panel(title, headings, texts, notes, name=name, bars=bars).without_empty_columns()


def ratio_panel(pairs: Sequence[Pair], yours: Iterable[str] = ()) -> Panel:
    """Return the ratios of fleets over another one, case by case; without rows if there is no ratio.

    Args:
        pairs: Comparisons with one second side.
        yours: Fleets at the user's prices; the others have those of their records.
    """
    items = [item for _, _, compared in pairs for item in compared]
    items.sort(key=lambda item: item.a.case.mode is not Mode.TRAIN)
    sides = [side for item in items for side in (item.a, item.b)]
    cases = of_each_case(sides)
    rows = [(case_label(item.a, cases), item.a.fleet, _ratio(item)) for item in items]
    title = f"{pairs[0][0] if len(pairs) == 1 else 'Each fleet'} / {pairs[0][1]}" if pairs else ""
    known = rows if any(item.value is not None for item in items) else []
    panel = _panel("ratio", title, ["times as fast", *RATIO_COLUMNS], known, _ratio_notes(items, sides, yours))
    return replace(panel, reference=1.0)


def _ratio(item: Comparison) -> Figures:
    """Return the figures of a comparison, or the failure of a side."""
    text = value_text(item.value, item.interval)
    if item.mark in (Mark.SAME, Mark.UNKNOWN):
        text = f"{text} {item.mark}"
    elif item.mark in (Mark.FAILED, Mark.WORKS):
        text = f"{(item.b if item.mark is Mark.WORKS else item.a).fleet}: {item.reason}"
    return [text or str(item.mark), *ratio_cells(item)], _bar(item.value, item.interval)


def _ratio_notes(items: Sequence[Comparison], sides: Sequence[FleetRate], yours: Iterable[str]) -> list[str]:
    notes = [f"with 95 % intervals; the dashed line is equal speed; {Mark.SAME} {MEANINGS[Mark.SAME]}"]
    if any(item.mark is Mark.UNKNOWN for item in items):
        notes.append(f"{Mark.UNKNOWN} {MEANINGS[Mark.UNKNOWN]}")
    reasons = dict.fromkeys(item.reason for item in items if item.mark is Mark.NOT_COMPARABLE)
    notes += [f"{Mark.NOT_COMPARABLE} {MEANINGS[Mark.NOT_COMPARABLE]}: {reason}" for reason in reasons]
    prices = {side.fleet: side.usd_per_gpu_hour for side in sides if side.usd_per_gpu_hour}
    texts = [f"{fleet} {usd:g}{' (your price)' if fleet in yours else ''}" for fleet, usd in prices.items()]
    return [*notes, *([f"USD per GPU-hour: {', '.join(texts)}"] if prices else []), *price_notes(sides)]


def rate_panels(rates: Sequence[FleetRate]) -> list[Panel]:
    """Return the panels of throughput and energy, one for each unit, and of utilisation, that have rows."""
    units, cases = {rate.case.model: rate.unit for rate in rates if rate.unit}, of_each_case(rates)
    ordered = sorted(rates, key=lambda rate: (rate.case.mode is not Mode.TRAIN, rate.case.model))
    of_units = grouped((unit, rate) for rate in ordered if (unit := units.get(rate.case.model)))

    def rows(of_unit: Iterable[FleetRate], read: Callable[[FleetRate], Figures | None]) -> list[Row]:
        return [(case_label(rate, cases), rate.fleet, found) for rate in of_unit if (found := read(rate))]

    columns = ["of peak FLOP/s", "of bandwidth"]
    panels = [
        *(
            _panel(f"speed-{unit}", f"Speed, {unit} per second", [f"{unit}/s"], rows(of_unit, _speed))
            for unit, of_unit in of_units.items()
        ),
        _panel("utilisation", "Utilisation, share of measured peaks", columns, rows(ordered, _utilisation), [TRAFFIC]),
        *(
            _panel(f"energy-{unit}", f"Energy, {unit} per joule of the GPUs", [f"{unit}/J"], rows(of_unit, _energy))
            for unit, of_unit in of_units.items()
        ),
    ]
    return [panel for panel in panels if panel.rows]


TRAFFIC = "bandwidth: of unfused traffic, so fusion or caches may exceed 100 %; near 100 % of either, it sets the speed"


def _speed(rate: FleetRate) -> Figures:
    """Return the throughput, or the status of a case that failed."""
    return [rate_text(rate)], _bar(rate.mean, rate.interval)


def _utilisation(rate: FleetRate) -> Figures | None:
    """Return the shares of peak FLOP/s and of bandwidth; None: no peaks were measured."""
    shares = [rate.utilisation.get(name) for name in UTILISATION]
    texts = ["" if share is None else f"{100 * share:.0f} %" for share in shares]
    return None if shares[0] is None else (texts, _bar(shares[0]))


def _energy(rate: FleetRate) -> Figures | None:
    """Return the samples per joule; None: unknown."""
    interval = rate.samples_per_joule.interval() if rate.samples_per_joule else None
    return ([value_text(interval.value, interval)], interval) if interval else None


def _bar(value: float | None, interval: Interval | None = None) -> Interval | None:
    """Return the bar of a value, whose interval may be unknown; see `Panel`."""
    return interval or (None if value is None else Interval(value, value, value))

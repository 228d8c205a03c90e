"""Builds the report's panels: tables of a value for each case and fleet, in which each value has a bar.

The page draws bars as inline SVG, which needs no chart library and wraps like text; Markdown prints the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from results.compare.comparison import MEANINGS, Comparison, Mark, efficiencies
from results.report.comparison import RATIO_COLUMNS, Pair, efficiency_percent, ratio_cells
from results.schema import Mode
from results.stats import Interval
from results.table.cell_text import price_notes, rate_text, value_text
from results.table.comparable import CLUSTER_COLUMNS, case_label, cluster_name, of_each_case
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

    @property
    def shown(self) -> Panel:
        """The table as text: without the column of fleets if it says nothing."""
        return self.only([at for at, _ in enumerate(self.columns) if at != 1]) if self.is_of_one else self

    def first(self, count: int) -> Panel:
        """Return the panel with its first rows and bars."""
        return replace(super().first(count), bars=self.bars[:count])


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
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row[0], []).append(row)
    ordered = [row for of_case in cases.values() for row in of_case]
    texts = [[case, fleet, *cells] for case, fleet, (cells, _) in ordered]
    bars = [bar for _, _, (_, bar) in ordered]
    headings = ["case", "fleet", *(f"{column}>" for column in columns)]
    return Panel(title, headings, texts, notes, name=name, bars=bars).without_empty_columns()


def report_panels(rates: Sequence[FleetRate], pairs: Sequence[Pair], yours: Iterable[str]) -> list[Panel]:
    """Return the panels of a report that have rows, in their order: ratios, rates, scaling.

    Args:
        rates: Measured throughputs.
        pairs: Comparisons of each two fleets.
        yours: Fleets at the user's prices; the others have those of their records.
    """
    return [panel for panel in (ratio_panel(pairs, yours), *rate_panels(rates), scaling_panel(rates)) if panel.rows]


def leading_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the comparisons with the first fleet that shares a case with another."""
    return [pair for pair in pairs if pair[1] == pairs[0][1]]


def ratio_panel(pairs: Sequence[Pair], yours: Iterable[str] = ()) -> Panel:
    """Return the ratios of fleets over the first one, case by case; without rows if there is no ratio.

    Args:
        pairs: Pairs of fleets; only those with the second side of the first pair are shown.
        yours: See `report_panels`.
    """
    leading = leading_pairs(pairs)
    items = [item for _, _, compared in leading for item in compared]
    items.sort(key=lambda item: item.a.case.mode is not Mode.TRAIN)
    sides = [side for item in items for side in (item.a, item.b)]
    cases = of_each_case(sides)
    rows = [(case_label(item.a, cases), item.a.fleet, _ratio(item)) for item in items]
    title = "" if not rows else f"{leading[0][0] if len(leading) == 1 else 'Each fleet'} / {leading[0][1]}"
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
    """Return panels of throughput, utilisation and energy; for each unit one, if its name is in the title."""
    units, cases, panels = {rate.case.model: rate.unit for rate in rates if rate.unit}, of_each_case(rates), []
    ordered = sorted(rates, key=lambda rate: (rate.case.mode is not Mode.TRAIN, rate.case.model))
    for (name, title, *columns), read, notes in RATE_PANELS:
        rows: dict[tuple[str, ...], list[Row]] = {}
        for rate in ordered:
            figures, unit = read(rate), units.get(rate.case.model)
            if figures and unit:
                heading = tuple(text.format(unit=unit) for text in (name, title, *columns))
                rows.setdefault(heading, []).append((case_label(rate, cases), rate.fleet, figures))
        panels += [_panel(heading[0], heading[1], heading[2:], of_unit, notes) for heading, of_unit in rows.items()]
    return panels


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


TRAFFIC = "bandwidth: of unfused traffic, so fusion or caches may exceed 100 %; near 100 % of either, it sets the speed"

RATE_PANELS = (
    (("speed-{unit}", "Speed, {unit} per second", "{unit}/s"), _speed, ()),
    (
        ("utilisation", "Utilisation, share of measured peaks", "of peak FLOP/s", "of bandwidth"),
        _utilisation,
        (TRAFFIC,),
    ),
    (("energy-{unit}", "Energy, {unit} per joule of the GPUs", "{unit}/J"), _energy, ()),
)
"""Name, title and columns of each panel of rates; the function that reads a rate; notes."""


def scaling_panel(rates: Sequence[FleetRate]) -> Panel:
    """Return the scaling efficiency of cases on several GPUs."""
    rows, found = [], efficiencies(rates)
    baselines = of_each_case(item.baseline for item in found)
    for item in found:
        case = case_label(item.baseline, baselines, known=CLUSTER_COLUMNS)
        text, interval = efficiency_percent(item)
        name = f"{case}, {cluster_name(item.rate.case)} {item.rate.case.device.upper()}s"
        rows.append((name, item.rate.fleet, ([text], _bar(100 * item.value, interval))))
    note = "throughput of N over N × throughput of 1; the dashed line is perfect scaling"
    return replace(_panel("scaling", "Scaling", ["efficiency"], rows, [note]), reference=100.0)


def _bar(value: float | None, interval: Interval | None = None) -> Interval | None:
    """Return the bar of a value, whose interval may be unknown; see `Panel`."""
    return interval or (None if value is None else Interval(value, value, value))

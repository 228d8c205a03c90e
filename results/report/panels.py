"""Builds the report's panels: tables of a value for each case and fleet, in which each value has a bar.

The page draws bars as inline SVG, which needs no chart library and wraps like text; Markdown prints the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from results.compare.comparison import MEANINGS, Comparison, Mark
from results.compare.scaling import efficiencies
from results.report.comparison import RATIO_COLUMNS, Pair, efficiency_percent, ratio_cells
from results.schema import Mode
from results.stats import Interval
from results.table.cell_text import price_notes, rate_text, value_text
from results.table.comparable import CLUSTER_COLUMNS, case_label, cluster_name
from results.table.fleets import UTILISATION, FleetRate
from results.text_table import Grid


@dataclass(frozen=True)
class Bar:
    """The drawing of a value.

    Attributes:
        value: Its length.
        interval: The 95 % interval; None: unknown.
        colour: Number of the fleet's colour.
    """

    value: float
    interval: Interval | None
    colour: int


@dataclass(frozen=True)
class Panel(Grid):
    """A table whose rows have bars on one axis; columns: case, fleet unless there is one, value, further ones.

    Attributes:
        name: Id of the section.
        bars: Of each row; None: its value is missing.
        reference: Value of the dashed line; None: there is no line, and bars start at 0.
    """

    name: str = ""
    bars: Sequence[Bar | None] = ()
    reference: float | None = None

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, in percent of its width."""
        ends = [self.reference or 0.0]
        for bar in self.bars:
            if bar is not None:
                interval = bar.interval or Interval(bar.value, bar.value, bar.value)
                ends += filter(math.isfinite, (bar.value, interval.low, interval.high))
        margin = 0.03 * (max(ends) - min(ends))
        start, stop = (min(ends) - margin if self.reference is not None else 0.0), max(ends) + margin
        return round(min(max(100 * (value - start) / ((stop - start) or 1.0), 0.0), 100.0), 2)

    def first(self, count: int) -> Panel:
        """Return the panel with its first rows and bars."""
        return replace(super().first(count), bars=self.bars[:count])


Row = tuple[list[str], Bar | None]
"""Case, fleet, value and further cells of a row, and its bar."""


def _panel(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Row],
    notes: Sequence[str] = (),
    reference: float | None = None,
) -> Panel:
    """Return a panel with the rows of a case next to each other.

    Args:
        name: See `Panel`.
        title: Heading of the section; the list of sections shows it up to its comma.
        columns: Headings of the value and of further columns.
        rows: In any order of cases.
        notes: Lines below the panel.
        reference: See `Panel`.
    """
    cases = [*dict.fromkeys(cells[0] for cells, _ in rows)]
    ordered = sorted(rows, key=lambda row: cases.index(row[0][0]))
    texts, bars = [cells for cells, _ in ordered], [bar for _, bar in ordered]
    headings = ["case", "fleet", *(f"{column}>" for column in columns)]
    panel = Panel(title, headings, texts, notes, name=name, bars=bars, reference=reference).without_empty_columns()
    one = len({cells[1] for cells in texts}) == 1 and len(cases) == len(texts)
    return panel.only([at for at, _ in enumerate(panel.columns) if at != 1]) if one else panel


def leading_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the comparisons with the first fleet that shares a case with another."""
    return [pair for pair in pairs if pair[1] == pairs[0][1]]


def ratio_panel(pairs: Sequence[Pair], yours: Sequence[str] = ()) -> Panel | None:
    """Return the ratios of fleets over the first one, case by case; None: there is no ratio.

    Args:
        pairs: Pairs of fleets; only those with the second side of the first pair are shown.
        yours: Fleets at the user's prices; the others have those of their records.
    """
    shown = leading_pairs(pairs)
    items = [(a, at, item) for at, (a, _, found) in enumerate(shown) for item in found]
    if not any(item.value is not None for _, _, item in items):
        return None
    items.sort(key=lambda of: of[2].a.case.mode is not Mode.TRAIN)
    sides = [side for _, _, item in items for side in (item.a, item.b)]
    title = f"{shown[0][0]} / {shown[0][1]}" if len(shown) == 1 else f"Each fleet / {shown[0][1]}"
    rows = [_ratio_row(case_label(item.a, sides), label, at, item) for label, at, item in items]
    notes = _ratio_notes([item for _, _, item in items], sides, yours)
    return _panel("ratio", title, ["times as fast", *RATIO_COLUMNS], rows, notes, reference=1.0)


def speed_panels(rates: Sequence[FleetRate]) -> list[Panel]:
    """Return a panel of throughputs for each unit; failed cases show their status."""
    panels = []
    for unit in dict.fromkeys(rate.unit for rate in rates if rate.unit):
        models = {rate.case.model for rate in rates if rate.unit == unit}
        rows = _rows(
            rates,
            [rate for rate in rates if rate.case.model in models],
            lambda rate: ([rate_text(rate)], rate.mean, rate.interval),
        )
        panels.append(_panel(f"speed-{unit}", f"Speed, {unit} per second", [f"{unit}/s"], rows))
    return panels


def energy_panels(rates: Sequence[FleetRate]) -> list[Panel]:
    """Return a panel of samples per joule of GPU energy for each unit."""

    def figures(rate: FleetRate) -> Figures:
        assert rate.samples_per_joule is not None, "only these are shown"
        interval = rate.samples_per_joule.interval()
        return [value_text(interval.value, interval)], interval.value, interval

    panels = []
    known = [rate for rate in rates if rate.samples_per_joule]
    for unit in dict.fromkeys(rate.unit for rate in known if rate.unit):
        rows = _rows(rates, [rate for rate in known if rate.unit == unit], figures)
        panels.append(_panel(f"energy-{unit}", f"Energy, {unit} per joule of the GPUs", [f"{unit}/J"], rows))
    return panels


def utilisation_panel(rates: Sequence[FleetRate]) -> Panel | None:
    """Return the share of each device's peak FLOP/s, with that of its bandwidth; None: no peaks were measured."""
    flops, bandwidth = UTILISATION

    def figures(rate: FleetRate) -> Figures:
        shares = [rate.utilisation.get(name) for name in (flops, bandwidth)]
        return ["" if share is None else f"{share:.0%}".replace("%", " %") for share in shares], shares[0], None

    rows = _rows(rates, [rate for rate in rates if flops in rate.utilisation], figures)
    note = (
        "bandwidth: of unfused traffic, so fusion or caches may exceed 100 %; near 100 % of either, it sets the speed"
    )
    title = "Utilisation, share of measured peaks"
    return _panel("utilisation", title, ["of peak FLOP/s", "of bandwidth"], rows, [note]) if rows else None


def scaling_panel(rates: Sequence[FleetRate]) -> Panel | None:
    """Return the scaling efficiency of cases on several GPUs; None: no case has several counts."""
    found, colours, rows = efficiencies(rates), _colours(rates), list[Row]()
    for item in found:
        case = case_label(item.baseline, [other.baseline for other in found], known=CLUSTER_COLUMNS)
        name = f"{case}, {cluster_name(item.rate.case)} {item.rate.case.device.upper()}s"
        text, interval = efficiency_percent(item)
        rows.append(([name, item.rate.fleet, text], Bar(100 * item.value, interval, colours[item.rate.fleet])))
    note = "throughput of N over N × throughput of 1; the dashed line is perfect scaling"
    return _panel("scaling", "Scaling", ["efficiency"], rows, [note], reference=100.0) if rows else None


Figures = tuple[list[str], float | None, Interval | None]
"""The cells of a rate, the value to draw if there is one, and its interval."""


def _rows(rates: Sequence[FleetRate], shown: Sequence[FleetRate], figures: Callable[[FleetRate], Figures]) -> list[Row]:
    """Return the rows of the shown rates, training first, by network; all rates decide on names and colours."""
    colours, rows = _colours(rates), list[Row]()
    for rate in sorted(shown, key=lambda rate: (rate.case.mode is not Mode.TRAIN, rate.case.model)):
        cells, value, interval = figures(rate)
        bar = None if value is None else Bar(value, interval, colours[rate.fleet])
        rows.append(([case_label(rate, rates), rate.fleet, *cells], bar))
    return rows


def _colours(rates: Iterable[FleetRate]) -> dict[str, int]:
    """Return the number of each fleet's colour."""
    return {fleet: at for at, fleet in enumerate(dict.fromkeys(rate.fleet for rate in rates))}


def _ratio_row(case: str, label: str, colour: int, item: Comparison) -> Row:
    """Return the row of a comparison: its ratio, or the failure of a side."""
    if item.value is None:
        side = item.b if item.mark is Mark.WORKS else item.a
        text = str(item.mark) if item.mark is Mark.NOT_COMPARABLE else f"{side.fleet}: {item.reason}"
        return [case, label, text, *ratio_cells(item)], None
    text = value_text(item.value, item.interval)
    marked = f"{text} {item.mark}" if item.mark in (Mark.SAME, Mark.UNKNOWN) else text
    return [case, label, marked, *ratio_cells(item)], Bar(item.value, item.interval, colour)


def _ratio_notes(items: Sequence[Comparison], sides: Sequence[FleetRate], yours: Sequence[str]) -> list[str]:
    notes = [f"with 95 % intervals; the dashed line is equal speed; {Mark.SAME} {MEANINGS[Mark.SAME]}"]
    if any(item.mark is Mark.UNKNOWN for item in items):
        notes.append(f"{Mark.UNKNOWN} {MEANINGS[Mark.UNKNOWN]}")
    reasons = dict.fromkeys(item.reason for item in items if item.mark is Mark.NOT_COMPARABLE)
    notes += [f"{Mark.NOT_COMPARABLE} {MEANINGS[Mark.NOT_COMPARABLE]}: {reason}" for reason in reasons]
    prices = {side.fleet: side.usd_per_gpu_hour for side in sides if side.usd_per_gpu_hour}
    if prices:
        texts = (f"{fleet} {usd:g}{' (your price)' if fleet in yours else ''}" for fleet, usd in prices.items())
        notes.append(f"USD per GPU-hour: {', '.join(texts)}")
    return [*notes, *price_notes(sides)]

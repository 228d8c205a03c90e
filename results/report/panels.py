"""Prepares the report's panels: one row per value, with its bar, interval and text, grouped by case.

A panel is data. The page draws it as a table with inline SVG bars, which need no chart library and wrap like text;
Markdown prints it as a table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from results.compare.pairs import MEANINGS, Comparison, Mark
from results.compare.scaling import efficiencies
from results.grid import Grid
from results.report.comparison import RATIO_COLUMNS, ratio_cells
from results.schema import Mode
from results.stats import Interval
from results.table.cells import price_notes, rate_text, value_text
from results.table.comparable import CLUSTER_COLUMNS, case_label, cluster_name
from results.table.fleets import UTILISATION, FleetRate

Pair = tuple[str, str, list[Comparison]]
"""Names of the first and the second side, and their comparisons."""

MakeBar = Callable[[FleetRate, int], "Bar"]
"""Makes the bar of a rate in the colour of its fleet."""


@dataclass(frozen=True)
class Bar:
    """A row of a panel.

    Attributes:
        label: The fleet, or the pair of fleets.
        text: The value with its interval, or why there is none.
        value: The value; None: there is none.
        ends: Ends of the 95 % interval; equal to the value without one.
        cells: Texts of the panel's further columns.
        colour: Number of the fleet's colour.
    """

    label: str
    text: str
    value: float | None = None
    ends: tuple[float, float] | None = None
    cells: tuple[str, ...] = ()
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """A group of bars on one axis.

    Attributes:
        name: Id of the section.
        title: Heading of the section.
        short: The title in the list of sections.
        unit: Heading of the column of values.
        columns: Headings of further columns.
        groups: Bars by case.
        reference: Value of the dashed line; None: there is no line, and bars start at 0.
        notes: Lines below the panel.
    """

    name: str
    title: str
    short: str
    unit: str
    groups: dict[str, list[Bar]]
    columns: tuple[str, ...] = ()
    reference: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether each case has one bar, so that the case is its label."""
        return all(len(bars) == 1 for bars in self.groups.values())

    def place(self, value: float) -> float:
        """Return the position of a value on the axis, in percent of its width."""
        bars = [bar for bar in itertools.chain(*self.groups.values()) if bar.value is not None]
        ends = [end for bar in bars for end in (bar.value, *(bar.ends or ())) if end is not None and math.isfinite(end)]
        low, high = min([*ends, self.reference or 0.0]), max([*ends, self.reference or 0.0])
        margin = 0.03 * (high - low)
        start, stop = (low - margin if self.reference is not None else 0.0), high + margin
        return round(min(max(100 * (value - start) / ((stop - start) or 1.0), 0.0), 100.0), 2)

    def first(self, count: int) -> Panel:
        """Return the panel with at most `count` bars, and a note on the others."""
        kept: dict[str, list[Bar]] = {}
        left = count
        for case, bars in self.groups.items():
            if left > 0:
                kept[case] = bars[:left]
            left -= len(bars)
        return self if left >= 0 else replace(self, groups=kept, notes=(*self.notes, f"{-left} more in results.csv"))

    def grid(self) -> Grid:
        """Return the panel as a table."""
        columns = ["case", "fleet", f"{self.unit}>", *(f"{name}>" for name in self.columns)]
        rows = [[case, bar.label, bar.text, *bar.cells] for case, bars in self.groups.items() for bar in bars]
        if self.alone and len({row[1] for row in rows}) == 1:
            columns, rows = columns[:1] + columns[2:], [row[:1] + row[2:] for row in rows]
        return Grid(self.title, columns, rows, list(self.notes)).without_empty_columns()


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
    items = [(f"{a} / {b}", at, item) for at, (a, b, found) in enumerate(shown) for item in found]
    if not any(item.value is not None for _, _, item in items):
        return None
    sides = [side for _, _, item in items for side in (item.a, item.b)]
    groups: dict[str, list[Bar]] = {}
    for label, at, item in sorted(items, key=lambda of: of[2].a.case.mode is not Mode.TRAIN):
        groups.setdefault(case_label(item.a, sides), []).append(_ratio_bar(label, at, item))
    against = shown[0][1]
    title = f"{shown[0][0]} / {against}" if len(shown) == 1 else f"Each fleet / {against}"
    filled = [any(bar.cells[at] for bars in groups.values() for bar in bars) for at in range(len(RATIO_COLUMNS))]
    return Panel(
        name="ratio",
        title=title,
        short="Ratio",
        unit="times as fast",
        columns=tuple(itertools.compress(RATIO_COLUMNS, filled)),
        groups={
            case: [replace(bar, cells=tuple(itertools.compress(bar.cells, filled))) for bar in bars]
            for case, bars in groups.items()
        },
        reference=1.0,
        notes=tuple(_ratio_notes([item for _, _, item in items], sides, yours)),
    )


def speed_panels(rates: Sequence[FleetRate]) -> list[Panel]:
    """Return a panel of throughputs for each unit; failed cases show their status."""
    panels = []
    for unit in dict.fromkeys(rate.unit for rate in rates if rate.unit):
        models = {rate.case.model for rate in rates if rate.unit == unit}
        shown = [rate for rate in rates if rate.case.model in models]
        title = f"Speed, {unit} per second"
        panels.append(_by_fleet(f"speed-{unit}", title, f"{unit}/s", shown, rates, _speed_bar))
    return panels


def energy_panels(rates: Sequence[FleetRate]) -> list[Panel]:
    """Return a panel of samples per joule of GPU energy for each unit."""
    panels = []
    for unit in dict.fromkeys(rate.unit for rate in rates if rate.unit and rate.samples_per_joule):
        shown = [rate for rate in rates if rate.unit == unit and rate.samples_per_joule]
        title = f"Energy, {unit} per joule of the GPUs"
        panels.append(_by_fleet(f"energy-{unit}", title, f"{unit}/J", shown, rates, _energy_bar))
    return panels


def utilisation_panel(rates: Sequence[FleetRate]) -> Panel | None:
    """Return the share of each device's peak FLOP/s, with that of its bandwidth; None: no peaks were measured."""
    flops, bandwidth = UTILISATION
    shown = [rate for rate in rates if flops in rate.utilisation]

    def bar(rate: FleetRate, colour: int) -> Bar:
        value = 100 * rate.utilisation[flops]
        cells = (f"{100 * rate.utilisation[bandwidth]:.0f} %" if bandwidth in rate.utilisation else "",)
        return Bar(rate.fleet, f"{value:.0f} %", value, cells=cells, colour=colour)

    panel = _by_fleet("utilisation", "Utilisation, share of measured peaks", "of peak FLOP/s", shown, rates, bar)
    note = (
        "bandwidth: of unfused traffic, so fusion or caches may exceed 100 %; near 100 % of either, it sets the speed"
    )
    return replace(panel, columns=("of bandwidth",), notes=(note,)) if shown else None


def scaling_panel(rates: Sequence[FleetRate]) -> Panel | None:
    """Return the scaling efficiency of cases on several GPUs; None: no case has several counts."""
    found = efficiencies(rates)
    colours = _colours(rates)
    groups: dict[str, list[Bar]] = {}
    for item in found:
        case = case_label(item.baseline, [other.baseline for other in found], known=CLUSTER_COLUMNS)
        ends = (100 * item.interval.low, 100 * item.interval.high) if item.interval else None
        interval = Interval(100 * item.value, *ends) if ends else None
        name = f"{case}, {cluster_name(item.rate.case)} {item.rate.case.device.upper()}s"
        text = f"{value_text(100 * item.value, interval)} %"
        bar = Bar(item.rate.fleet, text, 100 * item.value, ends, colour=colours[item.rate.fleet])
        groups.setdefault(name, []).append(bar)
    note = "throughput of N over N × throughput of 1; the dashed line is perfect scaling"
    return (
        Panel("scaling", "Scaling", "Scaling", "efficiency", groups, reference=100.0, notes=(note,)) if groups else None
    )


def _by_fleet(
    name: str, title: str, unit: str, shown: Sequence[FleetRate], rates: Sequence[FleetRate], bar: MakeBar
) -> Panel:
    colours = _colours(rates)
    groups: dict[str, list[Bar]] = {}
    for rate in sorted(shown, key=lambda rate: (rate.case.mode is not Mode.TRAIN, rate.case.model)):
        groups.setdefault(case_label(rate, rates), []).append(bar(rate, colours[rate.fleet]))
    return Panel(name, title, title.partition(",")[0], unit, groups)


def _speed_bar(rate: FleetRate, colour: int) -> Bar:
    ends = (rate.interval.low, rate.interval.high) if rate.interval else None
    return Bar(rate.fleet, rate_text(rate), rate.mean, ends, colour=colour)


def _energy_bar(rate: FleetRate, colour: int) -> Bar:
    energy = rate.samples_per_joule
    assert energy is not None, "callers select rates with energy"
    interval = energy.interval()
    return Bar(rate.fleet, value_text(energy.mean, interval), energy.mean, (interval.low, interval.high), colour=colour)


def _colours(rates: Iterable[FleetRate]) -> dict[str, int]:
    """Return the number of each fleet's colour."""
    return {fleet: at for at, fleet in enumerate(dict.fromkeys(rate.fleet for rate in rates))}


def _ratio_bar(label: str, colour: int, item: Comparison) -> Bar:
    """Return the row of a comparison: its ratio, or the failure of a side."""
    if item.value is None:
        side = item.b if item.mark is Mark.WORKS else item.a
        text = str(item.mark) if item.mark is Mark.NOT_COMPARABLE else f"{side.fleet}: {item.reason}"
        return Bar(label, text, cells=("", "", ""), colour=colour)
    text = value_text(item.value, item.interval)
    marked = f"{text} {item.mark}" if item.mark in (Mark.SAME, Mark.UNKNOWN) else text
    ends = (item.interval.low, item.interval.high) if item.interval else None
    return Bar(label, marked, item.value, ends, ratio_cells(item), colour)


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

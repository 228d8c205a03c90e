"""Draws the charts of the report as SVG, each with a text alternative.

Fleets have different shapes and colours, for readers who cannot distinguish colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd
import vl_convert

from results.compare.scaling import efficiencies
from results.report.comparison import Pair
from results.schema import Mode
from results.stats import Interval
from results.table.comparable import CLUSTER_COLUMNS, case_name
from results.table.fleets import FleetRate

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
"""Colours that are distinct for colour-blind readers. Source: Okabe and Ito, Color universal design, 2002."""

WIDTH, FONT_SIZE = 460, 12
"""In pixels; the page scales charts to the screen."""

LABEL_HEIGHT = 20
"""Height in pixels of a case's name, which is above its row to leave narrow screens their width."""

FLEET_HEIGHT = 14
"""Height in pixels of a fleet's line in a chart by case."""

SYMBOL_WIDTH, LETTER_WIDTH, FONT_MARGIN = 30, 8, 1.5
"""Width in pixels of an entry of the legend: its symbol with its margins, and a letter of its name with `FONT_MARGIN`,
because fonts of browsers are wider than the one that places the entries."""

REFERENCE: dict[str, Any] = {"strokeDash": [4, 4], "color": "#888888"}
"""Style of reference lines, visible on light and dark backgrounds."""


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        name: Id of its section.
        description: Text alternative.
        svg: The drawing; empty: a name cannot be drawn.
    """

    name: str
    title: str
    description: str
    svg: str


def speed_chart(rates: Sequence[FleetRate]) -> Chart | None:
    """Draw throughput by case with its interval, or the status of failures; None: there is no number."""
    if not any(rate.rates for rate in rates):
        return None
    rows = [
        {
            "case": case_name(rates, rate),
            "fleet": rate.fleet,
            "failed": ", ".join(dict.fromkeys(rate.failures.values())),
        }
        if rate.mean is None
        else _bar(case_name(rates, rate), rate.fleet, rate.mean, rate.interval)
        for rate in sorted(rates, key=_kind)
    ]
    units = {rate.unit for rate in rates if rate.unit}
    unit = units.pop() if len(units) == 1 else "samples"
    text = f"{unit} per second by case and fleet, with 95 % intervals; failed cases show their status"
    return _drawn("speed", "Speed", text, _by_case(rows, f"{unit} per second"))


def ratio_chart(pairs: Sequence[Pair]) -> Chart | None:
    """Draw the ratios of fleets over the first one by case, with a line at 1; None: there is no ratio.

    Args:
        pairs: Pairs of fleets; only those with the second side of the first pair are shown.
    """
    shown = [pair for pair in pairs if pair[1] == pairs[0][1]]
    sides = [side for _, _, found in shown for item in found for side in (item.a, item.b)]
    rows = [
        _bar(case_name(sides, item.a), f"{a} / {b}", item.value, item.interval)
        for a, b, found in shown
        for item in sorted(found, key=lambda item: _kind(item.a))
        if item.value is not None
    ]
    if not rows:
        return None
    against = f"{shown[0][0]} over {shown[0][1]}" if len(shown) == 1 else f"each fleet over {shown[0][1]}"
    even = (
        alt.Chart(pd.DataFrame([{"even": 1.0}]))
        .mark_rule(**REFERENCE)
        .encode(x=alt.X("even:Q", axis=_top_axis(against)))
    )
    text = f"{against}, by case, with 95 % intervals; the dashed line is equal speed"
    return _drawn("ratio", "Ratio", text, even + _by_case(rows, against, zero=False))


def scaling_chart(rates: Sequence[FleetRate]) -> Chart | None:
    """Draw throughput of N replicas over that of one, with the ideal line; None: no case has several counts."""
    rows: list[dict[str, Any]] = []
    found = efficiencies(rates)
    for item in found:
        case = case_name([other.baseline for other in found], item.baseline, known=CLUSTER_COLUMNS)
        low, high = _ends(item.value, item.interval)
        for count, ends in ((1, (1.0, 1.0, 1.0)), (item.count, (item.value, low, high))):
            values = dict(zip(("speedup", "low", "high"), (end * count for end in ends), strict=True))
            rows.append({"fleet": item.rate.fleet, "series": f"{item.rate.fleet}: {case}", "count": count, **values})
    if not rows:
        return None
    counts = sorted({row["count"] for row in rows})
    base = alt.Chart(pd.DataFrame(rows)).encode(
        x=alt.X("count:Q", axis=alt.Axis(values=counts, format="d", title="replicas")), detail="series:N"
    )
    look = _look(rows)
    plain = base.encode(color=look["color"])
    ideal = alt.Chart(pd.DataFrame({"count": counts, "speedup": counts}))
    layers = [
        ideal.mark_line(**REFERENCE).encode(x="count:Q", y="speedup:Q"),
        plain.mark_line(opacity=0.7).encode(y=alt.Y("speedup:Q", title="times one replica")),
        plain.mark_rule().encode(y="low:Q", y2="high:Q"),
        base.mark_point(filled=True, size=45, opacity=1).encode(y="speedup:Q", **look),
    ]
    text = "throughput of N replicas over that of one; the dashed line is perfect scaling"
    return _drawn("scaling", "Scaling", text, alt.layer(*layers).properties(height=320))


def energy_chart(rates: Sequence[FleetRate]) -> Chart | None:
    """Draw samples per joule by case with intervals; None: no energy was measured."""
    rows = [
        _bar(case_name(rates, rate), rate.fleet, energy.mean, energy.interval())
        for rate in rates
        if (energy := rate.samples_per_joule) is not None
    ]
    text = "samples per joule of GPU energy over the timed steps, by case and fleet, with 95 % intervals"
    return _drawn("energy", "Energy", text, _by_case(rows, "samples per joule, GPUs")) if rows else None


def _bar(case: str, fleet: str, value: float, interval: Interval | None) -> dict[str, Any]:
    """Return a row of a chart by case."""
    low, high = _ends(value, interval)
    return {"case": case, "fleet": fleet, "rate": value, "low": low, "high": high}


def _ends(value: float, interval: Interval | None) -> tuple[float, float]:
    """Return the ends of an interval; without one, twice the value."""
    return (interval.low, interval.high) if interval else (value, value)


def _kind(rate: FleetRate) -> tuple[bool, str]:
    """Return the sort key of a case: kind of work, training first."""
    return rate.case.mode is not Mode.TRAIN, rate.case.precision


def _by_case(rows: Sequence[dict[str, Any]], title: str, *, zero: bool = True) -> Any:  # noqa: ANN401
    """Return a chart with a row per case: its name above, a line per fleet below, the axis on top.

    Args:
        rows: `case`, `fleet`, and `rate` with `low` and `high`, or `failed` with a status.
        title: Title of the axis.
        zero: Whether the axis starts at 0.
    """
    cases, fleets = (list(dict.fromkeys(row[name] for row in rows)) for name in ("case", "fleet"))
    height = LABEL_HEIGHT + FLEET_HEIGHT * len(fleets)
    tops = {case: at * height for at, case in enumerate(cases)}
    lines = {fleet: LABEL_HEIGHT + FLEET_HEIGHT * (at + 0.5) for at, fleet in enumerate(fleets)}
    placed = pd.DataFrame([{**row, "y": tops[row["case"]] + lines[row["fleet"]]} for row in rows])
    # The unit of this axis is a pixel, from the top.
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[height * len(cases), 0], nice=False, zero=False))
    x, low = (alt.X(f"{end}:Q", scale=alt.Scale(zero=zero), axis=_top_axis(title)) for end in ("rate", "low"))
    known = alt.Chart(placed).encode(y=y).transform_filter("isValid(datum.rate)")
    names = pd.DataFrame([{"case": case, "y": top} for case, top in tops.items()])
    look = _look(rows)
    layers = [
        known.mark_rule(strokeWidth=2).encode(x=low, x2="high:Q", color=look["color"]),
        known.mark_point(filled=True, size=60, opacity=1).encode(x=x, **look),
        alt.Chart(names)
        .mark_text(align="left", baseline="top", fontWeight="bold", dy=5)
        .encode(y=y, x=alt.value(2), text="case:N"),
    ]
    if "failed" in placed:
        layers.append(
            alt.Chart(placed)
            .transform_filter("isValid(datum.failed)")
            .transform_calculate(word="datum.fleet + ': ' + datum.failed")
            .mark_text(align="left", baseline="middle")
            .encode(y=y, x=alt.value(4), text="word:N")
        )
    return alt.layer(*layers).properties(height=height * len(cases))


def _top_axis(title: str) -> alt.Axis:
    """Return an axis above the first row, so that it is visible on a small screen."""
    return alt.Axis(orient="top", title=title, tickCount=5)


def _look(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return colour and shape by fleet; without a legend for a single fleet, which is in the title."""
    fleets = list(dict.fromkeys(row["fleet"] for row in rows))
    longest = max(map(len, fleets))
    legend = alt.Legend(
        orient="top",
        title=None,
        columns=max(1, WIDTH // (SYMBOL_WIDTH + LETTER_WIDTH * longest)),
        columnPadding=10 + FONT_MARGIN * longest,
        labelLimit=WIDTH - SYMBOL_WIDTH,
        symbolLimit=0,  # all of them
    )
    colours = alt.Scale(domain=fleets, range=[COLOURS[at % len(COLOURS)] for at, _ in enumerate(fleets)])
    shown = legend if len(fleets) > 1 else None
    shape = alt.Shape("fleet:N", scale=alt.Scale(domain=fleets), legend=shown)
    return {"color": alt.Color("fleet:N", scale=colours, legend=shown), "shape": shape}


def _drawn(name: str, title: str, description: str, chart: Any) -> Chart:  # noqa: ANN401
    """Draw a chart."""
    with alt.data_transformers.enable("default", max_rows=None):
        spec = chart.properties(width=WIDTH).to_dict()
    sizes = {"labelFontSize": FONT_SIZE, "titleFontSize": FONT_SIZE}
    spec |= {"background": None, "config": {"axis": sizes, "legend": sizes, "text": {"fontSize": FONT_SIZE}}}
    try:
        svg = vl_convert.vegalite_to_svg(spec)
    except ValueError:  # it splits surrogate pairs when it truncates long names
        svg = ""
    return Chart(name, title, description, svg)

"""The charts of the report, as Vega-Lite: each has a name, a sentence for those who cannot see it, and its data.

Fleets differ by colour and by shape, because colour alone does not reach everyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import pandas as pd

from results.compare.pairs import fleets_of
from results.compare.scaling import efficiencies
from results.grid import printable
from results.report.comparison import Pair
from results.schema import Mode
from results.stats import Interval
from results.table.columns import CASE_COLUMNS, Row
from results.table.comparable import CLUSTER_COLUMNS, case_name
from results.table.fleets import FleetRate
from results.table.merge import Merged

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
"""Colours that stay apart for colour-blind readers. Source: Okabe and Ito, Color universal design, 2002."""

LABEL_HEIGHT = 20
"""Height of a case's name, which stands above its row so that a narrow screen keeps its width for the values."""

FLEET_HEIGHT = 14
"""Height of one fleet's line in a row of a chart by case, in pixels."""

REFERENCE_COLOUR = "#888888"
"""Colour of lines that a reader compares with, seen on light and on dark."""


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        name: Part of its element's id: letters and dashes.
        description: What it shows, in a sentence.
        spec: Vega-Lite specification with its data inside.
    """

    name: str
    title: str
    description: str
    spec: dict[str, Any]


def speed_chart(rates: Sequence[FleetRate]) -> Chart | None:
    """Return throughput by case with its interval, and where a fleet failed its status; None without a number."""
    if not any(rate.rates for rate in rates):
        return None
    rows: list[dict[str, Any]] = []
    for rate in sorted(rates, key=_kind):
        row: dict[str, Any] = {"case": case_name(rates, rate), "fleet": rate.fleet}
        failed = {"failed": ", ".join(dict.fromkeys(rate.failures.values()))}
        rows.append(row | (failed if rate.mean is None else _bar(rate.mean, rate.interval)))
    unit = next((rate.unit for rate in rates if rate.unit), "samples")
    chart = _by_case(rows, fleets_of(rates), f"{unit} per second", alt.Scale(zero=True))
    text = f"{unit} per second by case and fleet, with 95 % intervals; failed cases show their status"
    return _chart("speed", "Speed", text, chart)


def ratio_chart(pairs: Sequence[Pair]) -> Chart | None:
    """Return how fast fleets are against the first one by case, with a line at 1; None without a ratio.

    Args:
        pairs: Pairs of fleets; where there are several, those whose second side is that of the first pair count.
    """
    shown = [pair for pair in pairs if pair[1] == pairs[0][1]]
    sides = [side for _, _, found in shown for item in found for side in (item.a, item.b)]
    rows = [
        {"case": case_name(sides, item.a), "fleet": f"{a} / {b}", **_bar(item.value, item.interval)}
        for a, b, found in shown
        for item in sorted(found, key=lambda item: _kind(item.a))
        if item.value is not None
    ]
    if not rows:
        return None
    against = f"{shown[0][0]} over {shown[0][1]}" if len(shown) == 1 else f"each fleet over {shown[0][1]}"
    names = list(dict.fromkeys(str(row["fleet"]) for row in rows))
    chart = _by_case(rows, names, against, alt.Scale(zero=False))
    even = (
        alt.Chart(_frame([{"even": 1.0}]))
        .mark_rule(strokeDash=[4, 4], color=REFERENCE_COLOUR)
        .encode(x=alt.X("even:Q", axis=_top_axis(against)))
    )
    return _chart(
        "ratio", "Ratio", f"{against}, by case, with 95 % intervals; the dashed line is equal speed", even + chart
    )


def scaling_chart(rates: Sequence[FleetRate]) -> Chart | None:
    """Return throughput of N GPUs over that of one, with the ideal line; None without several counts."""
    found = efficiencies(rates)
    if not found:
        return None
    rows: list[dict[str, Any]] = []
    for item in found:
        label = case_name([other.baseline for other in found], item.baseline, known=CLUSTER_COLUMNS)
        series = {"fleet": item.rate.fleet, "case": label, "series": f"{item.rate.fleet}: {label}"}
        interval = item.interval
        half = interval.half_width * item.count if interval else 0.0
        speedup = item.value * item.count
        rows.append({**series, "count": 1, "speedup": 1.0, "low": 1.0, "high": 1.0})
        rows.append({**series, "count": item.count, "speedup": speedup, "low": speedup - half, "high": speedup + half})
    counts = sorted({row["count"] for row in rows})
    axis = alt.Axis(values=counts, format="d", title="replicas")
    base = alt.Chart(_frame(rows)).encode(
        x=alt.X("count:Q", axis=axis),
        detail="series:N",
        tooltip=["fleet:N", "case:N", "count:Q", alt.Tooltip("speedup:Q", format=".3f")],
    )
    fleets = list(dict.fromkeys(item.rate.fleet for item in found))
    plain = base.encode(color=_fleet_colour(fleets))
    lines = plain.mark_line(opacity=0.7).encode(y=alt.Y("speedup:Q", title="times one replica"))
    points = base.mark_point(filled=True, size=45, opacity=1).encode(y="speedup:Q", **_fleet_look(fleets))
    bars = plain.mark_rule().encode(y="low:Q", y2="high:Q")
    ideal_rows = [{"count": count, "speedup": count} for count in counts]
    ideal = (
        alt.Chart(_frame(ideal_rows))
        .mark_line(strokeDash=[4, 4], color=REFERENCE_COLOUR)
        .encode(x="count:Q", y="speedup:Q")
    )
    text = "throughput of N replicas over that of one; the dashed line is perfect scaling"
    return _chart("scaling", "Scaling", text, (ideal + lines + bars + points).properties(height=320))


def energy_chart(rates: Sequence[FleetRate]) -> Chart | None:
    """Return samples per joule by case with their interval; None where no energy was measured."""
    rows = [
        {"case": case_name(rates, rate), "fleet": rate.fleet, **_bar(energy.mean, energy.interval())}
        for rate in rates
        if (energy := rate.samples_per_joule) is not None
    ]
    if not rows:
        return None
    fleets = [fleet for fleet in fleets_of(rates) if any(row["fleet"] == fleet for row in rows)]
    chart = _by_case(rows, fleets, "samples per joule, GPU boards", alt.Scale(zero=True))
    text = "samples per joule of GPU board energy over the timed steps, by case and fleet, with 95 % intervals"
    return _chart("energy", "Energy", text, chart)


def history_chart(merged: Merged) -> Chart | None:
    """Return throughput over time for cases that several runs measured; None where none did."""
    repeated = {index: row for index, row in enumerate(merged.rows) if row.runs > 1}
    frame = merged.repeats[merged.repeats["row"].isin(list(repeated))]
    means = frame.groupby(["row", "run"], as_index=False).agg(
        rate=("samples_per_second", "mean"), started_at=("started_at", "min")
    )
    if means.empty:
        return None
    measured = [repeated[index] for index in dict.fromkeys(means["row"].tolist())]
    varying = [name for name in CASE_COLUMNS if len({row.named(name) for row in measured}) > 1]
    columns = (means[name].tolist() for name in ("row", "run", "started_at", "rate"))
    rows = [
        {
            "fleet": repeated[index].fleet,
            "host": repeated[index].host,
            "case": _history_label(repeated[index], varying),
            "run": run,
            "started_at": started_at,
            "rate": rate,
        }
        for index, run, started_at, rate in zip(*columns, strict=True)
    ]
    chosen = _chosen_case(rows)
    chart = (
        alt.Chart(_frame(rows))
        .transform_filter(chosen)
        .transform_calculate(place="datum.fleet + '/' + datum.host")
        .mark_line(point=True)
        .encode(
            x=alt.X("started_at:T", title="start of the run", axis=alt.Axis(format="%Y-%m-%d", labelOverlap=True)),
            y=alt.Y("rate:Q", title="samples per second", scale=alt.Scale(zero=False)),
            color=alt.Color("place:N", scale=alt.Scale(range=COLOURS), legend=alt.Legend(orient="bottom", title=None)),
            strokeDash=alt.StrokeDash("fleet:N", legend=None),
            tooltip=["fleet:N", "host:N", "case:N", "run:N", alt.Tooltip("rate:Q", format=".4g")],
        )
        .add_params(chosen)
        .properties(height=280)
    )
    text = "mean throughput of each run over time, by host; choose the case below the chart"
    return _chart("history", "History", text, chart)


def _bar(value: float, interval: Interval | None) -> dict[str, float]:
    """Return a value with the ends of its interval; without one both are the value itself."""
    low, high = (interval.low, interval.high) if interval else (value, value)
    return {"rate": value, "low": low, "high": high}


def _history_label(row: Row, varying: Sequence[str]) -> str:
    """Name a case by network, precision and GPUs, and by what else its history has several of."""
    always = ("model", "precision", "num_gpus")
    values = {name: row.named(name) for name in varying if name not in always}
    others = (f"{name}={'none' if value is None else value}" for name, value in values.items())
    return " ".join([f"{row.case.model} {row.case.precision} ×{row.case.num_gpus}", *others])


def step_chart(traces: Sequence[dict[str, Any]]) -> Chart | None:
    """Return the duration of each timed step, one case at a time; None without traces.

    Args:
        traces: One row per repeat: `case`, `repeat` and the list `milliseconds`, a value per `stride` steps.
    """
    if not traces:
        return None
    chosen = _chosen_case(traces)
    chart = (
        alt.Chart(_frame(traces))
        .transform_filter(chosen)
        # Lists keep the file small: names would be repeated with every step otherwise.
        .transform_flatten(["milliseconds"])
        .transform_window(point="row_number()", groupby=["case", "repeat"])
        .transform_calculate(step="(datum.point - 1) * datum.stride + 1")
        .mark_line(interpolate="step-after", opacity=0.8)
        .encode(
            x=alt.X("step:Q", title="timed step", axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y("milliseconds:Q", title="milliseconds", scale=alt.Scale(zero=False)),
            color=alt.Color("repeat:N", scale=alt.Scale(range=COLOURS), legend=alt.Legend(orient="bottom")),
        )
        .add_params(chosen)
        .properties(height=220)
    )
    text = "duration of each timed step, by repeat; choose the case below the chart"
    return _chart("steps", "Steps", text, chart)


def _chosen_case(rows: Sequence[dict[str, Any]]) -> alt.Parameter:
    """Return a choice of one case, by an element that a keyboard reaches."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    return alt.selection_point(
        fields=["case"], bind=alt.binding_select(options=cases, name="case "), value=[{"case": cases[0]}], name="chosen"
    )


def _kind(rate: FleetRate) -> tuple[bool, str]:
    """Order cases by kind of work, training first."""
    return rate.case.mode is not Mode.TRAIN, rate.case.precision


def _by_case(rows: Sequence[dict[str, Any]], fleets: Sequence[str], title: str, scale: alt.Scale) -> Any:  # noqa: ANN401
    """Return a chart with a row per case: its name above, a line per fleet below, the axis on top.

    Args:
        rows: `case`, `fleet`, and `rate` with `low` and `high`, or `failed` with a word.
        fleets: In the order of their colours.
        title: What the values are.
        scale: Of the values.
    """
    cases = list(dict.fromkeys(row["case"] for row in rows))
    height = LABEL_HEIGHT + FLEET_HEIGHT * len(fleets)
    tops = {case: at * height for at, case in enumerate(cases)}
    lines = {fleet: LABEL_HEIGHT + FLEET_HEIGHT * (at + 0.5) for at, fleet in enumerate(fleets)}
    placed = [{**row, "y": tops[row["case"]] + lines[row["fleet"]]} for row in rows]
    # A unit of this axis is a pixel, counted from the top.
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[height * len(cases), 0], nice=False, zero=False))
    x, low = (alt.X(f"{name}:Q", title=title, scale=scale, axis=_top_axis(title)) for name in ("rate", "low"))
    base = alt.Chart(_frame(placed)).encode(
        y=y,
        tooltip=["case:N", "fleet:N", *(alt.Tooltip(f"{name}:Q", format=".4g") for name in ("rate", "low", "high"))],
    )
    known = base.transform_filter("isValid(datum.rate)")
    layers = [
        known.mark_rule(strokeWidth=2).encode(x=low, x2="high:Q", color=_fleet_colour(fleets)),
        known.mark_point(filled=True, size=60, opacity=1).encode(x=x, **_fleet_look(fleets)),
        alt.Chart(_frame([{"case": case, "y": top} for case, top in tops.items()]))
        .mark_text(align="left", baseline="top", fontWeight="bold", dy=5)
        .encode(y=y, x=alt.value(2), text="case:N"),
    ]
    if any("failed" in row for row in rows):
        layers.append(
            base.transform_filter("isValid(datum.failed)")
            .transform_calculate(word="datum.fleet + ': ' + datum.failed")
            .mark_text(align="left", baseline="middle")
            .encode(x=alt.value(4), text="word:N")
        )
    return alt.layer(*layers).properties(height=height * len(cases))


def _top_axis(title: str) -> alt.Axis:
    """Return an axis that is seen before the first row: below the last one it is off a narrow screen."""
    return alt.Axis(orient="top", title=title, tickCount=5)


def _fleet_colour(fleets: Sequence[str]) -> alt.Color:
    """Return colour by fleet; every layer of a chart asks for the same legend, else each would have its own."""
    scale = alt.Scale(domain=list(fleets), range=[COLOURS[at % len(COLOURS)] for at, _ in enumerate(fleets)])
    return alt.Color("fleet:N", scale=scale, legend=_legend(fleets))


def _fleet_look(fleets: Sequence[str]) -> dict[str, Any]:
    """Return colour and shape by fleet."""
    shape = alt.Shape("fleet:N", scale=alt.Scale(domain=list(fleets)), legend=_legend(fleets))
    return {"color": _fleet_colour(fleets), "shape": shape}


def _legend(fleets: Sequence[str]) -> alt.Legend | None:
    """Return the legend above a chart; None for a single fleet, which the title names."""
    return alt.Legend(orient="top", title=None) if len(fleets) > 1 else None


def _frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(printable_json(list(rows)))


def _chart(name: str, title: str, description: str, chart: Any) -> Chart:  # noqa: ANN401
    """Finish a chart: as wide as its place, no background, its data inside."""
    with alt.data_transformers.enable("default", max_rows=None, consolidate_datasets=True):
        spec = chart.properties(width="container", description=description).to_dict()
    # The address of the schema is all that would point outside; the page passes the specification to Vega.
    spec.pop("$schema", None)
    spec["background"] = None
    return Chart(name, title, description, printable_json(spec))


def printable_json(value: Any) -> Any:  # noqa: ANN401
    """Replace control characters in all texts of plain data: drawing them as SVG would abort the process."""
    if isinstance(value, dict):
        return {printable(key): printable_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [printable_json(item) for item in value]
    return printable(value) if isinstance(value, str) else value

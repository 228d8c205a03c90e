"""One HTML file that says which machine is faster, by how much, how sure that is, and what it costs.

It works from a file, without a network: Vega is inlined once, charts have a drawn fallback without scripts, and nothing
that a host sent is ever read as markup.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import vl_convert

from results import __version__, charts
from results.charts import Chart
from results.clusters import replicas
from results.communication import communication_grid
from results.compare import Comparison, case_label, compare, fleets_of
from results.comparison import compare_grid, scaling_grid
from results.device_table import device_grid
from results.fleets import FleetRate, fleet_rates
from results.grid import Grid, markdown, printable
from results.merge import Merged, merge_records
from results.overall import answer_lines
from results.schema import Measurement, Record, Status
from results.store import StoredRecord
from results.tables import results_grid, wide_grids

TRACE_POINTS = 120
"""Most points of one repeat's step times that the report keeps."""

TRACE_REPEATS = 60
"""Most repeats whose step times the report keeps, of the cases that vary most: it must stay below 1.5 MB."""

MAX_BYTES = 1_500_000
"""Largest page: it must go through mail and open on a telephone."""

SHORT_ROWS = 100
"""Rows of the table of every host and case that a page keeps when it would be too large."""

FALLBACK_WIDTH = 640
"""Width of a chart that is drawn for readers without scripts, in pixels."""


@dataclass(frozen=True)
class Report:
    """All that a report says, before it is written.

    Attributes:
        verdict: The answer, in sentences.
        pairs: Comparisons of each pair of fleets.
    """

    title: str
    verdict: list[str]
    merged: Merged
    rates: list[FleetRate]
    pairs: list[tuple[str, str, list[Comparison]]]
    records: list[Record]


def make_report(stored: Sequence[StoredRecord], title: str) -> Report:
    """Collect what a report says.

    Args:
        stored: Records of any number of runs.
        title: Names of the runs.
    """
    merged = merge_records(stored)
    rates = fleet_rates(merged)
    pairs = []
    for first, second in itertools.combinations(fleets_of(rates), 2):
        found = compare([r for r in rates if r.fleet == second], [r for r in rates if r.fleet == first])
        if found:
            pairs.append((second, first, found))
    records = [item.record for item in stored if item.record is not None]
    return Report(title, _verdict(merged, rates, pairs), merged, rates, pairs, records)


def report_markdown(report: Report) -> str:
    """Return the report as Markdown for a pull request: verdict and tables."""
    grids = [*_grids(report), *wide_grids(report.merged), *_device_grids(report)]
    lines = [f"## {report.title}", "", *(f"* {line}" for line in report.verdict), ""]
    return "\n".join([*lines, *(markdown(grid) for grid in grids)])


def report_html(report: Report) -> str:
    """Return the report as one HTML page without outside references.

    Where it would be larger than `MAX_BYTES`, it leaves out what the run's `results.csv` has in full, and says so.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["printable"] = printable
    template = environment.get_template("report.html.j2")
    content = _content(report)
    pages = (template.render(**content, **level) for level in _levels(report, content["drawn"]))
    page = ""
    for page in pages:
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


def _content(report: Report) -> dict[str, Any]:
    """Return what every page has."""
    drawn = _charts(report)
    return {
        "title": report.title,
        "verdict": report.verdict,
        "tables": [
            _without_marks(grid) for grid in (*_grids(report), *wide_grids(report.merged), *_device_grids(report))
        ],
        "drawn": drawn,
        "specs": _script_json({chart.name: chart.spec for chart in drawn}),
        "energy_measured": any(chart.name == "energy" for chart in drawn),
        "cost": _script_json(_cost_rows(report)),
        "prices": _prices(report),
        "environments": _environments(report.records),
        "commands": _commands(report.records),
        "bundle": markupsafe.Markup(vl_convert.javascript_bundle()),  # type: ignore[call-arg]
        "version": __version__,
        "made_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _levels(report: Report, drawn: Sequence[Chart]) -> Iterator[dict[str, Any]]:
    """Yield what a page has beside, from everything to the least."""
    results = results_grid(report.merged)
    warnings = [*_warnings(report.merged), *report.merged.problems]
    fallbacks = {chart.name: markupsafe.Markup(_fallback(chart)) for chart in drawn}
    for rows, shown in ((None, fallbacks), (SHORT_ROWS, fallbacks), (SHORT_ROWS, {}), (0, {})):
        yield {
            "results": _without_marks(_shortened(results, rows)),
            "warnings": warnings[:rows],
            "warnings_left_out": len(warnings) - len(warnings[:rows]),
            "fallbacks": shown,
        }


def _shortened(grid: Grid, rows: int | None) -> Grid:
    left_out = len(grid.rows) - len(grid.rows[:rows])
    note = [f"{left_out} more rows in results.csv"] if left_out else []
    return replace(grid, rows=grid.rows[:rows], notes=[*grid.notes[:SHORT_ROWS], *note])


def _verdict(
    merged: Merged, rates: Sequence[FleetRate], pairs: Sequence[tuple[str, str, list[Comparison]]]
) -> list[str]:
    """Answer in sentences: who is faster by how much, and what that is worth."""
    lines = []
    for a, b, found in pairs:
        said = answer_lines(found)
        lines += said or [f"{a} and {b} share no case with repeats on both sides: which is faster is not known."]
    ok = int((merged.table["repeats_ok"] > 0).sum())
    if not pairs:
        fleets = ", ".join(fleets_of(rates)) or "none"
        lines.append(f"One fleet was measured ({fleets}): there is nothing to compare it with yet.")
    lines.append(f"{ok} of {len(merged.table)} rows have a number; all of these passed their validity checks.")
    return lines


def _grids(report: Report) -> list[Grid]:
    grids = [compare_grid(found, a, b) for a, b, found in report.pairs]
    more = (scaling_grid(report.rates), communication_grid(report.merged))
    return [*grids, *(grid for grid in more if grid is not None)]


def _device_grids(report: Report) -> list[Grid]:
    """Return the table of what the devices themselves reach, where it was measured."""
    grid = device_grid(report.merged.devices)
    return [grid] if grid else []


def _without_marks(grid: Grid) -> dict[str, Any]:
    """Return a grid for the template: headings with their alignment apart."""
    numeric = [name.endswith(">") for name in grid.columns]
    return {**asdict(grid), "headings": list(zip(grid.headings, numeric, strict=True)), "numeric": numeric}


def _charts(report: Report) -> list[Chart]:
    first = report.pairs[0] if report.pairs else None
    drawn = [
        charts.speed_chart(report.rates),
        charts.ratio_chart(first[2], first[0], first[1]) if first else None,
        charts.scaling_chart(report.rates),
        charts.energy_chart(report.rates),
        charts.history_chart(report.merged),
        charts.step_chart(_traces(report.records)),
    ]
    return [chart for chart in drawn if chart is not None]


def _fallback(chart: Chart) -> str:
    """Draw a chart as SVG for readers without scripts."""
    spec = {**chart.spec, "width": FALLBACK_WIDTH, "params": chart.spec.get("params", [])}
    return vl_convert.vegalite_to_svg(spec)


def _traces(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the step times of the repeats, thinned to what the eye can tell apart."""
    of_cases: dict[str, list[tuple[Record, Measurement]]] = {}
    for record in records:
        if record.measurement is not None:
            where = f"{record.origin.fleet}/{record.origin.host} " if record.origin else ""
            of_cases.setdefault(where + record.case.name, []).append((record, record.measurement))
    restless = sorted(of_cases, key=lambda case: -max(m.step_cv or 0.0 for _, m in of_cases[case]))
    chosen = [(case, *pair) for case in restless for pair in of_cases[case]][:TRACE_REPEATS]
    traces = []
    for case, record, measurement in chosen:
        origin = record.origin
        seconds = measurement.step_seconds
        stride = max(1, -(-len(seconds) // TRACE_POINTS))
        # The slowest of the steps that a point stands for: thinning must not hide a stall.
        slowest = [max(seconds[step : step + stride]) for step in range(0, len(seconds), stride)]
        traces.append(
            {
                "case": case,
                "repeat": f"{origin.run_id}, {origin.repeat}" if origin else "1",
                "stride": stride,
                "milliseconds": [round(value * 1000, 2) for value in slowest],
            }
        )
    return traces


def _cost_rows(report: Report) -> list[dict[str, Any]]:
    """Return what the price sliders need: throughput of each fleet and case."""
    return [
        {
            "case": case_label(report.rates, rate),
            "fleet": rate.fleet,
            "rate": rate.mean,
            "gpus": replicas(rate),
        }
        for rate in report.rates
        if rate.mean is not None
    ]


def _prices(report: Report) -> list[dict[str, Any]]:
    """Return each fleet with the price that its slider starts at."""
    prices: dict[str, float | None] = {}
    for rate in report.rates:
        if rate.rates:
            prices[rate.fleet] = prices.get(rate.fleet) or rate.usd_per_gpu_hour
    return [{"fleet": fleet, "price": price or 1.0, "given": price is not None} for fleet, price in prices.items()]


def _warnings(merged: Merged) -> list[str]:
    """Return the warnings and failures of the rows, each with where it was."""
    lines = []
    for cells in merged.table[["fleet", "host", "model", "precision", "num_gpus", "warnings", "cause"]].to_dict(
        "records"
    ):
        where = f"{cells['fleet']}/{cells['host']} {cells['model']} {cells['precision']} ×{cells['num_gpus']}"
        texts = [cells[name] for name in ("warnings", "cause") if isinstance(cells[name], str)]
        lines += [f"{where}: {'; '.join(texts)}"] if texts else []
    return lines


def _environments(records: Sequence[Record]) -> list[dict[str, str]]:
    """Return the distinct machines and software, with the hosts that have them."""
    found: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for record in records:
        environment = record.environment
        if environment is None:
            continue
        gpus = dict.fromkeys(gpu.name for gpu in environment.gpus)
        facts = {
            "GPUs": f"{len(environment.gpus)} × {' + '.join(gpus)}" if gpus else "none",
            "CPU": f"{environment.cpu}, {environment.cpu_limit:g} of {environment.cpu_count} CPUs",
            "TensorFlow": environment.tensorflow,
            "Keras": environment.keras,
            "CUDA": environment.cuda or "none",
            "driver": environment.driver or "none",
            "Python": environment.python,
            "system": f"{environment.operating_system}, kernel {environment.kernel}",
            "image": (record.origin and record.origin.image_digest) or "none",
        }
        host = f"{record.origin.fleet}/{record.origin.host}" if record.origin else "-"
        found.setdefault(tuple(facts.items()), {})[host] = None
    return [{"hosts": ", ".join(hosts), **dict(facts)} for facts, hosts in found.items()]


def _commands(records: Sequence[Record]) -> list[str]:
    """Return the command that measures each case again, in its image where it had one."""
    lines: dict[str, None] = {}
    for record in records:
        if record.status is not Status.OK:
            continue
        flags = " ".join(record.case.flags())
        origin = record.origin
        if origin and origin.image and origin.image_digest:
            gpus = "--gpus all " if record.case.device == "gpu" else ""
            name = origin.image.rpartition(":")[0] if ":" in origin.image.rpartition("/")[2] else origin.image
            lines[f"docker run --rm {gpus}{name}@{origin.image_digest} {flags}"] = None
        else:
            lines[f"python -m tfbench {flags}"] = None
    return list(lines)


def _script_json(value: object) -> markupsafe.Markup:
    """Write JSON that nothing in it can end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return markupsafe.Markup(text)

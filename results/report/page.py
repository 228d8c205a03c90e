"""One HTML file that says what to rent, how sure that is, and why.

It works from a file, without a network: Vega is inlined once, charts have a drawn fallback without scripts, and nothing
that a host sent is ever read as markup.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import vl_convert

from results.compare.overall import answer_lines
from results.compare.pairs import compare, fleets_of
from results.grid import Grid, markdown, markdown_text, printable
from results.program import command_line, started_as_tfbench
from results.recommend.decision import RunDecision, decide, decision_grids
from results.recommend.questions import asked_prices
from results.reference.gpu_comparison import GpuComparison, compare_gpus, comparison_lines, gpu_grids
from results.report import charts
from results.report.charts import Chart, printable_json
from results.report.comparison import Pair, communication_grid, compare_grid, ratio_tables, scaling_grid
from results.report.device_table import device_grid
from results.report.job import fleet_prices, job_data
from results.report.tables import results_grid, wide_grids
from results.runs.store import StoredRecord
from results.runs.time_breakdown import time_breakdown, time_breakdown_grid
from results.schema import Measurement, Origin, Record, Status
from results.schema.version import __version__
from results.table.fleets import FleetRate
from results.table.merge import Merged, merge_records
from results.text import counted

TRACE_POINTS = 120
"""Most points of one repeat's step times that the report keeps."""

TRACE_REPEATS = 60
"""Most repeats whose step times the report keeps, of the cases that vary most: it must stay below 1.5 MB."""

MAX_BYTES = 1_500_000
"""Largest page: it must go through mail and open on a telephone."""

SHORT_ROWS = 100
"""Rows of the table of every host and case that a page keeps when it would be too large."""

MAX_NAMED = 4
"""Networks and hosts that the head of a page names."""

FALLBACK_WIDTH = 640
"""Width of a chart that is drawn for readers without scripts, in pixels."""


@dataclass(frozen=True)
class Report:
    """All that a report says, before it is written.

    Attributes:
        about: Which runs, when and where they measured, and about what that cost.
        decision: What to rent.
        verdict: The sentences at the top, what to rent first.
        specifications: Of the GPUs side by side; None where none is known.
        pairs: Comparisons of each pair of fleets.
        minutes: Where the time of the runs went; None: not known.
    """

    title: str
    about: str
    decision: RunDecision
    verdict: list[str]
    specifications: GpuComparison | None
    merged: Merged
    rates: list[FleetRate]
    pairs: list[Pair]
    records: list[Record]
    minutes: Grid | None = None


def make_report(
    stored: Sequence[StoredRecord],
    title: str,
    prices: Sequence[str] = (),
    price_files: Sequence[Path] = (),
    measured_by: str = "",
) -> Report:
    """Collect what a report says.

    Args:
        stored: Records of any number of runs.
        title: Names of the runs.
        prices: `GPU=USD` per GPU-hour; they go before those of the records.
        price_files: The user's price files, for fleets whose records have no price.
        measured_by: Who measured; empty: not stated.

    Raises:
        BadQuestion: A price cannot be read.
    """
    merged = merge_records(stored)
    rates = merged.rates
    pairs = []
    for first, second in itertools.combinations(fleets_of(rates), 2):
        found = compare([r for r in rates if r.fleet == second], [r for r in rates if r.fleet == first])
        if found:
            pairs.append((second, first, found))
    offers = asked_prices(prices, price_files, fleets_of(rates)).offers
    decision = decide(rates, offers)
    return Report(
        title=_in_words(rates) or title,
        about=_about([item.record for item in stored if item.record is not None], title)
        + (f"; measured by {measured_by}" if measured_by else ""),
        decision=decision,
        verdict=[decision.first, *_speed_lines(merged, pairs)],
        specifications=compare_gpus(decision.gpus, offers) if decision.gpus else None,
        merged=merged,
        rates=rates,
        pairs=pairs,
        records=[item.record for item in stored if item.record is not None],
        minutes=time_breakdown_grid(time_breakdown(stored)),
    )


def _in_words(rates: Sequence[FleetRate]) -> str:
    """Return what was measured, for the title; empty where nothing was."""
    networks = list(dict.fromkeys(str(rate.case.model) for rate in rates))
    more = f" and {len(networks) - MAX_NAMED} more networks" if len(networks) > MAX_NAMED else ""
    return f"{' and '.join(fleets_of(rates))}: {', '.join(networks[:MAX_NAMED])}{more}" if rates else ""


def _about(records: Sequence[Record], runs: str) -> str:
    """Return a line on the runs; the cost is that of each host from its first repeat to its last, with all its GPUs."""
    spans: dict[Origin, list[datetime]] = {}
    gpus: dict[Origin, int] = {}
    for record in records:
        if record.origin is None:
            continue
        host = replace(record.origin, repeat=1, image=None, image_digest=None)
        with contextlib.suppress(ValueError):
            spans.setdefault(host, []).extend(map(datetime.fromisoformat, (record.started_at, record.finished_at)))
        gpus[host] = max(gpus.get(host, 1), len(record.environment.gpus) if record.environment else 1)
    stamps = [stamp for host in spans.values() for stamp in host]
    if not stamps:
        return runs
    hosts = list(dict.fromkeys(f"{host.fleet}/{host.host}" for host in spans))
    more = f" and {len(hosts) - MAX_NAMED} more hosts" if len(hosts) > MAX_NAMED else ""
    minutes = (max(stamps) - min(stamps)).total_seconds() / 60
    usd = sum(
        (max(times) - min(times)).total_seconds() / 3600 * gpus[host] * (host.usd_per_gpu_hour or 0)
        for host, times in spans.items()
    )
    cost = f", about {usd:.2f} USD" if usd else ""
    when = f"{min(stamps):%Y-%m-%d %H:%M} UTC, {minutes:.0f} minutes"
    return f"{runs}: {when}, {len(records)} repeats on {', '.join(hosts[:MAX_NAMED])}{more}{cost}"


def report_markdown(report: Report) -> str:
    """Return the report as Markdown for a pull request: what to rent, the ratios, and all else folded."""
    first, *others = (markdown_text(line) for line in report.verdict)
    settings = [f"* {markdown_text(f'{advice.title}: {advice.sentence}')}" for advice in report.decision.advices]
    folded = [("Each setting", "\n".join(settings))] if len(settings) > 1 else []
    tables = [*_grids(report), *wide_grids(report.merged), *_device_grids(report)]
    folded.append(("Tables", _joined(tables)))
    if report.specifications:
        lines = "".join(f"* {markdown_text(line)}\n" for line in comparison_lines(report.specifications))
        folded.append(("Specifications of the GPUs", f"{lines}\n{_joined(gpu_grids(report.specifications))}"))
    return "\n".join(
        [
            f"## {markdown_text(report.title)}",
            "",
            markdown_text(report.about),
            "",
            f"**{first}**",
            "",
            *(f"* {line}" for line in others),
            "",
            _joined(_answer_grids(report)),
            *(f"<details><summary>{name}</summary>\n\n{text}\n</details>\n" for name, text in folded),
        ]
    )


def _joined(grids: Sequence[Grid]) -> str:
    return "\n".join(map(markdown, grids))


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
    # A lone surrogate cannot be written as UTF-8.
    pages = (
        template.render(**content, **level).encode(errors="replace").decode()
        for level in _levels(report, content["drawn"])
    )
    page = ""
    for page in pages:
        if len(page.encode()) <= MAX_BYTES:
            break
    return page


def _content(report: Report) -> dict[str, Any]:
    """Return what every page has."""
    specifications = report.specifications
    drawn = _charts(report)
    minutes = [report.minutes] if report.minutes else []
    tables = [
        *map(_ratio_first, _grids(report)),
        *wide_grids(report.merged),
        *_device_grids(report),
        *minutes,
    ]
    return {
        "title": report.title,
        "about": report.about,
        "verdict": report.verdict,
        "answers": [_without_marks(grid) for grid in _answer_grids(report)],
        "tables": [_without_marks(grid) for grid in tables],
        "specification_lines": comparison_lines(specifications) if specifications else [],
        "specification_tables": [_without_marks(grid) for grid in gpu_grids(specifications)] if specifications else [],
        "drawn": drawn,
        "specs": _script_json({chart.name: chart.spec for chart in drawn}),
        "energy_measured": any(chart.name == "energy" for chart in drawn),
        "job": _script_json(printable_json(job_data(report.rates))),
        "prices": fleet_prices(report.rates, report.decision.offers),
        "environments": _environments(report.records),
        "commands": _commands(report.records),
        "bundle": markupsafe.Markup(_bundle()),
        "version": __version__,
        "made_at": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


@functools.cache
def _bundle() -> str:
    """Return the scripts of the charts; putting them together takes a quarter of a second."""
    return vl_convert.javascript_bundle()  # type: ignore[call-arg]


def _levels(report: Report, drawn: Sequence[Chart]) -> Iterator[dict[str, Any]]:
    """Yield what a page has beside, from everything to the least."""
    results = results_grid(report.merged)
    warnings = [*_warnings(report.merged), *report.merged.problems]
    settings = report.decision.advices
    fallbacks = {chart.name: markupsafe.Markup(text) for chart in drawn if (text := _fallback(chart))}
    for rows, shown in ((None, fallbacks), (SHORT_ROWS, fallbacks), (SHORT_ROWS, {}), (0, {})):
        yield {
            "results": _without_marks(_shortened(results, rows)),
            "warnings": warnings[:rows],
            "warnings_excluded": len(warnings) - len(warnings[:rows]),
            "settings": settings[:rows],
            "settings_excluded": len(settings) - len(settings[:rows]),
            "settings_command": command_line("results", "recommend"),
            "fallbacks": shown,
        }


def _shortened(grid: Grid, rows: int | None) -> Grid:
    excluded = len(grid.rows) - len(grid.rows[:rows])
    note = [f"{excluded} more rows in results.csv"] if excluded else []
    return replace(grid, rows=grid.rows[:rows], notes=[*grid.notes[:SHORT_ROWS], *note])


def _speed_lines(merged: Merged, pairs: Sequence[Pair]) -> list[str]:
    """State for each pair which fleet is faster, and how much of the plan has a number."""
    lines = []
    for a, b, found in pairs:
        said = answer_lines(found)
        lines += said[:1] or [f"{a} and {b} have no measured case in common, so it is unknown which is faster."]
    ok = sum(row.repeats_ok > 0 for row in merged.rows)
    codes = sorted(
        {part.partition(" (")[0] for row in merged.rows for part in (row.warnings or "").split(", ") if part}
    )
    warned = f" Warnings: {', '.join(codes)}." if codes else ""
    passed = "; all of them passed their validity checks" if ok else ""
    lines.append(f"{ok} of {len(merged.rows)} rows have a number{passed}.{warned}")
    causes = Counter(textwrap.shorten(row.cause, 200) for row in merged.rows if not row.repeats_ok and row.cause)
    return [*lines, *(f"{counted(rows, 'row')} without one: {cause}" for cause, rows in causes.most_common(MAX_NAMED))]


def _answer_grids(report: Report) -> list[Grid]:
    """Return the tables that a reader decides by: what to rent, and the ratios."""
    return [*decision_grids(report.decision), *ratio_tables(report.pairs)]


def _grids(report: Report) -> list[Grid]:
    grids = [compare_grid(found, a, b) for a, b, found in report.pairs]
    more = (scaling_grid(report.rates), communication_grid(report.merged))
    return [*grids, *(grid for grid in more if grid is not None)]


def _ratio_first(grid: Grid) -> Grid:
    """Put the ratio next to the case, so that a narrow screen has it without scrolling."""
    if "ratio>" not in grid.columns:
        return grid
    at = list(grid.columns).index("ratio>")
    order = [0, 1, at, *(i for i in range(2, len(grid.columns)) if i != at)]
    return replace(grid, columns=[grid.columns[i] for i in order], rows=[[row[i] for i in order] for row in grid.rows])


def _device_grids(report: Report) -> list[Grid]:
    """Return the table of what the devices themselves reach, where it was measured."""
    grid = device_grid(report.merged.devices)
    return [grid] if grid else []


def _without_marks(grid: Grid) -> dict[str, Any]:
    """Return a grid for the template: headings with their alignment apart."""
    numeric = [name.endswith(">") for name in grid.columns]
    return {**asdict(grid), "headings": list(zip(grid.headings, numeric, strict=True)), "numeric": numeric}


def _charts(report: Report) -> list[Chart]:
    drawn = [
        charts.ratio_chart(report.pairs),
        charts.speed_chart(report.rates),
        charts.scaling_chart(report.rates),
        charts.energy_chart(report.rates),
        charts.history_chart(report.merged),
        charts.step_chart(_traces(report.records)),
    ]
    return [chart for chart in drawn if chart is not None]


def _fallback(chart: Chart) -> str:
    """Draw a chart as SVG for readers without scripts; empty where a text in it cannot be drawn."""
    spec = {**chart.spec, "width": FALLBACK_WIDTH, "params": chart.spec.get("params", [])}
    try:
        return vl_convert.vegalite_to_svg(spec)
    except ValueError:  # long names beyond the basic multilingual plane: it cuts them in the middle of a character
        return ""


def _traces(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return the step times of the repeats, thinned to what the eye can distinguish."""
    of_cases: dict[str, list[tuple[Record, Measurement]]] = {}
    for record in records:
        if record.measurement is not None:
            where = f"{record.origin.fleet}/{record.origin.host} " if record.origin else ""
            of_cases.setdefault(where + record.case.name, []).append((record, record.measurement))
    restless = sorted(of_cases, key=lambda case: -max(m.step_cv or 0.0 for _, m in of_cases[case]))
    chosen = [(case, *pair) for case in restless for pair in of_cases[case]][:TRACE_REPEATS]
    traces = []
    runs = list(dict.fromkeys(record.origin.run_id for _, record, _ in chosen if record.origin))
    for case, record, measurement in chosen:
        origin = record.origin
        seconds = measurement.step_seconds
        stride = max(1, -(-len(seconds) // TRACE_POINTS))
        # The slowest of the steps that a point stands for: thinning must not hide a stall.
        slowest = [max(seconds[step : step + stride]) for step in range(0, len(seconds), stride)]
        traces.append(
            {
                "case": case,
                "repeat": _repeat_name(origin, runs),
                "stride": stride,
                "milliseconds": [round(value * 1000, 2) for value in slowest],
            }
        )
    return traces


def _repeat_name(origin: Origin | None, runs: Sequence[str]) -> str:
    number = origin.repeat if origin else 1
    return f"run {runs.index(origin.run_id) + 1}, repeat {number}" if origin and len(runs) > 1 else f"repeat {number}"


def _warnings(merged: Merged) -> list[str]:
    """Return the warnings and failures of the rows, each with where it was."""
    lines = []
    for row in merged.rows:
        where = f"{row.place} {row.case.model} {row.case.precision} ×{row.case.num_gpus}"
        texts = [text for text in (row.warnings, row.cause) if text is not None]
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
    measure = "tfbench measure" if started_as_tfbench() else "python -m tfbench"
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
            lines[f"{measure} {flags}"] = None
    return list(lines)


def _script_json(value: object) -> markupsafe.Markup:
    """Write JSON that nothing in it can end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return markupsafe.Markup(text)

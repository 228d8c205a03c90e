"""Builds the report as one HTML file or as Markdown: what to rent, how certain that is, and why.

The page works offline; bars are inline SVG, and all texts of hosts are escaped.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import jinja2
import pandas as pd

from results.compare.comparison import fleets_of
from results.compare.means import answer_lines, unknown_line
from results.program import started_as_tfbench
from results.recommend.options import Advice, asked_prices, unused_prices
from results.reference.gpu_comparison import comparison_lines, gpu_grids
from results.reference.gpus import specifications
from results.reference.prices import YOURS
from results.report.comparison import Pair, communication_grid, fleet_pairs, ratio_grids, scaling_grid
from results.report.decision import decide, decision_grids, fleet_prices, job_data, setting_title
from results.report.panels import Panel, leading_pairs, report_panels
from results.report.tables import result_grids, wide_grids
from results.runs.store import StoredRecord
from results.runs.time_breakdown import time_breakdown, time_breakdown_grid
from results.schema import Record, Status
from results.schema.version import __version__
from results.table.cell_text import warning_codes
from results.table.columns import place_of
from results.table.merge import Merged, merge_records
from results.text import counted
from results.text_table import Grid, markdown, markdown_text, printable

MAX_ROWS = 300
"""Rows of a long table or list on the page, which must be small enough for mail and phones."""

MAX_BARS = 1000
"""Rows of a panel: 24 cases of 40 fleets; beyond `MOST_UNFOLDED`, each case is folded."""

MOST_UNFOLDED = 60

MAX_LETTERS = 1000
"""Characters of a cause on the page; records have it in full."""

MAX_NAMED = 4
"""Fleets, networks and hosts listed at the top of the page."""

MAX_TABLES = 10
"""Tables of single fleets, and of single pairs, on the page."""


@dataclass(frozen=True)
class Report:
    """The content of a report, which the page and the Markdown show.

    Attributes:
        about: Names, times and hosts of the runs.
        verdict: Sentences at the top, starting with the ratios and what to rent.
        advices: What to rent in each setting.
        unused: A line for each of the user's prices that the report does not use.
        specified: Conclusions from the specifications of the GPUs of the answers, and their tables.
        panels: Tables with bars; that of the ratios, if any, is the first.
        tables: Further tables, shortened.
        records: The records.
    """

    title: str
    about: str
    verdict: list[str]
    advices: list[Advice]
    unused: list[str]
    specified: tuple[list[str], list[Grid]]
    merged: Merged
    pairs: list[Pair]
    panels: list[Panel]
    tables: list[Grid]
    records: list[Record]


def make_report(
    stored: Sequence[StoredRecord],
    title: str,
    prices: Sequence[str] = (),
    price_files: Sequence[Path] = (),
    measured_by: str = "",
) -> Report:
    """Collect the content of a report.

    Args:
        stored: Records of any number of runs.
        title: Names of the runs.
        prices: `GPU=USD` per GPU-hour; override those of the records.
        price_files: The user's price files, for fleets whose records have no price.
        measured_by: Who measured; empty: not stated.

    Raises:
        BadQuestion: A price cannot be parsed.
    """
    merged, records = merge_records(stored), [item.record for item in stored if item.record is not None]
    given = asked_prices(prices, price_files, merged.rates)
    advices, recommendation = decide(merged.rates, given)
    options = [option for advice in advices for option in advice.options]
    gpus = [gpu for gpu in dict.fromkeys(option.gpu for option in options) if gpu in specifications()]
    offers = {option.subject: option.offers[0] for option in options if option.offers}
    yours = {fleet: offer.usd_per_gpu_hour for fleet, offer in offers.items() if offer.origin == YOURS}
    if yours:  # no table may contradict the recommendation
        rows = [row._replace(usd_per_gpu_hour=yours.get(row.fleet, row.usd_per_gpu_hour)) for row in merged.rows]
        merged = replace(merged, rows=rows)
    rates = merged.rates
    pairs, fleets, networks = fleet_pairs(rates), fleets_of(rates), [*dict.fromkeys(rate.case.model for rate in rates)]
    of_fleets = " and ".join(fleets) if len(fleets) < 3 else _listed(fleets, "fleet")
    tables = [
        *result_grids(merged),
        *wide_grids(merged)[:MAX_TABLES],
        *ratio_grids([pair for pair in pairs if pair[1] != pairs[0][1]][:MAX_TABLES]),
        scaling_grid(rates),
        communication_grid(merged),
        time_breakdown_grid(time_breakdown(stored)),
    ]
    return Report(
        title=f"{of_fleets}: {_listed(networks, 'network')}" if rates else title,
        about=_about(records, title) + (f"; measured by {measured_by}" if measured_by else ""),
        verdict=[*_ratio_lines(leading_pairs(pairs)), *recommendation, *_row_lines(merged)],
        advices=advices,
        unused=unused_prices(advices, given),
        specified=(comparison_lines(gpus), gpu_grids(gpus)) if gpus else ([], []),
        merged=merged,
        pairs=pairs,
        panels=[panel.first(MAX_BARS) for panel in report_panels(rates, pairs, yours)],
        tables=[replace(grid, notes=_first(grid.notes)).first(MAX_ROWS) for grid in tables if grid],
        records=records,
    )


def _listed(names: Sequence[str], noun: str) -> str:
    """List the first names at the top of the page, and count the others."""
    others = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {counted(others, f'more {noun}')}" if others > 0 else "")


def _about(records: Sequence[Record], runs: str) -> str:
    """Describe the runs in a line; the cost covers each host with all its GPUs from its first repeat to its last."""
    rows = []
    for record in records:
        if origin := record.origin:
            gpus = len(record.environment.gpus) if record.environment else 1
            times = record.started_at, record.finished_at
            rows.append([str(place_of(record)), origin.run_id, origin.usd_per_gpu_hour or 0.0, gpus, *times])
    if not rows:
        return runs
    repeats = pd.DataFrame(rows, columns=["host", "run", "usd", "gpus", "begin", "end"])
    for name in ("begin", "end"):
        repeats[name] = pd.to_datetime(repeats[name], utc=True, format="ISO8601", errors="coerce")
    spans = repeats.groupby(["host", "run", "usd"], sort=False).agg({"begin": "min", "end": "max", "gpus": "max"})
    hours = (spans["end"] - spans["begin"]).dt.total_seconds() / 3600
    usd = (hours * spans["gpus"].clip(lower=1) * spans.index.get_level_values("usd")).sum()
    begin, end = repeats["begin"].min(), repeats["end"].max()
    when = f"{begin:%Y-%m-%d %H:%M} UTC, {(end - begin).total_seconds() / 60:.0f} minutes"
    hosts = _listed(list(dict.fromkeys(repeats["host"])), "host")
    return f"{runs}: {when}, {counted(len(records), 'repeat')} on {hosts}{f', about {usd:.2f} USD' if usd else ''}"


def report_markdown(report: Report) -> str:
    """Return the report as Markdown for a pull request: what to rent and the ratios, with all else collapsed."""
    first, *others = (markdown_text(line) for line in report.verdict)
    settings = [f"{setting_title(advice)}: {advice.sentence}" for advice in report.advices]
    sections = {
        "Each setting": (settings[:MAX_ROWS], decision_grids(report.advices)),
        "Tables": ([], report.tables),
        "Specifications of the GPUs": report.specified,
    }
    folded = {
        name: "\n".join(["".join(f"* {markdown_text(line)}\n" for line in lines), *map(markdown, grids)]).strip("\n")
        for name, (lines, grids) in sections.items()
        if lines or grids
    }
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
            *(markdown(panel.shown) for panel in report.panels if panel.name == "ratio"),
            *(f"<details><summary>{name}</summary>\n\n{text}\n\n</details>\n" for name, text in folded.items()),
        ]
    )


def report_html(report: Report) -> str:
    """Return the report as one self-contained HTML page with shortened tables."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # a third of a large page is the job's data
    environment.filters |= {"printable": printable, "setting_title": setting_title}
    page = environment.get_template("report.html.j2").render(
        report=report,
        fleets=fleets_of(report.merged.rates),
        most_unfolded=MOST_UNFOLDED,
        decisions=[grid.first(MAX_ROWS) for grid in decision_grids(report.advices)],
        settings=report.advices[:MAX_ROWS],
        warnings=_first([*_warnings(report.merged), *report.merged.problems]),
        job=job_data(report.merged.rates, report.pairs),
        prices=fleet_prices(report.merged.rates),
        environments=_environments(report.records),
        commands=_commands(report.records),
        version=__version__,
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    return page.encode(errors="replace").decode()  # a lone surrogate cannot be written as UTF-8


def _first(lines: Sequence[str]) -> list[str]:
    """Return the first `MAX_ROWS` lines, shortened, and the number of omitted ones."""
    more = [f"{len(lines) - MAX_ROWS} more in the records"] if len(lines) > MAX_ROWS else []
    return [*(line if len(line) <= MAX_LETTERS else f"{line[:MAX_LETTERS]}…" for line in lines[:MAX_ROWS]), *more]


def _ratio_lines(pairs: Sequence[Pair]) -> list[str]:
    """Return which fleet of each pair is faster, and outliers; of many pairs, the first ones."""
    lines = [
        line
        for a, b, found in pairs[:MAX_NAMED]
        for line in answer_lines(found, prices=False) or [unknown_line(a, b, found)]
    ]
    more = len(pairs) - MAX_NAMED
    return [*lines, f"{counted(more, 'more fleet')} below: Each fleet / {pairs[0][1]}."] if more > 0 else lines


def _row_lines(merged: Merged) -> list[str]:
    """Return how many rows have a number, and causes of failure."""
    ok = sum(row.repeats_ok > 0 for row in merged.rows)
    codes = sorted({code for row in merged.rows for code in warning_codes(row.warnings)})
    warned = f" Warnings: {', '.join(codes)}." if codes else ""
    passed = "; all of them passed their validity checks" if ok else ""
    have = "row has" if len(merged.rows) == 1 else "rows have"
    causes = Counter(textwrap.shorten(row.cause, 200) for row in merged.rows if not row.repeats_ok and row.cause)
    return [
        f"{ok} of {len(merged.rows)} {have} a number{passed}.{warned}",
        *(f"{counted(rows, 'row')} without one: {cause}" for cause, rows in causes.most_common(MAX_NAMED)),
    ]


def _warnings(merged: Merged) -> list[str]:
    """Return the warnings and failures of the rows, with host and case."""
    return [
        f"{row.place} {row.case.model} {row.case.precision} ×{row.case.num_gpus}: {text}"
        for row in merged.rows
        if (text := "; ".join(filter(None, (row.warnings, row.cause))))
    ]


def _environments(records: Sequence[Record]) -> list[tuple[str, dict[str, str]]]:
    """Return the distinct environments with their hosts: names of hosts, then values by name."""
    hosts: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for record in records:
        environment, origin = record.environment, record.origin
        if environment is None:
            continue
        gpus = dict.fromkeys(gpu.name for gpu in environment.gpus)
        limits = sorted({gpu.power_limit_watts for gpu in environment.gpus if gpu.power_limit_watts is not None})
        values = {
            "GPUs": f"{len(environment.gpus)} × {' + '.join(gpus)}" if gpus else "none",
            **({"power limit": ", ".join(f"{limit:g} W" for limit in limits) or "unknown"} if gpus else {}),
            "CPU": f"{environment.cpu}, {environment.cpu_limit:g} of {environment.cpu_count} CPUs",
            "TensorFlow": environment.tensorflow,
            "Keras": environment.keras,
            "CUDA": environment.cuda or "none",
            "driver": environment.driver or "none",
            "Python": environment.python,
            "system": f"{environment.operating_system}, kernel {environment.kernel}",
            "image": f"{origin.image}@{origin.image_digest}" if origin and origin.image_digest else "none",
        }
        hosts.setdefault(tuple(values.items()), {})[str(place_of(record))] = None
    return [(", ".join(of_values), dict(values)) for values, of_values in hosts.items()]


def _commands(records: Sequence[Record]) -> list[str]:
    """Return the command that repeats each case; the image of each host is in its environment."""
    measure = "tfbench measure" if started_as_tfbench() else "python -m tfbench"
    ok = (record for record in records if record.status is Status.OK)
    return list(dict.fromkeys(f"{measure} {' '.join(record.case.flags())}" for record in ok))

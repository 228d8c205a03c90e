"""Builds the report as one HTML file: what to rent, how certain that is, and why.

The page works offline; bars are inline SVG, and all texts of hosts are escaped. The recommendation has one question per
measured network, precision, number of GPUs and mode. The calculator "My job" decides like `recommend`: it has the price
ratios of `compare.decide` at which each comparison is decided.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

from results.compare.comparison import fleets_of
from results.compare.decide import price_limits
from results.compare.summary import answer_lines, ends, unknown_line
from results.program import started_as_tfbench
from results.recommend.answer import advise
from results.recommend.options import Advice, measured_questions
from results.recommend.output import advice_grid
from results.reference.gpu_comparison import comparison_lines, gpu_grids
from results.reference.gpus import specifications
from results.reference.prices import YOURS
from results.report.comparison import Pair, fleet_pairs, ratio_grids, scaling_grid
from results.report.panels import rate_panels, ratio_panel
from results.report.tables import failure_lines, result_grids, software_lines, wide_grids
from results.runs.store import StoredRecord
from results.runs.time_breakdown import time_breakdown, time_breakdown_grid
from results.schema import Case, Device, Mode, Record, Status
from results.schema.version import __version__
from results.table.columns import SOFTWARE_COLUMNS, Row, place_of
from results.table.comparable import case_labels, differing, grouped
from results.table.fleets import FleetRate, unambiguous, warned_notes
from results.table.merge import merge_records
from results.text import counted, enumerated, shortened
from results.text_table import printable

MAX_ROWS = 300
"""Rows of a long table or list on the page, which must be small enough for mail and phones."""

MAX_BARS = 1000
"""Rows of a panel: 24 cases of 40 fleets; beyond `MOST_UNFOLDED`, each case is folded."""

MOST_UNFOLDED = 60

MAX_LETTERS = 1000
"""Characters of a cause on the page; records have it in full."""

MAX_NAMED = 5
"""Fleets, networks and hosts listed at the top of the page."""

MAX_TABLES = 10
"""Tables of single fleets, and of single pairs, on the page."""


class Report(NamedTuple):
    """A report.

    Attributes:
        page: One self-contained HTML page with shortened tables.
        problems: What is missing from it, one line each.
        remarks: Cases that no recommendation covers, and the user's prices that it does not use, one line each.
    """

    page: str
    problems: list[str]
    remarks: list[str]


def make_report(
    stored: Sequence[StoredRecord],
    title: str,
    prices: Sequence[str] = (),
    price_files: Sequence[Path] = (),
    measured_by: str = "",
) -> Report:
    """Make the report of records.

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
    settled, left_out = unambiguous(merged.rates)
    on_gpus = [rate.case for rate in settled if rate.case.device is Device.GPU]
    advices, remarks = advise(measured_questions(on_gpus), merged.rates, prices, price_files)
    options = [option for advice in advices for option in advice.options]
    gpus = [gpu for gpu in dict.fromkeys(option.gpu for option in options) if gpu in specifications()]
    offers = {option.subject: option.offers[0] for option in options if option.offers}
    yours = {fleet: offer.usd_per_gpu_hour for fleet, offer in offers.items() if offer.origin == YOURS}
    if yours:  # no table may contradict the recommendation
        rows = [replace(row, usd_per_gpu_hour=yours.get(row.fleet, row.usd_per_gpu_hour)) for row in merged.rows]
        merged = replace(merged, rows=rows)
    rates = merged.rates
    pairs, fleets, networks = fleet_pairs(rates), fleets_of(rates), [*dict.fromkeys(rate.case.model for rate in rates)]
    leading, others = ([pair for pair in pairs if (pair[1] == pairs[0][1]) is first] for first in (True, False))
    panels = [panel.first(MAX_BARS) for panel in (ratio_panel(leading, yours), *rate_panels(rates)) if panel.rows]
    tables = [
        *result_grids(merged),
        *wide_grids(merged)[:MAX_TABLES],
        *ratio_grids(others[:MAX_TABLES]),
        time_breakdown_grid(time_breakdown(stored)),
    ]
    page = _rendered(
        title=f"{enumerated(fleets, MAX_NAMED)}: {enumerated(networks, MAX_NAMED)}" if rates else title,
        about=_about(records, title) + (f"; measured by {measured_by}" if measured_by else ""),
        verdict=[*_ratio_lines(leading), _recommended(advices, on_gpus), *left_out, _row_line(merged.rows)],
        panels=panels,
        scaling=scaling_grid(rates),
        settings=[(advice, advice_grid(advice)) for advice in advices[:MAX_ROWS]],
        specified=(comparison_lines(gpus), gpu_grids(gpus)) if gpus else ([], []),
        tables=[replace(grid, notes=_first(grid.notes)).first(MAX_ROWS) for grid in tables if grid],
        fleets=fleets,
        most_unfolded=MOST_UNFOLDED,
        warnings=_first([*failure_lines(merged.rows), *warned_notes(rates), *merged.problems]),
        job=_job_data(rates, pairs),
        prices=_fleet_prices(rates),
        software=software_lines(merged.rows),
        commands=_commands(records),
    )
    return Report(page, merged.problems, remarks)


def _about(records: Sequence[Record], runs: str) -> str:
    """Describe the runs in a line."""
    placed = [record for record in records if record.origin]
    if not placed:
        return runs
    begin, end = min(record.started_at for record in placed), max(record.finished_at for record in placed)
    hosts = list(dict.fromkeys(str(place_of(record)) for record in placed))
    minutes = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds() / 60
    where = f"{counted(len(records), 'repeat')} on {enumerated(hosts, MAX_NAMED)}"
    return f"{runs}: {begin[:10]} {begin[11:16]} UTC, {minutes:.0f} minutes, {where}"


def _rendered(**content: object) -> str:
    """Return the page with this content."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # a third of a large page is the job's data
    environment.filters["printable"] = printable
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page = environment.get_template("report.html.j2").render(version=__version__, made_at=made_at, **content)
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


def _row_line(rows: Sequence[Row]) -> str:
    """Return how many rows have a number, and the codes of their warnings."""
    ok = sum(row.repeats_ok > 0 for row in rows)
    codes = sorted({code for row in rows for code in row.codes})
    warned = f" Warnings: {', '.join(codes)}." if codes else ""
    passed = "; all of them passed their validity checks" if ok else ""
    return f"{ok} of {len(rows)} {'row has' if len(rows) == 1 else 'rows have'} a number{passed}.{warned}"


def _commands(records: Sequence[Record]) -> list[str]:
    """Return the command that repeats each case; the image of each host is in its environment."""
    measure = "tfbench measure" if started_as_tfbench() else "python -m tfbench"
    ok = (record for record in records if record.status is Status.OK)
    return list(dict.fromkeys(f"{measure} {' '.join(record.case.flags())}" for record in ok))


def _recommended(advices: Sequence[Advice], cases: Sequence[Case]) -> str:
    """Return the recommendation in one sentence.

    Args:
        advices: An answer for each measured setting.
        cases: Those that were measured on GPUs.
    """
    if not cases:
        return "No GPU was measured, so there is nothing to rent."
    if not advices:
        return "No recommendation: no training or inference of one host was measured."
    if not any(len(advice.ranked) > 1 for advice in advices):
        names = ", ".join(dict.fromkeys(option.subject for advice in advices for option in advice.options))
        return f"No two fleets have figures of one setting, so nothing is ranked: {names}."
    first = f"{advices[0].sentence}."
    choices = Counter(map(_choice, advices)).most_common()
    parts = [f"{choice} in {number} of {len(advices)} settings" for choice, number in choices]
    return first if len(advices) == 1 else f"{', '.join(shortened(parts, MAX_NAMED))}; first: {first}"


def _choice(advice: Advice) -> str:
    """Return what to rent if prices decide, else the fastest option; a single one is not compared."""
    if advice.winner is not None:
        return f"Rent {advice.winner.subject}"
    if not advice.ranked:
        return "no answer"
    fastest = max(advice.ranked, key=lambda option: option.samples_per_second).subject
    return f"{fastest} is the fastest" if len(advice.ranked) > 1 else f"only {fastest} has a figure"


def _job_data(rates: Sequence[FleetRate], pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return throughputs and ratios of fleets for each case.

    Args:
        rates: Measured throughputs.
        pairs: Comparisons of each two fleets.

    Returns:
        For each case with a number, training first: label, unit, `fleets` (rate with its interval and replicas, or why
        it has none) and `limits` (`price_limits` by first and second fleet; null: infinite).
    """
    limits: dict[Case, dict[str, dict[str, list[float | None]]]] = {}
    for a, b, compared in pairs:
        for item in compared:
            if item.ratio:
                ends = [float(f"{end:.7g}") if math.isfinite(end) else None for end in price_limits(item.ratio)]
                limits.setdefault(item.a.case, {}).setdefault(a, {})[b] = ends
    labels, cases = case_labels(rate.case for rate in rates), []
    measured = sorted((rate for rate in rates if rate.rates), key=lambda rate: rate.case.mode is not Mode.TRAIN)
    for case, unit in {rate.case: rate.unit for rate in measured}.items():
        fleets = grouped((rate.fleet, rate) for rate in rates if rate.case == case)
        figures = {fleet: _figure(of_fleet) for fleet, of_fleet in fleets.items()}
        cases.append({"label": labels[case], "unit": unit, "fleets": figures, "limits": limits.get(case, {})})
    return cases


def _fleet_prices(rates: Sequence[FleetRate]) -> dict[str, float | None]:
    """Return the price of each fleet that has a number, USD per GPU-hour; None: the user has to enter one.

    Shipped examples of prices are left out: an offer that somebody saw months ago is nobody's price today.
    """
    prices = grouped((rate.fleet, rate.usd_per_gpu_hour) for rate in rates if rate.rates)
    return {fleet: next(filter(None, usd), None) for fleet, usd in prices.items()}


def _figure(rates: Sequence[FleetRate]) -> dict[str, Any]:
    """Return a fleet's figure for a case, or why it has none."""
    measured = [rate for rate in rates if rate.rates]
    if not measured:
        return {"failed": ", ".join(dict.fromkeys(status for rate in rates for status in rate.failures.values()))}
    if len(measured) > 1:
        several = differing([rate.software for rate in measured], SOFTWARE_COLUMNS)
        return {"failed": f"several {enumerated(several)}"}
    (rate,) = measured
    low, high = ends(rate.interval if rate.interval and rate.interval.low > 0 else None)
    return {"rate": rate.mean, "low": low, "high": high, "gpus": rate.case.replicas}

"""The commands that read runs, and `audit`, in the order of work.

Data goes to stdout, everything else to stderr. Imports are within the commands, so that `--help` is immediate.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from results.commands.command_line import (
    add_command,
    add_format,
    add_output,
    add_runs,
    placed,
    print_grids,
    print_lines,
    put,
    rates_and_unread,
    warn,
    write_text,
)
from results.commands.recommend import add_gpus, add_prices, add_recommend
from results.errors import UnknownFleet, UserError
from results.schema.exit_codes import ExitCode
from results.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from results.commands.command_line import Commands
    from results.runs.store import StoredRecord
    from results.table.fleets import FleetRate

BY_HELP = "split the table by these software columns, which may then differ, e.g. keras,driver; `all`: any column"

FORMATS = ["csv", "json", "markdown", "wide"]


def add_show(commands: Commands) -> None:
    """Add `show`."""
    parser = add_command(commands, "show", _show, "print the results of runs, and each fleet's table")
    add_runs(parser)
    parser.add_argument(
        "--time-breakdown", action="store_true", help="instead, show what the run spent its time on, by host"
    )
    add_format(parser, "text", "json")
    parser.set_defaults(verbose=False)
    parser.epilog = SHOW_HELP


SHOW_HELP = """
samples/s: throughput over all GPUs, with its 95 percent interval; p50 ms: median step; CV percent: variation
of steps; b1: latency at batch 1; repeats: fresh processes. In names of cases, b256 is the batch per GPU, 1gpu
the number of GPUs, w10s50 the steps of warm-up and timing, min10s the shortest timing. --verbose adds
settings, software, variables and each fleet's table. tfbench export has all columns.
"""
"""What the words of the tables mean."""


def add_audit(commands: Commands) -> None:
    """Add `audit`."""
    parser = add_command(
        commands, "audit", _audit, "check whether a table is plausible; exit code 3 if too little of it could be read"
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="throughputs as CSV, TSV or Markdown")
    parser.add_argument("--decimal", choices=[".", ","], help="decimal mark, if the table's numbers are ambiguous")
    add_format(parser, "text", "json", "markdown")


def add_export(commands: Commands) -> None:
    """Add `export`."""
    parser = add_command(commands, "export", _export, "merge runs into one table, in one of several formats")
    add_runs(parser)
    add_format(parser, *FORMATS)
    add_output(parser)


def add_report(commands: Commands) -> None:
    """Add `report`."""
    parser = add_command(
        commands, "report", _report, "write one HTML file that works offline, or Markdown for a pull request"
    )
    add_runs(parser)
    add_format(parser, "html", "markdown")
    add_output(parser, "default: report.html of the run; markdown: standard output")
    parser.add_argument("--measured-by", metavar="NAME", default="", help="who measured, shown at the top of the page")
    add_prices(parser)


def add_validate(commands: Commands) -> None:
    """Add `validate`."""
    what = "check record files and name their warnings; exit code 3 if one is invalid or suspect"
    add_runs(add_command(commands, "validate", _validate, what))


def add_compare(commands: Commands) -> None:
    """Add `compare`."""
    parser = add_command(commands, "compare", _compare, "report how many times faster one fleet is than another")
    parser.usage = (
        f"{parser.prog} [FLEET_A FLEET_B] [RUN ...] [options]\n"
        f"       {parser.prog} --baseline RUN [--baseline RUN ...] [RUN ...] [options]"
    )
    add_runs(parser, name="names", metavar="FLEET_A FLEET_B RUN")
    parser.add_argument(
        "--baseline", metavar="RUN", action="append", default=[], help="compare each fleet with itself in this run"
    )
    parser.add_argument(
        "--fail-on",
        metavar="PERCENT",
        type=_percent,
        help="exit code 5 if repeats of a host fail, unlike in the baseline, or a case is slower by more than this, "
        "e.g. 5%%; 3 if one cannot be compared",
    )
    add_format(parser, "text", "json", "markdown")
    parser.add_argument("--by", metavar="COLUMNS", type=_columns, default=[], help=BY_HELP)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="compare no case whose hosts have different drivers or launchers (default: only report them)",
    )


COMMANDS: dict[str, Callable[[Commands], None]] = {
    "show": add_show,
    "compare": add_compare,
    "audit": add_audit,
    "recommend": add_recommend,
    "gpus": add_gpus,
    "export": add_export,
    "report": add_report,
    "validate": add_validate,
}
"""Functions that add each command to a parser, in the order of work."""


def _percent(text: str) -> float:
    """Parse `5%` or `5` as 0.05."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a percentage, e.g. 5%. Received: {text!r}") from error
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be between 0% and 100%. Received: {text!r}")
    return value


def _columns(text: str) -> list[str]:
    from results.table.columns import SOFTWARE_COLUMNS

    if text == "all":
        return list(SOFTWARE_COLUMNS)
    names = text.split(",")
    unknown = [name for name in names if name not in SOFTWARE_COLUMNS]
    if unknown:
        raise argparse.ArgumentTypeError(f"must be among {', '.join(SOFTWARE_COLUMNS)}. Received: {', '.join(unknown)}")
    return names


def _show(runs: list[str], runs_dir: Path | None, *, time_breakdown: bool, format: str, verbose: bool) -> int:
    from rich.console import Console

    from results.report.tables import show_tables, to_json
    from results.runs.store import stored_records
    from results.table.merge import merge_records

    runs, console = placed(runs, runs_dir), Console()
    if time_breakdown:
        return _show_time_breakdown(runs, console)
    merged = merge_records(stored_records(runs))
    if format == "json":
        sys.stdout.write(to_json(merged))
        return ExitCode.OK
    show_tables(merged, console, verbose=verbose)
    return ExitCode.OK


def _show_time_breakdown(runs: Sequence[str], console: Console) -> int:
    from results.grid import print_grid
    from results.runs.store import ReadingNotes, stored_records
    from results.runs.time_breakdown import time_breakdown, time_breakdown_grid

    notes = ReadingNotes()
    grid = time_breakdown_grid(time_breakdown(notes.of(stored_records(runs))))
    warn(notes.lines())
    if grid is None:
        raise UserError("no record of these runs has a duration, and their folders have no events.jsonl")
    print_grid(grid, console)
    return ExitCode.OK


def _export(runs: list[str], runs_dir: Path | None, *, format: str, output: Path | None) -> int:
    from results.report.tables import WRITERS
    from results.runs.store import stored_records
    from results.table.merge import merge_records

    merged = merge_records(stored_records(placed(runs, runs_dir)))
    warn(merged.problems)
    put(WRITERS[format](merged), output)
    return ExitCode.OK


@dataclass(frozen=True)
class _Pair:
    """Two sides to compare, their names, and the software columns that must be equal in a pair."""

    name_a: str
    name_b: str
    a: list[FleetRate]
    b: list[FleetRate]
    by: Sequence[str]


def _compare(
    names: list[str],
    runs_dir: Path | None,
    *,
    baseline: list[str],
    by: list[str],
    strict: bool,
    fail_on: float | None,
    format: str,
) -> int:
    from results.compare.overall import answer_lines, comparison_row, lost_lines, unchecked_lines, unknown_line
    from results.compare.pairs import compare, regressions, unmatched
    from results.report.comparison import compare_grid, scaling_grid

    grids, lines, worse = [], [], 0
    documents, lost, unseen = [], list[str](), list[str]()
    pairs, unread = _pairs(names, runs_dir, baseline=baseline, by=by, strict=strict)
    for pair in pairs:
        found = compare(pair.a, pair.b, by=pair.by)
        only_a, only_b = unmatched(pair.a, pair.b, pair.by), unmatched(pair.b, pair.a, pair.by)
        grids.append(compare_grid(found, pair.name_a, pair.name_b, only_a, only_b))
        sides = [side for item in found for side in (item.a, item.b)]
        cases = [comparison_row(item, sides) for item in found]
        documents.append({"a": pair.name_a, "b": pair.name_b, "cases": cases})
        if fail_on is not None:
            worse += len(regressions(found, fail_on))
            lost += lost_lines(found, [*pair.a, *pair.b])
            unseen += unchecked_lines(found, only_b, [*pair.a, *pair.b], pair.by)
        second = f"{pair.name_a} in the baseline" if baseline else pair.name_b
        lines += answer_lines(found, pair.by, baseline=bool(baseline)) or [unknown_line(pair.name_a, second, found)]
    scaling = scaling_grid([rate for pair in pairs for rate in (*pair.a, *([] if baseline else pair.b))])
    if format == "json":
        sys.stdout.write(json.dumps({"answers": lines, "comparisons": documents}, indent=1) + "\n")
    else:
        print_lines(lines, format)
        print_grids([*grids, *([scaling] if scaling else [])], format)
    warn([f"failed: {text}" for text in lost])
    if worse and fail_on is not None:
        are = "case failed or is" if worse == 1 else "cases failed or are"
        print(f"{worse} {are} slower by more than {fail_on * 100:g} %", file=sys.stderr)
    if fail_on is not None and unread:
        unseen.append(f"{counted(unread, 'file')} without a readable record, see above; measure again")
    warn([f"not compared: {text}" for text in unseen])
    return ExitCode.REGRESSION if worse else ExitCode.SOME_FAILED if unseen else ExitCode.OK


def _pairs(
    names: list[str], runs_dir: Path | None, *, baseline: list[str], by: list[str], strict: bool
) -> tuple[list[_Pair], int]:
    """Return the pairs to compare, and the number of unreadable records.

    A pair is two fleets, a fleet's two softwares, or each fleet with itself in the baseline.
    """
    from results.compare.pairs import fleets_of
    from results.runs.store import is_folder, is_run, stored_records
    from results.table.fleets import split_fleets, unambiguous

    asked, paths = dict.fromkeys(names), [name for name in names if os.sep in name]
    names = placed(names, runs_dir, latest=not paths)
    fleets = [] if baseline else [name for name in names if not is_run(name) and name not in paths]
    apart = ["driver", "launcher"] if strict else by
    new, unread = rates_and_unread([name for name in names if name not in fleets], apart=apart)
    known = fleets_of(new)
    if baseline:
        baseline = placed(baseline, runs_dir, latest=False)
        old, unread_old = rates_and_unread(baseline, apart=apart)
        before = fleets_of(old)
        if not set(known) & set(before):
            raise UnknownFleet(f"no fleet of {', '.join(known)} is in the baseline: {', '.join(before)}.")
        pairs = [_Pair(name, f"{name}, baseline", _of(new, name), _of(old, name), by) for name in before]
        return pairs, unread + unread_old
    if len(known) == 1:
        new, by = split_fleets(new, by), []
        known = sorted(fleets_of(new))
    if len(fleets) < 2:
        named = [name for name in asked if name in known]  # a fleet may have the name of its run
        fleets = named if len(named) == 2 else fleets or ([known[1], known[0]] if len(known) == 2 else [])
    unknown = [name for name in fleets if name not in known]
    for name in unknown:
        if is_folder(Path(name)):
            stored_records([name])  # its error says why this is no run
    if unknown or len(fleets) != 2:
        received = f"Received: {', '.join(fleets)}. " if fleets else ""
        hint = "".join(f"\n{line}" for line in unambiguous(new, by)[1])
        raise UnknownFleet(
            f"name two fleets to compare. {received}These runs hold: {', '.join(known) or 'none'}.{hint}"
        )
    return [_Pair(fleets[0], fleets[1], _of(new, fleets[0]), _of(new, fleets[1]), by)], unread


def _of(rates: Sequence[FleetRate], fleet: str) -> list[FleetRate]:
    return [rate for rate in rates if rate.fleet == fleet]


def _audit(file: Path, *, decimal: str | None, format: str) -> int:
    from rich.console import Console

    from results.audit.judgement import audit_file, audit_grid, audit_lines, findings_to_json, reading_lines
    from results.audit.texts import Decimal

    audited = audit_file(file, Decimal(decimal) if decimal else None)
    if format == "json":
        sys.stdout.write(findings_to_json(audited.findings))
        warn(reading_lines(audited))
    elif format == "markdown":
        print_grids([audit_grid(file, audited)], format)
    else:
        print_lines(audit_lines(file, audited, Console().width), format)
    return ExitCode.OK if audited.read_enough else ExitCode.SOME_FAILED


def _report(
    runs: list[str],
    runs_dir: Path | None,
    *,
    price: list[str],
    prices: list[Path],
    format: str,
    output: Path | None,
    measured_by: str,
) -> int:
    from results.report.page import make_report, report_html, report_markdown
    from results.runs.store import report_place, stored_records

    runs = placed(runs, runs_dir)
    stored = list(stored_records(runs))
    title, path = report_place(runs)
    report = make_report(stored, title, price, prices, measured_by)
    warn([*report.merged.problems, *report.unused])
    if format == "markdown":
        put(report_markdown(report), output)
    else:
        write_text(output or path, report_html(report))
    return ExitCode.OK


def _validate(runs: list[str], runs_dir: Path | None) -> int:
    from results.runs.store import ReadingNotes, stored_records
    from results.table.cells import warned_notes
    from results.table.merge import merge_records

    good, bad, notes = 0, 0, ReadingNotes()

    def records() -> Iterator[StoredRecord]:
        nonlocal good, bad
        for stored in stored_records(placed(runs, runs_dir)):
            if stored.error is None:
                good += 1
                yield stored
                continue
            bad += 1
            for problem in stored.error.problems:
                notes.add_problem(stored.path, problem)

    merged = merge_records(records())
    for line in notes.lines():
        print(line)
    parts = [merged, *([merged.apart] if merged.apart else [])]
    for text in (text for part in parts for text in (*part.problems, *warned_notes(part.rates))):
        print(text)
    suspects = sum(part.suspects for part in parts)
    doubted = f"{suspects} suspect, " if suspects else ""
    print(f"{good - suspects} good, {doubted}{bad} bad", file=sys.stderr)
    return ExitCode.SOME_FAILED if bad or suspects else ExitCode.OK

"""The commands of `python -m results`: those that read runs, `audit`, and those that choose a GPU.

Data goes to stdout, everything else to stderr. Imports are within the commands, so that `--help` is immediate.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from results.errors import UnknownFleet, UserError
from results.program import among, flag, percentage
from results.schema.exit_codes import ExitCode
from results.table.columns import SOFTWARE_COLUMNS
from results.text import counted

if TYPE_CHECKING:
    from results.table.fleets import FleetRate
    from results.table.merge import Merged
    from results.text_table import Grid

RUNS_HELP = "run folder, run id under TFBENCH_RUNS_DIR (default: runs) or record file; default: latest run"

FORMAT = flag("default: %(default)s")

Runs = Annotated[list[str], flag(RUNS_HELP, metavar="RUN")]

Prices = Annotated[
    list[str], flag("price of a GPU-hour; overrides hosts.yml and the shipped examples", metavar="GPU=USD")
]

PriceFiles = Annotated[list[Path], flag("your prices, or a list of a cloud or catalog, as CSV or JSON", metavar="FILE")]

TextOrJSON = Annotated[Literal["text", "json"], FORMAT]

Format = Annotated[Literal["text", "json", "markdown"], FORMAT]


def read(runs: Sequence[str], *, quiet: bool = False) -> Merged:
    """Read and merge the records of runs, with their problems on stderr unless `quiet`."""
    from results.runs.store import stored_records
    from results.table.merge import merge_records

    merged = merge_records(stored_records(runs))
    if not quiet:
        warn(merged.problems)
    return merged


def put(text: str, path: Path | None) -> None:
    """Write a text to a file and its path to stderr, or the text to stdout without a path; raises as `write_file`."""
    from results.runs.store import write_file

    if path is None:
        sys.stdout.write(text)
    else:
        write_file(path, text)
        print(path, file=sys.stderr)


def warn(problems: Sequence[str]) -> None:
    """Print problems with the data to stderr."""
    for problem in problems:
        print(f"! {problem}", file=sys.stderr)


def print_parts(style: str, *parts: Grid | Sequence[str] | None, strong: bool = False) -> None:
    """Print tables, and lists of sentences, one per line.

    Args:
        style: `text` or `markdown`.
        parts: In this order; empty lists and None are omitted.
        strong: Whether the first sentence of a list is the most important one.
    """
    from rich.console import Console

    from results.text_table import Grid, markdown, markdown_text, print_grid, print_line

    console = Console()
    for part in parts:
        if isinstance(part, Grid) and style == "markdown":
            print(markdown(part))
        elif isinstance(part, Grid):
            print_grid(part, console)
        elif part:
            for number, line in enumerate(part):
                first = strong and not number
                if style == "markdown":
                    print(f"* **{markdown_text(line)}**" if first else f"* {markdown_text(line)}")
                else:
                    print_line(line, console, "bold" if first else None)
            print()


def print_json(document: object) -> None:
    """Print JSON in ASCII, which is safe on a terminal."""
    print(json.dumps(document, indent=1, default=str))


def show(
    runs: Runs,
    *,
    time_breakdown: Annotated[bool, flag("instead, show what the run spent its time on, by host")] = False,
    readings: Annotated[bool, flag("instead, show all else that was recorded, by host and case")] = False,
    format: TextOrJSON = "text",
    verbose: Annotated[
        bool, flag("add settings, software, variables and each fleet's table", "-v", "--verbose")
    ] = False,
) -> int:
    """Print the results of runs, and each fleet's table.

    samples/s: throughput over all GPUs, with its 95 percent interval; p50 ms: median step; CV percent: variation
    of steps; b1: latency at batch 1, with its percentiles p50, p95, p99; repeats: fresh processes. In names of
    cases, b256 is the batch per GPU, 1gpu the number of GPUs, w10s50 the steps of warm-up and timing, min10s the
    shortest timing. tfbench export has all columns.

    Example: show --time-breakdown
    """
    from results.report.tables import all_grids, exported, readings_grid
    from results.runs import time_breakdown as times
    from results.runs.store import problem_lines, stored_records

    if time_breakdown or readings:
        stored = list(stored_records(runs))
        grid = readings_grid(stored) if readings else times.time_breakdown_grid(times.time_breakdown(stored))
        warn(problem_lines(item.problem for item in stored if item.problem))
        if grid is None:
            nothing = "has a number" if readings else "has a duration, and their folders have no events.jsonl"
            raise UserError(f"no record of these runs {nothing}")
        print_parts("text", grid)
        return ExitCode.OK
    merged = read(runs, quiet=True)
    if format == "json":
        sys.stdout.write(exported(merged, "json"))
    else:
        print_parts(format, *all_grids(merged, brief=not verbose), [f"! {problem}" for problem in merged.problems])
    return ExitCode.OK


def export(
    runs: Runs,
    *,
    format: Annotated[Literal["csv", "json", "markdown", "wide"], FORMAT] = "csv",
    output: Annotated[Path | None, flag("write here; default: standard output", metavar="FILE")] = None,
) -> int:
    """Merge runs into one table, in one of several formats.

    Example: export --format csv --output results.csv
    """
    from results.report.tables import exported

    put(exported(read(runs), format), output)
    return ExitCode.OK


def compare(
    names: Annotated[list[str], flag(RUNS_HELP, metavar="FLEET_A FLEET_B RUN")],
    *,
    baseline: Annotated[list[str], flag("compare each fleet with itself in this run", metavar="RUN")],
    fail_on: Annotated[
        float | None,
        flag(
            "exit code 5 if repeats of a host fail, unlike in the baseline, or a case is slower by more than this, "
            "e.g. 5%%; 3 if one cannot be compared",
            metavar="PERCENT",
            type=percentage,
        ),
    ] = None,
    format: Format = "text",
    by: Annotated[
        Sequence[str],
        flag(
            "split the table by these software columns, which may then differ, e.g. keras,driver; `all`: any column",
            metavar="COLUMNS",
            type=among(*SOFTWARE_COLUMNS),
        ),
    ] = (),
    strict: Annotated[
        bool, flag("compare no case whose hosts have different drivers or launchers (default: only report them)")
    ] = False,
) -> int:
    """Report how many times faster one fleet is than another.

    Give two fleets and the runs that measured them, or runs and --baseline with earlier ones of the same fleets.

    Example: compare a5000 a4000
    """
    from results.compare.comparison import compare, regressions, unmatched
    from results.compare.summary import answer_lines, comparison_rows, lost_lines, unchecked_lines, unknown_line
    from results.report.comparison import compare_grid, scaling_grid

    pairs, by, unread = _sides(names, baseline, by, apart=["driver", "launcher"] if strict else by)
    grids, documents, lines, compared = [], [], list[str](), []
    for a, b in pairs:
        found = compare(a.rates, b.rates, by=by)
        second, here = (f"{b.fleet}, baseline", f"{a.fleet} in the baseline") if baseline else (b.fleet, b.fleet)
        only_a, only_b = unmatched(a.rates, b.rates, by), unmatched(b.rates, a.rates, by)
        grids.append(compare_grid(found, a.fleet, second, only_a, only_b))
        documents.append({"a": a.fleet, "b": second, "cases": comparison_rows(found)})
        lines += answer_lines(found, by, baseline=bool(baseline)) or [unknown_line(a.fleet, here, found)]
        compared.append((found, only_b))
    if format == "json":
        print_json({"answers": lines, "comparisons": documents})
    else:
        scaled = [rate for a, b in pairs for rate in (*a.rates, *([] if baseline else b.rates))]
        print_parts(format, lines, *grids, scaling_grid(scaled))
    if fail_on is None:
        return ExitCode.OK
    warn([f"failed: {text}" for found, _ in compared for text in lost_lines(found)])
    unseen = [text for found, only_b in compared for text in unchecked_lines(found, only_b, by)]
    if worse := sum(len(regressions(found, fail_on)) for found, _ in compared):
        are = "case failed or is" if worse == 1 else "cases failed or are"
        print(f"{worse} {are} slower by more than {fail_on * 100:g} %", file=sys.stderr)
    if unread:
        unseen.append(f"{counted(unread, 'file')} without a readable record, see above; measure again")
    warn([f"not compared: {text}" for text in unseen])
    return ExitCode.REGRESSION if worse else ExitCode.SOME_FAILED if unseen else ExitCode.OK


class Side(NamedTuple):
    """A fleet, and its rates in one or several runs."""

    fleet: str
    rates: list[FleetRate]


def _sides(
    names: list[str], baseline: list[str], by: Sequence[str], *, apart: Sequence[str]
) -> tuple[list[tuple[Side, Side]], Sequence[str], int]:
    """Return the pairs of sides to compare, the columns that must be equal in a pair, and the number of unread files.

    A pair is two fleets, two softwares of a fleet, or each fleet with itself in the baseline. Hosts that differ in a
    column of `apart` are kept separate.
    """
    from results.runs.store import is_run
    from results.table.comparable import grouped
    from results.table.fleets import fleet_rates, split_fleets, unambiguous

    fleets = [name for name in names if not (baseline or os.sep in name or is_run(name))]
    merged = read([name for name in names if name not in fleets])
    rates = fleet_rates(merged.rows, apart)
    known = grouped((rate.fleet, rate) for rate in rates)
    if baseline:
        before = read(baseline)
        earlier = grouped((rate.fleet, rate) for rate in fleet_rates(before.rows, apart))
        if not known.keys() & earlier.keys():
            raise UnknownFleet(f"no fleet of {', '.join(known)} is in the baseline: {', '.join(earlier)}.")
        pairs = [(Side(fleet, known.get(fleet, [])), Side(fleet, earlier[fleet])) for fleet in earlier]
        return pairs, by, merged.unread + before.unread
    if len(known) == 1:
        rates, by = split_fleets(rates, by), []
        known = dict(sorted(grouped((rate.fleet, rate) for rate in rates).items()))
    if len(fleets) < 2:
        named = [name for name in dict.fromkeys(names) if name in known]  # a fleet may have the name of its run
        fleets = named if len(named) == 2 else fleets or ([*known][::-1] if len(known) == 2 else [])
    if len(fleets) != 2 or not set(fleets) <= known.keys():
        received = f"Received: {', '.join(fleets)}. " if fleets else ""
        hint = "".join(f"\n{line}" for line in unambiguous(rates, by)[1])
        raise UnknownFleet(
            f"name two fleets to compare. {received}These runs hold: {', '.join(known) or 'none'}.{hint}"
        )
    first, second = (Side(fleet, known[fleet]) for fleet in fleets)
    return [(first, second)], by, merged.unread


def audit(
    file: Annotated[Path, flag("throughputs as CSV, TSV or Markdown", metavar="FILE")],
    *,
    decimal: Annotated[Literal[".", ","] | None, flag("decimal mark, if the table's numbers are ambiguous")] = None,
    format: Format = "text",
) -> int:
    """Check whether a table is plausible; exit code 3 if too little of it could be read.

    Example: audit table.csv
    """
    from results.audit.judgement import audit_file, audit_parts, reading_lines

    audited = audit_file(file, decimal)
    if format == "json":
        findings = [finding._asdict() for finding in audited.findings]
        sys.stdout.write(json.dumps(findings, indent=1, ensure_ascii=False) + "\n")
        warn(reading_lines(audited))
    else:
        print_parts(format, *audit_parts(file, audited))
    return ExitCode.OK if audited.read_enough else ExitCode.SOME_FAILED


def report(
    runs: Runs,
    *,
    output: Annotated[Path | None, flag("default: report.html of the run", metavar="FILE")] = None,
    measured_by: Annotated[str, flag("who measured, shown at the top of the page", metavar="NAME")] = "",
    price: Prices,
    prices: PriceFiles,
) -> int:
    """Write one HTML file that works offline.

    Example: report --output report.html
    """
    from results.report.page import make_report
    from results.runs.store import report_place, stored_records

    title, path = report_place(runs)
    report = make_report(list(stored_records(runs)), title, price, prices, measured_by)
    warn([*report.problems, *report.remarks])
    put(report.page, output or path)
    return ExitCode.OK


def validate(runs: Runs) -> int:
    """Check record files and name their warnings; exit code 3 if one is invalid or suspect.

    Example: validate runs/mine
    """
    from results.table.fleets import fleet_rates, warned_notes

    merged = read(runs, quiet=True)
    for text in (*merged.problems, *warned_notes([*merged.rates, *fleet_rates(merged.without_all_reduce)])):
        print(text)
    doubted = f"{merged.suspects} suspect, " if merged.suspects else ""
    print(f"{len(merged.repeats) - merged.suspects} good, {doubted}{merged.unread} bad", file=sys.stderr)
    return ExitCode.SOME_FAILED if merged.unread or merged.suspects else ExitCode.OK


GPUS_HELP = "choose from these GPUs, e.g. 'A4000,A100' or '2x A5000,A6000'; a family, e.g. A100, means all of it"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What `recommend` is asked, as the arguments of `read_questions`."""

    model: Annotated[list[str], flag("network; repeat for several answers; default: resnet50")]
    precision: Annotated[str, flag("fp32, tf32, fp16, bf16; default: fp16", metavar="NAMES")] = "fp16"
    num_gpus: Annotated[str, flag("GPUs of a job, e.g. 1 or 1,4; default: 1", metavar="N")] = "1"
    mode: Annotated[Literal["train", "infer"] | None, flag("default: each measured mode separately")] = None
    gpus: Annotated[str, flag(GPUS_HELP, metavar="NAMES")] = ""
    budget: Annotated[
        float | None, flag("maximum price per hour of all GPUs together; every offer below it counts", metavar="USD")
    ] = None
    hours: Annotated[float | None, flag("maximum hours for --samples")] = None
    samples: Annotated[float, flag("samples of the job; default: a million")] = 1e6
    memory: Annotated[
        float | None, flag("minimum memory per GPU, e.g. 24", "--memory", "--min-memory", metavar="GIB")
    ] = None


def recommend(
    runs: Annotated[list[str], flag(f"{RUNS_HELP}; without any, published figures", metavar="RUN")],
    *,
    asked: Asked,
    price: Prices,
    prices: PriceFiles,
    format: Format = "text",
) -> int:
    """Recommend a GPU to rent, from measured or published figures.

    Example: recommend --model resnet50 --gpus A4000,A5000
    """
    from results.recommend.answer import advise
    from results.recommend.options import read_questions
    from results.recommend.output import advice_grid, advice_json
    from results.runs.store import run_folders

    measured = read(runs).rates if runs or run_folders() else []
    questions = read_questions(measured=[rate.case.model for rate in measured], **vars(asked))
    advices, remarks = advise(questions, measured, price, prices)
    if format == "json":
        sys.stdout.write(advice_json(advices, remarks))
        return ExitCode.OK
    for advice in advices:
        print_parts(format, [advice.sentence], advice_grid(advice), strong=True)
    print_parts(format, remarks)
    return ExitCode.OK


def gpus(
    names: Annotated[
        list[str], flag("e.g. A4000 A5000; a family, e.g. A100, means all of it", metavar="GPU", nargs="+")
    ],
    *,
    format: TextOrJSON = "text",
) -> int:
    """Compare the specifications of GPUs.

    Example: gpus A4000 A5000
    """
    from results.reference import gpu_comparison

    found = gpu_comparison.named_gpus(names)
    if format == "json":
        print_json(gpu_comparison.comparison_document(found))
        return ExitCode.OK
    figures, *sentences = gpu_comparison.gpu_grids(found)
    print_parts("text", gpu_comparison.comparison_lines(found), figures)
    for grid in sentences:
        print_parts("text", gpu_comparison.as_lines(grid), strong=True)
    return ExitCode.OK


COMMANDS = (show, compare, audit, recommend, gpus, export, report, validate)
"""In the order of work."""

"""The commands of `python -m results`, in the order of work.

Data goes to stdout, everything else to stderr. What a command needs is imported inside it, so that `--help` answers at
once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from results.errors import UnknownFleet, UserError

if TYPE_CHECKING:
    from results.fleets import FleetRate
    from results.grid import Grid
    from results.merge import Merged
    from results.prices import Offer

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EXIT_OK, EXIT_SOME_FAILED, EXIT_REGRESSION = 0, 3, 5

RUNS_HELP = "run folder, run id under TFBENCH_RUNS_DIR (default: runs) or record file; default: latest run"

BY_HELP = "columns of the software identity that may differ and split the table, e.g. keras,driver; `all`: any"

FORMATS = ["csv", "json", "markdown", "wide", "latex", "parquet", "mllog"]


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Add every command to a parser; each sets `command` to the function that runs it."""
    commands: Commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = _command(commands, "show", _show, "print the results of runs, and each fleet's table")
    _add_runs(show)
    show.add_argument("--with-published", action="store_true", help="put published figures beside, in their own table")
    show.add_argument(
        "--foreign", metavar="FILE", type=Path, action="append", default=[], help="likewise what adopt wrote"
    )
    merge = _command(commands, "merge", _export, "merge any number of runs into one table")
    _add_runs(merge)
    _add_output(merge)
    _add_compare(commands)
    audit = _command(
        commands, "audit", _audit, "say whether a table is plausible; exit code 3 when too little of it could be read"
    )
    audit.add_argument(
        "file", metavar="FILE", type=Path, help="throughputs or GPU specifications: CSV, TSV, Markdown or HTML"
    )
    audit.add_argument(
        "--decimal", choices=[".", ","], help="decimal mark of the table, where its numbers leave that open"
    )
    audit.add_argument("--format", choices=["text", "json", "markdown"], default="text", help="default: %(default)s")
    adopt = _command(commands, "adopt", _adopt, "turn the printed output of tf_cnn_benchmarks into a foreign table")
    adopt.add_argument("files", metavar="FILE", nargs="+", type=Path, help="what runs of it printed")
    adopt.add_argument("--gpu", required=True, help="what it ran on: it does not print that")
    adopt.add_argument("--precision", required=True, choices=["fp32", "tf32", "fp16"], help="it does not print that")
    adopt.add_argument("--output", metavar="FILE", type=Path, help="write here; default: standard output")
    _add_recommend(commands)
    gpus = _command(
        commands, "gpus", _gpus, "put the specifications of GPUs side by side, with what follows for training"
    )
    gpus.add_argument("names", metavar="GPU", nargs="+", help="e.g. A4000 A5000; a family, e.g. A100, means all of it")
    gpus.add_argument("--prices", metavar="FILE", type=Path, action="append", default=[], help="your prices, as CSV")
    gpus.add_argument("--format", choices=["text", "json", "markdown"], default="text", help="default: %(default)s")
    _add_predict(commands)
    prices = _command(commands, "prices", _prices, "turn a SkyPilot-format catalog into a prices file")
    prices.add_argument("file", metavar="FILE", type=Path, help="CSV with InstanceType, AcceleratorName, Price, …")
    prices.add_argument("--provider", required=True, help="whose catalog it is")
    prices.add_argument("--retrieved-on", required=True, metavar="DATE", help="when it was retrieved")
    export = _command(commands, "export", _export, "write the merged table in one of several formats")
    _add_runs(export)
    _add_output(export)
    report = _command(
        commands, "report", _report, "write one HTML file that works offline, or Markdown for a pull request"
    )
    _add_runs(report)
    report.add_argument("--format", choices=["html", "md"], default="html", help="default: %(default)s")
    report.add_argument(
        "--output", metavar="FILE", type=Path, help="default: report.html of the run; md: standard output"
    )
    _add_prices(report)
    validate = _command(commands, "validate", _validate, "check record files; exit code 3 when one is bad")
    _add_runs(validate)


def _add_compare(commands: Commands) -> None:
    parser = _command(commands, "compare", _compare, "say how many times faster one fleet is than another")
    parser.usage = (
        "python -m results compare [FLEET_A FLEET_B] [RUN ...] [options]\n"
        "       python -m results compare --baseline RUN [--baseline RUN ...] [RUN ...] [options]"
    )
    parser.add_argument("names", metavar="FLEET_A FLEET_B RUN", nargs="*", help=RUNS_HELP)
    parser.add_argument(
        "--baseline", metavar="RUN", action="append", default=[], help="compare each fleet with itself in this run"
    )
    parser.add_argument(
        "--fail-on", metavar="PERCENT", type=_percent, help="exit code 5 when a case is slower by more, e.g. 5%%"
    )
    parser.add_argument("--format", choices=["text", "markdown"], default="text", help="default: %(default)s")
    parser.add_argument("--by", metavar="COLUMNS", type=_columns, default=[], help=BY_HELP)
    parser.add_argument(
        "--strict", action="store_true", help="refuse fleets whose hosts have different drivers; default: name them"
    )


def _add_recommend(commands: Commands) -> None:
    parser = _command(commands, "recommend", _recommend, "say which GPU to rent, from measured or published figures")
    parser.add_argument("runs", metavar="RUN", nargs="*", help=f"{RUNS_HELP}; without any, published figures")
    parser.add_argument(
        "--model",
        action="append",
        help="network, or a mix: resnet50=0.7,inception_v3=0.3; repeat for an answer each; default: resnet50",
    )
    parser.add_argument("--precision", default="fp16", metavar="NAMES", help="fp32, tf32, fp16, bf16; default: fp16")
    parser.add_argument("--num-gpus", default="1", metavar="N", help="GPUs of a job, e.g. 1 or 1,4; default: 1")
    parser.add_argument("--mode", choices=["train", "infer"], help="default: each that was measured, for itself")
    parser.add_argument("--gpus", metavar="NAMES", default="", help="choose from these, e.g. 'A4000,A100': any A100")
    _add_prices(parser)
    parser.add_argument("--budget", metavar="USD", type=float, help="most that all GPUs together cost per hour")
    parser.add_argument("--hours", type=float, help="most hours that --samples may take")
    parser.add_argument("--samples", type=float, default=1e6, help="samples of the job; default: a million")
    parser.add_argument(
        "--memory", "--min-memory", metavar="GIB", type=float, help="memory that each GPU must have, e.g. 24"
    )
    parser.add_argument("--batch-size", metavar="N", type=int, help="batch per GPU that must fit, where known")
    parser.add_argument("--explain", action="store_true", help="show the figures and prices behind the answer")
    parser.add_argument("--format", choices=["text", "json", "markdown"], default="text", help="default: %(default)s")


def _add_predict(commands: Commands) -> None:
    parser = _command(commands, "predict", _predict, "predict the throughput of GPUs that nobody measured")
    parser.add_argument("runs", metavar="RUN", nargs="*", help=f"{RUNS_HELP}; without any, published figures")
    parser.add_argument("--gpus", metavar="NAMES", required=True, help="GPUs to predict, e.g. A4000,RTX_4090")
    parser.add_argument("--model", required=True, help="network that published or measured rows name")
    parser.add_argument("--precision", default="fp16", choices=["fp32", "tf32", "fp16", "bf16"], help="default: fp16")
    parser.add_argument("--num_gpus", "--num-gpus", type=int, default=1, metavar="N", help="GPUs of a job; default: 1")
    parser.add_argument("--batch-size", metavar="N", type=int, help="batch per GPU; default: as usual in those rows")
    parser.add_argument("--format", choices=["text", "json", "markdown"], default="text", help="default: %(default)s")


def _command(
    commands: Commands, name: str, function: Callable[[argparse.Namespace], int], what: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    parser.set_defaults(command=function)
    return parser


def _add_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="*", help=RUNS_HELP)


def _add_prices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--price",
        metavar="GPU=USD",
        action="append",
        default=[],
        help="price of a GPU-hour; goes before hosts.yml, which goes before --prices and the shipped examples",
    )
    parser.add_argument("--prices", metavar="FILE", type=Path, action="append", default=[], help="your prices, as CSV")


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="csv", help="default: %(default)s")
    parser.add_argument("--output", metavar="FILE", type=Path, help="write here; default: standard output")
    parser.add_argument("--by", metavar="COLUMNS", type=_columns, default=[], help=BY_HELP)


def _percent(text: str) -> float:
    """Read `5%` or `5` as 0.05."""
    try:
        value = float(text.removesuffix("%")) / 100
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a percentage, e.g. 5%. Received: {text!r}") from error
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be between 0% and 100%. Received: {text!r}")
    return value


def _columns(text: str) -> list[str]:
    from results.columns import SOFTWARE_COLUMNS

    if text == "all":
        return list(SOFTWARE_COLUMNS)
    names = text.split(",")
    unknown = [name for name in names if name not in SOFTWARE_COLUMNS]
    if unknown:
        raise argparse.ArgumentTypeError(f"must be of {', '.join(SOFTWARE_COLUMNS)}. Received: {', '.join(unknown)}")
    return names


def _show(parsed: argparse.Namespace) -> int:
    from rich.console import Console

    from results.grid import print_grid
    from results.tables import render_ratios, render_results, render_wide

    merged = _merged(parsed.runs)
    console = Console()
    render_results(merged, console)
    render_wide(merged, console)
    render_ratios(merged, console)
    for grid in _foreign_grids(parsed, merged):
        print_grid(grid, console)
    return EXIT_OK


def _foreign_grids(parsed: argparse.Namespace, merged: Merged) -> list[Grid]:
    from results.adopt import read_foreign
    from results.foreign import foreign_grid
    from results.reference import published

    grids = [foreign_grid("Published by others", published(), merged)] if parsed.with_published else []
    return [*grids, *(foreign_grid(path.name, read_foreign(path), merged) for path in parsed.foreign)]


def _export(parsed: argparse.Namespace) -> int:
    from results.export import WRITERS, write_parquet
    from results.fleets import fleet_rates, refuse_mixed

    if parsed.format == "mllog":
        return _export_log(parsed)
    merged = _merged(parsed.runs)
    refuse_mixed(fleet_rates(merged, apart=parsed.by), parsed.by)
    _tell(merged.problems)
    if parsed.format == "parquet":
        if parsed.output is None:
            raise UserError("--format parquet is not text: name a file with --output")
        write_parquet(merged, parsed.output)
    else:
        _put(WRITERS[parsed.format](merged), parsed.output)
    return EXIT_OK


def _export_log(parsed: argparse.Namespace) -> int:
    from results.mllog import log_lines
    from results.sources import stored_records

    lines = []
    for stored in stored_records(parsed.runs):
        if stored.record is None:
            _tell([f"{stored.path}: not a record, left out"])
        else:
            lines += log_lines(stored.record)
    _put("".join(f"{line}\n" for line in lines), parsed.output)
    return EXIT_OK


def _put(text: str, path: Path | None) -> None:
    """Write to a file, or to stdout without one."""
    if path is None:
        sys.stdout.write(text)
    else:
        _write(path, text)


@dataclass(frozen=True)
class _Pair:
    """Two sides to compare, and what they are called."""

    name_a: str
    name_b: str
    a: list[FleetRate]
    b: list[FleetRate]


def _compare(parsed: argparse.Namespace) -> int:
    from results.compare import compare, regressions, unmatched
    from results.comparison import compare_grid, scaling_grid
    from results.overall import answer_lines

    grids, lines, worse = [], [], 0
    pairs = _pairs(parsed)
    for pair in pairs:
        found = compare(pair.a, pair.b, by=parsed.by)
        only = [*unmatched(pair.a, pair.b, parsed.by), *unmatched(pair.b, pair.a, parsed.by)]
        grids.append(compare_grid(found, pair.name_a, pair.name_b, only))
        if parsed.fail_on is not None:
            worse += len(regressions(found, parsed.fail_on))
        lines += answer_lines(found, parsed.by, baseline=bool(parsed.baseline))
    scaling = scaling_grid([rate for pair in pairs for rate in (*pair.a, *([] if parsed.baseline else pair.b))])
    _print_grids([*grids, *([scaling] if scaling else [])], lines, parsed.format)
    if worse:
        print(f"{worse} cases failed or are slower by more than {parsed.fail_on * 100:g} %", file=sys.stderr)
    return EXIT_REGRESSION if worse else EXIT_OK


def _pairs(parsed: argparse.Namespace) -> list[_Pair]:
    """Find out what is to be compared: two fleets, or every fleet with itself in the baseline."""
    from results.compare import fleets_of
    from results.sources import is_run

    fleets = [] if parsed.baseline else [name for name in parsed.names if not is_run(name)]
    apart = ["driver"] if parsed.strict else parsed.by
    new = _rates([name for name in parsed.names if name not in fleets], parsed.by, apart=apart)
    known = fleets_of(new)
    if parsed.baseline:
        old = _rates(parsed.baseline, parsed.by, apart=apart)
        both = [name for name in known if name in fleets_of(old)]
        if not both:
            raise UnknownFleet(f"no fleet of {', '.join(known)} is in the baseline: {', '.join(fleets_of(old))}.")
        return [_Pair(name, f"{name}, baseline", _of(new, name), _of(old, name)) for name in both]
    if not fleets and len(known) == 2:
        fleets = [known[1], known[0]]
    unknown = [name for name in fleets if name not in known]
    if unknown or len(fleets) != 2:
        asked = f"Received: {', '.join(fleets) or 'none'}. " if fleets else ""
        raise UnknownFleet(f"name two fleets to compare. {asked}These runs hold: {', '.join(known) or 'none'}.")
    return [_Pair(fleets[0], fleets[1], _of(new, fleets[0]), _of(new, fleets[1]))]


def _of(rates: Sequence[FleetRate], fleet: str) -> list[FleetRate]:
    return [rate for rate in rates if rate.fleet == fleet]


def _rates(runs: Sequence[str], by: Sequence[str], remedy: str = "", *, apart: Sequence[str] = ()) -> list[FleetRate]:
    """Read runs, refusing to let a cell hold several identities; see `fleet_rates` for `apart`."""
    from results.fleets import fleet_rates, refuse_mixed

    merged = _merged(runs)
    _tell(merged.problems)
    rates = fleet_rates(merged, apart=apart)
    refuse_mixed(rates, by, remedy)
    return rates


def _print_grids(grids: Sequence[Grid], lines: Sequence[str], style: str) -> None:
    from rich.console import Console

    from results.grid import markdown, print_grid

    if style == "markdown":
        print("".join(f"* {line}\n" for line in lines))
        print("\n".join(markdown(grid) for grid in grids))
        return
    console = Console()
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)
    if lines:
        console.print()
    for grid in grids:
        print_grid(grid, console)


def _audit(parsed: argparse.Namespace) -> int:
    from results.audit import audit_file, audit_grid, findings_to_json, reading_lines
    from results.numerals import Decimal

    audited = audit_file(parsed.file, Decimal(parsed.decimal) if parsed.decimal else None)
    if parsed.format == "json":
        sys.stdout.write(findings_to_json(audited.findings))
        _tell(reading_lines(audited))
    else:
        _print_grids([audit_grid(parsed.file, audited)], [], parsed.format)
    return EXIT_OK if audited.read_enough else EXIT_SOME_FAILED


def _gpus(parsed: argparse.Namespace) -> int:
    from results.gpu_comparison import compare_gpus, comparison_json, comparison_lines, gpu_grids, named_gpus
    from results.prices import known_prices

    comparison = compare_gpus(named_gpus(parsed.names), known_prices(parsed.prices))
    if parsed.format == "json":
        sys.stdout.write(comparison_json(comparison))
    else:
        _print_grids(gpu_grids(comparison), comparison_lines(comparison), parsed.format)
    return EXIT_OK


def _adopt(parsed: argparse.Namespace) -> int:
    from results.adopt import adopt

    _put(adopt(parsed.files, parsed.gpu, parsed.precision), parsed.output)
    return EXIT_OK


def _recommend(parsed: argparse.Namespace) -> int:
    from results.advice import advice_grid, advice_json, explain_grid
    from results.compare import fleets_of
    from results.headlines import reasons
    from results.precisions import precision_line
    from results.questions import asked_prices, read_questions
    from results.recommend import recommend
    from results.sources import has_runs
    from results.summaries import summary

    questions = read_questions(parsed)
    rates = _rates(parsed.runs, [], "Name the run that counts.") if parsed.runs or has_runs() else []
    offers = asked_prices(parsed.price, parsed.prices, fleets_of(rates))
    verdicts = [verdict for question in questions for verdict in recommend(question, rates, offers)]
    precisions = [[line] if (line := precision_line(verdict, rates)) else [] for verdict in verdicts]
    if parsed.format == "json":
        sys.stdout.write(advice_json(verdicts, precisions))
        return EXIT_OK
    _print_lines(summary(verdicts), parsed.format, strong=True)
    for verdict, lines in zip(verdicts, precisions, strict=True):
        _print_grids([advice_grid(verdict, verdicts)], [], parsed.format)
        _print_lines([*reasons(verdict), *lines], parsed.format)
        if parsed.explain:
            _print_grids([explain_grid(verdict, verdicts)], [], parsed.format)
    if parsed.explain:
        _print_specifications([card for question in questions for card in question.gpus], offers, parsed.format)
    return EXIT_OK


def _print_specifications(cards: Sequence[str], offers: Sequence[Offer], style: str) -> None:
    """Put the specifications of the cards that were asked for side by side."""
    from results.gpu_comparison import compare_gpus, comparison_lines, gpu_grids
    from results.reference import specifications

    known = [card for card in dict.fromkeys(cards) if card in specifications()]
    if known:
        comparison = compare_gpus(known, offers)
        _print_grids(gpu_grids(comparison), comparison_lines(comparison), style)


def _print_lines(lines: Sequence[str], style: str, *, strong: bool = False) -> None:
    """Print sentences, each on a line of its own however long: a pipe has no width."""
    from rich.console import Console

    from results.grid import markdown_text, printable

    console = Console()
    for number, line in enumerate(lines):
        if style == "markdown":
            text = markdown_text(line)
            print(f"* **{text}**" if strong and not number else f"* {text}")
        else:
            bold = "bold" if strong and not number else None
            console.print(printable(line), markup=False, highlight=False, soft_wrap=not console.is_terminal, style=bold)
    if lines:
        print()


def _predict(parsed: argparse.Namespace) -> int:
    from results.prediction import prediction_grid, prediction_json, predictions_for
    from results.prediction_rows import measured_observations, published_observations
    from results.questions import known_cards
    from results.reference import model_key
    from results.sources import has_runs

    names = [name for name in parsed.gpus.split(",") if name.strip()]
    gpus = list(dict.fromkeys(card for name in names for card in known_cards(name)))
    if not gpus or parsed.num_gpus < 1 or (parsed.batch_size or 1) < 1:
        raise UserError("name at least one GPU, and numbers of 1 or more. Example: --gpus A4000 --num_gpus 1")
    rates = _rates(parsed.runs, [], "Name the run that counts.") if parsed.runs or has_runs() else []
    rows = [*published_observations(), *measured_observations(rates)]
    network = parsed.model if parsed.model in {row.setting.network for row in rows} else model_key(parsed.model)
    found = predictions_for(gpus, network, parsed.precision, parsed.batch_size, parsed.num_gpus, observations=rows)
    if parsed.format == "json":
        sys.stdout.write(prediction_json(found))
    else:
        _print_grids([prediction_grid(found)], [], parsed.format)
    return EXIT_OK


def _prices(parsed: argparse.Namespace) -> int:
    from results.prices import import_skypilot, prices_csv

    sys.stdout.write(prices_csv(import_skypilot(parsed.file, parsed.provider, parsed.retrieved_on)))
    return EXIT_OK


def _report(parsed: argparse.Namespace) -> int:
    from results.sources import report_place, stored_records

    try:
        from results.report import make_report, report_html, report_markdown
    except ModuleNotFoundError as error:
        raise UserError(
            f"the report needs {error.name}. Install: pip install altair vl-convert-python jinja2"
        ) from error

    stored = list(stored_records(parsed.runs))
    title, path = report_place(parsed.runs)
    report = make_report(stored, title, parsed.price, parsed.prices)
    _tell(report.merged.problems)
    if parsed.format == "md":
        _put(report_markdown(report), parsed.output)
    else:
        _write(parsed.output or path, report_html(report))
    return EXIT_OK


def _validate(parsed: argparse.Namespace) -> int:
    from results.sources import stored_records

    good = bad = 0
    for stored in stored_records(parsed.runs):
        if stored.error is None:
            good += 1
            continue
        bad += 1
        for problem in stored.error.problems:
            print(f"{stored.path}: {problem}")
    print(f"{good} good, {bad} bad", file=sys.stderr)
    return EXIT_SOME_FAILED if bad else EXIT_OK


def _merged(runs: Sequence[str]) -> Merged:
    from results.merge import merge_records
    from results.sources import stored_records

    return merge_records(stored_records(runs))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Name another file.") from error
    print(path, file=sys.stderr)


def _tell(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"! {problem}", file=sys.stderr)

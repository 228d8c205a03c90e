"""The commands for choosing a GPU: recommend, gpus."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from results.commands.command_line import (
    RUNS_HELP,
    add_command,
    add_format,
    add_runs,
    placed,
    print_grids,
    print_lines,
    rates_and_unread,
)
from results.errors import UserError
from results.recommend.questions import Limits
from results.schema.exit_codes import ExitCode

if TYPE_CHECKING:
    from results.commands.command_line import Commands
    from results.table.fleets import FleetRate


def add_prices(parser: argparse.ArgumentParser) -> None:
    """Add `--price` and `--prices`."""
    parser.add_argument(
        "--price",
        metavar="GPU=USD",
        action="append",
        default=[],
        help="price of a GPU-hour; like --prices, it overrides hosts.yml, which overrides the shipped examples",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="your prices, or a list of a cloud or catalog, as CSV or JSON",
    )


def add_gpus(commands: Commands) -> None:
    """Add `gpus`."""
    parser = add_command(commands, "gpus", _gpus, "compare the specifications of GPUs, and what they mean for training")
    parser.add_argument(
        "names", metavar="GPU", nargs="*", help="e.g. A4000 A5000; a family, e.g. A100, means all of it"
    )
    parser.add_argument("--gpus", metavar="NAMES", default="", help="the same names, comma-separated")
    add_format(parser, "text", "json", "markdown")


def add_recommend(commands: Commands) -> None:
    """Add `recommend`."""
    parser = add_command(
        commands, "recommend", _recommend, "recommend a GPU to rent, from measured or published figures"
    )
    add_runs(parser, text=f"{RUNS_HELP}; without any, published figures")
    parser.add_argument(
        "--model",
        action="append",
        help="network; repeat for several answers; default: resnet50",
    )
    parser.add_argument("--precision", default="fp16", metavar="NAMES", help="fp32, tf32, fp16, bf16; default: fp16")
    parser.add_argument("--num-gpus", default="1", metavar="N", help="GPUs of a job, e.g. 1 or 1,4; default: 1")
    parser.add_argument("--mode", choices=["train", "infer"], help="default: each measured mode separately")
    parser.add_argument(
        "--gpus",
        metavar="NAMES",
        default="",
        help="choose from these GPUs, e.g. 'A4000,A100' or '2x A5000,A6000'; a family, e.g. A100, means all of it",
    )
    add_prices(parser)
    parser.add_argument(
        "--budget",
        metavar="USD",
        type=float,
        help="maximum price per hour of all GPUs together; every offer below it counts",
    )
    parser.add_argument("--hours", type=float, help="maximum hours for --samples")
    parser.add_argument("--samples", type=float, default=1e6, help="samples of the job; default: a million")
    parser.add_argument("--memory", "--min-memory", metavar="GIB", type=float, help="minimum memory per GPU, e.g. 24")
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=int,
        help="batch per GPU that must fit, if known",
    )
    add_format(parser, "text", "json", "markdown")


def _recommend(
    runs: list[str],
    runs_dir: Path | None,
    *,
    model: list[str] | None,
    precision: str,
    num_gpus: str,
    mode: str | None,
    gpus: str,
    price: list[str],
    prices: list[Path],
    limits: Limits,
    format: str,
) -> int:
    from results.recommend.answer import advise
    from results.recommend.output import advice_grid, advice_json
    from results.recommend.questions import read_questions

    questions = read_questions(
        limits, model=model or (), precision=precision, num_gpus=num_gpus, mode=mode, gpus=[gpus]
    )
    advices, remarks = advise(questions, _measured(runs, runs_dir), price, prices)
    if format == "json":
        sys.stdout.write(advice_json(advices, remarks))
        return ExitCode.OK
    for advice in advices:
        print_lines([advice.sentence], format, strong=True)
        print_grids([advice_grid(advice)], format)
    print_lines(remarks, format)
    return ExitCode.OK


def _measured(runs: list[str], runs_dir: Path | None) -> list[FleetRate]:
    """Read the named runs, or the latest one; empty if there are none."""
    from results.runs.store import has_runs

    if not runs and not has_runs(runs_dir):
        return []
    return rates_and_unread(placed(runs, runs_dir))[0]


def _gpus(names: list[str], *, gpus: str, format: str) -> int:
    from results.reference.gpu_comparison import (
        SENTENCES_FROM,
        as_lines,
        comparison_json,
        comparison_lines,
        gpu_grids,
        named_gpus,
    )

    names = [*names, *(name.strip() for name in gpus.split(",") if name.strip())]
    if not names:
        raise UserError("name at least one GPU. Example: gpus A4000 A5000")
    found = named_gpus(names)
    if format == "json":
        sys.stdout.write(comparison_json(found))
    else:
        print_lines(comparison_lines(found), format)
        grids = gpu_grids(found)
        if format == "markdown":
            print_grids(grids, format)
        else:
            print_grids(grids[:SENTENCES_FROM], format)
            for grid in grids[SENTENCES_FROM:]:
                print_lines(as_lines(grid), format, strong=True)
    return ExitCode.OK

"""The commands for choosing a GPU: recommend, gpus."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from results.commands.command_line import RUNS_HELP, Format, PriceFiles, Prices, RunsDir, print_grids, print_lines, read
from results.errors import UserError
from results.program import flag, positional
from results.schema.exit_codes import ExitCode

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
    batch_size: Annotated[int | None, flag("batch per GPU that must fit, if known", metavar="N")] = None


def recommend(
    runs: Annotated[list[str], positional(f"{RUNS_HELP}; without any, published figures", metavar="RUN")],
    runs_dir: RunsDir,
    *,
    asked: Asked,
    price: Prices,
    prices: PriceFiles,
    format: Format = "text",
) -> int:
    """Recommend a GPU to rent, from measured or published figures."""
    from results.recommend.answer import advise
    from results.recommend.output import advice_grid, advice_json
    from results.recommend.questions import read_questions
    from results.runs.store import run_folders
    from results.runs.store import runs_dir as default_runs_dir

    measured = read(runs, runs_dir).rates if runs or run_folders(runs_dir or default_runs_dir()) else []
    questions = read_questions(measured=[rate.case.model for rate in measured], **vars(asked))
    advices, remarks = advise(questions, measured, price, prices)
    if format == "json":
        sys.stdout.write(advice_json(advices, remarks))
        return ExitCode.OK
    for advice in advices:
        print_lines([advice.sentence], format, strong=True)
        print_grids([advice_grid(advice)], format)
    print_lines(remarks, format)
    return ExitCode.OK


def gpus(
    names: Annotated[list[str], positional("e.g. A4000 A5000; a family, e.g. A100, means all of it", metavar="GPU")],
    gpus: Annotated[str, flag("the same names, comma-separated", metavar="NAMES")] = "",
    format: Format = "text",
) -> int:
    """Compare the specifications of GPUs, and what they mean for training."""
    from results.reference import gpu_comparison

    found = gpu_comparison.named_gpus([*names, gpus])
    if not found:
        raise UserError("name at least one GPU. Example: gpus A4000 A5000")
    if format == "json":
        sys.stdout.write(gpu_comparison.comparison_json(found))
        return ExitCode.OK
    print_lines(gpu_comparison.comparison_lines(found), format)
    grids = gpu_comparison.gpu_grids(found)
    beside = len(grids) if format == "markdown" else gpu_comparison.SENTENCES_FROM
    print_grids(grids[:beside], format)
    for grid in grids[beside:]:
        print_lines(gpu_comparison.as_lines(grid), format, strong=True)
    return ExitCode.OK

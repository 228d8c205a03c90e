"""The commands for choosing a GPU: recommend, gpus."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from results.commands.command_line import (
    RUNS_HELP,
    Format,
    PriceFiles,
    Prices,
    RunsDir,
    print_grids,
    print_lines,
    read,
)
from results.errors import UserError
from results.program import flag, positional
from results.schema.exit_codes import ExitCode

if TYPE_CHECKING:
    pass


def recommend(
    runs: Annotated[list[str], positional(f"{RUNS_HELP}; without any, published figures", metavar="RUN")],
    runs_dir: RunsDir,
    *,
    model: Annotated[list[str], flag("network; repeat for several answers; default: resnet50")],
    precision: Annotated[str, flag("fp32, tf32, fp16, bf16; default: fp16", metavar="NAMES")] = "fp16",
    num_gpus: Annotated[str, flag("GPUs of a job, e.g. 1 or 1,4; default: 1", metavar="N")] = "1",
    mode: Annotated[Literal["train", "infer"] | None, flag("default: each measured mode separately")],
    gpus: Annotated[
        str,
        flag(
            "choose from these GPUs, e.g. 'A4000,A100' or '2x A5000,A6000'; a family, e.g. A100, means all of it",
            metavar="NAMES",
        ),
    ] = "",
    price: Prices,
    prices: PriceFiles,
    budget: Annotated[
        float | None,
        flag("maximum price per hour of all GPUs together; every offer below it counts", metavar="USD"),
    ],
    hours: Annotated[float | None, flag("maximum hours for --samples")],
    samples: Annotated[float, flag("samples of the job; default: a million")] = 1e6,
    memory: Annotated[float | None, flag("minimum memory per GPU, e.g. 24", "--memory", "--min-memory", metavar="GIB")],
    batch_size: Annotated[int | None, flag("batch per GPU that must fit, if known", metavar="N")],
    format: Format = "text",
) -> int:
    """Recommend a GPU to rent, from measured or published figures."""
    from results.recommend.answer import advise
    from results.recommend.output import advice_grid, advice_json
    from results.recommend.questions import read_questions
    from results.runs.store import has_runs

    measured = read(runs, runs_dir).rates if runs or has_runs(runs_dir) else []
    questions = read_questions(
        model=model,
        precision=precision,
        num_gpus=num_gpus,
        mode=mode,
        gpus=[gpus],
        measured=[rate.case.model for rate in measured],
        budget=budget,
        hours=hours,
        samples=samples,
        memory=memory,
        batch_size=batch_size,
    )
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
        return ExitCode.OK
    print_lines(comparison_lines(found), format)
    grids = gpu_grids(found)
    beside = len(grids) if format == "markdown" else SENTENCES_FROM
    print_grids(grids[:beside], format)
    for grid in grids[beside:]:
        print_lines(as_lines(grid), format, strong=True)
    return ExitCode.OK

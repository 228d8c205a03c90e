"""Every table on terminals of 80, 100 and 140 columns: golden texts, and no command is ever split.

`python -m tests.unit.test_widths` writes the golden texts, which are then read before they are committed.
"""

import dataclasses
import functools
import io
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from orchestrate import images
from orchestrate.deep_check import verdict_grid
from orchestrate.display import tables
from orchestrate.planning.facts import Image
from orchestrate.planning.plan import make_plan
from orchestrate.suites import read_suite, suites_grid
from results.audit.judgement import audit_file, audit_parts
from results.compare.comparison import compare
from results.recommend.answer import answers
from results.recommend.options import asked_prices, read_questions
from results.recommend.output import advice_grid
from results.reference.gpu_comparison import gpu_grids
from results.report.comparison import compare_grid, scaling_grid
from results.report.tables import all_grids
from results.runs.store import RunFolder
from results.runs.time_breakdown import time_breakdown, time_breakdown_grid
from results.schema import Phase, SoftWarning
from results.table.merge import merge_records
from results.text_table import Grid, print_grid, print_line
from tests.unit.orchestrate.test_check import GOOD, host
from tests.unit.orchestrate.test_deep_check import checked
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats, stored
from tests.unit.results.test_tables import PHASES, device_record

GOLDEN = Path(__file__).parent / "golden" / "widths"
CASES = Path(__file__).parent / "results" / "cases"
RATES = {"resnet50": 12.0, "googlenet": 30.0}
CORES = {"one-core": (1.0, make_environment(cpu_limit=1.0)), "two-cores": (1.9, make_environment(cpu_limit=2.0))}


def two_fleets():
    records = []
    for case, rate in ((make_case(m, num_gpus=n), r * n**0.1) for m, r in RATES.items() for n in (1, 2)):
        for fleet, (factor, environment) in CORES.items():
            rates = [rate * factor * noise for noise in (1.0, 1.01, 0.985)]
            records += repeats(*rates, fleet=fleet, host=f"on-{fleet}", case=case, environment=environment)
    return records


WIDTHS = (80, 100, 140)


def records():
    failed = make_failure("oom", "11 GB were not enough for a batch of 128", origin=make_origin("two-cores", "node-x"))
    phases = [Phase(name=name, seconds=seconds, cpu_seconds=seconds) for name, seconds in PHASES.items()]
    warnings = [SoftWarning(code=code, message="") for code in ("high_cv", "drift")]
    rows = [dataclasses.replace(item, phases=phases, warnings=warnings) for item in two_fleets()]
    return stored(*rows, failed, device_record(1.0), device_record(1.01, repeat=2))


def plan():
    image = Image(variant="cuda12.5", reference="ghcr.io/some-owner/tfbench:0.1.0-cuda12.5", reason="machine code 8.6")
    facts = dataclasses.replace(GOOD, images=(image,))
    hosts = [host(), host().model_copy(update={"name": "node-in-another-town"})]
    probed = {hosts[0].place: facts, hosts[1].place: "ssh: connect to host node-in-another-town: no route to host"}
    return hosts, probed, make_plan(hosts, probed, lambda _: read_suite("standard"), run_id="run-1", seed=1)


def status() -> Grid:
    with tempfile.TemporaryDirectory() as folder:
        run, (_, _, planned) = RunFolder.create(Path(folder), "run-1"), plan()
        first, second, *_ = planned.jobs
        run.write_record(first.id, two_fleets()[0])
        run.write_record(second.id, make_failure("oom", "11 GB were not enough for a batch of 128"))
        document = tables.status_document(planned, run, running=True)
    return tables.status_grid(document | {"folder": "runs/run-1"})


def grids() -> dict[str, list[Grid]]:
    """Return the tables of `results`, by the golden text that shows them."""
    merged = merge_records(records())
    rates = [[rate for rate in merged.rates if rate.fleet == name] for name in ("two-cores", "one-core")]
    question = read_questions(model=["resnet50"], gpus="A4000,A5000")
    advices = [advice for asked in question for advice in answers(asked, [], asked_prices([], [], []))]
    breakdown, scaling = time_breakdown_grid(time_breakdown(records())), scaling_grid(merged.rates)
    assert breakdown is not None and scaling is not None
    return {
        "show": all_grids(merged),
        "time-breakdown": [breakdown],
        "compare": [compare_grid(compare(*rates), "two-cores", "one-core"), scaling],
        "recommend": list(map(advice_grid, advices)),
        "gpus": gpu_grids(["RTX A4000", "RTX A5000"]),
        "deep-check": [verdict_grid(checked(slow=2))],
    }


def show(made: list[Grid]) -> Callable[[Console], None]:
    return lambda console: [print_grid(grid, console) for grid in made] and None


def show_audit(console: Console) -> None:
    path = CASES / "blog_a5000.csv"
    for number, part in enumerate(audit_parts(path, audit_file(path))):
        for line in ["", *part] if number else part:
            print_line(line, console)


def printed(render: Callable[[Console], None], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    render(console)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines()) + "\n"  # type: ignore[attr-defined]


@functools.cache
def rendered() -> dict[str, Callable[[Console], None]]:
    return {
        "check": show([tables.check_grid(*plan()[:2])]),
        "plan": show([tables.plan_grid(plan()[2])]),
        "status": show([status()]),
        "images": lambda console: images.show_list(console),
        "suites": show([suites_grid(None)]),
        "suite": show([suites_grid("published")]),
        "audit": show_audit,
        **{name: show(made) for name, made in grids().items()},
    }


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", sorted({path.stem.rpartition("-")[0] for path in GOLDEN.iterdir()}))
def test_golden_text_of_each_table(name: str, width: int):
    text = printed(rendered()[name], width)
    assert text == (GOLDEN / f"{name}-{width}.txt").read_text(encoding="utf-8")
    too_long = [line for line in text.splitlines() if len(line) > width]
    assert all(" " not in line.strip() for line in too_long), too_long


COMMANDS = ("--model resnet50 --precision fp16 --num-gpus 1 --mode train", "--price 'RTX A4000=0.17'", "--num-gpus 2",
            "tfbench resume runs/2026-11-28", "tfbench images pull --image tfbench:0.1.0-cpu", "compare --by keras,driver",
            "| less -S")  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("width", range(20, 141, 5))
def test_no_command_is_broken_over_two_lines(command: str, width: int):
    """Pasting its first line would run another command; in sentences, below tables and in their cells."""
    sentence = f"a sentence of several words; to do something else: {command} or in other words something else"
    grid = Grid("", ["what", "n>"], [[sentence, "1"]], [sentence])
    pasted = command.removeprefix("compare ")
    text = printed(lambda console: print_line(sentence, console), width) + printed(show([grid]), width)
    assert text.count(pasted) == 3, text


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, render in rendered().items():
        for width in WIDTHS:
            (GOLDEN / f"{name}-{width}.txt").write_text(printed(render, width), encoding="utf-8")

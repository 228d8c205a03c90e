"""The hour itself: what it runs is understood by what it calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from results.schema.networks import tuning_refusal
from tests.benchmarks.gpu_evidence.__main__ import main
from tests.benchmarks.gpu_evidence.figures import READERS
from tests.benchmarks.gpu_evidence.folder import Folder
from tests.benchmarks.gpu_evidence.plan import hour
from tests.benchmarks.gpu_evidence.runner import Programs, filled
from tests.benchmarks.gpu_evidence.steps import Machine, NoFigure, resolve
from tfbench.flags import help_text, parse

LONGEST_CALL = 540
"""Seconds: a step that takes longer could never end within a call."""

PROGRAMS = Programs(python="python", peer_python="python")

FLAGS = frozenset(re.findall(r"^  (?:-\w,)?--(?:\[no\])?(\w+):", help_text(), re.MULTILINE))


def commands_on(gpus: int):
    machine = Machine(gpus=gpus, flags=FLAGS, programs=frozenset({"nsys", "ncu"}), why_no_gpu="none")
    for step in hour():
        try:
            resolved = resolve(step, machine, pairs=1)
        except NoFigure:
            continue
        for run in resolved.runs:
            yield filled(run, machine, PROGRAMS, Folder(Path("out")), Path("r.json"), 60.0)


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_every_benchmark_of_the_plan_is_a_case_that_can_be_asked_for(gpus):
    asked = 0
    for command in commands_on(gpus):
        assert not any("{" in argument for argument in command)
        if "tfbench" in command:
            case = parse(command[command.index("tfbench") + 1 :]).case
            assert case.device == ("cpu" if gpus == 0 else "gpu")
            assert tuning_refusal(case) is None
            asked += 1
    assert asked >= (5 if gpus == 0 else 50)


def test_every_step_has_a_file_name_a_reader_and_a_limit_that_a_call_has_room_for():
    for step in hour():
        assert re.fullmatch(r"[\w-]+\.[\w.-]+", step.name)
        assert step.figure in READERS and 0 < step.limit < LONGEST_CALL


def test_one_more_switch_is_one_more_row_and_every_row_is_a_step():
    from tests.benchmarks.gpu_evidence.plan import REPLICA_SWITCHES, SWITCHES

    names = {step.name for step in hour()}
    assert {f"switch.{row[0]}" for row in SWITCHES} | {f"replicas.{row[0]}" for row in REPLICA_SWITCHES} <= names


def test_the_list_shows_each_step_with_its_need_its_limit_and_its_command(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("replicas.pack-8 ")]
    assert re.search(r"2 GPUs +420 s +no_gpu ", row)
    below = lines[lines.index(row) + 1]
    assert "switch: {python} -m tfbench" in below and "--all_reduce_pack_mb=8" in below


def run_on(gib: float, name: str) -> list[str]:
    """Return the batches of a step's runs on a GPU of that memory."""
    (step,) = [step for step in hour() if step.name == name]
    machine = Machine(gpus=1, flags=FLAGS, memory_gib=gib, peer=Path())
    runs = resolve(step, machine, pairs=1).runs
    return [argument.partition("=")[2] for run in runs for argument in run.command if "batch_size" in argument]


@pytest.mark.parametrize(
    ("gib", "name", "batch"),
    [
        (16, "throughput.resnet50-fp16", "256"),
        (16, "throughput.resnet152-fp16", "128"),
        (8, "throughput.resnet50-fp16", "128"),
        (24, "throughput.resnet152-fp16", "256"),
        (16, "throughput.bert_large-fp32", "32"),
        (16, "peer.resnet50-fp32-b256", "128"),
    ],
)
def test_batches_are_halved_until_they_fit_the_gpu_on_both_sides(gib, name, batch):
    assert set(run_on(gib, name)) == {batch}


def test_the_first_steps_are_those_that_answer_most():
    names = [step.name for step in hour()]
    assert names[0] == "environment.tensorflow", "what ends the call where nothing can work"
    assert names.index("replicas.scaling-4") < 15 and names.index("throughput.googlenet-fp16") < 30

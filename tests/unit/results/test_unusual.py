"""Repeats that differ from the others of their case by more than noise explains are named, and ordinary ones are not."""

import dataclasses
import random

import pytest

import results.__main__ as program
from tests.support import PROJECT
from tests.unit.results.factory import make_case, repeats, write_run

MEASURED = PROJECT / "results" / "reference" / "measured"


def noisy(records, cv):
    """Give all records steps of a coefficient of variation."""
    return [
        dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, step_cv=cv))
        for record in records
    ]


@pytest.fixture
def said(tmp_path, capsys):
    """Return what a command prints of some records, in one line."""

    def run(records, *command):
        folder = write_run(tmp_path, records)
        assert program.main(["results", *command, str(folder.path)]) == 0
        return " ".join(" ".join(capsys.readouterr()).split())

    return run


def test_a_process_that_chose_another_algorithm_is_named_by_every_command(capsys):
    name = "process-h100, resnet50 fp32, batch 128: repeats 1 (1\u00a0069 images/s) and 2 (1\u00a0107 images/s) differ by 3.5%"
    run = str(MEASURED / "h100-container-2026-11-28" / "runs" / "main")
    for command in ("show", "compare", "export", "validate"):
        assert program.main(["results", command, run]) == 0
        text = " ".join(" ".join(capsys.readouterr()).replace("\u00a0", " ").split())
        assert text.count(name.replace("\u00a0", " ")) == 1, command


@pytest.mark.parametrize("rates", [(100.0, 100.1, 96.6), (100.0, 99.9, 100.2, 100.1, 103.5)])
def test_the_repeat_that_differs_from_several_is_named(said, rates):
    direction = "slower" if rates[-1] < 100 else "faster"
    text = said(noisy(repeats(*rates), 0.001), "show")
    odd = f"repeat {len(rates)} ({rates[-1]:.4g}"
    assert odd in text and f"{direction} than the {len(rates) - 1} others" in text


def test_it_is_named_although_other_cases_have_one_too(said):
    lasts = {"resnet50": 96.6, "vgg16": 96.6, "googlenet": 99.9, "inception_v3": 99.9, "resnet152": 99.9}
    records = [r for model, last in lasts.items() for r in repeats(100.0, 100.2, last, case=make_case(model))]
    assert said(noisy(records, 0.001), "show").count("repeat 3 (96.60 images/s) is 3.") == 2


@pytest.mark.parametrize(
    ("rates", "cv"),
    [
        ((100.0, 100.1, 96.6), 0.05),  # its steps vary, too
        ((100.0, 100.1, 98.5), 0.001),  # little
        ((100.0, 103.0, 97.0, 104.0, 95.0), 0.001),  # none agree
        ((96.6,), 0.001),
    ],
)
def test_ordinary_repeats_are_not_named(said, rates, cv):
    assert "another algorithm" not in said(noisy(repeats(*rates), cv), "show")


def test_normal_repeats_give_no_alarm(said):
    noise = random.Random(3)
    cases = [make_case("resnet50", batch_per_gpu=batch) for batch in range(1, 201)]
    records = [r for case in cases for r in repeats(*(100 * noise.gauss(1, 0.003) for _ in range(3)), case=case)]
    assert "another algorithm" not in said(noisy(records, 0.001), "validate")


def test_the_measured_folders_give_no_false_alarm(capsys):
    runs = [str(run) for run in MEASURED.glob("*-sxm-*/runs/*")]
    assert len(runs) >= 2 and program.main(["results", "validate", *runs]) == 0
    assert "another algorithm" not in capsys.readouterr().out

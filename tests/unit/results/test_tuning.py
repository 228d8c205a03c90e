"""Settings of `TUNING`: a row of `Case` each gives the flag, the suite's key, the column and the case's name."""

import dataclasses

import pytest

from orchestrate.errors import DocumentError
from orchestrate.suites import read_suite
from results.schema import TUNING, AllReduceDtype, Case, Device, Mode, Precision
from results.schema.networks import tuning_refusal
from results.schema.record_json import from_json, to_json
from results.table.columns import COLUMNS
from tests.unit.results.factory import make_record
from tfbench.flags import parse

CHANGED = {
    "all_reduce_pack_mb": 50,
    "all_reduce_dtype": AllReduceDtype.FP16,
    "steps_per_call": 5,
    "compile_update": True,
    "cublaslt": True,
    "memory_growth": False,
    "frozen": True,
}


def changed(name):
    mode = Mode.INFER if name == "frozen" else Mode.TRAIN
    return Case(model="resnet50", precision=Precision.FP16, mode=mode, **{name: CHANGED[name]})


def test_every_setting_is_tried_here():
    assert set(CHANGED) == set(TUNING)


@pytest.mark.parametrize("name", TUNING)
def test_a_setting_goes_from_the_command_line_into_the_case_and_back(name):
    case = changed(name)
    assert parse(case.flags()).case == case
    assert tuning_refusal(case) is None
    assert dataclasses.replace(case, **{name: getattr(Case, name)}).name != case.name


@pytest.mark.parametrize("name", TUNING)
def test_a_setting_survives_in_the_record_and_has_a_column(name):
    record = make_record(100.0, case=changed(name))
    assert getattr(from_json(to_json(record)).case, name) == CHANGED[name]
    assert name in COLUMNS


def test_defaults_change_neither_the_name_nor_the_command_line_of_a_case():
    case = Case(model="resnet50")
    assert case.tuned == {}
    assert not any(name in flag for flag in case.flags() for name in TUNING)


def test_a_suite_sweeps_a_setting(tmp_path):
    path = tmp_path / "sweep.yml"
    path.write_text("cases: [{model: resnet50, batch_per_gpu: 64, num_gpus: 2, all_reduce_pack_mb: [0, 16, 50]}]\n")
    packs = [case.all_reduce_pack_mb for case in read_suite(str(path)).cases(Device.GPU)]
    assert packs == [0, 16, 50]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("steps_per_call: 3", "steps_per_call: 3 is not for 100 timed steps: it must divide num_steps"),
        ("all_reduce_dtype: fp16", "all_reduce_dtype: fp16 is not for precision fp32"),
        ("frozen: true", "frozen: True is not for mode train: it is for mode infer"),
        ("mode: infer, compile_update: true", "compile_update: True is not for mode infer"),
        ("data: host, steps_per_call: 5", "steps_per_call: 5 is not for data host"),
        ("steps_per_call: 0", "steps_per_call"),
    ],
)
def test_a_setting_that_does_not_go_with_the_rest_is_refused_by_name(tmp_path, block, message):
    path = tmp_path / "bad.yml"
    path.write_text(f"cases: [{{model: resnet50, batch_per_gpu: 64, {block}}}]\n")
    with pytest.raises(DocumentError, match=message):
        read_suite(str(path))

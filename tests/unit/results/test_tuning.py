"""Settings of `TUNING`: a row of `Case` each gives the flag, the suite's key, the column and the case's name."""

import dataclasses
import json

import pytest

from orchestrate.errors import DocumentError
from orchestrate.suites import read_suite
from results.runs.reading import from_json
from results.schema import TUNING, AllReduceDtype, Case, Device, Precision
from results.schema.case import REMOVED_SETTINGS
from results.schema.networks import tuning_refusal
from results.schema.record_json import RecordError, to_json
from results.table.columns import COLUMNS
from tests.unit.results.factory import make_record
from tfbench.flags import FlagsError, parse

CHANGED = {
    "all_reduce_pack_mb": 50,
    "all_reduce_dtype": AllReduceDtype.FP16,
    "memory_growth": False,
}


def changed(name):
    return Case(model="resnet50", precision=Precision.FP16, **{name: CHANGED[name]})


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
    assert not any(name in flag for flag in case.flags() for name in TUNING)


def test_a_suite_sweeps_a_setting(tmp_path):
    path = tmp_path / "sweep.yml"
    path.write_text("cases: [{model: resnet50, batch_per_gpu: 64, num_gpus: 2, all_reduce_pack_mb: [0, 16, 50]}]\n")
    packs = [case.all_reduce_pack_mb for case in read_suite(str(path)).cases(Device.GPU)]
    assert packs == [0, 16, 50]


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("all_reduce_dtype: fp16", "all_reduce_dtype: fp16 is not for precision fp32"),
        ("mode: infer, all_reduce_pack_mb: 50", "all_reduce_pack_mb: 50 is not for mode infer"),
        ("all_reduce_pack_mb: -1", "all_reduce_pack_mb"),
        ("frozen: true", "frozen was removed: .* Remove it"),
    ],
)
def test_a_setting_that_does_not_go_with_the_rest_is_refused_by_name(tmp_path, block, message):
    path = tmp_path / "bad.yml"
    path.write_text(f"cases: [{{model: resnet50, batch_per_gpu: 64, {block}}}]\n")
    with pytest.raises(DocumentError, match=message):
        read_suite(str(path))


@pytest.mark.parametrize("name", REMOVED_SETTINGS)
def test_a_removed_setting_is_read_at_its_default_only(name):
    document = json.loads(to_json(make_record(100.0)))
    document["case"][name] = REMOVED_SETTINGS[name]
    assert from_json(json.dumps(document)) == from_json(to_json(make_record(100.0)))
    document["case"][name] = 5
    with pytest.raises(RecordError, match=f"case.{name} was removed. Measure the case again without it"):
        from_json(json.dumps(document))


@pytest.mark.parametrize("flag", ["--frozen", "--nofrozen", "--steps_per_call=5", "--compile_update", "--cublaslt"])
def test_a_removed_flag_is_answered(flag):
    with pytest.raises(FlagsError, match=r"^--\w+ was removed: .* Remove it$"):
        parse(["--model=resnet50", flag])

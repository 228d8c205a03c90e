"""What a case is called, and the command line that measures it, as they were when `golden/cases.jsonl` was written.

Names are folders, plans and keys of merged tables: a name that changes orphans every record that has it.
"""

import json
from pathlib import Path

import pytest

from orchestrate.suites import CaseBlock
from results.runs.reading import checked
from results.schema import SETTINGS, Case, kind_of, range_of
from results.table.columns import CASE_COLUMNS, COLUMNS
from tfbench.flags import help_text, parse

GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "golden" / "cases.jsonl").read_text().splitlines()]
"""`case`: what was changed of a plain case of that network."""


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_a_case_has_the_name_and_the_flags_that_it_always_had(golden, monkeypatch):
    monkeypatch.setattr("tfbench.flags.read_cluster", lambda *_: None)
    case = checked(Case, golden["case"])
    assert case.name == golden["name"]
    assert case.flags() == golden["flags"]
    assert parse(case.flags()).case == case


def test_the_golden_cases_change_every_setting():
    assert len(GOLDEN) == len({golden["name"] for golden in GOLDEN}) >= 99
    assert {name for golden in GOLDEN for name in golden["case"]} == set(CASE_COLUMNS)


def test_an_update_has_the_batches_of_all_replicas_and_accumulated_steps():
    assert Case(model="bert_large", batch_per_gpu=8, num_gpus=2, num_hosts=3, accumulate=4).global_batch == 192


@pytest.mark.parametrize("name", SETTINGS)
def test_a_row_of_the_table_of_settings_is_all_that_a_setting_needs(name):
    flag = SETTINGS[name].flag or name
    assert f"--{flag}" in help_text() or f"--[no]{flag}" in help_text()
    assert name in COLUMNS
    assert name in CaseBlock.model_fields, "a key of a suite"
    if kind_of(name) in (int, float):
        assert range_of(name).low < range_of(name).high

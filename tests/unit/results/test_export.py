import json

import pytest

import results.__main__ as program
from results.runs.store import RunFolder
from results.table.columns import COLUMNS
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    folder = RunFolder.create(tmp_path, "run-1")
    case = make_case(device="gpu", precision="fp16")
    records = [
        *repeats(450.0, 452.0, case=case, environment=make_environment(gpus=1)),
        make_failure("oom", "out of memory", case=make_case("vgg16"), origin=make_origin(repeat=1)),
    ]
    for i, record in enumerate(records):
        folder.write_record(f"job-{i}", record)
    return folder


def call(*arguments):
    return program.main(["results", *arguments])


def test_every_format_has_the_columns_of_the_dictionary(run, capsys):
    assert call("export", "--format=csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == ",".join(COLUMNS)
    assert call("export", "--format=json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["table_version"] == 1 and list(document["rows"][0]) == list(COLUMNS)
    assert {row["samples_per_second"] for row in document["rows"]} == {451.0, None}
    assert call("export", "--format=wide") == 0
    assert "| resnet50 | fp16 | 8 |" in capsys.readouterr().out

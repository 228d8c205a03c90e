import os

import pytest

from results.errors import NotARun, UserError
from results.runs.store import RunFolder, latest_run
from results.schema.record_json import MAX_RECORD_BYTES, RecordError
from tests.unit.results.factory import make_failure


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "runs", "run-1")


def test_a_corrupt_record_is_named_and_the_others_are_still_read(run):
    run.write_record("b", make_failure())
    run.record_path("a").write_text('{"half": ')
    run.record_path("c").write_bytes(b" " * (MAX_RECORD_BYTES + 5))
    run.record_path("d").write_text('{"schema_version": 99}')
    found = {stored.path.name: stored for stored in run.records()}
    assert found["b.json"].record == make_failure()
    assert "not JSON" in str(found["a.json"].error)
    assert f"larger than {MAX_RECORD_BYTES} bytes" in str(found["c.json"].error)
    assert "schema_version must be 1" in str(found["d.json"].error) and "99" in str(found["d.json"].error)
    with pytest.raises(RecordError):
        run.read_record("a")


def test_a_plan_that_cannot_be_read_is_named(run):
    with pytest.raises(NotARun, match=r"plan\.json"):
        run.read_plan()
    run.write_plan('{"jobs": [1, 2]}')
    assert run.read_plan() == b'{"jobs": [1, 2]}'
    run.plan_path.unlink()
    run.plan_path.mkdir()
    with pytest.raises(NotARun, match="cannot be read"):
        run.read_plan()


def test_events_are_read_in_order_and_a_torn_line_is_passed_over(run):
    assert list(run.read_events()) == []
    with run.journal() as append:
        append({"n": 1})
    with run.events_path.open("a") as file:
        file.write('{"n": ')  # the controller died here
    assert list(run.read_events()) == [{"n": 1}]
    with RunFolder.open(run.path).journal() as append:
        append({"n": 2})
        append({"n": 3})
    other = os.open(run.path / "other", os.O_RDWR | os.O_CREAT)  # gets the number of the closed one
    append({"n": 4})
    assert os.fstat(other).st_size == 0, "a late event went into another file"
    os.close(other)
    assert list(run.read_events()) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert run.events_path.read_text() == '{"n": 1}\n{"n": \n{"n": 2}\n{"n": 3}\n'


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "a\n", "../x", "x" * 300, "ümlaut"])
def test_a_name_that_could_leave_the_folder_is_refused(run, name):
    with pytest.raises(UserError, match="job id must be"):
        run.record_path(name)
    with pytest.raises(UserError, match="run id must be"):
        RunFolder.create(run.path.parent, name)


def test_a_name_that_is_taken_and_a_folder_that_is_no_run_are_named(run, tmp_path):
    with pytest.raises(UserError, match="run of this name exists"):
        RunFolder.create(run.path.parent, "run-1")
    with pytest.raises(NotARun, match="no such run folder"):
        RunFolder.open(tmp_path / "nothing")
    with pytest.raises(NotARun, match=r"holds no records/"):
        RunFolder.open(tmp_path)


def test_the_latest_run_is_the_one_planned_last(tmp_path, monkeypatch):
    for seconds, name in ((2000, "a"), (1000, "b")):
        folder = RunFolder.create(tmp_path, name)
        folder.write_plan("{}")
        os.utime(folder.plan_path, (seconds, seconds))
    (tmp_path / "not-a-run").mkdir()
    for folder in (tmp_path / "not-a-run", tmp_path / "missing"):
        monkeypatch.setenv("TFBENCH_RUNS_DIR", str(folder))
        with pytest.raises(NotARun, match="no run found here"):
            latest_run()
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    assert latest_run() == tmp_path / "a"

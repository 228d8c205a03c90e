"""Records and plans of every version so far are read; `python -m tests.unit.results.test_versions` lists new fields."""

import dataclasses
import enum
import functools
import json
import operator
import shutil
import types
import typing
from pathlib import Path
from typing import Any

import pytest

import results.__main__ as program
from orchestrate import cli
from orchestrate.planning.plan import plan_from_json
from results.api import read_runs
from results.program import run_main
from results.runs.reading import RECORD_CHANGES, from_json
from results.runs.store import read_stored
from results.schema import SCHEMA_VERSION, Record
from results.schema.record_json import NewerRecord, RecordError
from tests.support import PROJECT

FROZEN = PROJECT / "tests" / "frozen"
"""Files that older versions wrote; never written again."""

RUNS = sorted((FROZEN / "runs").iterdir())
MEASURED = sorted((PROJECT / "results" / "reference" / "measured").glob("**/records/*.json"))
COMMANDS = {"show": [], "compare": [], "export": ["--format=json"], "report": ["--output=page.html"]}
MANY = 10
IGNORED = {
    1: {
        *("case.optimizer=lamb", "environment.tf32_observed_in_convolution", "measurement.seed", "measurement.losses"),
        *("telemetry.cpu_energy_joules", "device_observations.xid_errors", "device_observations.xid_known"),
    }
}
"""By version: fields that are gone, whatever value they had. Optimizers are checked as every enumeration."""


def fields(kind: Any = Record, path: str = "") -> dict[str, str]:
    """Return the type of each field of a dataclass, by its path."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        if typing.get_origin(hint) is typing.Union:  # of a type whose bound was taken away
            hint = functools.reduce(operator.or_, typing.get_args(hint))
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        inner = typing.get_args(parts[0])[0] if typing.get_origin(parts[0]) is list else parts[0]
        if dataclasses.is_dataclass(inner):
            found |= fields(inner, f"{path}{name}.")
        if isinstance(inner, type) and issubclass(inner, enum.Enum):
            found |= {f"{path}{name}={value}": "value" for value in inner}
        text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
        found[path + name] = text.replace("results.schema.", "").replace("enums.", "").replace("record.", "")
    return found


def listed(version) -> dict[str, str]:
    """Return the fields of a version of the record."""
    lines = (FROZEN / "fields" / f"{version}.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(": ", 1) for line in lines)


def changed(path: str, version: int) -> str | None:
    """Return where a field is in the next version; None: it was removed."""
    for change in RECORD_CHANGES.get(version, ()):
        if path == change.path:
            return f"{path.rpartition('.')[0]}.{change.renamed}" if change.renamed else None
    return None if path in IGNORED[version] else path


def test_a_field_that_disappears_or_changes_raises_the_version():
    now, then = fields(), listed(SCHEMA_VERSION)
    gone = {path: kind for path, kind in then.items() if now.get(path) != kind}
    assert gone == {}, "removed or changed: raise SCHEMA_VERSION, see 'Records of older versions' in CONTRIBUTING.md"
    new = {path: kind for path, kind in now.items() if path not in then}
    assert new == {}, "added: give it a default, then run: python -m tests.unit.results.test_versions"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_each_field_of_an_older_version_is_kept_or_upgraded(version):
    before, after = listed(version), listed(version + 1)
    lost = {path for path in before if (new := changed(path, version)) is not None and new not in after}
    assert lost == set(), "add them to RECORD_CHANGES in results/runs/reading.py, or here if any value may be ignored"
    assert {change.path for change in RECORD_CHANGES[version]} <= before.keys()


@pytest.mark.parametrize("path", [change.path for rows in RECORD_CHANGES.values() for change in rows])
def test_a_record_with_a_field_that_no_longer_exists_is_read(path):
    document = json.loads(RUNS[0].joinpath("records", "one.here.resnet50-fp32-b4-1cpu-64px-w1s4.r1.json").read_text())
    document["device_results"] = [{"metric": "all_reduce", "unit": "B/s", "reason": "one device"}]
    document["device_observations"] = [{"index": 0}]
    (change,) = (change for change in RECORD_CHANGES[1] if change.path == path)
    *parents, name = path.split(".")
    holder = functools.reduce(lambda value, part: value[part], parents, document)
    holder = holder[0] if isinstance(holder, list) else holder
    holder[name] = 1.5 if change.renamed else None if change.only is ... else change.only
    record = from_json(json.dumps(document))
    if change.renamed:
        assert getattr(record.device_observations[0], change.renamed) == 1.5
    elif change.only is not ...:
        holder[name] = 9
        with pytest.raises(RecordError, match=rf"{path}: tfbench no longer has this setting.*Received: 9"):
            from_json(json.dumps(document))


def test_each_measured_record_is_read_whole():
    records = [path for path in (FROZEN / "record_v1.json", *MEASURED) if b'"schema_version"' in path.read_bytes()]
    assert len(records) > 50
    assert [path.name for path in records if read_stored(path).error] == []


@pytest.fixture(params=RUNS, ids=lambda path: path.name)
def old_run(request, tmp_path, monkeypatch):
    """Return a copy of a run of an older version, with a second fleet to compare it with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    run = tmp_path / "old"
    shutil.copytree(request.param, run)
    (run / "logs").mkdir()
    return run


def add_second_fleet(run: Path) -> None:
    for path in (run / "records").glob("one.*"):
        text = path.read_text(encoding="utf-8").replace('"fleet": "one"', '"fleet": "two"')
        path.with_name(path.name.replace("one.", "two.")).write_text(text, encoding="utf-8")


def answers(run: Path, capsys) -> dict[str, tuple[str, str]]:
    """Return stdout and stderr of each command about a run."""
    given = {}
    for command, options in COMMANDS.items():
        assert program.main(["results", command, str(run), *options]) == 0
        out, err = capsys.readouterr()
        given[command] = out or Path("page.html").read_text(encoding="utf-8"), err
    return given


def test_a_run_of_an_older_version_is_read_by_every_command(old_run, capsys):
    assert program.main(["results", "validate", str(old_run)]) == 0
    assert "3 good, 0 bad" in capsys.readouterr().err
    runs = read_runs(old_run)
    assert runs.problems == [] and list(runs.repeats["status"]) == ["ok"] * 3
    add_second_fleet(old_run)
    for command, (out, err) in answers(old_run, capsys).items():
        assert "two" in out and "not a record" not in out + err, command


def test_a_run_of_an_older_version_is_resumed(old_run, capsys):
    before = {path.name: path.read_bytes() for path in (old_run / "records").iterdir()}
    assert run_main(cli.parse(["tfbench", "resume", str(old_run), "--display=plain", "--no-report"])) == 0
    assert "3/3" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (old_run / "records").iterdir()} == before


@pytest.mark.parametrize("path", sorted((FROZEN / "plans").iterdir()), ids=lambda path: path.stem)
def test_a_plan_of_an_older_version_keeps_its_jobs(path):
    document = json.loads(path.read_bytes())
    plan = plan_from_json(path.read_bytes())
    ids = [job["id"] for host in document["hosts"] for job in host["jobs"]]
    multi = document.get("gangs") or document.get("multi_host_jobs")
    assert [job.id for job in plan.jobs] == [*ids, *(group["job"]["id"] for group in multi)]


def spoil(run: Path, change: typing.Callable[[dict[str, Any]], None]) -> None:
    """Change each record of a run, of which there are then many."""
    (first, *_) = sorted((run / "records").iterdir())
    text = first.read_text(encoding="utf-8")
    for number in range(MANY):
        document = json.loads(text.replace('"fleet": "one"', f'"fleet": "{("one", "two")[number % 2]}"'))
        document["origin"]["repeat"] = 10 + number
        measured = document["measurement"]
        measured["step_seconds"] = [seconds * (1 - (number + 1) / 1e4) for seconds in measured["step_seconds"]]
        change(document)
        (run / "records" / f"more-{number:02}.json").write_text(json.dumps(document), encoding="utf-8")


def add_unknown(document: dict[str, Any]) -> None:
    document["later"] = {"a": [1]}
    document["case"]["later_setting"] = None
    document["measurement"]["later \x1b[2J"] = 1.0
    document["telemetry"]["later"] = [[{}]]


@pytest.mark.slow
def test_keys_that_a_newer_version_adds_are_ignored(old_run, capsys):
    spoil(old_run, lambda document: None)
    before = answers(old_run, capsys)
    spoil(old_run, add_unknown)
    after = answers(old_run, capsys)
    assert {command: given for command, given in after.items() if command != "report"} == {
        command: given for command, given in before.items() if command != "report"
    }
    assert program.main(["results", "validate", str(old_run)]) == 0
    assert f"{MANY + 3} good, 0 bad" in capsys.readouterr().err and read_runs(old_run).problems == []


def test_a_case_with_a_setting_that_a_newer_version_adds_is_refused():
    document = json.loads((FROZEN / "record_v1.json").read_text())
    document["case"]["later_setting"] = "x"
    with pytest.raises(NewerRecord, match=r"does not know .'later_setting'.: update"):
        from_json(json.dumps(document))


def test_a_record_of_a_newer_version_is_refused_by_name_once(old_run, capsys):
    spoil(old_run, lambda document: document.update(schema_version=SCHEMA_VERSION + 1))
    assert program.main(["results", "validate", str(old_run)]) == 3
    captured = capsys.readouterr()
    (line,) = [line for line in captured.out.splitlines() if "schema_version" in line]
    assert (
        f"more-00.json and {MANY - 1} others of this run: not a record, excluded: schema_version must be 1 to {SCHEMA_VERSION}"
        in line
    )
    assert f"Received: {SCHEMA_VERSION + 1}. A newer tfbench wrote" in line and "update tfbench" in line
    assert f"3 good, {MANY} bad" in captured.err
    assert len(read_runs(old_run).problems) == 1


def test_a_run_with_newer_records_is_not_resumed_by_measuring_again(old_run, capsys):
    path = min((old_run / "records").iterdir())
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema_version": SCHEMA_VERSION + 1}))
    run_main(cli.parse(["tfbench", "status", str(old_run)]))
    shown = " ".join(capsys.readouterr().out.split())
    assert "update tfbench to read it" in shown and "measures it again" not in shown
    assert run_main(cli.parse(["tfbench", "resume", str(old_run), "--display=plain", "--no-report"])) == 2
    assert f"{path.name}: schema_version must be" in capsys.readouterr().err
    assert path.exists()


def add_new_fields() -> None:
    """Add new fields to the list of the current version; never remove one."""
    path = FROZEN / "fields" / f"{SCHEMA_VERSION}.txt"
    known = listed(SCHEMA_VERSION) if path.exists() else {}
    lines = (f"{name}: {kind}" for name, kind in (fields() | known).items())
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    add_new_fields()

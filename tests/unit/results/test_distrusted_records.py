"""Records as a stranger could write them: numbers, names, times and files beyond what anything honest holds."""

import contextlib
import csv
import dataclasses
import functools
import io
import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

import results.__main__ as program
from results.runs.reading import from_json
from results.schema import Telemetry
from results.schema.record_json import RecordError, to_json
from results.text import path_text, spreadsheet_text
from results.text_table import Grid, markdown, print_grid
from tests.support.examples import examples
from tests.unit.results import fuzzing
from tests.unit.results.factory import make_case, make_environment, make_failure, make_record, repeats, write_run
from tests.unit.results.fuzzing import fault_of, places

COMMANDS = {
    "show": ("show", "run-1"),
    "export": ("export", "run-1", "--format=json"),
    "compare": ("compare", "a4000", "a5000", "run-1"),
    "recommend": ("recommend", "run-1", "--model=resnet50", "--precision=fp32"),
    "report": ("report", "run-1", "--format=md"),
}
"""Commands that read records, but `validate`."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("TFBENCH_DEBUG", "1")
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path, [*repeats(100.0, 101.0), *repeats(150.0, 151.0, fleet="a5000")])


def call(*arguments):
    return program.main(["results", *arguments])


def add(folder, *records):
    for number, record in enumerate(records):
        folder.write_record(f"more-{number}", record)


def spoilt(path, value):
    """Return a good record's JSON with one value replaced."""
    document = json.loads(to_json(make_record(telemetry=Telemetry())))
    *parts, name = path.split(".")
    functools.reduce(dict.__getitem__, parts, document)[name] = value
    return json.dumps(document)


SPOILT = [
    ("origin.usd_per_gpu_hour", 10**400),
    ("origin.usd_per_gpu_hour", -0.17),
    ("origin.usd_per_gpu_hour", 0.0),
    ("origin.repeat", 10**30),
    ("measurement.parameters_trainable", 10**25),
    ("measurement.step_cv", 1e308),
    ("measurement.step_p50_seconds", -1.0),
    ("measurement.samples_per_second", 1e304),
    ("measurement.step_seconds", [100.0] * 4),  # more than its seconds
    ("telemetry.energy_joules", 5e-324),  # closer to zero than its square
    ("measurement.loss_last", 1e300),
    ("telemetry.temperature_steady_celsius", -300.0),
    ("telemetry.temperature_steady_celsius", -5e-324),
    ("method_version", -1),
    ("started_at", "yesterday"),
    ("started_at", "2026-02-30T00:00:00Z"),
    ("started_at", "2026-11-01T10:00:00"),  # without a zone
    ("origin.fleet", "\ud800"),  # half a character
    ("cause", "\udfff"),
    ("origin.fleet", "a\x1b[31mb"),
    ("origin.host", "a\nb"),
    ("origin.run_id", "a\u202eb"),  # turns the direction of writing
    ("origin.fleet", "x" * 501),
    ("origin.fleet", [[[[[[[[]]]]]]]]),
]


@pytest.mark.parametrize(("path", "value"), SPOILT)
def test_a_value_beyond_its_bounds_is_a_bad_record_named_by_validate(folder, capsys, path, value):
    folder.record_path("bad").write_text(spoilt(path, value), encoding="utf-8")
    assert call("validate", "run-1") == 3
    captured = capsys.readouterr()
    assert captured.err == "4 good, 1 bad\n"
    assert f"bad.json: {path.rpartition('.')[0]}" in captured.out and "\x1b" not in captured.out


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_records_are_named_and_cost_themselves_only_in_every_command(folder, capsys, command):
    assert program.main(["results", *COMMANDS[command]]) == 0
    before = capsys.readouterr()
    for i, (path, value) in enumerate(SPOILT):
        folder.record_path(f"bad-{i}").write_text(spoilt(path, value), encoding="utf-8")
    os.mkfifo(folder.record_path("pipe"))
    assert program.main(["results", *COMMANDS[command]]) == 0
    after = capsys.readouterr()
    named = after.out + after.err
    assert "pipe.json" in named
    if command != "report":  # in Markdown for a pull request they are on stderr
        assert all(f"bad-{i}.json" in named for i in range(len(SPOILT)))
    kept = [line for line in after.out.splitlines() if "not a record" not in line and '"problems"' not in line]
    kept_before = [line for line in before.out.splitlines() if '"problems"' not in line]
    assert [line for line in kept_before if line not in kept] == []


@pytest.mark.parametrize(
    "text",
    [
        '{"schema_version": 1, "schema_version": 1}',
        to_json(make_record()).replace('"fleet":', '"fleet": "other", "fleet":'),
    ],
)
def test_a_key_that_comes_twice_is_refused(text):
    with pytest.raises(RecordError, match=r"the key '(schema_version|fleet)' appears 2 times"):
        from_json(text)


def test_a_failure_whose_global_batch_no_table_holds_is_refused():
    case = make_case(batch_per_gpu=10**6, num_gpus=10**6, num_hosts=10**6)
    with pytest.raises(RecordError, match="global batch"):
        from_json(to_json(make_failure(case=case)))


def test_tokens_are_samples_times_the_length_of_their_sequences():
    record = make_record()
    measured = record.measurement
    times = {"samples": 128 * measured.samples, "samples_per_second": 128 * measured.samples_per_second}
    tokens = dataclasses.replace(measured, unit="tokens", sequence_length=128, **times)
    assert from_json(to_json(dataclasses.replace(record, measurement=tokens))).measurement == tokens
    with pytest.raises(RecordError, match=r"samples is .* other figures give"):
        from_json(to_json(dataclasses.replace(record, measurement=dataclasses.replace(measured, **times))))


def test_every_number_and_every_text_of_a_record_has_a_bound():
    fields = list(places(make_record(telemetry=Telemetry(), environment=make_environment(gpus=1))))
    assert [place for place, _, kind, bound in fields if kind and bound is None] == []
    ranges = [bound for _, _, kind, bound in fields if kind in (int, float)]
    assert len(ranges) >= 80 and all(bound.low < bound.high for bound in ranges)


def test_a_pipe_a_folder_a_loop_and_a_device_are_named(folder):
    records = folder.path / "records"
    os.mkfifo(records / "pipe.json")
    (records / "folder.json").mkdir()
    (records / "loop.json").symlink_to("loop.json")
    (records / "device.json").symlink_to("/dev/zero")
    (records / "nothing.json").symlink_to("nowhere")
    found = {item.path.name: str(item.error) for item in folder.records() if item.error}
    assert {name: "not a regular file" in why for name, why in found.items()} == {
        "pipe.json": True, "folder.json": True, "device.json": True, "loop.json": False, "nothing.json": False,
    }  # fmt: skip
    assert "Too many levels of symbolic links" in found["loop.json"]
    assert [fault_of(*line) for line in (("validate", "run-1"), *COMMANDS.values())] == [""] * (1 + len(COMMANDS))


def refuse(path, *_, **__):
    raise PermissionError(13, "Permission denied")


def test_what_may_not_be_read_or_listed_is_named(folder, monkeypatch, capsys):
    monkeypatch.setattr(os, "open", refuse)  # the tests may run as root, who may read everything
    assert {str(item.error) for item in folder.records()} == {"cannot be read: Permission denied"}
    monkeypatch.setattr(os, "listdir", refuse)
    assert call("show", "run-1") == 2
    assert "records: cannot be listed: Permission denied" in capsys.readouterr().err


def test_files_whose_names_are_no_text_are_shown_by_their_bytes(folder, capsys):
    (folder.path / "records" / "\udcff\x1b[2J.json").write_text("{")
    assert path_text(Path("\udcff\x1b.json")) == "\\udcff .json"
    assert call("validate", "run-1") == 3
    assert "\\udcff [2J.json: not JSON" in capsys.readouterr().out
    assert call("report", "run-1") == 0


@pytest.mark.parametrize("name", ["x" * 300, "a\x00b", "\udcff"])
def test_a_name_that_no_file_can_have_leads_to_no_run(folder, capsys, name):
    assert call("show", name) == 2
    assert "neither a path nor a run" in capsys.readouterr().err
    assert call("compare", name, "a4000", "run-1") == 2


def test_titles_and_headings_hold_no_control_characters(capsys):
    grid = Grid("a\x1b[31mb [bold]:bomb:", ["c\x1b[2J>"], [["\x1b[0m"]], ["\x07"])
    print_grid(grid, Console())
    text = capsys.readouterr().out + markdown(grid)
    assert "\x1b" not in text and "\x07" not in text and "[bold]:bomb:" in text


def test_the_verdict_of_a_markdown_report_is_not_read_as_markup(folder, capsys):
    add(folder, *repeats(200.0, 201.0, fleet="<img src=x>|`[a](b)"))
    assert call("report", "run-1", "--format=md") == 0
    out = capsys.readouterr().out
    assert "<img" not in out.replace("\\<img", "") and "[a](b)" not in out.replace("\\[a\\](b)", "")


def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(folder, capsys):
    named = repeats(200.0, 201.0, fleet="=cmd|' /C calc'!A0", host="@x")
    add(folder, *named, dataclasses.replace(make_record(), origin=None))
    assert call("export", "run-1") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["fleet"] for row in rows} == {"'=cmd|' /C calc'!A0", "a4000", "a5000", "Test CPU"}
    assert {row["host"] for row in rows} == {"'@x", "node-a", "-"}
    assert {float(row["samples_per_second"]) for row in rows} == {200.5, 100.5, 150.5, 100.0}


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x", "\tx", "\rx", "＝x"])
def test_a_text_that_a_spreadsheet_would_run_gets_an_apostrophe(text):
    assert spreadsheet_text(text) == f"'{text}"
    for other in ("", "-", "-5", "+1.5e3", "a=b", "535.1", "'=x"):
        assert spreadsheet_text(other) == other


def test_sentences_do_not_wrap_in_a_pipe(folder, capsys):
    folder.record_path("bad").write_text(spoilt("origin.fleet", "x" * 600))
    assert call("show", "run-1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("images per second ± 95 %") and "num steps 4" in line for line in lines)
    assert any("bad.json: not a record" in line and "longer than 500 characters" in line for line in lines)


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(fuzzing.folders(), st.sampled_from(fuzzing.COMMANDS))
def test_no_folder_of_records_makes_a_command_crash_or_hang(drawn, command):
    files, names = drawn
    with (
        tempfile.TemporaryDirectory() as parent,
        contextlib.chdir(parent),
        mock.patch.dict(os.environ, TFBENCH_RUNS_DIR=parent, TFBENCH_DEBUG="1", COLUMNS="80"),
    ):
        fuzzing.write(files, Path(parent))
        for line in ("export run-1 --by=all", command):
            assert fault_of(*(part.format_map(names) for part in line.split())) == ""

"""Records as a stranger could write them: numbers, names, times and files beyond what anything honest holds.

A command may refuse, in a line and with a documented exit code. It may never raise, hang (pytest's timeout), or send a
control character to whoever reads what it prints.
"""

import contextlib
import copy
import csv
import dataclasses
import functools
import io
import itertools
import json
import os
import re
import tempfile
import traceback
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import results.__main__ as program
from results.runs.reading import from_json
from results.schema import Record, Telemetry
from results.schema.record_json import RecordError, to_json
from results.text import path_text, spreadsheet_text
from tests.support.examples import examples
from tests.unit.results.factory import (
    make_case,
    make_environment,
    make_failure,
    make_origin,
    make_record,
    repeats,
    write_run,
)

COMMANDS = {
    "validate": ("validate", "run-1"),
    "show": ("show", "run-1"),
    "export": ("export", "run-1", "--format=json"),
    "compare": ("compare", "a4000", "a5000", "run-1"),
    "recommend": ("recommend", "run-1", "--model=resnet50", "--precision=fp32"),
    "report": ("report", "run-1", "--output=page.html"),
}
"""Commands that read records."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("TFBENCH_DEBUG", "1")
    monkeypatch.chdir(tmp_path)
    return write_run(tmp_path, [*repeats(100.0, 101.0), *repeats(150.0, 151.0, fleet="a5000")])


def call(*arguments):
    return program.main(["results", *arguments])


SPOILT = [
    ("origin.usd_per_gpu_hour", 10**400),
    ("origin.usd_per_gpu_hour", -0.17),
    ("measurement.step_p50_seconds", -1.0),
    ("measurement.step_seconds", [100.0] * 4),  # more than its seconds
    ("telemetry.energy_joules", 5e-324),  # closer to zero than its square
    ("telemetry.temperature_steady_celsius", -5e-324),
    ("started_at", "yesterday"),
    ("started_at", "2026-02-30T00:00:00Z"),
    ("started_at", "2026-11-01T10:00:00"),  # without a zone
    ("origin.fleet", "a\x1b[31mb"),
    ("origin.host", "a\nb"),
    ("origin.run_id", "a\u202eb"),  # turns the direction of writing
    ("origin.fleet", [[[[[[[[]]]]]]]]),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_records_are_named_and_cost_themselves_only_in_every_command(folder, capsys, command):
    assert call(*COMMANDS[command]) == 0
    before = capsys.readouterr()
    good = json.loads(to_json(make_record(telemetry=Telemetry())))
    for number, (path, value) in enumerate(SPOILT):
        folder.record_path(f"bad-{number}").write_text(json.dumps(replaced(good, path.split("."), value)))
    os.mkfifo(folder.record_path("pipe"))
    assert call(*COMMANDS[command]) == (3 if command == "validate" else 0)
    after = capsys.readouterr()
    named = after.out + after.err
    assert "pipe.json" in named and "\x1b" not in named
    if command == "validate":
        wrong = [
            f"bad-{n}.json: not a record, excluded: {path.rpartition('.')[0]}" for n, (path, _) in enumerate(SPOILT)
        ]
        assert [text for text in wrong if text not in named] == []
    else:
        assert all(f"bad-{number}.json" in named for number in range(len(SPOILT)))
    kept = [line for line in after.out.splitlines() if "not a record" not in line and '"problems"' not in line]
    kept_before = [line for line in before.out.splitlines() if '"problems"' not in line]
    assert [line for line in kept_before if line not in kept] == []


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


def test_only_a_case_with_a_minimum_time_may_take_more_steps():
    longer = make_record(case=make_case(num_steps=8))
    timed, counted = (make_case(num_steps=4, min_seconds=seconds) for seconds in (15.0, None))
    assert from_json(to_json(dataclasses.replace(longer, case=timed))).measurement.num_steps == 8
    with pytest.raises(RecordError, match="num_steps is 8, but the case has 4"):
        from_json(to_json(dataclasses.replace(longer, case=counted)))


def test_every_number_and_every_text_of_a_record_has_a_bound():
    document = json.loads(to_json(make_record(telemetry=Telemetry(), environment=make_environment(gpus=1))))
    paths = list(leaves(document))
    assert len(paths) >= 140
    for path, value in itertools.product(paths, (10**305, "x" * 30_000)):
        with pytest.raises(RecordError):
            from_json(json.dumps(replaced(document, path, value)))


@pytest.mark.slow
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
    assert [fault_of(*line) for line in COMMANDS.values()] == [""] * len(COMMANDS)


def refuse(path, *_, **__):
    raise PermissionError(13, "Permission denied")


def test_what_may_not_be_read_or_listed_is_named(folder, monkeypatch, capsys):
    monkeypatch.setattr(Path, "open", refuse)  # the tests may run as root, who may read everything
    assert {str(item.error) for item in folder.records()} == {"cannot be read: Permission denied"}
    monkeypatch.setattr(os, "listdir", refuse)
    assert call("show", "run-1") == 2
    assert "records: cannot be listed: Permission denied" in capsys.readouterr().err


def test_files_whose_names_are_no_text_are_shown_by_their_bytes(folder, capsys):
    (folder.path / "records" / "\udcff\x1b[2J.json").write_text("{")
    assert path_text(Path("\udcff\x1b.json")) == "\\udcff .json"
    assert call("validate", "run-1") == 3
    assert "\\udcff [2J.json: not a record, excluded: not JSON" in capsys.readouterr().out
    assert call("report", "run-1") == 0


@pytest.mark.parametrize("name", ["x" * 300, "a\x00b", "\udcff"])
def test_a_name_that_no_file_can_have_leads_to_no_run(folder, capsys, name):
    assert call("show", name) == 2
    assert "neither a path nor a run" in capsys.readouterr().err
    assert call("compare", name, "a4000", "run-1") == 2


def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(folder, capsys):
    named = repeats(200.0, 201.0, fleet="=cmd|' /C calc'!A0", host="@x")
    for number, record in enumerate([*named, dataclasses.replace(make_record(), origin=None)]):
        folder.write_record(f"more-{number}", record)
    assert call("export", "run-1") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["fleet"] for row in rows} == {"'=cmd|' /C calc'!A0", "a4000", "a5000", "Test CPU"}
    assert {row["host"] for row in rows} == {"'@x", "node-a", "-"}
    assert all(spreadsheet_text(text) == text for text in ("-", "a=b")) and spreadsheet_text("＝x") == "'＝x"
    assert {float(row["samples_per_second"]) for row in rows} == {200.5, 100.5, 150.5, 100.0}


FLEETS = ("a4000", "a5000", "😀" * 50, "=cmd|' /C calc'!A0", "[bold]x[/]:bomb:", "a|b`*_", "</script><b>", "-")
GPUS = ("NVIDIA RTX A4000", "NVIDIA RTX A5000", "NVIDIA A100-SXM4-80GB", "\x1b[31mNVIDIA\x07 H100", "=1+1", "")
MODELS = ("resnet50", "vgg16", "inception_v3", "bert_large", "gpt2_small", "no_such_network")
RATES = (1e-9, 1e-3, 99.0, 100.0, 100.1, 101.0, 453.2, 1610.0, 1e6, 1e14)
TIMES = ("1970-01-01T00:00:00Z", "2026-11-01T10:00:00Z", "2026-11-02T10:00:00.5+00:00", "9999-12-31T23:59:59Z")
NASTY: tuple[Any, ...] = (
    *(None, True, [], {}, "", [[]], {"a": None}, 0, -0.0, -1, -1.0, 1, 0.5, 2**31, 2**53 + 1, 2**63, 2**64, 10**30),
    *(10**400, -(10**400), 1e15, 1e25, 1e30, 1e304, 1e308, -1e308, 1e-30, 1e-200, 5e-324),
    *("\ud800", "😀" * 50, "\x1b[2J\x1b]0;x\x07", "\x00", "\u202e", "\u2028", "\ufffe", "a\nb", "=1+1", "x" * 30_000),
    *("yesterday", "2026-02-30T00:00:00Z", "0001-01-01T00:00:00Z", "2026-11-01T10:00:00", "1", "nan", "inf", "-5"),
    *([1.0] * 3, [0.0] * 4, [1e308] * 4, ["x"], [None], [[[[[[]]]]]]),
)
"""Values to put in the place of any other."""

BYTES = (b"", b"null", b"[]", b"\xff\xfe{\x00", b"[" * 3000, b'{"schema_version": 1}', b'{"a": 1e999}', b"9" * 5000)
"""Files that are no records."""

FUZZED_COMMANDS = (
    "validate",
    "show run-1 run-2",
    "export run-1 run-2 --by=all",
    "export run-1 --by=all --format=markdown",
    "compare run-1 --by=all --format=markdown",
    "compare {first} {last} run-1 --strict",
    "compare run-1 --baseline=run-2 --by=all --fail-on=5%",
    "recommend run-1 --model={model} --precision=fp32 --num-gpus=8 --budget=1",
    "recommend run-1 --model={model}, --format=json --gpus=A4000,A5000",
    "report run-1 run-2 --output=report.html",
    "audit table.csv --format=markdown",
    "prices table.csv --provider=x --retrieved-on=2026-11-01",
)
"""`{first}` and `{last}` are fleets; `table.csv` is what `export` printed last."""


def leaves(part: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of each value of a document that holds no others."""
    parts = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, value in parts:
        yield from leaves(value, (*path, key))
    if not parts:
        yield path


def replaced(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Return a document with another value at a path; `...`: with another name."""
    document = copy.deepcopy(document)
    part = functools.reduce(lambda part, step: part[step], path[:-1], document)
    if value is ... and isinstance(part, dict):
        part["unknown"] = part.pop(path[-1])
    else:
        part[path[-1]] = None if value is ... else value
    return document


@st.composite
def records(draw: st.DrawFn, fleets: tuple[str, ...], models: tuple[str, ...], device: str) -> Record:
    """Draw a good record."""
    fleet = draw(st.sampled_from(fleets))
    case = make_case(
        draw(st.sampled_from(models)),
        precision=draw(st.sampled_from(("fp32", "fp32", "fp16"))),
        device=device,
        num_gpus=draw(st.sampled_from((1, 1, 1, 2, 8))),
        all_reduce=draw(st.integers(0, 9)) > 0,
    )
    origin = make_origin(
        fleet,
        draw(st.sampled_from(("node-a", "node-b", "x" * 200))),
        draw(st.integers(1, 4)),
        run_id=draw(st.sampled_from(("run-1", "run-2"))),
        usd_per_gpu_hour=draw(st.sampled_from((None, None, 1e-9, 0.17, 0.36, 1e6))),
    )
    gpu, driver = GPUS[FLEETS.index(fleet) % len(GPUS)], draw(st.sampled_from((None, None, "550.54.14", "570.86.10")))
    environment = make_environment(case.num_gpus if device == "gpu" else 0, gpu, driver=driver)
    if draw(st.integers(0, 4)) == 0:
        status, cause = draw(st.sampled_from((("oom", "out of memory"), ("error", "\x1b[31mred\n😀 <b>|" * 500))))
        known = draw(st.sampled_from((None, environment)))
        return make_failure(status, cause, case=case, origin=origin, environment=known)
    record = make_record(
        draw(st.sampled_from(RATES) | st.floats(90, 110)),
        case=case,
        origin=origin,
        environment=environment,
        started_at=draw(st.sampled_from(TIMES)),
        warnings=draw(st.sampled_from(((), ("throttled",), ("=1", "[b]")))),
        telemetry=Telemetry(energy_joules=draw(st.sampled_from((None, 0.0, 1e-30, 50.0, 1e18)))),
    )
    return record if draw(st.integers(0, 19)) else dataclasses.replace(record, origin=None)


@st.composite
def contents(draw: st.DrawFn, record: Record) -> bytes:
    """Draw what a record's file holds: the record, or one that is spoilt."""
    document = json.loads(to_json(record))
    for _ in range(draw(st.sampled_from((0, 0, 1, 2, 3)))):
        path = draw(st.sampled_from(list(leaves(document))))
        document = replaced(document, path, draw(st.sampled_from((*NASTY, ...))))
    content = json.dumps(document).encode()
    return draw(st.sampled_from((*[content] * 12, content[: len(content) // 2], content + content)))


@st.composite
def folders(draw: st.DrawFn) -> tuple[dict[str, bytes], dict[str, str]]:
    """Draw the files of two runs, and what commands name of them."""
    fleets = (*FLEETS[:2], *draw(st.lists(st.sampled_from(FLEETS), max_size=1)))
    models = tuple(draw(st.lists(st.sampled_from(MODELS), min_size=1, max_size=2)))
    device, files = draw(st.sampled_from(("gpu", "cpu"))), {}
    for number in range(draw(st.sampled_from((8, 10, 12, 14, 4, 2, 1, 0)))):
        content = draw(contents(draw(records(fleets, models, device))))
        files[f"{draw(st.sampled_from(('run-1', 'run-1', 'run-2')))}/records/job-{number}.json"] = content
        if draw(st.integers(0, 14)) == 0:
            files[f"run-1/records/copy-{number}.json"] = content
    if draw(st.booleans()):
        name = draw(st.sampled_from(("a\nb", "\udcff\udcfe", "=x", "", "[b]:bomb:", "x" * 240)))
        files[f"run-1/records/{name}.json"] = draw(st.sampled_from(BYTES))
    return files, {"first": fleets[0], "last": fleets[-1], "model": models[0]}


def fault_of(*line: str) -> str:
    """Run one command in the current folder; return what it did that it must not; empty: nothing."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = program.main(["results", *line])
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 2
    except Exception:  # noqa: BLE001 (what it is for)
        return traceback.format_exc()
    printed, said = (typing.cast(io.BytesIO, stream.buffer).getvalue().decode() for stream in (output, errors))
    if line[0] == "export":
        Path("table.csv").write_text(printed, encoding="utf-8")
    if code not in (0, 2, 3, 5):  # done; usage, or a file that is no table; something failed; a regression
        return f"exit code {code}: {said}"
    hidden = re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printed + said)
    return f"printed {hidden.group()!r}" if hidden else ""


@settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(folders(), st.sampled_from(FUZZED_COMMANDS))
@pytest.mark.slow
def test_no_folder_of_records_makes_a_command_crash_or_hang(drawn, command):
    files, names = drawn
    with (
        tempfile.TemporaryDirectory() as parent,
        contextlib.chdir(parent),
        mock.patch.dict(os.environ, TFBENCH_RUNS_DIR=parent, TFBENCH_DEBUG="1", COLUMNS="80"),
    ):
        for name in ("run-1/records", "run-2/records"):
            Path(name).mkdir(parents=True)
        for name, content in files.items():
            Path(name).write_bytes(content)
        for line in ("export run-1 --by=all", command):
            assert fault_of(*(part.format_map(names) for part in line.split())) == ""

import csv
import io
import json
from pathlib import Path

import pandas as pd
import pytest

import results.__main__ as program
from results.formats.adopt import HEADINGS
from results.grid import Grid, latex
from results.reference import FOLDER
from results.runs.store import RunFolder
from results.table.columns import COLUMNS
from tests.unit.results.factory import make_case, make_environment, make_failure, make_origin, repeats

PRINTED = Path(__file__).parent / "cases" / "tf_cnn_benchmarks.txt"


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


def test_every_text_format_has_the_columns_of_the_dictionary_or_the_wide_table(run, capsys):
    assert call("export", "--format=csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == ",".join(COLUMNS)
    assert call("export", "--format=json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["table_version"] == 1 and list(document["rows"][0]) == list(COLUMNS)
    assert {row["samples_per_second"] for row in document["rows"]} == {451.0, None}
    assert call("export", "--format=wide") == 0
    assert "| resnet50 | fp16 | 8 |" in capsys.readouterr().out
    assert call("export", "--format=latex") == 0
    out = capsys.readouterr().out
    assert "\\toprule" in out and "$\\pm$" in out and "oom" in out


def test_latex_has_nothing_that_latex_would_read_as_a_command():
    text = latex(Grid("50 % & more_", ["a", "b>"], [["\\input{x}", "$1^2~"]]))
    assert "50 \\% \\& more\\_" in text
    assert "\\textbackslash{}input\\{x\\} & \\$1\\textasciicircum{}2\\textasciitilde{}" in text
    assert "{lr}" in text


def test_parquet_is_the_same_table(run, tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    path = tmp_path / "table.parquet"
    assert call("export", "--format=parquet", f"--output={path}") == 0
    assert list(pd.read_parquet(path).columns) == list(COLUMNS)


def test_parquet_without_a_file_or_without_pyarrow_is_a_short_message(run, tmp_path, capsys, monkeypatch):
    assert call("export", "--format=parquet") == 2
    assert "name a file with --output" in capsys.readouterr().err

    def missing(*arguments, **named):
        raise ImportError("no engine")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", missing)
    assert call("export", "--format=parquet", f"--output={tmp_path / 'x'}") == 2
    assert "pip install pyarrow" in capsys.readouterr().err


def test_log_lines_are_those_of_mlperf(run, capsys):
    assert call("export", "--format=mllog") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    assert all(set(e) == {"namespace", "time_ms", "event_type", "key", "value", "metadata"} for e in entries)
    throughput = [e["value"]["throughput"] for e in entries if e["key"] == "tracked_stats"]
    assert throughput == pytest.approx([450.0, 452.0])
    assert [e["metadata"]["status"] for e in entries if e["key"] == "run_stop"] == ["success", "success", "aborted"]
    assert entries[0]["time_ms"] == 1793527200000  # 2026-11-01T10:00:00Z


def test_printed_output_of_tf_cnn_benchmarks_becomes_foreign_rows(capsys):
    assert call("adopt", str(PRINTED), "--gpu=NVIDIA RTX A4000", "--precision=fp16") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["model"], r["num_gpus"], r["batch_per_gpu"], r["samples_per_second"]) for r in rows] == [
        ("resnet50", "2", "256", "1608.33"),
        ("inception_v3", "1", "64", "409.87"),
    ]
    assert {r["gpu"] for r in rows} == {"RTX A4000"}
    assert all(r["note"].startswith("foreign: validity unknown") for r in rows)
    assert [r["suspect"] for r in rows] == ["", "yes"] and "the loss was nan" in rows[1]["note"]


def test_a_file_without_a_finished_run_is_a_short_message(tmp_path, capsys):
    path = tmp_path / "log.txt"
    path.write_text("Killed\n")
    assert call("adopt", str(path), "--gpu=A4000", "--precision=fp32") == 2
    assert "no finished run of tf_cnn_benchmarks" in capsys.readouterr().err


def test_foreign_rows_have_the_columns_of_published_ones():
    assert (FOLDER / "published.csv").read_text(encoding="utf-8").splitlines()[0] == ",".join(HEADINGS)


def test_published_and_foreign_rows_stand_beside_measured_ones_and_are_labelled(run, tmp_path, capsys):
    foreign = tmp_path / "old.csv"
    assert call("adopt", str(PRINTED), "--gpu=A4000", "--precision=fp16", f"--output={foreign}") == 0
    assert call("show", "--with-published", f"--foreign={foreign}") == 0
    measured, published, adopted = (
        capsys.readouterr()
        .out.replace("old.csv -", "Published by others -")
        .split("Published by others - NOT MEASURED HERE")
    )
    assert "451" in measured.replace("\u00a0", " ") and "RTX A4000" not in measured.replace("NVIDIA RTX A4000", "")
    assert "RTX A4000" in published and "RTX A6000" not in published and "A5000" not in published
    assert "1608.33" in adopted

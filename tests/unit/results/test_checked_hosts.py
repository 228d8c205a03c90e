"""The table of a deep check: kept with its run, in the report, and of no consequence where somebody spoilt it."""

from __future__ import annotations

import json
import os

import pytest

from results.grid import Grid
from results.report.page import make_report, report_html, report_markdown
from results.runs.sources import FILE, keep_check, kept_checks, stored_records
from results.runs.store import RunFolder
from tests.unit.results.factory import repeats

GRID = Grid(
    "Deep check", ["host", "verdict", "memory GB/s>"], [["a/one", "accept", "440"]], ["a/two: reject: <b>slow</b>"]
)


@pytest.fixture
def run(tmp_path):
    """Make a run of two repeats."""
    folder = RunFolder.create(tmp_path / "runs", "one")
    folder.write_plan("{}")
    for number, record in enumerate(repeats(10.0, 11.0)):
        folder.write_record(f"job-{number}", record)
    return folder


def stored_of(run):
    """Read the run's records."""
    return list(stored_records([str(run.path)]))


def test_the_report_has_the_check_that_its_run_began_with(run):
    assert kept_checks(stored_of(run)) == []
    keep_check(run.path, GRID)
    (kept,) = kept_checks(stored_of(run))
    assert (kept.columns, kept.rows, kept.notes) == (GRID.columns, GRID.rows, GRID.notes)
    report = make_report(stored_of(run), "one")
    page = report_html(report)
    assert "Deep check of the hosts before the run" in page and "&lt;b&gt;slow&lt;/b&gt;" in page
    assert "<b>slow" not in page
    assert "a/one | accept" in " ".join(report_markdown(report).split())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[" * 100_000,
        b"null",
        b'{"columns": 1, "rows": [], "notes": []}',
        b'{"columns": ["a"], "rows": [["x", "y"]], "notes": []}',
        b'{"columns": ["a"], "rows": [[1]], "notes": []}',
        b'{"columns": "a", "rows": ["x"], "notes": ""}',
        b'{"columns": ["a"], "rows": [{"x": "y"}], "notes": []}',
        b'{"columns": ["a"], "rows": ["x"], "notes": [null]}',
        json.dumps({"columns": ["a"], "rows": [["x" * (1 << 20)]], "notes": []}).encode(),
    ],
)
def test_a_file_that_is_no_such_table_is_passed_over(run, content):
    (run.path / FILE).write_bytes(content)
    assert kept_checks(stored_of(run)) == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_passed_over(run, make):
    make(run.path / FILE)
    assert kept_checks(stored_of(run)) == []

"""The two walks of ARCHITECTURE.md: each function that they name is called, in the order in which it stands there."""

from __future__ import annotations

import gc
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from orchestrate.__main__ import parse
from results.__main__ import main as show
from results.program import run_main
from results.runs.store import RunFolder
from tests.benchmarks.fleet.bench_fleet import stand_in_engines, write_hosts
from tests.rooms import ROOT
from tests.unit.results.factory import repeats

SOURCES = (f"{ROOT}/results/", f"{ROOT}/orchestrate/")


def listed(start: str) -> list[str]:
    """Return the functions of the walk whose paragraph begins with `start`."""
    _, _, rest = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition(f"**{start}")
    rows = [row.rpartition(" | ")[2] for row in rest.partition("\n\n")[2].partition("\n\n")[0].splitlines()[2:]]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@contextmanager
def first_calls() -> Iterator[dict[str, None]]:
    """Collect the names of our functions that are called, in any thread, in the order of their first calls."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            found.setdefault(frame.f_code.co_qualname)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Give a folder whose sockets have short names: a unix socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="tfb-walk-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def default_gc() -> Iterator[None]:
    """Collect garbage as often as before: a run does so rarely."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_record_takes_the_walk_to_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("results.render.tables.render_results", lambda merged, console: None)  # another table
    run = RunFolder.create(tmp_path, "run-1")
    for number, record in enumerate(repeats(100.0, 101.0, 102.0)):
        run.write_record(f"job-{number}", record)
    assert show(["results", "show", str(run.path)]) == 0  # so that no import is traced
    with first_calls() as called:
        assert show(["results", "show", str(run.path)]) == 0
    walk = listed("One record")
    assert len(walk) > 20 and [name for name in called if name in walk] == walk


def test_a_line_of_a_hosts_file_takes_the_walk_to_a_container(short_folder: Path, default_gc: None):
    hosts, runs = write_hosts(short_folder, 1, cases=1), short_folder / "runs"
    arguments = ["run", f"--hosts={hosts}", f"--runs-dir={runs}", "--display=plain", "--no-report"]
    with stand_in_engines(short_folder, 1, seconds=0.05), first_calls() as called:
        assert run_main(parse(["orchestrate", *arguments])) == 0
    walk = listed("One line")
    assert len(walk) > 20 and [name for name in called if name in walk] == walk

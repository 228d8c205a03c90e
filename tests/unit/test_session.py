"""How `make test` spreads tests over processes: groups that stay together, and children for what trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import PROJECT
from tests.support.session import schedule
from tests.support.session.children import IMPORTED_TENSORFLOW, WAIT_FOR_PROGRAMS

CONFTEST = """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def engine():
    yield
    open("log", "a").write(f"engine ends in {os.getpid()}\\n")

@pytest.fixture(autouse=True)
def log(request):
    open("log", "a").write(f"{request.node.name} in {os.getpid()}\\n")
"""

TRAINS = """
import os, signal
def test_first(): pass
def test_second(): pass
def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_fourth(): pass
"""


@pytest.mark.slow
def test_what_trains_shares_a_child_whose_death_fails_its_test_only(tmp_path: Path):
    training = tmp_path / "tests" / "real" / "training"
    training.mkdir(parents=True)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (training / "test_trains.py").write_text(TRAINS)
    (tmp_path / "tests" / "test_z.py").write_text("def test_last(): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n1", "-ptests.conftest", f"--rootdir={tmp_path}", "tests"],
        cwd=tmp_path,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}, "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    where = dict(line.split(" in ") for line in (tmp_path / "log").read_text().splitlines())
    assert "1 failed, 4 passed" in done.stdout and "the process that ran this test died" in done.stdout, done.stdout
    assert where["test_first"] == where["test_second"] == where["test_dies"]
    assert len({where[name] for name in ("test_first", "test_fourth", "test_last")}) == 3
    assert where["test_last"] == where["engine ends"]


def test_every_file_that_begins_early_is_there():
    files = [schedule.SLURM_TRAINING, schedule.WHEEL, WAIT_FOR_PROGRAMS]
    files += [*schedule.BY_TEST, *schedule.SLOW_WITHOUT_WORK]
    files += [f"tests/real/training/test_{name}.py" for name in schedule.LONG_FILES]
    assert [file for file in files if not (PROJECT / file).is_file()] == []


def test_no_file_of_tests_imports_tensorflow_when_it_is_collected(request: pytest.FixtureRequest):
    """A process that has it cannot give its tests to children: see `runs_children`."""
    assert not request.config.stash[IMPORTED_TENSORFLOW]

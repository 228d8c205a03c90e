"""How `make test` spreads tests over processes: groups that stay together, and children for what trains."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.session.children import IMPORTED_TENSORFLOW, a_core
from tests.support.session.schedule import group_of, rank_of

pytestmark = pytest.mark.slow  # starts programs and waits for them

ROOT = Path(__file__).parents[2]

CONFTEST = """
import os, pytest
from tests.support.session import children
children.MOST_BYTES = {most_bytes}
runner = children.Children(preload="json")

def pytest_collection_finish(session):
    runner.prepare(session)

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    if not (children.in_child(item) and children.runs_children(item.config)):
        return None
    runner.run(item, nextitem)
    return True

@pytest.fixture(scope="session")
def engine():
    yield os.getpid()
    open("log", "a").write(f"engine ends in {{os.getpid()}}\\n")

@pytest.fixture(scope="module")
def folder():
    yield
    open("log", "a").write(f"folder ends in {{os.getpid()}}\\n")

@pytest.fixture(autouse=True)
def log(request):
    open("log", "a").write(f"{{request.node.name}} in {{os.getpid()}}\\n")
"""

TRAINS = """
import os, signal
def test_first(folder): pass
def test_second(folder): pass
def test_dies(): {dies}
def test_fourth(folder): pass
"""

MARKED = "import pytest\n@pytest.mark.tensorflow\ndef test_marked(): pass\n"

OTHERS = "def test_before(engine): pass\ndef test_after(engine): pass\n"


def run(folder: Path, *, most_bytes: int = 10**12, dies: str = "pass") -> tuple[str, dict[str, str]]:
    """Run tests in one process of xdist; return the output, and in which process each thing happened."""
    training = folder / "tests" / "real" / "training"
    training.mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST.format(most_bytes=most_bytes))
    (training / "test_trains.py").write_text(TRAINS.format(dies=dies))
    (folder / "tests" / "test_a.py").write_text(OTHERS)
    (folder / "tests" / "test_z.py").write_text(OTHERS.replace("_before", "_late").replace("_after", "_last"))
    (folder / "tests" / "unit").mkdir()
    (folder / "tests" / "unit" / "test_marked.py").write_text(MARKED)
    order = ["tests/test_a.py", "tests/real/training/test_trains.py", "tests/unit/test_marked.py", "tests/test_z.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n1", "-p", "no:cacheprovider", f"--rootdir={folder}", *order],
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    lines = [line.split(" in ") for line in (folder / "log").read_text().splitlines()]
    return done.stdout, dict(lines)


def test_what_trains_shares_a_child_and_leaves_the_fixtures_of_its_parent_alone(tmp_path: Path):
    output, where = run(tmp_path)
    assert "9 passed" in output, output
    assert where["test_before"] == where["test_last"] == where["engine ends"]
    assert (
        where["test_first"]
        == where["test_fourth"]
        == where["test_marked"]
        == where["folder ends"]
        != where["test_before"]
    )


def test_a_child_that_holds_too_much_memory_is_replaced(tmp_path: Path):
    output, where = run(tmp_path, most_bytes=0)
    assert "9 passed" in output, output
    assert len({where[name] for name in ("test_first", "test_second", "test_dies", "test_fourth", "test_last")}) == 5


def test_a_child_that_dies_fails_its_test_only(tmp_path: Path):
    output, where = run(tmp_path, dies="os.kill(os.getpid(), signal.SIGKILL)")
    assert "1 failed, 8 passed" in output, output
    assert "the process that ran this test died" in output
    assert where["test_fourth"] not in (where["test_first"], where["test_last"])
    assert where["test_before"] == where["test_last"] == where["engine ends"]


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/real/test_end_to_end.py::test_a", "images"),
        ("tests/real/engines/test_engines.py::test_a[x::y]", "images"),
        ("tests/real/test_wheel.py::test_a", "wheel"),
        ("tests/real/faults/test_data_dirs.py::test_a", "faults"),
        ("tests/real/slurm/test_slurm.py::test_a", "slurm"),
        ("tests/real/slurm/test_containers.py::test_a", "faults"),
        ("tests/real/slurm/test_training.py::test_a", "slurm training"),
        ("tests/real/training/test_networks.py::test_a[x::y]", "tests/real/training/test_networks.py::test_a"),
        ("tests/real/training/test_models.py::test_a", "tests/real/training/test_models.py"),
        ("tests/unit/test_locks.py::test_a", "tests/unit/test_locks.py"),
    ],
)
def test_tests_that_share_engines_are_a_group_and_others_go_by_file(nodeid: str, group: str):
    assert group_of(nodeid) == group


def test_what_waits_for_engines_begins_first_then_what_trains_longest():
    order = ["tests/real/test_end_to_end.py", "tests/real/faults/test_a.py", "tests/real/slurm/test_slurm.py"]
    order += [f"tests/real/training/test_{name}.py" for name in ("networks", "several_hosts")]
    order += ["tests/unit/test_locks.py"]
    ranks = [rank_of(f"{file}::test_a") for file in order]
    assert ranks == sorted(set(ranks))


def test_every_file_that_begins_early_is_there():
    from tests.support.session.children import WAIT_FOR_PROGRAMS
    from tests.support.session.schedule import (
        BY_TEST,
        LONG_FILES,
        SLOW_WITHOUT_WORK,
        SLURM_TRAINING,
        WHEEL,
        WITH_FAULTS,
    )

    named = (WITH_FAULTS, SLURM_TRAINING, WHEEL, WAIT_FOR_PROGRAMS, *BY_TEST, *SLOW_WITHOUT_WORK)
    files = [
        *(ROOT / name for name in named),
        *(ROOT / "tests/real/training" / f"test_{name}.py" for name in LONG_FILES),
    ]
    assert [file for file in files if not file.is_file()] == []


def test_no_file_of_tests_imports_tensorflow_when_it_is_collected(request: pytest.FixtureRequest):
    """A process that has it cannot give its tests to children: see `runs_children`."""
    assert not request.config.stash[IMPORTED_TENSORFLOW]


def test_as_many_children_train_as_there_are_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5})
    trains = threading.Event()

    def third() -> None:
        with a_core(tmp_path):
            trains.set()

    with a_core(tmp_path):
        with a_core(tmp_path):
            thread = threading.Thread(target=third)
            thread.start()
            assert not trains.wait(0.3), "three children train on two cores"
        assert trains.wait(10), "a core that is free again is not taken"
    thread.join()

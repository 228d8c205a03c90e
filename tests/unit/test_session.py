"""How `make test` spreads tests over processes: groups that stay together, and children for what trains."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import PROJECT
from tests.support.patience import patience
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
        timeout=patience(120),
        check=False,
    )
    where = dict(line.split(" in ") for line in (tmp_path / "log").read_text().splitlines())
    assert "1 failed, 4 passed" in done.stdout and "the process that ran this test died" in done.stdout, done.stdout
    assert where["test_first"] == where["test_second"] == where["test_dies"]
    assert len({where[name] for name in ("test_first", "test_fourth", "test_last")}) == 3
    assert where["test_last"] == where["engine ends"]


def limits(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the limits of waiting of an expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from (keyword.value for keyword in node.keywords if keyword.arg == "timeout")
        yield from node.args[:1] if node.func.attr in ("wait", "join", "result") else ()
        yield from node.args[2:3] if node.func.attr == "wait_until" else ()
    elif isinstance(node, ast.Compare) and re.match(r"time\.\w+\(\) - ", ast.unparse(node.left)):
        yield from node.comparators


def test_no_test_gives_up_after_less_than_a_minute():
    """On a slow or busy machine, anything may take many seconds: see `tests.support.patience`."""
    short = []
    for folder in ("unit", "real"):
        for path in sorted((PROJECT / "tests" / folder).rglob("test_*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                for limit in limits(node):
                    if (
                        isinstance(limit, ast.Constant)
                        and isinstance(limit.value, int | float)
                        and 3 < limit.value < 60
                    ):
                        short.append(f"{path.relative_to(PROJECT)}:{limit.lineno}: {limit.value}")
    assert short == []


def test_every_file_that_begins_early_is_there():
    files = [schedule.SLURM_TRAINING, schedule.WHEEL, WAIT_FOR_PROGRAMS]
    files += [*schedule.BY_TEST, *schedule.SLOW_WITHOUT_WORK]
    files += [f"tests/real/training/test_{name}.py" for name in schedule.LONG_FILES]
    assert [file for file in files if not (PROJECT / file).is_file()] == []


def test_no_file_of_tests_imports_tensorflow_when_it_is_collected(request: pytest.FixtureRequest):
    """A process that has it cannot give its tests to children: see `runs_children`."""
    assert not request.config.stash[IMPORTED_TENSORFLOW]

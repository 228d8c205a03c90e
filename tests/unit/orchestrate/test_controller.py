"""The process of a run: one at a time, ended on request; and what follows its end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrate import session
from orchestrate.errors import Unreachable, UserError
from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan
from orchestrate.running.controller import CONTROLLER, controlling, end_controller, is_controlled
from orchestrate.session import signals_handled, still_costing
from results.schema import GPU
from tests.support.engines.processes import wait_until
from tests.support.patience import patience
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher

RUNS = """
import signal, sys, threading
from pathlib import Path
from orchestrate.running.controller import controlling
asked, needed = [], int(sys.argv[2])
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: (asked.append(1), len(asked) == needed and ended.set()))
with controlling(Path(sys.argv[1])):
    print("controls", flush=True)
    ended.wait()
threading.Event().wait(0.8)  # writes its table
print(len(asked))
"""
"""Controls a run until it has been asked to end for a number of times; prints how often it was."""


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Start a controller that ends when it is asked for the n-th time."""
    started: list[subprocess.Popen[str]] = []

    def start(times: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RUNS, str(tmp_path), str(times)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout is not None and started[-1].stdout.readline() == "controls\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("times", [1, 2])
def test_a_controller_is_asked_twice_at_most_and_awaited(control, tmp_path: Path, times: int):
    assert end_controller(tmp_path) is None and not is_controlled(tmp_path) and not list(tmp_path.iterdir())
    process = control(times)
    assert is_controlled(tmp_path)
    with pytest.raises(UserError, match="another controller is using"), controlling(tmp_path):
        pass
    assert end_controller(tmp_path) == f"process {process.pid}"
    assert process.communicate(timeout=patience()) == (f"{times}\n", None)
    assert not is_controlled(tmp_path) and not (tmp_path / CONTROLLER).exists()


def test_a_controller_that_is_not_here_or_does_not_end_is_named(control, tmp_path: Path):
    process, path = control(3), tmp_path / CONTROLLER
    with pytest.raises(UserError, match=f"process {process.pid}, did not end within 0.5 s. Kill it"):
        end_controller(tmp_path, seconds=0.5)
    ours = json.loads(path.read_text())
    for written, said in (
        (ours | {"host": "elsewhere"}, "on elsewhere controls this run. Stop it there"),
        ([], "cannot be found"),
    ):
        path.write_text(json.dumps(written))
        with pytest.raises(UserError, match=said):
            end_controller(tmp_path)
    assert process.poll() is None


def test_hosts_with_a_price_that_answer_are_named_with_what_they_cost(monkeypatch: pytest.MonkeyPatch):
    machines = {name: FakeHost() for name in ("two", "one", "free")}
    machines["gone"] = FakeHost(failures={"running": Unreachable("no route to host")})
    entries = []
    for name, usd, gpus in (("two", 0.17, 2), ("one", 0.36, 1), ("free", None, 1), ("gone", 9.0, 1)):
        facts = Facts(gpus=tuple(GPU(index=index, name="A4000") for index in range(gpus)))
        host = Host(fleet="a4000", name=name, docker=None, usd_per_gpu_hour=usd)
        entries.append(HostPlan(host=host, suite="s", facts=facts, problem=None, jobs=()))
    plan = Plan(run_id="r", created_at="now", seed=1, hosts=tuple(entries))
    monkeypatch.setattr(session, "make_launcher", lambda host, **_: FakeLauncher(host, machines[host.name]))
    assert still_costing(plan) == [
        "hosts that still answer cost 0.70 USD per hour until returned: a4000.two 0.34, a4000.one 0.36. "
        "1 host did not answer, and may cost as well"
    ]
    assert machines["two"].count("close") == 1 and machines["free"].calls == []


def test_signals_at_the_same_moment_are_one(tmp_path: Path):
    """As of `timeout`, which sends each to its child and to the group of processes."""
    handled: list[float] = []
    with signals_handled(lambda: handled.append(time.monotonic())):
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(os.getpid(), number)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        wait_until(lambda: len(handled) > 1, "the second Ctrl-C")
    assert len(handled) == 2

"""The process of a run: one at a time, ended on request, with as many open files as it needs."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.running.controller import CONTROLLER, allow_open_files, controlling, end_controller, is_controlled

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
"""
"""Controls a run until it has been asked to end for a number of times."""


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


def test_a_controller_is_asked_twice_and_awaited(control, tmp_path: Path):
    assert end_controller(tmp_path) is None and not is_controlled(tmp_path)
    process = control(2)
    assert is_controlled(tmp_path)
    with pytest.raises(UserError, match="another controller is using"), controlling(tmp_path):
        pass
    assert end_controller(tmp_path) == f"process {process.pid}"
    assert process.wait(10) == 0 and not is_controlled(tmp_path) and not (tmp_path / CONTROLLER).exists()


def test_a_controller_that_does_not_end_is_named(control, tmp_path: Path):
    process = control(3)
    with pytest.raises(UserError, match=f"process {process.pid}, did not end within 0.5 s. Kill it"):
        end_controller(tmp_path, seconds=0.5)


def test_a_controller_that_is_not_here_is_left_alone(control, tmp_path: Path):
    process, path = control(1), tmp_path / CONTROLLER
    ours = json.loads(path.read_text())
    for written, said in (
        (ours | {"host": "elsewhere"}, "on elsewhere controls this run. Stop it there"),
        (ours | {"identity": "another"}, "Stop it there"),
        ([], "cannot be found"),
    ):
        path.write_text(json.dumps(written))
        with pytest.raises(UserError, match=said):
            end_controller(tmp_path)
    assert process.poll() is None


def test_a_run_may_open_as_many_files_as_it_needs_or_says_what_fits(monkeypatch):
    held = [(1024, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: held[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: held.append(pair))
    address = DockerAddress(scheme="unix", target="/run/docker.sock")
    hosts = [Host(fleet="f", name=f"n{number}", docker=address) for number in range(2000)]
    allow_open_files(hosts[:10], None)
    assert held == [(1024, 4096)], "a small run changes nothing"
    allow_open_files(hosts[:500], None)
    assert 4000 < held[-1][0] < held[-1][1] == 4096
    with pytest.raises(UserError, match="2000 hosts need") as caught:
        allow_open_files(hosts, None)
    fitting = int(re.search(r"--max-parallel (\d+)", str(caught.value))[1])
    with pytest.raises(UserError):
        allow_open_files(hosts, fitting + 1)
    allow_open_files(hosts, fitting)

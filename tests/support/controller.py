"""Runs `python -m orchestrate` as a user does, and reads what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from results.runs.reading import from_json
from results.schema import Record
from tests.support import PROJECT
from tests.support.engines.docker import DockerEngine

CASE = {"model": "googlenet", "batch_per_gpu": 2, "image_size": 64, "warmup_steps": 1, "num_steps": 3, "device": "cpu"}
DEADLINE_SECONDS = 240
_NOT_INHERITED = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "DOCKER_CONFIG", "HTTP_PROXY", "HTTPS_PROXY")
"""Of this machine: a test that means one of them says so."""


@dataclass(frozen=True)
class Finished:
    """How a controller ended.

    Attributes:
        memory_peak_bytes: Its largest resident set.
    """

    returncode: int
    stdout: str
    stderr: str
    memory_peak_bytes: int


class Runs:
    """A user's folder: a suite, hosts files and runs.

    Args:
        folder: Empty.
        environment: Added to this process's.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
            "TFBENCH_RUNS_DIR": str(folder / "runs"),
            "COLUMNS": "200",
            "PYTHONWARNINGS": "default",
            **environment,
        }

    def hosts(
        self, fleets: dict[str, dict[str, Any]], repeats: int = 1, case: dict[str, Any] | None = None, **defaults: Any
    ) -> Path:
        """Write a hosts file and a suite of one case.

        Args:
            fleets: By name: settings and `hosts`.
            repeats: Of the case.
            case: Settings that differ from `CASE`.
            defaults: Settings of all hosts.
        """
        suite = {"description": "one case of the fake", "repeats": repeats, "cases": [CASE | (case or {})]}
        (self.folder / "one.yml").write_text(json.dumps(suite))
        path = self.folder / "hosts.yml"
        document = {"version": 1, "defaults": {"suite": "one.yml", "device": "cpu", **defaults}, "fleets": fleets}
        path.write_text(json.dumps(document))
        return path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a controller; its output goes to files."""
        # Drawing a report takes seconds.
        flags = ["--no-report"] if arguments[:1] in (("run",), ("resume",)) else []
        with (self.folder / "stdout").open("a") as stdout, (self.folder / "stderr").open("a") as stderr:
            return subprocess.Popen(
                [sys.executable, "-m", "orchestrate", *arguments, *flags],
                cwd=PROJECT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
            )

    def run(self, *arguments: str, seconds: float = DEADLINE_SECONDS) -> Finished:
        """Run a controller to its end, for so many seconds at most, watching its memory."""
        starts = [_size(self.folder / "stdout"), _size(self.folder / "stderr")]
        with self.start(*arguments) as process:
            peak = _Peak(process.pid)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                peak.stop()
        stdout, stderr = (
            (self.folder / name).read_bytes()[start:].decode(errors="surrogateescape")
            for name, start in zip(("stdout", "stderr"), starts, strict=True)
        )
        return Finished(process.returncode, stdout, stderr, peak.bytes)

    @property
    def path(self) -> Path:
        """The only run's folder."""
        (run,) = (self.folder / "runs").iterdir()
        return run

    def records(self) -> dict[str, Record]:
        """Return the records by the name of their job."""
        return {path.stem: from_json(path.read_bytes()) for path in sorted((self.path / "records").glob("*.json"))}

    def by_host(self) -> dict[str, Record]:
        """Return the records by host, where each host has one."""
        return {record.origin.host: record for record in self.records().values() if record.origin}

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the run's events of one name."""
        lines = (
            (self.path / "events.jsonl").read_text().rpartition("\n")[0].splitlines()
        )  # the last may be half written
        return [event for event in map(json.loads, lines) if event["event"] == name]


class _Peak:
    """Watches the largest resident set of a process, of its own program only, not of what it was forked from."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            with contextlib.suppress(OSError, StopIteration):
                lines = self._status.read_text().splitlines()
                words = next(line for line in lines if line.startswith("VmHWM:")).split()
                self.bytes = max(self.bytes, int(words[1]) * 1024)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 240) -> Any:
    """Wait until a condition holds, and return its value; the test fails when it never does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    return pytest.fail(f"waited {seconds} s for {what}")


def ours(engine: DockerEngine) -> list[Any]:
    """Return the benchmarks on an engine, running or not."""
    return engine.client.containers.list(all=True, filters={"label": "tfbench.run"}, ignore_removed=True)


def running(engine: DockerEngine) -> list[Any]:
    """Return the benchmarks that run on an engine."""
    return engine.client.containers.list(filters={"label": "tfbench.run"}, ignore_removed=True)


def counted(engine: DockerEngine, action: str, run_id: str) -> Counter[str]:
    """Count what the engine did to each container of a run since it started: `create`, `start`, …"""
    now = int(time.time()) + 1
    reported = engine.client.events(
        since=0,
        until=now,
        decode=True,
        filters={"type": "container", "event": action, "label": f"tfbench.run={run_id}"},
    )
    return Counter(event["Actor"]["Attributes"]["tfbench.job"] for event in reported)


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

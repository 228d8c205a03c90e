"""Runs `python -m orchestrate` and reads its results."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.runs.reading import from_json
from results.schema import Record
from tests.support import PROJECT
from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import read_proc
from tests.support.patience import patience

CASE = {"model": "googlenet", "batch_per_gpu": 2, "image_size": 64, "warmup_steps": 1, "num_steps": 3, "device": "cpu"}
DEADLINE_SECONDS = 240
_NOT_INHERITED = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "DOCKER_CONFIG", "HTTP_PROXY", "HTTPS_PROXY")
"""Variables of this machine that controllers do not inherit; tests set them explicitly."""


@dataclass(frozen=True)
class Finished:
    """An ended controller, and its largest resident set."""

    returncode: int
    stdout: str
    stderr: str
    memory_peak_bytes: int


class Controller(subprocess.Popen[str]):
    """The process of a controller, killed if its context ends with an exception."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, longer on a slow machine."""
        return super().wait(None if timeout is None else patience(timeout))

    def __exit__(self, kind: type[BaseException] | None, *others: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *others)


@dataclass(frozen=True)
class Usage:
    """User and system time of a process without its children, and its largest resident set."""

    cpu_seconds: float
    peak_bytes: int


def watch(process: subprocess.Popen[Any], seconds: float = float("inf")) -> Usage:
    """Wait for the end of a process, and return its resources when last sampled.

    Raises:
        subprocess.TimeoutExpired: It did not end in time.
    """
    ticks = peak = 0
    deadline = time.monotonic() + patience(seconds)
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, seconds)
        words = read_proc(process.pid, "stat").rpartition(b")")[2].split()
        if words and words[0] != b"Z":
            ticks = int(words[11]) + int(words[12])
        status = read_proc(process.pid, "status").splitlines()
        peak = max([peak, *(int(line.split()[1]) * 1024 for line in status if line.startswith(b"VmHWM"))])
        time.sleep(0.02)
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), peak)


class Runs:
    """A user's folder, empty at first: a suite, hosts files and runs; and variables of the user's own."""

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
        """Write a hosts file of fleets by name and of settings of all hosts, and a suite with one case, based on `CASE`."""
        suite = {"description": "one case of the fake", "repeats": repeats, "cases": [CASE | (case or {})]}
        (self.folder / "one.yml").write_text(json.dumps(suite))
        path = self.folder / "hosts.yml"
        document = {"version": 1, "defaults": {"suite": "one.yml", "device": "cpu", **defaults}, "fleets": fleets}
        path.write_text(json.dumps(document))
        return path

    def start(self, *arguments: str) -> Controller:
        """Start a controller, with its output in files."""
        # Creating a report takes seconds.
        flags = ["--no-report"] if arguments[:1] in (("run",), ("resume",)) else []
        with (self.folder / "stdout").open("a") as stdout, (self.folder / "stderr").open("a") as stderr:
            return Controller(
                [sys.executable, "-m", "orchestrate", *arguments, *flags],
                cwd=PROJECT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                text=True,
            )

    def run(self, *arguments: str, expect: int | None = None, seconds: float = DEADLINE_SECONDS) -> Finished:
        """Run a controller to its end within some seconds, with an exit code where one is expected."""
        before = [len(self._printed(name)) for name in ("stdout", "stderr")]
        with self.start(*arguments) as process:
            usage = watch(process, seconds)
        stdout, stderr = self._printed("stdout")[before[0] :], self._printed("stderr")[before[1] :]
        assert expect is None or process.returncode == expect, f"exit code {process.returncode}: {stdout}{stderr}"
        return Finished(process.returncode, stdout, stderr, usage.peak_bytes)

    def measure(
        self,
        fleets: dict[str, Any],
        repeats: int = 1,
        *flags: str,
        expect: int = 0,
        seconds: float = DEADLINE_SECONDS,
        **settings: Any,
    ) -> Finished:
        """Run a plan to its end with exit code `expect`; `settings` as for `hosts`."""
        hosts = self.hosts(fleets, repeats, **settings)
        return self.run("run", f"--hosts={hosts}", "--display=plain", *flags, expect=expect, seconds=seconds)

    def begin(self, fleets: dict[str, Any], repeats: int = 1, **settings: Any) -> Controller:
        """Start a controller that runs a plan; `settings` as for `hosts`."""
        return self.start("run", f"--hosts={self.hosts(fleets, repeats, **settings)}", "--display=plain")

    def resume(self, *flags: str, seconds: float = DEADLINE_SECONDS) -> Finished:
        """Resume the run to its end, without failures."""
        return self.run("resume", "--display=plain", *flags, expect=0, seconds=seconds)

    def _printed(self, name: str) -> str:
        path = self.folder / name
        return path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""

    @property
    def stderr(self) -> str:
        """Stderr of all controllers."""
        return self._printed("stderr")

    @property
    def path(self) -> Path:
        """Folder of the only run."""
        (run,) = (self.folder / "runs").iterdir()
        return run

    def records(self) -> dict[str, Record]:
        """Return the records by name of the job."""
        return {path.stem: from_json(path.read_bytes()) for path in sorted((self.path / "records").glob("*.json"))}

    def by_host(self) -> dict[str, Record]:
        """Return the records by host, which has only one."""
        return {record.origin.host: record for record in self.records().values() if record.origin}

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return what the journal of the only run has of a name so far."""
        journals = self.folder.glob("runs/*/events.jsonl")  # none before the run has begun
        whole = "".join(path.read_text().rpartition("\n")[0] for path in journals)  # the last line may be incomplete
        return [event for event in map(json.loads, whole.splitlines()) if event["event"] == name]

    def states(self) -> list[str]:
        """Return the states of repeats, in order."""
        return [event["state"] for event in self.events("job_state")]

    def assert_no_step_was_lost(self, host: str) -> None:
        """Assert that the log of a host's only repeat has each step once."""
        (log,) = (self.path / "logs").glob(f"all.{host}.*")
        steps = [int(number) for number in re.findall(r"^step +(\d+)", log.read_text(), re.MULTILINE)]
        assert steps == list(range(1, len(steps) + 1)), f"{host}: lines were lost, or came twice"
        assert len(steps) > 5


def ours(engine: DockerEngine) -> list[Any]:
    """Return the benchmarks on an engine, running or not."""
    return engine.client.containers.list(all=True, filters={"label": "tfbench.run"}, ignore_removed=True)


def remove_ours(engine: DockerEngine) -> None:
    for container in ours(engine):
        container.remove(force=True, v=True)


def running(engine: DockerEngine, client: Any = None) -> list[Any]:
    """Return the running benchmarks on an engine, asked by its own or another client."""
    return (client or engine.client).containers.list(filters={"label": "tfbench.run"}, ignore_removed=True)


def counted(engine: DockerEngine, action: str, run_id: str) -> Counter[str]:
    """Count an action of the engine, such as `create` or `start`, for each container of a run."""
    filters = {"type": "container", "event": action, "label": f"tfbench.run={run_id}"}
    reported = engine.client.events(since=0, until=int(time.time()) + 1, decode=True, filters=filters)
    return Counter(event["Actor"]["Attributes"]["tfbench.job"] for event in reported)


def folder_bytes(folder: Path) -> int:
    """Return the total size of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())

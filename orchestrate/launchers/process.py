"""Benchmarks as subprocesses of this Python: the embedded default, without Docker.

A benchmark gets a folder of its own under the run's, `work/<job-id>/`, with its output and record. It runs in a
session of its own, so that it outlives the controller and Ctrl-C. A later controller finds it by its command line,
which names that folder: there is no process id file that could be missing or stale.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrate.errors import LaunchFailed, Lost
from orchestrate.extras import missing_extra
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import Ending, OnTurn, OutputLine, always_running
from orchestrate.launchers.container import host_flags, job_variables
from orchestrate.launchers.pulls import Progress
from orchestrate.planning.facts import Facts, facts_from_probe
from orchestrate.planning.plan import Job
from orchestrate.text import MAX_LINE_LENGTH, plain_text
from results.schema.record_json import MAX_RECORD_BYTES

POLL_SECONDS = 0.2
STOP_GRACE_SECONDS = 10.0
PROBE_TIMEOUT_SECONDS = 120
CHUNK_BYTES = 64 * 1024
PROJECT = Path(__file__).resolve().parents[2]


class ProcessLauncher:
    """Starts benchmarks on this machine.

    Args:
        host: Settings of the host.
        run_path: The run's folder; None when nothing will be started.
        command: What runs instead of `python -m tfbench`, for tests.
    """

    def __init__(self, host: Host, run_path: Path | None, command: list[str] | None = None) -> None:
        self._host = host
        # Absolute: a benchmark runs where our packages are, and `--runs-dir` is relative to where the user is.
        self._work = None if run_path is None else run_path.absolute() / "work"
        self._command = command or [sys.executable, "-m", "tfbench"]
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def probe(self) -> Facts:
        """See `Launcher.probe`."""
        if missing := missing_extra():
            raise LaunchFailed(missing)
        command = [sys.executable, "-m", "tfbench.probe"]
        try:
            answer = subprocess.run(
                command,
                cwd=PROJECT,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROBE_TIMEOUT_SECONDS,
                check=True,
            )
            return facts_from_probe(answer.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise LaunchFailed(f"the probe of this machine failed: {plain_text(str(error), 300)}") from error

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`: this Python is all that is needed."""

    def start(self, job: Job) -> bool:
        """See `Launcher.start`."""
        folder = self._folder(job)
        if self._was_started(job):
            return True
        folder.mkdir(parents=True, exist_ok=True)
        seconds = self._host.timeout_minutes * 60
        data = host_flags(job, self._host.data_dir)
        command = [*self._command, *job.case.flags(), *data, _output_flag(folder), f"--max_seconds={seconds:g}"]
        try:
            with (folder / "output.log").open("wb") as log, self._limited_cpus():
                child = subprocess.Popen(
                    command,
                    cwd=PROJECT,
                    env={**_environment(), **job_variables(job, self._host)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchFailed(f"{command[0]} could not be started: {error}") from error
        self._children[job.id] = child
        return False

    def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """See `Launcher.follow`."""
        tail = _Tail(self._folder(job) / "output.log")
        while True:
            exit_code = self._exit_code(job)
            tail.hand_on(on_line)
            if exit_code is not _RUNNING:
                return _ending(exit_code)
            time.sleep(POLL_SECONDS)

    def collect(self, job: Job) -> bytes | None:
        """See `Launcher.collect`."""
        try:
            with (self._folder(job) / "record.json").open("rb") as file:
                return file.read(MAX_RECORD_BYTES + 1)
        except FileNotFoundError:
            return None

    def stop(self, job: Job) -> None:
        """See `Launcher.stop`: asks first, so that the benchmark can write its record."""
        for number, grace in ((signal.SIGTERM, STOP_GRACE_SECONDS), (signal.SIGKILL, STOP_GRACE_SECONDS)):
            pid = self._running_pid(job)
            if pid is None:
                return
            try:
                os.killpg(pid, number)
            except ProcessLookupError:
                return
            deadline = time.monotonic() + grace
            while time.monotonic() < deadline and self._running_pid(job) is not None:
                time.sleep(POLL_SECONDS)

    def remove(self, job: Job) -> None:
        """See `Launcher.remove`."""
        child = self._children.pop(job.id, None)
        if child is not None:
            child.wait()
        shutil.rmtree(self._folder(job), ignore_errors=True)

    def running(self, run_id: str) -> list[str]:
        """See `Launcher.running`."""
        if self._work is None or not self._work.is_dir():
            return []
        prefix = f"{self._host.key}."
        return [path.parent.name for path in self._work.glob(f"{prefix}*/output.log")]

    def close(self) -> None:
        """See `Launcher.close`."""

    def _folder(self, job: Job) -> Path:
        if self._work is None:
            raise Lost("no run folder was given")
        return self._work / job.id

    @contextlib.contextmanager
    def _limited_cpus(self) -> Iterator[None]:
        """Bind this thread, and so what it starts, to `cpus` of this machine's CPUs.

        A benchmark that is bound after its start may have counted its CPUs, or started its threads, before that.
        """
        if self._host.cpus is None:
            yield
            return
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(allowed)[: max(1, int(self._host.cpus))])
        try:
            yield
        finally:
            os.sched_setaffinity(0, allowed)

    def _exit_code(self, job: Job) -> int | None:
        """Return `_RUNNING`, the exit code, or None where only another controller could know it."""
        child = self._children.get(job.id)
        if child is not None:
            code = child.poll()
            return _RUNNING if code is None else code
        return _RUNNING if self._running_pid(job) is not None else None

    def _running_pid(self, job: Job) -> int | None:
        """Return the process id of a benchmark that runs, whoever started it."""
        child = self._children.get(job.id)
        if child is not None:
            return child.pid if child.poll() is None else None
        return _find_process(_output_flag(self._folder(job)))

    def _was_started(self, job: Job) -> bool:
        """Return whether some controller started this benchmark: it runs, or it has left something."""
        folder = self._folder(job)
        log = folder / "output.log"
        left = (folder / "record.json").exists() or (log.exists() and log.stat().st_size > 0)
        return left or self._running_pid(job) is not None


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1"}


_RUNNING = -1_000_000
"""No exit code of a process: those are 0 to 255, or minus the number of a signal."""


class _Tail:
    """Hands on the lines that were added to a file, in bounded memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def hand_on(self, on_line: OutputLine) -> None:
        """Read what is new; the last, unfinished line waits for its end, but not beyond the longest line."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(CHUNK_BYTES):
                    self._offset += len(chunk)
                    *lines, self._rest = (self._rest + chunk).split(b"\n")
                    for line in lines:
                        on_line(plain_text(line.decode("utf-8", "replace")))
                    self._rest = self._rest[-MAX_LINE_LENGTH * 4 :]
        except FileNotFoundError:
            return


def _output_flag(folder: Path) -> str:
    return f"--output={folder / 'record.json'}"


def _find_process(argument: str) -> int | None:
    """Find the living process that was given a command line argument; None: there is none."""
    wanted = argument.encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:
            continue  # it ended while we looked
    return None


def _ending(exit_code: int | None) -> Ending:
    if exit_code is None:
        return Ending(exit_code=None, detail="another controller started it; its exit code is not known")
    return Ending(exit_code=exit_code if exit_code >= 0 else 128 - exit_code)

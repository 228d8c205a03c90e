"""Runs a step's processes, each within what is left of the step's time."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.gpu_evidence.folder import Folder
from tests.benchmarks.gpu_evidence.steps import Machine, Run, Step

ROOT = Path(__file__).parents[3]

SECONDS_TO_END = 5.0
"""A process that was asked to end has this long until it is killed."""

SECONDS_BEFORE_LIMIT = 5.0
"""A benchmark's own limit lies this much before its step's: its record then says where it hung."""

MAX_LOG_BYTES = 1 << 20
"""Of a log so much is kept: a quarter from its beginning, the rest from its end."""

PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Interpreters.

    Attributes:
        python: With TensorFlow, for this project.
        peer_python: With TensorFlow and tf_keras, for tf_cnn_benchmarks.
    """

    python: str
    peer_python: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One process that has ended.

    Attributes:
        exit_code: Negative: the signal; None: cut by the limit.
        record: Where its record was to be written; it may be missing.
        log: Its output.
    """

    name: str
    seconds: float
    exit_code: int | None
    record: Path
    log: Path
    reads_log: bool = False


def run_step(step: Step, machine: Machine, programs: Programs, folder: Folder, limit: float) -> list[Ended]:
    """Run a resolved step's processes until one of them fails or the time is over.

    Args:
        limit: Seconds for all together.
    """
    ended: list[Ended] = []
    begin = time.perf_counter()
    for run in step.runs:
        left = limit - (time.perf_counter() - begin)
        record, log = folder.record(step.name, run.name), folder.log(step.name, run.name)
        record.unlink(missing_ok=True)
        command = filled(run, machine, programs, folder, record, left)
        cwd = machine.peer if step.needs_peer and run.name.startswith("peer") else ROOT
        started = time.perf_counter()
        exit_code = run_process(command, {**os.environ, **run.variables}, cwd or ROOT, log, left)
        seconds = time.perf_counter() - started
        shorten(log)
        ended.append(
            Ended(name=run.name, seconds=seconds, exit_code=exit_code, record=record, log=log, reads_log=run.reads_log)
        )
        if exit_code != 0:
            break
    return ended


def filled(
    run: Run, machine: Machine, programs: Programs, folder: Folder, record: Path, seconds: float
) -> Sequence[str]:
    """Return a run's command with its `{…}` filled in."""
    values = {
        "python": programs.python,
        "peer_python": programs.peer_python,
        "record": str(record),
        "folder": str(folder.environment),
        "profile": str(folder.profile(record.stem)),
        "gpus": str(max(1, machine.gpus)),
        "seconds": f"{max(1.0, seconds - SECONDS_BEFORE_LIMIT):.0f}",
    }
    command = []
    for argument in run.command:
        for name, value in values.items():
            argument = argument.replace(f"{{{name}}}", value)
        command.append(argument)
    return command


def run_process(
    command: Sequence[str], environment: dict[str, str], cwd: Path, log: Path, seconds: float
) -> int | None:
    """Run a process and all that it starts.

    Returns:
        Its exit code; None: it was ended after `seconds`.
    """
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=_die_with_parent,
            )
        except OSError as error:
            output.write(f"{command[0]}: {error}\n".encode())
            return 127
        with _nothing_left_of(process):
            try:
                return process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                return None


@contextlib.contextmanager
def _nothing_left_of(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process's whole group, however the block ends: what is left of it would disturb the next one."""
    try:
        yield
    finally:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_END)
        _signal(process, signal.SIGKILL)
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _die_with_parent() -> None:
    """Have the kernel end this process when the driver is killed: it would disturb what the next call measures."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def shorten(log: Path) -> None:
    """Keep the beginning and the end of a long log."""
    size = log.stat().st_size
    if size <= MAX_LOG_BYTES:
        return
    quarter = MAX_LOG_BYTES // 4
    with log.open("rb") as file:
        head = file.read(quarter)
        file.seek(size - 3 * quarter)
        tail = file.read()
    log.write_bytes(head + f"\n[… {size - MAX_LOG_BYTES} bytes left out …]\n".encode() + tail)

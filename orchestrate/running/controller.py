"""The process that carries out a run: its lock on the run's folder, how it is ended, and what it takes of its machine.

It takes open files, of which many systems allow a process 1,024 unless it asks; and the time of Python's cycle
collector, which walks over all objects of a large plan again and again: a fourth of a controller's CPU time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrate.errors import UserError
from orchestrate.launchers.ssh.agent import identity
from results.program import command_line

if TYPE_CHECKING:
    from orchestrate.inventory.hosts import Host  # pydantic is slow to import, and `--help` needs none

LOCK, CONTROLLER = ".lock", "controller.json"
"""Files of a run's folder: held by its controller, and where that is."""

END_SECONDS = 30.0
"""Longest time that a controller takes to end; it waits no more than 15 s for hosts."""

FILES_OF_OUR_OWN = 64
"""Journal, lock, libraries, terminal, and what is open for a moment."""

FILES_PER_SLOT = 8
"""Connection, log, record and its folder, one more connection to end a repeat; ssh's pipes and its errors."""

COLLECTOR_THRESHOLDS = (50_000, 20, 20)
"""See `gc.set_threshold`; Python's own first one is 700. A repeat leaves hardly any cycles."""


@contextmanager
def controlling(run: Path) -> Iterator[None]:
    """Keep other controllers out of a run while this process works on it.

    Args:
        run: The run's folder.

    Raises:
        UserError: Another one works on it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(run / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        see = command_line("orchestrate", f"status {run}")
        raise UserError(f"another controller is using {run}. See: {see}") from error
    try:
        document = {"host": socket.gethostname(), "pid": os.getpid(), "identity": identity(os.getpid())}
        with contextlib.suppress(OSError):  # a full disk is reported where it matters
            (run / CONTROLLER).write_text(json.dumps(document), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            (run / CONTROLLER).unlink(missing_ok=True)
        lock.release()


def is_controlled(run: Path) -> bool:
    """Return whether a process works on a run."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(run / LOCK, timeout=0):
            return False
    except Timeout:
        return True


def end_controller(run: Path, seconds: float = END_SECONDS) -> str | None:
    """Ask the process that works on a run to end what runs, and wait until it has ended.

    Args:
        run: The run's folder.
        seconds: Longest wait.

    Returns:
        Its name, e.g. `process 4711`; None: there is none.

    Raises:
        UserError: It runs on another machine, or does not end.
    """
    if not is_controlled(run):
        return None
    try:
        found = json.loads((run / CONTROLLER).read_text(encoding="utf-8"))
        host, pid, known = str(found["host"]), int(found["pid"]), found["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{run}: a controller uses this run, and it cannot be found. End it, then try again") from None
    if host != socket.gethostname() or known != identity(pid):
        again = command_line("orchestrate", f"stop {run}")
        raise UserError(f"{run}: process {pid} on {host} controls this run. Stop it there: {again}")
    for _ in range(2):  # first no new repeats, then an end to those that run
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        time.sleep(0.5)
    deadline = time.monotonic() + seconds
    while is_controlled(run):
        if time.monotonic() > deadline:
            raise UserError(f"{run}: its controller, process {pid}, did not end within {seconds:g} s. Kill it")
        time.sleep(0.2)
    return f"process {pid}"


def collect_rarely() -> None:
    """Let the cycle collector come rarely, and pass over all that is there now."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.freeze()


def allow_open_files(hosts: list[Host], max_parallel: int | None) -> None:
    """Raise this process's limit of open files as far as a run needs it.

    Raises:
        UserError: The system limits open files to fewer.
    """
    at_work = sorted((host.slots for host in hosts), reverse=True)[:max_parallel]
    needed = FILES_OF_OUR_OWN + FILES_PER_SLOT * sum(at_work)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        fitting = max(1, (hard - FILES_OF_OUR_OWN) // (FILES_PER_SLOT * at_work[0]))
        raise UserError(
            f"{len(hosts)} hosts need {needed} open files, and this machine allows a process {hard}. "
            f"Raise it (ulimit -Hn {needed}, or nofile in /etc/security/limits.conf), or give --max-parallel {fitting}"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

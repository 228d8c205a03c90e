"""The controller process: its lock on the run's folder, how it is ended, and its resource limits.

It raises the limit on open files, which is often 1,024 by default, and makes Python's cycle collector run rarely: it
would scan all objects of a large plan again and again, for a quarter of the CPU time.
"""

from __future__ import annotations

import contextlib
import fcntl
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

from orchestrate.engines.ssh.agent import identity
from orchestrate.errors import UserError
from results.program import command_line

if TYPE_CHECKING:
    from orchestrate.inventory.hosts import Host  # slow to import, and not needed for `--help`

LOCK, CONTROLLER = ".lock", "controller.json"
"""Files in a run's folder: the controller's lock, and its host and process id."""

LOCK_SECONDS = 1.0
"""Wait for the lock, which `is_controlled` holds for a moment."""

AGAIN_SECONDS = 5.0
"""Interval of requests to end, of which a busy controller may take two for one."""

END_SECONDS = 30.0
"""Longest wait for a controller to end; it waits at most 15 s for hosts."""

BASE_FILES = 64
"""Open files for the journal, lock, libraries, terminal and temporary uses."""

FILES_PER_SLOT = 8
"""Open files for two connections (one to stop a repeat), log, record and its folder, and ssh's pipes and errors."""

COLLECTOR_THRESHOLDS = (50_000, 20, 20)
"""Arguments of `gc.set_threshold`, whose default starts with 700. A repeat creates hardly any cycles."""


@contextmanager
def controlling(run: Path) -> Iterator[None]:
    """Lock a run against other controllers.

    Args:
        run: The run's folder.

    Raises:
        UserError: Another controller uses the run.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(run / LOCK, timeout=LOCK_SECONDS, poll_interval=0.02)
    try:
        lock.acquire()
    except Timeout as error:
        see = command_line("orchestrate", "status", run)
        raise UserError(f"another controller is using {run}. See: {see}") from error
    try:
        document = {"host": socket.gethostname(), "pid": os.getpid(), "identity": identity(os.getpid())}
        with contextlib.suppress(OSError):  # a full disk is reported elsewhere
            (run / CONTROLLER).write_text(json.dumps(document), encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            (run / CONTROLLER).unlink(missing_ok=True)
        lock.release()


def is_controlled(run: Path) -> bool:
    """Return whether a run has a controller, as far as this user may know; writes nothing."""
    try:
        with (run / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no controller yet, or a folder of another user
        return False
    return False


def end_controller(run: Path, seconds: float = END_SECONDS) -> str | None:
    """Make a run's controller stop all repeats, and wait until it has ended.

    Args:
        run: The run's folder.
        seconds: Longest wait.

    Returns:
        Its name, e.g. `process 4711`, or None.

    Raises:
        UserError: The controller runs on another machine, or does not end.
    """
    if not is_controlled(run):
        return None
    try:
        found = json.loads((run / CONTROLLER).read_text(encoding="utf-8"))
        host, pid, known = str(found["host"]), int(found["pid"]), found["identity"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{run}: a controller uses this run, but cannot be found. End it, then try again") from None
    if host != socket.gethostname() or known != identity(pid):
        again = command_line("orchestrate", "stop", run)
        raise UserError(f"{run}: process {pid} on {host} controls this run. Stop it there: {again}")
    deadline, next_at, pause = time.monotonic() + seconds, 0.0, 0.5
    while is_controlled(run):  # otherwise it is writing its table, which a signal would end
        if time.monotonic() > deadline:
            raise UserError(f"{run}: its controller, process {pid}, did not end within {seconds:g} s. Kill it")
        if time.monotonic() >= next_at:  # the first stops new repeats, the second running ones
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            next_at, pause = time.monotonic() + pause, AGAIN_SECONDS
        time.sleep(0.2)
    return f"process {pid}"


def collect_rarely() -> None:
    """Run the cycle collector rarely, and exclude all existing objects."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.freeze()


def allow_open_files(hosts: list[Host], max_parallel: int | None) -> None:
    """Raise this process's limit on open files to what a run needs.

    Raises:
        UserError: The system's hard limit is too low.
    """
    at_work = sorted((host.slots for host in hosts), reverse=True)[:max_parallel]
    needed = BASE_FILES + FILES_PER_SLOT * sum(at_work)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        fitting = max(1, (hard - BASE_FILES) // (FILES_PER_SLOT * at_work[0]))
        raise UserError(
            f"{len(hosts)} hosts need {needed} open files, and this machine allows a process {hard}. "
            f"Raise it (ulimit -Hn {needed}, or nofile in /etc/security/limits.conf), or give --max-parallel {fitting}"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

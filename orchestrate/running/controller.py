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

from orchestrate.engines.ssh.agent import identity
from orchestrate.errors import UserError
from orchestrate.project import command_line

LOCK, CONTROLLER = ".lock", "controller.json"
"""Files in a run's folder: the controller's lock, and its host and process id."""

LOCK_SECONDS = 1.0
"""Wait for the lock, which `is_controlled` holds for a moment."""

AGAIN_SECONDS = 5.0
"""Interval of requests to end, of which a busy controller may take two for one."""

END_SECONDS = 30.0
"""Longest wait for a controller to end; it waits at most 15 s for hosts."""

OPEN_FILES = 65_536
"""Limit on open files, of which a host takes eight; some programs close all numbers up to a higher one, for minutes."""

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


def tune_process() -> None:
    """Allow many open files, and run the cycle collector rarely, without all existing objects."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.freeze()

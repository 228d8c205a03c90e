"""Runs tests that train in child processes, which are replaced before their memory grows too large.

For each function traced with an all-reduce on CPUs, TensorFlow leaks the memory of its gradients until the process ends.

Importing TensorFlow takes 2 s of CPU time. Therefore children are forks of a template process that only imports it; a
fork of a process that has used TensorFlow hangs.

Up to one child per core trains at a time; more take a third more CPU time.
"""

import contextlib
import ctypes
import gc
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from orchestrate.engines.ssh.agent import locked

MOST_BYTES = 2_500_000_000
"""Memory above which a child is replaced after a test; a test adds up to about 1.5 GB."""

WAIT_FOR_PROGRAMS = "tests/real/training/test_main.py"
"""Tests that mostly wait for programs or time limits."""

IMPORTED_TENSORFLOW = pytest.StashKey[bool]()
"""Whether TensorFlow was imported during the collection of tests."""

_PR_SET_PDEATHSIG = 1


class Children:
    """Runs tests in a child, one after another, and replaces the child if it uses too much memory.

    Args:
        preload: Module that the template imports.
    """

    def __init__(self, preload: str) -> None:
        self._preload = preload
        self._template: socket.socket | None = None
        self._pid: int | None = None
        self._connection: Connection | None = None

    def prepare(self, session: pytest.Session) -> None:
        """Start the template before any fixture is set up, because children set up their own."""
        if not runs_children(session.config) or not any(map(in_child, session.items)):
            return
        session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # created once, because creating empties it
        self._template, theirs = socket.socketpair()
        if _fork() == 0:
            self._template.close()
            _fork_children(session, self._preload, theirs)
        theirs.close()

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run a test in the child and forward its reports."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        folder = item.config._tmp_path_factory.getbasetemp().parent  # type: ignore[attr-defined]
        with contextlib.nullcontext() if item.nodeid.startswith(WAIT_FOR_PROGRAMS) else a_core(folder):
            reports = self._reports(item, nextitem)
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if nextitem is None or not in_child(nextitem) or self._held_bytes() > MOST_BYTES:
            self.end()
        item.session._setupstate.teardown_exact(nextitem)

    def end(self) -> None:
        """Make the child tear down its fixtures and end."""
        if self._pid is None or self._connection is None:
            return
        try:
            self._connection.send(None)
        except OSError:
            self._kill()
        else:
            self._forget()

    def close(self) -> None:
        """End the child and the template."""
        self.end()
        if self._template is not None:
            self._template.close()

    def _kill(self) -> None:
        assert self._pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._forget()

    def _reports(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        if self._connection is None:
            self._begin()
        assert self._connection is not None and self._pid is not None
        try:
            self._connection.send(_indices(item, nextitem))
            found = self._connection.recv()
        except (EOFError, OSError, pytest.fail.Exception) as error:  # it died, or pytest-timeout ended the wait
            self._kill()
            cause = str(error) or "the process that ran this test died"
            return [pytest.TestReport(item.nodeid, item.location, {}, "failed", cause, "call")]
        hook = item.config.hook
        return [hook.pytest_report_from_serializable(config=item.config, data=data) for data in found]

    def _begin(self) -> None:
        assert self._template is not None, "not prepared"
        self._connection, end = multiprocessing.Pipe()
        socket.send_fds(self._template, [b"fork"], [end.fileno()])
        end.close()
        self._pid = int(self._template.recv(20))

    def _held_bytes(self) -> int:
        if self._pid is None:
            return 0
        with contextlib.suppress(OSError):  # it has just died, which the next test reports
            return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def _forget(self) -> None:
        assert self._pid is not None and self._connection is not None
        with contextlib.suppress(ProcessLookupError):
            while True:  # until it has ended; its pipe may remain open in processes started by its tests
                os.kill(self._pid, 0)
                time.sleep(0.01)
        self._connection.close()
        self._pid = self._connection = None


class _OnlySession:
    """A fake next test that needs only the session's own fixtures."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[pytest.Session]:
        return [self._session]


@contextlib.contextmanager
def a_core(folder: Path) -> Iterator[None]:
    """Wait until fewer tests of all processes train than there are cores.

    Args:
        folder: Folder shared by the processes.
    """
    with contextlib.ExitStack() as stack:
        cores = [stack.enter_context((folder / f"training-{core}.lock").open("w")) for core in os.sched_getaffinity(0)]
        while not any(map(locked, cores)):
            time.sleep(0.02)
        yield


def runs_children(config: pytest.Config) -> bool:
    """Return whether this process is one of several; a single one, e.g. in a debugger, has no children."""
    return hasattr(config, "workerinput") and sys.platform == "linux" and "tensorflow" not in sys.modules


def in_child(item: pytest.Item) -> bool:
    """Return whether a test runs in a child, because it imports TensorFlow."""
    in_unit = item.nodeid.startswith("tests/unit/") and item.get_closest_marker("tensorflow") is not None
    return in_unit or item.nodeid.startswith("tests/real/training/")


def _indices(item: pytest.Item, nextitem: pytest.Item | None) -> tuple[int, int | None]:
    items = item.session.items
    return items.index(item), None if nextitem is None else items.index(nextitem)


def _fork() -> int:
    """Fork a child that ends with this process; return 0 in the child."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads, which are idle here
        pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return pid


def _fork_children(session: pytest.Session, preload: str, parent: socket.socket) -> None:
    """Run the template: fork a child for each pipe that the parent sends, and send back its pid."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are not waited for
    try:
        errors = os.dup(2)
        with Path(os.devnull).open("wb") as nowhere:  # TensorFlow logs to stderr on import
            os.dup2(nowhere.fileno(), 2)
        importlib.import_module(preload)
        os.dup2(errors, 2)
        os.close(errors)
        gc.freeze()  # collecting imported objects takes longer than many tests
        while (received := socket.recv_fds(parent, 4, 1))[0]:
            (end,) = received[1]
            if (pid := _fork()) == 0:
                parent.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _serve(session, Connection(end))
            os.close(end)
            parent.send(str(pid).encode())
    finally:
        os._exit(0)  # without the parent's own teardown


def _serve(session: pytest.Session, connection: Connection) -> None:
    """Run tests for the parent, then end without the parent's own teardown."""
    c_library = ctypes.CDLL(None)
    code, last = 0, _OnlySession(session)
    try:
        while (asked := connection.recv()) is not None:
            index, following = asked
            nextitem: Any = last if following is None else session.items[following]
            reports = runtestprotocol(session.items[index], log=False, nextitem=nextitem)
            gc.collect()
            gc.freeze()  # TensorFlow keeps graphs; collecting those of earlier tests takes a fifth of the time
            c_library.malloc_trim(0)  # so that freed memory does not count for the next test
            hook = session.config.hook
            connection.send([hook.pytest_report_to_serializable(config=session.config, report=r) for r in reports])
        session._setupstate.teardown_exact(last)
    except EOFError:
        code = 1
    finally:
        os._exit(code)

"""Runs the measurement in a child process, and records how it ended if the child cannot.

TensorFlow can hang in native code, crash, or be killed for lack of memory. The parent never imports it, so that it can
always end the child in time and write the record.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from results.schema import Status
from tfbench.failures import Failure, outcome_of_crash
from tfbench.machine.host import out_of_memory_kills

PR_SET_PDEATHSIG = 1
"""Linux `prctl`: the signal that a process gets when its parent dies."""

SECONDS_FOR_STACKS = 2.0
"""Time for a hanging child to print its stack before it is killed."""

SECONDS_FOR_LAST_WORDS = 2.0
"""Time to wait for a child's output after its end: a process that it started may hold its stderr open."""

MAX_LAST_WORDS = 1 << 16
"""Bytes of a child's stderr that are kept, to determine why it crashed."""


WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
"""Signals that the parent waits for. They are blocked, so that none interrupts the writing of a record."""


YEARS = 1e9
"""Seconds that stand for no limit: about 30 years."""


def supervise(
    work: Callable[[Callable[[int], None]], int],
    max_seconds: float | None,
    on_end: Callable[[Failure], None],
    exit_code: int,
) -> int:
    """Run `work` in a child process and wait for it.

    Call before any thread exists: the child is a fork of this process.

    Args:
        work: Measures, writes the record, calls its argument with the exit code once the record is written, and
            returns the exit code.
        max_seconds: Time limit of the child; None: no limit.
        on_end: Writes a record for a child that ended without one.
        exit_code: Exit code after `on_end`.

    Returns:
        The exit code; of a child that has written its record, its own, whatever happens to it afterwards.
    """
    written_in, written_out = os.pipe()
    errors_in, errors_out = os.pipe()
    os.set_blocking(written_in, False)
    kills_before = out_of_memory_kills()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent that ignores it would make ours lose the child's end
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        _be_the_child(work, written_out, errors_out)
    os.close(written_out)
    os.close(errors_out)
    errors = _Errors(errors_in)
    try:
        ended = _wait(child, max_seconds, errors)
        errors.last_words()  # before ours
        with contextlib.suppress(BlockingIOError):
            if code := os.read(written_in, 1):
                return code[0]
        on_end(ended if isinstance(ended, Failure) else _failure_of(ended, errors, kills_before))
        return exit_code
    finally:
        while signal.sigtimedwait(WATCHED, 0):
            pass  # a second signal asks for nothing new
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.close(written_in)


class _Errors:
    """Forwards a child's stderr, and keeps its end.

    Runs in a thread, so that a slow reader of stderr cannot keep the parent from ending the child in time.

    Args:
        source: Descriptor; closed at end of file.
    """

    def __init__(self, source: int) -> None:
        self._source = source
        self._kept = b""
        self._thread = threading.Thread(target=self._work, name="stderr of the child", daemon=True)
        self._thread.start()

    def last_words(self) -> str:
        """Return the end of its output, once it has ended."""
        self._thread.join(SECONDS_FOR_LAST_WORDS)
        return self._kept.decode(errors="replace")

    def last_state(self) -> str:
        """Return the child's last phase, as the end of a sentence; empty: none."""
        found = re.findall(r"^tfbench: state (\w+)$", self._kept.decode(errors="replace"), re.MULTILINE)
        return f", while {found[-1]}: stderr shows where it waited" if found else ""

    def _work(self) -> None:
        heard = True
        while chunk := os.read(self._source, MAX_LAST_WORDS):
            self._kept = (self._kept + chunk)[-MAX_LAST_WORDS:]
            while heard and chunk:
                try:
                    chunk = chunk[os.write(2, chunk) :]
                except OSError:
                    heard = False  # stderr was closed: the child continues
        os.close(self._source)


def _be_the_child(work: Callable[[Callable[[int], None]], int], written: int, errors: int) -> None:
    """Run `work` in the child process; never returns."""

    def say_written(code: int) -> None:
        os.write(written, bytes([code]))

    code = 1
    try:
        os.dup2(errors, 2)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the parent decides
        end_with_parent()
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)
        code = work(say_written)
    except BaseException:  # `os._exit` below would end the process before Python prints it
        traceback.print_exc()
        raise
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # skip TensorFlow's clean-up, which can hang


def end_with_parent() -> None:
    """Make the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(child: int, max_seconds: float | None, errors: _Errors) -> int | Failure:
    """Wait for the child's end, a signal, or the time limit.

    Returns:
        The status of a child that ended by itself, as `os.waitpid` gives it, or why it was ended.
    """
    limit = YEARS if max_seconds is None else max_seconds
    deadline = time.monotonic() + limit
    while True:
        received = signal.sigtimedwait(WATCHED, max(0.0, deadline - time.monotonic()))
        if received is None:
            phase = errors.last_state()
            os.kill(child, signal.SIGUSR1)
            signal.sigtimedwait({signal.SIGCHLD}, SECONDS_FOR_STACKS)
            _kill(child)
            return Failure(Status.TIMEOUT, f"not finished after --max_seconds={limit:g}{phase}")
        if received.si_signo != signal.SIGCHLD:
            _kill(child)
            return Failure(Status.STOPPED, f"stopped by {signal.Signals(received.si_signo).name}")
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status


def _failure_of(status: int, errors: _Errors, kills_before: int | None) -> Failure:
    """Return how a child failed that ended by itself, without a record."""
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        return Failure(Status.ERROR, f"the process ended with exit code {code} and without a record")
    name = signal.Signals(os.WTERMSIG(status)).name
    if name == "SIGTERM":
        return Failure(Status.STOPPED, f"stopped by {name}")
    if name != "SIGKILL":
        return outcome_of_crash(name, errors.last_words())
    kills = out_of_memory_kills()
    if kills is None or kills_before is None:
        return Failure(Status.OOM, f"killed by {name}: most likely by the kernel, because the host ran out of memory")
    if kills > kills_before:
        return Failure(Status.OOM, "killed by the kernel: the host's or the container's memory was full")
    return Failure(Status.ERROR, f"killed by {name}, but not by the kernel's out-of-memory killer")


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

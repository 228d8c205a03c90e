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
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The child and the descriptors on which its parent waits.

    Attributes:
        child: Process.
        signals: Descriptor that receives a byte per signal.
        written: Descriptor on which the child reports its exit code once its record is written.
        errors: The child's stderr.
    """

    child: int
    signals: int
    written: int
    errors: _Errors


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
        The exit code; of a child that has written its record, its own, even if it is stopped afterwards.
    """
    signals_in, signals_out = os.pipe()
    written_in, written_out = os.pipe()
    errors_in, errors_out = os.pipe()
    os.set_blocking(signals_out, False)
    os.set_blocking(written_in, False)
    kills_before = out_of_memory_kills()
    before = {
        number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    }
    previous = signal.set_wakeup_fd(signals_out, warn_on_full_buffer=False)
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _be_the_child(work, written_out, errors_out)
    os.close(written_out)
    os.close(errors_out)
    errors = _Errors(errors_in)
    try:
        watch = Watch(child=child, signals=signals_in, written=written_in, errors=errors)
        code, outcome = _wait(watch, max_seconds, kills_before)
        errors.last_words()  # before ours
        if outcome is None:
            return code
        if (of_record := _written_code(written_in)) is not None:
            return of_record
        on_end(outcome)
        return exit_code
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        for descriptor in (signals_in, signals_out, written_in):
            os.close(descriptor)


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
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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


def _wait(watch: Watch, max_seconds: float | None, kills_before: int | None) -> tuple[int, Failure | None]:
    """Wait for the child's end, a signal, or the time limit.

    Returns:
        The child's exit code, and what happened; None: the child ended by itself.
    """
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([watch.signals], [], [], left)
        if not ready:
            phase = watch.errors.last_state()
            os.kill(watch.child, signal.SIGUSR1)
            _wait_for_child(watch.child, SECONDS_FOR_STACKS)
            _kill(watch.child)
            return 1, Failure(Status.TIMEOUT, f"not finished after --max_seconds={max_seconds:g}{phase}")
        for number in os.read(watch.signals, 64):
            if number in (signal.SIGTERM, signal.SIGINT):
                _kill(watch.child)
                return 1, Failure(Status.STOPPED, f"stopped by {signal.Signals(number).name}")
        ended, state = os.waitpid(watch.child, os.WNOHANG)
        if ended:
            return _judge(state, watch, kills_before)


def _judge(state: int, watch: Watch, kills_before: int | None) -> tuple[int, Failure | None]:
    """Return how a child failed that ended by itself."""
    if os.WIFEXITED(state):
        code = os.WEXITSTATUS(state)
        if _written_code(watch.written) is not None:
            return code, None
        return code, Failure(Status.ERROR, f"the process ended with exit code {code} and without a record")
    number = os.WTERMSIG(state)
    name = signal.Signals(number).name
    if number == signal.SIGTERM:
        return 1, Failure(Status.STOPPED, f"stopped by {name}")
    if number != signal.SIGKILL:
        return 1, outcome_of_crash(name, watch.errors.last_words())
    kills = out_of_memory_kills()
    if kills is None or kills_before is None:
        return 1, Failure(
            Status.OOM, f"killed by {name}: most likely by the kernel, because the host ran out of memory"
        )
    if kills > kills_before:
        return 1, Failure(Status.OOM, "killed by the kernel: the host's or the container's memory was full")
    return 1, Failure(Status.ERROR, f"killed by {name}, but not by the kernel's out-of-memory killer")


def _written_code(written: int) -> int | None:
    """Return the exit code that the child reported with its record; None: it has written none."""
    try:
        return next(iter(os.read(written, 1)), None)
    except BlockingIOError:
        return None


def _wait_for_child(child: int, seconds: float) -> None:
    """Wait for a child to end, for a limited time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.05)
        with contextlib.suppress(ChildProcessError):
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

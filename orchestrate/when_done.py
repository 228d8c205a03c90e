"""Runs the user's command after a run, however the run ends; and handles the signals that end a run."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from orchestrate.display.streams import stderr_file
from orchestrate.errors import UserError
from results.schema.exit_codes import ExitCode

Notify = Callable[[str], None]
"""Receives a line for the user."""

Handler = Callable[[int, FrameType | None], None]
"""Handler of a signal."""

TOGETHER_SECONDS = 0.15
"""Time after a signal in which others have the same cause; a user presses Ctrl-C twice more slowly."""


@contextmanager
def when_done(command: str | None, notify: Notify) -> Iterator[None]:
    """Run a shell command after the block, however it ends, e.g. to return rented machines.

    SIGTERM and SIGHUP (a closed terminal) end the block like Ctrl-C. After a mistake in flags or files the command does
    not run: nothing was measured, and the user will try again.

    Args:
        command: For `sh`; never printed, because it may contain a token. None: nothing is run.
        notify: Receives lines about its start and end.
    """
    measured = True
    with signals_handled(lambda *_: None, signal.SIGINT):  # nothing ends it before the command
        try:
            with signals_handled(_interrupt, signal.SIGINT):
                yield
        except UserError as error:
            measured = error.exit_code is not ExitCode.USAGE
            raise
        finally:
            if command is not None and measured:
                run_command(command, notify)
            elif command is not None:
                notify("--when-done did not run, because nothing was measured")


@contextmanager
def signals_handled(handle: Handler, *more: signal.Signals) -> Iterator[None]:
    """Handle SIGTERM and SIGHUP in the block; of several SIGHUPs, as sent by a closing terminal, only the first.

    Signals at the same moment are one: `timeout` sends each to its child and to the group of processes.
    """
    handled_at = -math.inf

    def handle_once(number: int, frame: FrameType | None) -> None:
        nonlocal handled_at
        if time.monotonic() - handled_at > TOGETHER_SECONDS:
            handled_at = time.monotonic()
            handle(number, frame)

    def handle_hangup(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        handle_once(number, frame)

    handlers = dict.fromkeys((signal.SIGTERM, *more), handle_once)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # otherwise nohup
        handlers[signal.SIGHUP] = handle_hangup
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run_command(command: str, notify: Notify) -> int:
    """Run a shell command to its end, with its output on stderr and no input.

    The command has a session of its own, so the Ctrl-C that ends the run does not interrupt it. A second one does.

    Returns:
        Its exit code, which does not affect the run's; negative: it was ended by that signal.
    """
    notify("--when-done: running the command")
    interrupts = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            notify("--when-done is still running. Press Ctrl-C again to end it")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=stderr_file(),
        stderr=stderr_file(),
        start_new_session=True,
    )
    with signals_handled(handle, signal.SIGINT):
        code = process.wait()
    if code == 0:
        notify("--when-done succeeded")
    else:
        notify(f"--when-done FAILED with exit code {code}. Check whether your machines still cost money")
    return code

"""Starts processes that end with this one, however it ends, together with their own children."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import IO, Any

_REAPER = """\
trap '' HUP INT TERM
groups=' ' found=
while read -r change group; do
    case $change in
        +) groups="$groups$group " ;;
        *) groups="${groups%% $group *} ${groups#* $group }" ;;
    esac
done
for sign in TERM KILL; do
    for group in $groups; do kill -s $sign -- "-$group" && found=yes; done 2>/dev/null
    [ -z "$found" ] || sleep 1
done
"""
"""Reads which process groups were started and ended; when its input closes, it ends those that remain.

PR_SET_PDEATHSIG would not do: macOS has none, and it ends a child with the thread that started it.
"""

_REAPERS: list[subprocess.Popen[bytes]] = []
"""The first is used."""


def start_child(command: Sequence[str], **pipes: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 (as `Popen`)
    """Start a command in a session of its own, so that the controller handles Ctrl-C.

    Args:
        command: The command.
        pipes: Arguments of `subprocess.Popen`.

    Raises:
        OSError: It cannot be started.
    """
    if _reaper().closed:
        raise ChildProcessError("tfbench is ending")
    child = subprocess.Popen(command, start_new_session=True, **pipes)
    _note("+", child)
    return child


def end_child(child: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """End a child and its own children, and wait for it."""
    kill_child(child, number)
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        kill_child(child)
        child.wait()
    _note("-", child)


def kill_child(child: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to a child and its own children, unless it has ended."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def _note(change: str, child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):  # this process ends
        os.write(_reaper().fileno(), f"{change} {child.pid}\n".encode())  # short writes to a pipe are atomic


def _reaper() -> IO[bytes]:
    """Return the input of the process that ends those that outlive this one."""
    if not _REAPERS:
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        command = ["sh", "-c", _REAPER]
        _REAPERS.append(subprocess.Popen(command, stdin=pipe, stdout=null, stderr=null, start_new_session=True))
    assert _REAPERS[0].stdin is not None
    return _REAPERS[0].stdin


@atexit.register
def _end_all() -> None:
    for reaper in _REAPERS:
        reaper.communicate()

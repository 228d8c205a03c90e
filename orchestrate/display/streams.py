"""Standard streams whose reader may stall: Ctrl-S, a pager, a full pipe, a sleeping laptop behind ssh.

A thread of its own writes what a program prints. Writing waits for the reader once, for a moment, so that stdout and
stderr stay in order; as long as the reader is behind, nothing waits.
"""

from __future__ import annotations

import contextlib
import io
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, cast

PATIENCE_SECONDS = 1.0
"""Longest wait for a reader, once each time it stalls."""

UNREAD_SECONDS = 15.0
"""At the end of the program, longest time without the reader taking anything, after which the rest is discarded."""

PIECE_BYTES = 4096
STDERR = 2


class UndelayedStream:
    """A standard stream that never waits long for its reader.

    Args:
        stream: The stream.
        file: Where its text goes.

    Attributes:
        is_behind: Whether the reader has stalled. Text is kept; displays drop steps.
    """

    def __init__(self, stream: IO[str], file: io.FileIO) -> None:
        self.is_behind = False
        self._stream = stream
        self._file = file
        self._unread = queue.Queue[bytes]()
        self._error: OSError | ValueError | None = None
        self._taken_at = time.monotonic()
        threading.Thread(target=self._pass_on, name="output", daemon=True).start()

    def write(self, text: str) -> int:
        """Write text; see `typing.TextIO.write`.

        Raises:
            OSError: An earlier write failed, e.g. because the pipe was closed.
        """
        self._unread.put(text.encode(getattr(self._stream, "encoding", None) or "utf-8", "backslashreplace"))
        if not self.is_behind:
            with (changed := self._unread.all_tasks_done):
                self.is_behind = not changed.wait_for(lambda: not self._unread.unfinished_tasks, PATIENCE_SECONDS)
        if self._error is not None:
            raise self._error
        return len(text)

    def flush(self) -> None:
        """Do nothing: `write` passes everything on."""

    def finish(self, seconds: float) -> bool:
        """Wait for the reader, until it has taken nothing for so long; return whether it has everything."""
        while self._unread.unfinished_tasks and time.monotonic() - self._taken_at < seconds:
            time.sleep(0.1)
        return not self._unread.unfinished_tasks

    def __getattr__(self, name: str) -> object:
        """Delegate all other attributes to the stream."""
        return getattr(self._stream, name)

    def _pass_on(self) -> None:
        while True:
            data, self._taken_at = memoryview(self._unread.get()), time.monotonic()
            while data:
                try:
                    taken = self._file.write(data[:PIECE_BYTES])
                except (OSError, ValueError) as error:
                    self._error, taken = error, len(data)
                if taken is None:  # somebody made the file non-blocking
                    time.sleep(0.1)
                else:
                    data, self._taken_at = data[taken:], time.monotonic()
            self._unread.task_done()
            self.is_behind = self.is_behind and not self._unread.empty()


def is_behind(stream: object) -> bool:
    """Return whether a stream's reader has stalled."""
    return bool(getattr(stream, "is_behind", False))


def stderr_file() -> int:
    """Return the descriptor of stderr; if it was closed before the start, or its reader has stalled, /dev/null."""
    try:
        os.fstat(STDERR)
    except OSError:
        return subprocess.DEVNULL
    return subprocess.DEVNULL if is_behind(sys.stderr) else STDERR


@contextlib.contextmanager
def undelayed_streams() -> Iterator[None]:
    """Let no reader of stdout or stderr delay the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = made = tuple(map(undelayed, before))
    try:
        yield
    finally:
        unread = [stream for stream in made if not getattr(stream, "finish", lambda _: True)(UNREAD_SECONDS)]
        if made[0] in unread and made[1] not in unread:
            made[1].write(f"the rest of the output was discarded: nothing read it for {UNREAD_SECONDS:g} s\n")
        sys.stdout, sys.stderr = before


def undelayed(stream: IO[str]) -> IO[str]:
    """Return a stream that never waits long; one without a file is returned as it is."""
    buffer = getattr(stream, "buffer", None)
    file = getattr(buffer, "raw", buffer)  # not the buffer: an abandoned write would hold its lock
    if hasattr(stream, "is_behind") or not isinstance(file, io.FileIO):
        return stream
    stream.flush()
    return cast(IO[str], UndelayedStream(stream, file))

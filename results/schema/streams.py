"""Standard streams of every program of tfbench: a reader that leaves early (`| head`) is no error."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

GONE = (OSError, ValueError)
"""What a standard stream raises without a reader, on a full disk, and (ValueError) when it is closed."""


@contextlib.contextmanager
def lasting_streams(*errors: type[Exception]) -> Iterator[None]:
    """Let stdout and stderr outlast their readers until the end of the block; `errors` as in `LastingStream`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (lasting(stream, errors or GONE) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


class LastingStream:
    """A standard stream whose reader may go away (`… | head`, a closed terminal, a full disk behind `>`).

    What is written then goes nowhere, and the command goes on: hosts are still running, and `--when-done` must run.

    Args:
        stream: The stream itself.
        errors: Of its `write` and `flush`, after which the reader is gone; others are raised.
    """

    def __init__(self, stream: TextIO, errors: tuple[type[Exception], ...]) -> None:
        self._stream = stream
        self._errors = errors

    def write(self, text: str) -> int:
        """Write text; see `typing.TextIO.write`."""
        try:
            return self._stream.write(text)
        except self._errors:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Hand over what is buffered."""
        try:
            self._stream.flush()
        except self._errors:
            self._give_up()

    def __getattr__(self, name: str) -> object:
        """Return everything else of the stream."""
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        """Let the descriptor lead nowhere, also for what Python and child processes write."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def lasting(stream: TextIO | None, errors: tuple[type[Exception], ...] = GONE) -> TextIO:
    """Return a standard stream that outlasts its reader; one that was closed at the start (`2>&-`) leads nowhere."""
    if stream is None:
        stream = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the end)
    if isinstance(stream, io.TextIOWrapper):  # file names hold any bytes, and not every terminal all of Unicode
        stream.reconfigure(errors="backslashreplace")
    return stream if isinstance(stream, LastingStream) else cast(TextIO, LastingStream(stream, errors))

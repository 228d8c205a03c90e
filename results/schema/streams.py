"""Standard streams that ignore a closed pipe (`| head`), for every program of tfbench."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO, cast

GONE = (OSError, ValueError)
"""Raised by a standard stream on a broken pipe or a full disk, and (ValueError) when it is closed."""


@contextlib.contextmanager
def lasting_streams(*errors: type[Exception]) -> Iterator[None]:
    """Ignore closed stdout and stderr within the block; `errors` as in `LastingStream`."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, LastingStream(stream, errors or GONE)) for stream in before)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


class LastingStream:
    """A standard stream that discards output after an error (`… | head`, a closed terminal, a full disk).

    The command continues, because hosts are still running and `--when-done` must run.

    Args:
        stream: The wrapped stream; None: it was closed at the start (`2>&-`), and output is discarded.
        errors: Exceptions of `write` and `flush` after which output is discarded; others are raised.

    Attributes:
        lost: Why output was discarded, from which `run_main` takes the exit code; None: none was.
    """

    lost: Exception | None = None

    def __init__(self, stream: TextIO | None, errors: tuple[type[Exception], ...]) -> None:
        self._stream = stream or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (until the end)
        self._errors = errors
        if isinstance(stream, io.TextIOWrapper):  # file names may hold any bytes, and a terminal may lack Unicode
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write text; see `typing.TextIO.write`."""
        self._pass_on(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; see `typing.TextIO.flush`."""
        self._pass_on(self._stream.flush)

    def __getattr__(self, name: str) -> object:
        """Delegate all other attributes to the stream."""
        return getattr(self._stream, name)

    def _pass_on(self, act: Callable[..., object], *arguments: object) -> None:
        """On an error redirect the descriptor to `os.devnull`, for output of Python and of child processes."""
        try:
            act(*arguments)
        except self._errors as error:
            self.lost = self.lost or error
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

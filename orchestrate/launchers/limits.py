"""What comes from an engine or a cluster: read within limits of time and bytes, in memory, never by the paths in it.

The tar reader is our own, on purpose: crafted archives send Python's `tarfile` backwards for ever (CVE-2025-8194), into
unbounded recursion, or into a search that takes hours (CVE-2024-6232), and only the first file is wanted, whatever its
name (`tests/real/faults/test_hostile_archives.py`).
"""

from __future__ import annotations

import contextlib
import io
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import urllib3
import urllib3.connection

from orchestrate.errors import LaunchFailed, Unreachable
from orchestrate.text import plain_text
from results.schema.record_json import MAX_RECORD_BYTES

BLOCK_BYTES = 512
_REGULAR = (b"0", b"\0")
_ABOUT_THE_NEXT = (b"x", b"g", b"L", b"K")  # extended headers and long names: skipped, because names do not matter


NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
"""What comes of an answer that nobody foresaw, in a library or where it is read; deep JSON ends in the last but one."""


@contextlib.contextmanager
def understood(whose: str) -> Iterator[None]:
    """Turn any exception over an unforeseen answer into an error of its host; also a decorator.

    Raises:
        LaunchFailed: The answer is not what its kind of server sends.
    """
    try:
        yield
    except NONSENSE as error:
        said = plain_text(f"{type(error).__name__}: {error}", 300)
        raise LaunchFailed(f"{whose}'s answer is malformed: {said}") from error


@dataclass
class _Limits:
    """What is left of a conversation."""

    ends_at: float
    bytes_left: int
    silence_seconds: float | None


_LIMITS: ContextVar[_Limits | None] = ContextVar("limits", default=None)


@contextlib.contextmanager
def within(seconds: float, limit_bytes: int, silence_seconds: float | None = None) -> Iterator[None]:
    """Limit all that this thread reads from engines.

    Args:
        seconds: Longest duration.
        limit_bytes: Most that may come.
        silence_seconds: Longest time without a byte; None: that of each request.

    Raises:
        Unreachable, LaunchFailed: From where it reads, when the time is over, or more has come.
    """
    token = _LIMITS.set(_Limits(time.monotonic() + seconds, limit_bytes, silence_seconds))
    try:
        yield
    finally:
        _LIMITS.reset(token)


def _receive(sock: socket.socket, receive: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    limits = _LIMITS.get()
    if limits is None:
        return receive(*arguments)
    left, own = limits.ends_at - time.monotonic(), sock.gettimeout()
    if left <= 0:
        raise Unreachable("the engine did not complete its answer in time")
    sock.settimeout(min(left, limits.silence_seconds or own or left))
    count = receive(*arguments)
    sock.settimeout(own)
    limits.bytes_left -= count
    if limits.bytes_left < 0:
        raise LaunchFailed("the engine's answer is too large")
    return count


class _Socket(socket.socket):
    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401
        return _receive(self, super().recv_into, arguments)


class TLSSocket(ssl.SSLSocket):
    """Ends a conversation by its limits: the `sslsocket_class` of a context."""

    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401
        """Receive bytes, as long as the conversation may go on."""
        return _receive(self, super().recv_into, arguments)


class _Connection(urllib3.connection.HTTPConnection):
    """A connection by plain TCP, or to a unix socket."""

    def __init__(self, *arguments: Any, socket_path: str | None = None, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **options)
        self._socket_path = socket_path

    def _new_conn(self) -> socket.socket:
        if self._socket_path is None:
            made = _Socket(fileno=super()._new_conn().detach())
        else:
            made = _Socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(self.timeout)
            if self._socket_path is not None:
                made.connect(self._socket_path)
        except BaseException:
            made.close()
            raise
        return made


class LimitedPool(urllib3.HTTPConnectionPool):
    """Connections by plain TCP, or to a unix socket, that end by a limit."""

    ConnectionCls = _Connection


def read_bounded(chunks: Iterable[bytes], limit_bytes: int) -> bytes:
    """Read chunks up to a limit; what is beyond is not read."""
    buffer = io.BytesIO()
    for chunk in chunks:
        buffer.write(chunk[: limit_bytes - buffer.tell()])
        if buffer.tell() >= limit_bytes:
            break
    return buffer.getvalue()


def only_file(archive: bytes) -> bytes | None:
    """Return the content of the first entry of a tar archive, if that is a regular file, whatever its name claims.

    Returns:
        At most `MAX_RECORD_BYTES` + 1 bytes. None: the entry is no regular file, or there is none. What is malformed or
        cut off is returned as it came, to be judged as a bad record rather than as none.

    Source: POSIX.1-1988 ustar header blocks.
    """
    offset = 0
    while offset + BLOCK_BYTES <= len(archive):
        header, start = archive[offset : offset + BLOCK_BYTES], offset + BLOCK_BYTES
        if not any(header):
            return None
        size, kind = _size(header[124:136]), header[156:157]
        if size is None:
            break
        if kind in _REGULAR:
            wanted = min(size, MAX_RECORD_BYTES + 1)
            content = archive[start : start + wanted]
            return content if len(content) == wanted else archive[: MAX_RECORD_BYTES + 1]
        if kind not in _ABOUT_THE_NEXT:
            return None
        offset = start + -(-size // BLOCK_BYTES) * BLOCK_BYTES
    return archive[: MAX_RECORD_BYTES + 1]


def _size(field: bytes) -> int | None:
    """Read a size in octal digits; None: it is something else, e.g. a negative number in base 256."""
    digits = field.strip(b" \0")
    return int(digits, 8) if re.fullmatch(rb"[0-7]+", digits) else None

"""Limits on time and bytes for responses of engines and clusters, which are read into memory."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import stamina
import urllib3
import urllib3.connection

from orchestrate.errors import LaunchFailed, Unreachable
from orchestrate.text import plain_text

T = TypeVar("T")

RECONNECT_SECONDS = 120.0
"""How long requests to a host that has answered before are retried."""

LONGEST_DELAY_SECONDS = 5.0

MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
"""Exceptions that a malformed response can cause in a library or in our parsers; deep JSON raises RecursionError."""


@contextlib.contextmanager
def malformed_as_error(whose: str) -> Iterator[None]:
    """Turn exceptions caused by a malformed response into a host's error; also a decorator.

    Raises:
        LaunchFailed: The response is malformed.
    """
    try:
        yield
    except MALFORMED as error:
        message = plain_text(f"{type(error).__name__}: {error}", 300)
        raise LaunchFailed(f"{whose}'s answer is malformed: {message}") from error


def persistently(attempt: Callable[[], T], *, has_answered: bool) -> T:
    """Return the result of an attempt, which is repeated for a while if the host has answered before.

    Raises:
        Unreachable: The connection failed, or could not be restored.
    """
    try:
        return attempt()
    except Unreachable:
        if not has_answered:
            raise
    delays = {"wait_initial": 0.2, "wait_max": LONGEST_DELAY_SECONDS, "timeout": RECONNECT_SECONDS}
    return stamina.RetryingCaller(attempts=None, **delays)(Unreachable, attempt)


@dataclass
class _Limits:
    """The limits of a conversation, in monotonic seconds and bytes, and what is left of them."""

    seconds: float
    ends_at: float
    bytes_left: int
    silence_seconds: float | None


_LIMITS: ContextVar[_Limits | None] = ContextVar("limits", default=None)


@contextlib.contextmanager
def within(seconds: float, limit_bytes: int, silence_seconds: float | None = None) -> Iterator[None]:
    """Limit what this thread reads from engines.

    Args:
        seconds: Longest duration.
        limit_bytes: Maximum number of bytes.
        silence_seconds: Longest time without a byte; None: the timeout of each request.

    Raises:
        Unreachable: The time is over, or the silence too long; raised by the read.
        LaunchFailed: The response is too large; raised by the read.
    """
    token = _LIMITS.set(_Limits(seconds, time.monotonic() + seconds, limit_bytes, silence_seconds))
    try:
        yield
    finally:
        _LIMITS.reset(token)


def _receive(sock: socket.socket, receive: Callable[..., int], arguments: tuple[Any, ...]) -> int:
    limits = _LIMITS.get()
    if limits is None:
        return receive(*arguments)
    left, own = limits.ends_at - time.monotonic(), sock.gettimeout()
    too_late = Unreachable(f"its answer was not complete after {limits.seconds:g} seconds")
    if left <= 0:
        raise too_late
    silence = limits.silence_seconds or own or left
    sock.settimeout(min(left, silence))
    try:
        count = receive(*arguments)
    except TimeoutError as error:
        raise Unreachable(f"no answer within {silence:g} seconds") if silence < left else too_late from error
    sock.settimeout(own)
    limits.bytes_left -= count
    if limits.bytes_left < 0:
        raise LaunchFailed("the engine's answer is too large")
    return count


class _Socket(socket.socket):
    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401
        return _receive(self, super().recv_into, arguments)


class TLSSocket(ssl.SSLSocket):
    """A TLS socket with the limits of `within`: the `sslsocket_class` of a context."""

    def recv_into(self, *arguments: Any) -> int:  # noqa: ANN401
        """Receive bytes within the limits."""
        return _receive(self, super().recv_into, arguments)


class _Connection(urllib3.connection.HTTPConnection):
    """A connection over plain TCP or to a unix socket."""

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
    """A pool of connections over plain TCP or to a unix socket, with the limits of `within`."""

    ConnectionCls = _Connection

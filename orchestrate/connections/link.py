"""A connection to a host: a process, mostly ssh, that receives bytes and answers with lines of JSON, within limits.

The host prints a mark before its answers, which separates them from the output of login profiles. What runs on the
host reads its input to the end, so that a connection ends with this process, however that ends.

An sshd drops new connections while many are unauthenticated: 30 % from the 10th on, all from the 100th on
(`MaxStartups 10:30:100`). All connections to a fleet behind a jump host reach the same sshd: `make test-fresh-hosts`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import signal
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import anyio
import stamina

from orchestrate.connections.ssh import NAME_PREFIX, own_words, ssh_failure
from orchestrate.errors import Dropped, HostError, Unreachable
from orchestrate.text import plain_text, read_json

ATTEMPTS = 9

with_retries = stamina.AsyncRetryingCaller(attempts=ATTEMPTS, timeout=45.0, wait_initial=0.5, wait_max=8.0).on(Dropped)
"""Calls a coroutine again if it raises `Dropped`, with delays of about 45 s in all: longer than a connection through a
loaded jump host takes to log in. No attempt begins later: a server that does not speak ssh costs seconds each time."""

MAX_LINE_BYTES = 20 << 20
"""Limit for a line of an answer: a record with the last output of a repeat, in base64, or the states of a queue; and
for the output of login profiles."""

MAX_ERROR_BYTES = 10_000
"""Limit for the stored part of standard error."""

END_SECONDS = 10.0
"""Longest time between the end of an answer and that of the process."""

CLOSE_SECONDS = 2.0
"""Longest time between the end of the input and that of the process."""

SSH_FAILED = 255

_OPEN: set[int] = set()
"""Process groups of open connections."""


class Link:
    """An open connection; belongs to the loop.

    Args:
        name: Of the host, for messages.
        transport: Of the process.
        process: The process, which leads a group of its own.

    Attributes:
        failure: Why it has ended; None: it has not.
    """

    def __init__(self, name: str, transport: asyncio.SubprocessTransport, process: Process) -> None:
        self.failure: HostError | None = None
        self._name, self._transport, self._process = name, transport, process
        self._errors = bytearray()
        self._reading = asyncio.create_task(self._read_errors())
        _OPEN.add(process.pid)

    @classmethod
    async def open(
        cls,
        name: str,
        command: Sequence[str],
        text: bytes,
        mark: str,
        meanings: Mapping[int, HostError] = MappingProxyType({}),
    ) -> Link:
        """Start a process, send it a text, and wait for its mark.

        Args:
            name: Of the host: `ssh TARGET`, unless it is this machine.
            command: The command.
            text: Its first input.
            mark: Its first output after that of a login profile.
            meanings: Errors by exit codes before the mark.

        Raises:
            HostError: It cannot be started, or has ended.
        """
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(MAX_LINE_BYTES, loop), *command, start_new_session=True
            )
        except OSError as error:
            raise Unreachable(f"{command[0]} cannot be started: {error}. Install an OpenSSH client") from error
        link = cls(name, transport, Process(transport, protocol, loop))
        try:
            link.send(text)
            await link._find(mark.encode(), meanings)
        except BaseException:
            link.end(Unreachable(f"{name}: the connection was not opened"))
            raise
        return link

    @property
    def is_open(self) -> bool:
        """Whether it has neither failed nor ended."""
        return self.failure is None and self._process.returncode is None

    def send(self, data: bytes) -> None:
        """Send bytes; that the process has ended shows in `receive`."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def receive(self) -> tuple[dict[str, Any], int]:
        """Wait for the next line, and return it with its size in bytes.

        Raises:
            Unreachable: The connection has ended, or the line is malformed or too long.
        """
        line = await self._line()
        if not line.endswith(b"\n"):  # it broke within it
            raise await self._why()
        return parse_line(self._name, line), len(line)

    def end(self, failure: HostError) -> HostError:
        """Kill the process and its own children for a reason, and return the reason."""
        if self.failure is None:
            self.failure = failure
            _OPEN.discard(self._process.pid)
            if self._process.returncode is None:
                _kill(self._process.pid)
            self._disposing = asyncio.create_task(self._dispose())
        return failure

    async def close(self) -> None:
        """End the input of the process, and wait for its end; kill it if that takes too long."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await self._process.wait()
        self.end(Unreachable(f"{self._name}: the connection was closed"))

    async def _dispose(self) -> None:
        with anyio.move_on_after(END_SECONDS):
            await self._process.wait()
        self._transport.close()

    async def _find(self, mark: bytes, meanings: Mapping[int, HostError]) -> None:
        """Read until the mark, which may follow what a login profile printed without a line end."""
        assert self._process.stdout is not None
        try:
            await self._process.stdout.readuntil(mark)
        except asyncio.IncompleteReadError as error:
            raise await self._why(error.partial, meanings) from error
        except asyncio.LimitOverrunError as error:
            raise Unreachable(f"{self._name}: its login prints more than {MAX_LINE_BYTES >> 20} MiB") from error
        await self._line()

    async def _line(self) -> bytes:
        """Return a line with its end, or what follows the last one."""
        assert self._process.stdout is not None
        await asyncio.sleep(0)  # others have their turn, whatever has arrived
        try:
            return await self._process.stdout.readline()
        except ValueError as error:
            raise Unreachable(f"{self._name}: its answer exceeds {MAX_LINE_BYTES >> 20} MiB") from error

    async def _why(self, before: bytes | None = None, meanings: Mapping[int, HostError] | None = None) -> HostError:
        """Explain why its output has ended.

        Args:
            before: What it printed; None: its mark has come.
            meanings: Errors by exit codes.
        """
        with anyio.move_on_after(END_SECONDS):
            await self._process.wait()
        with anyio.move_on_after(1.0):  # a child of ssh, e.g. for a jump host, may hold the pipe a little longer
            await asyncio.wait([self._reading])
        code, errors = self._process.returncode, bytes(self._errors)
        if before is not None and code is not None and meanings and code in meanings:
            return meanings[code]
        if code == SSH_FAILED and self._name.startswith(NAME_PREFIX) and (errors or not before):
            failure = ssh_failure(self._name, errors, code)
            return Unreachable(failure.cause) if before is None else failure
        if before is not None:
            return Unreachable(f"{self._name}: {own_words(code, before + errors)}")
        said = plain_text(errors.decode(errors="replace"), 300).strip()
        return Unreachable(f"{self._name}: the connection ended" + (f". {said}" if said else ""))

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(MAX_ERROR_BYTES):
            self._errors += chunk[: MAX_ERROR_BYTES - len(self._errors)]


def new_mark() -> str:
    """Return a mark, which no login profile prints."""
    return f"tfbench-{secrets.token_hex(8)}"


def parse_line(name: str, line: bytes) -> dict[str, Any]:
    """Parse a line of an answer of the named host, which is not trusted.

    Raises:
        Unreachable: It is malformed.
    """
    try:
        document = read_json(line, MAX_LINE_BYTES)
    except ValueError as error:
        problem = f"its answer is not JSON: {plain_text(repr(line[:1000]), 200)} ({plain_text(str(error), 100)})"
        raise Unreachable(f"{name}: {problem}") from error
    if not isinstance(document, dict):
        raise Unreachable(f"{name}: its answer is not an object: {plain_text(repr(line[:1000]), 200)}")
    return document


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


@atexit.register
def _kill_all() -> None:
    for group in list(_OPEN):
        _kill(group)

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
import signal
from asyncio.subprocess import Process, SubprocessStreamProtocol
from collections.abc import Sequence
from typing import Any

import anyio
import stamina

from orchestrate.connections.ssh import NAME_PREFIX, own_words, ssh_failure
from orchestrate.errors import Dropped, HostError, Unreachable
from orchestrate.text import plain_text, read_json

MARK = "tfbench-answers"
"""What a host prints before its answers."""

ATTEMPTS = 9

with_retries = stamina.AsyncRetryingCaller(attempts=ATTEMPTS, timeout=45.0, wait_initial=0.5, wait_max=8.0).on(Dropped)
"""Calls a coroutine again if it raises `Dropped`, with delays of about 45 s in all: longer than a connection through a
loaded jump host takes to log in. No attempt begins later: a server that does not speak ssh costs seconds each time."""

MAX_LINE_BYTES = 20 << 20
"""Limit for an answer: a record, or the last output of a repeat, in base64; and for the output of login profiles."""

MAX_ERROR_BYTES = 10_000
"""Limit for the stored part of standard error."""

OPEN_SECONDS = 60.0
"""Longest duration of a login, to the first answer."""

END_SECONDS = 10.0
"""Longest time between the end of an answer and that of the process."""

CLOSE_SECONDS = 2.0
"""Longest time between the end of the input and that of the process."""

SSH_FAILED = 255


class Link:
    """An open connection; belongs to the loop.

    Args:
        name: Of the host, for messages.
        transport: Of the process.
        process: The process, which leads a group of its own.

    Attributes:
        failure: Why it has ended; None: it has not.
        first: The first answer, which the host gives without being asked.
    """

    first: dict[str, Any]

    def __init__(self, name: str, transport: asyncio.SubprocessTransport, process: Process) -> None:
        assert process.stdin and process.stdout and process.stderr
        self.failure: HostError | None = None
        self._name, self._transport, self._process = name, transport, process
        self._input, self._output = process.stdin, process.stdout
        self._errors = bytearray()
        self._reading = asyncio.create_task(self._read_errors(process.stderr))
        atexit.register(self._kill)

    @classmethod
    async def open(cls, name: str, command: Sequence[str], text: bytes, seconds: float = OPEN_SECONDS) -> Link:
        """Start a process, send it a text, and wait for its mark and its first answer.

        Args:
            name: Of the host: `ssh TARGET`, unless it is this machine.
            command: The command.
            text: Its first input, which lets it print `MARK` and a line of JSON.
            seconds: Longest time until that line.

        Raises:
            HostError: It cannot be started, has ended, or is silent for too long.
        """
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.subprocess_exec(
                lambda: SubprocessStreamProtocol(MAX_LINE_BYTES, loop), *command, start_new_session=True
            )
        except OSError as error:
            raise Unreachable(f"{command[0]} cannot be started: {error}. Install an OpenSSH client") from error
        link = cls(name, transport, Process(transport, protocol, loop))
        silent = Unreachable(f"{name}: no answer for {seconds:.0f} s")
        try:
            link.send(text)
            with anyio.move_on_after(seconds):
                await link._find_mark()
                link.first = await link.receive()
                return link
            raise silent
        except BaseException:
            link.end(silent)
            raise

    @property
    def is_open(self) -> bool:
        """Whether it has neither failed nor ended."""
        return self.failure is None and self._process.returncode is None

    def send(self, data: bytes) -> None:
        """Send bytes; that the process has ended shows in `receive`."""
        if not self._input.is_closing():
            self._input.write(data)

    async def receive(self) -> dict[str, Any]:
        """Wait for the next answer.

        Raises:
            Unreachable: The connection has ended, or the answer is malformed or too long.
        """
        line = await self._line()
        if not line.endswith(b"\n"):  # it broke within it
            raise await self._why()
        return parse_line(self._name, line)

    def end(self, failure: HostError) -> None:
        """Kill the process and its own children for a reason."""
        if self.failure is None:
            self.failure = failure
            atexit.unregister(self._kill)
            if self._process.returncode is None:
                self._kill()
            self._disposing = asyncio.create_task(self._dispose())

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self) -> None:
        """End the input of the process, and wait for its end; kill it if that takes too long."""
        self._input.close()
        with anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await self._process.wait()
        self.end(Unreachable(f"{self._name}: the connection was closed"))

    async def _dispose(self) -> None:
        with anyio.move_on_after(END_SECONDS):
            await self._process.wait()
        self._transport.close()
        with contextlib.suppress(OSError):  # of input that it did not read: Python prints errors that nobody awaits
            await self._input.wait_closed()

    async def _find_mark(self) -> None:
        """Read until the mark, which may follow what a login profile printed without a line end."""
        try:
            await self._output.readuntil(MARK.encode())
        except asyncio.IncompleteReadError as error:
            raise await self._why(error.partial) from error
        except asyncio.LimitOverrunError as error:
            raise Unreachable(f"{self._name}: its login prints more than {MAX_LINE_BYTES >> 20} MiB") from error
        await self._line()

    async def _line(self) -> bytes:
        """Return a line with its end, or what follows the last one."""
        await asyncio.sleep(0)  # others have their turn, whatever has arrived
        try:
            return await self._output.readline()
        except ValueError as error:
            raise Unreachable(f"{self._name}: its answer exceeds {MAX_LINE_BYTES >> 20} MiB") from error

    async def _why(self, before: bytes | None = None) -> HostError:
        """Explain why its output has ended.

        Args:
            before: What it printed; None: its mark has come.
        """
        with anyio.move_on_after(END_SECONDS):
            await self._process.wait()
        with anyio.move_on_after(1.0):  # a child of ssh, e.g. for a jump host, may hold the pipe a little longer
            await asyncio.wait([self._reading])
        code, errors = self._process.returncode, bytes(self._errors)
        if code == SSH_FAILED and self._name.startswith(NAME_PREFIX) and (errors or not before):
            failure = ssh_failure(self._name, errors, code)
            return Unreachable(failure.cause) if before is None else failure
        if before is not None:
            return Unreachable(f"{self._name}: {own_words(code, before + errors)}")
        said = plain_text(errors.decode(errors="replace"), 300).strip()
        return Unreachable(f"{self._name}: the connection ended" + (f". {said}" if said else ""))

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        while chunk := await stream.read(MAX_ERROR_BYTES):
            self._errors += chunk[: MAX_ERROR_BYTES - len(self._errors)]


def parse_line(name: str, line: bytes) -> dict[str, Any]:
    """Parse an answer of the named host, which is not trusted.

    Raises:
        Unreachable: It is malformed.
    """
    try:
        document = read_json(line, MAX_LINE_BYTES)
        if not isinstance(document, dict):
            raise ValueError("it is not an object")
    except ValueError as error:
        problem = f"its answer is malformed: {plain_text(repr(line[:1000]), 200)} ({plain_text(str(error), 100)})"
        raise Unreachable(f"{name}: {problem}") from error
    return document

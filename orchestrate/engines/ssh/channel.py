"""The channel to an agent: one connection per host, which carries all requests of a run.

The agent runs on a host over ssh, or on this machine over a pipe. The connection begins with the agent's program. A
connection that has broken or stalled is opened again.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import math
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, TypeVar

import anyio
import stamina
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from orchestrate import loop
from orchestrate.connections.conversation import (
    END_SECONDS,
    MAX_LINE_BYTES,
    RETRIES,
    Conversation,
    TooLong,
    ask,
    own_words,
    ssh_failure,
    with_retries,
)
from orchestrate.connections.ssh import OWN_CONNECTION, ssh_command
from orchestrate.engines.ssh import software
from orchestrate.errors import Dropped, HostError, LaunchFailed, Lost, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.text import plain_text, read_json

AGENT = Path(__file__).with_name("agent.py").read_bytes()

LIMITS = {"heartbeat_seconds": 5.0, "stop_grace_seconds": 5.0, "log_bytes": 20 << 20}
"""How often an agent shows that it is alive, how long a repeat may take to end when asked, how much output is kept."""

ROOT = "~/.tfbench"
"""Folder of the agent's files on a host."""

IMAGE_FILE = "/opt/tfbench/image.json"
"""Written by the Dockerfile, because labels and variables of an image are not visible through an sshd in it."""

SECONDS = 60.0
"""Longest duration of a login and of a request with a single answer, and longest silence of the others, in which the
agent reports at least every 5 seconds."""

MAX_PROFILE_BYTES = 1 << 20
"""Limit for the output of login profiles, and for what belongs to no request."""

MAX_STREAM_BYTES = 64 << 20
"""Limit for a whole answer: an agent stores up to 20 MB of a benchmark's output, and sends it in base64."""

LINGER_SECONDS = 60.0
"""How long a connection stays open that is not used: between the probe and the run, and between parts of a run."""

MAX_UNREAD_LINES = 16
"""Lines of a request that wait for their reader, before the host waits."""

SSH_FAILED = 255
NO_PYTHON = 97

PYTHONS = (
    *("python3.11", "python3.12", "python3.13", "python3", "/usr/bin/python3", "/usr/local/bin/python3"),
    *("/opt/conda/bin/python3", "/venv/main/bin/python3", "~/miniconda3/bin/python3", "~/miniforge3/bin/python3"),
)
"""Pythons to try: on the PATH, which sshd may set differently from the image, and where images of rented machines
install them."""

SILENCE_SECONDS = 600
"""Longest an agent waits for a sign of its controller: a host learns of a dead link only after hours, with the defaults
of sshd."""

SIGN_OF_LIFE_SECONDS = 60.0

_READ_AGENT = (
    "import signal, sys; signal.alarm({seconds}); exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
)
_FIND_PYTHON = (
    'for p in {pythons}; do "$p" -c "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1 '
    f'&& exec "$p" -u -c "{_READ_AGENT}"; done; exit {NO_PYTHON}'
)
"""Contains no single quotes, because it is passed to the login shell in single quotes."""


T = TypeVar("T")


class NoPython(LaunchFailed):
    """The host has no Python 3.8 or newer for the agent."""


class Channel:
    """Sends requests to the agent on a host; all but `answer` and `answers` from any thread but the loop's.

    All channels to an agent share one connection, which stays open for `LINGER_SECONDS` after the last was closed.

    Args:
        address: Address of the host; None: this machine.
        root: The agent's folder on the host.
        image_file: Path of the file that describes the image of the host, if it was started from one of ours.
        keys: Host keys that ssh accepts.

    Attributes:
        closed: Whether new requests are refused.
    """

    def __init__(
        self,
        address: SSHAddress | None,
        root: str = ROOT,
        image_file: str = IMAGE_FILE,
        keys: HostKeys = AS_CONFIGURED,
    ) -> None:
        wanted = address, root, image_file, keys
        self._connection = _CONNECTIONS.get(wanted) or _CONNECTIONS.setdefault(wanted, Connection(*wanted))
        self.closed = False
        self.name = self._connection.name

    def request(self, do: str, payload: bytes = b"", **request: Any) -> dict[str, Any]:  # noqa: ANN401
        """Do what `answer` does, outside of the loop."""
        return loop.wait_for(self.answer(do, payload, **request))

    async def answer(
        self,
        do: str,
        payload: bytes = b"",
        *,
        seconds: float = SECONDS,
        max_bytes: int = MAX_LINE_BYTES,
        **request: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Send a request and return its answer, in the loop.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
            LaunchFailed: The request failed on the host.
            Lost: The repeat no longer exists.
        """
        size = {"max_bytes": max_bytes, "max_line_bytes": max_bytes}
        limits: dict[str, Any] = {"seconds": seconds, "silence_seconds": math.inf, **size}
        async with contextlib.aclosing(self.answers(do, payload, **limits, **request)) as answers:
            answer = await anext(answers, None)
            if answer is None or await anext(answers, None) is not None:
                raise Unreachable(f"{self.name}: {'no answer' if answer is None else 'several answers'} to {do!r}")
        return answer

    def stream(self, do: str, payload: bytes = b"", **request: Any) -> Generator[dict[str, Any]]:  # noqa: ANN401
        """Do what `answers` does, outside of the loop."""
        answers = self.answers(do, payload, **request)

        async def following() -> dict[str, Any] | None:
            return await anext(answers, None)

        try:
            while (answer := loop.wait_for(following())) is not None:
                yield answer
        finally:
            loop.wait_for(answers.aclose())

    async def answers(
        self,
        do: str,
        payload: bytes = b"",
        *,
        silence_seconds: float = SECONDS,
        seconds: float = math.inf,
        max_bytes: int = MAX_STREAM_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
        **request: object,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request and yield the lines of its answer, in the loop; raises as `answer`.

        Args:
            do: Name of the request; see `agent.REQUESTS`.
            payload: Bytes after the request.
            silence_seconds: Longest wait for a line.
            seconds: Longest total duration.
            max_bytes: Maximum size of the answer.
            max_line_bytes: Maximum size of a line.
            request: Arguments of the request.
        """
        document = {"do": do, "payload_bytes": len(payload), **request}
        received = is_new = False
        while True:
            exchange = Exchange(self.name, silence_seconds, seconds, max_bytes, max_line_bytes)
            try:
                is_new = await self._connection.send(self, document, payload, exchange)
                while answers := await exchange.receive():
                    received = True
                    for answer in answers:
                        self._check(answer)
                        yield answer
                return
            except Unreachable:  # a connection that was idle may have been dead for long
                if received or is_new or exchange.exceeded or exchange.link is None:
                    raise
            finally:
                self._connection.forget(self, exchange)

    def install_python(self) -> None:
        """Install a Python below the agent's folder, in a connection of its own that needs only sh.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
            LaunchFailed: The installation failed.
        """
        for line in self._connection.install_python():
            self._check(self._connection.read(line, MAX_LINE_BYTES))

    def close(self) -> None:
        """End all exchanges, and refuse new requests."""
        self.closed = True
        loop.wait_for(self._connection.release(self))

    def _check(self, answer: dict[str, Any]) -> None:
        """Raise the error that an answer reports, if any."""
        for key, kind in (("failed", LaunchFailed), ("lost", Lost)):
            if isinstance(answer.get(key), str):
                raise kind(f"{self.name}: {plain_text(answer[key], 500)}")


class Connection:
    """The connection to an agent, which is opened for the first request, and again after it has failed.

    Args:
        address: As of `Channel`.
        root: As of `Channel`.
        image_file: As of `Channel`.
        keys: As of `Channel`.
    """

    def __init__(self, address: SSHAddress | None, root: str, image_file: str, keys: HostKeys) -> None:
        self._address = address
        self._keys = keys
        self._root = root
        self._image_file = image_file
        self._opening: asyncio.Task[_Link] | None = None
        self._link: _Link | None = None
        self._users: dict[Channel, set[Exchange]] = {}
        self._flags: list[str] = []
        self.name = "this machine" if address is None else f"ssh {address.target}"

    async def send(self, user: Channel, document: dict[str, Any], payload: bytes, exchange: Exchange) -> bool:
        """Send a request; return whether the connection was opened for it.

        Raises:
            Unreachable: The connection failed.
            NoPython: The host has no suitable Python.
        """
        if user.closed:
            raise Unreachable(f"{self.name}: the connection was closed")
        self._users.setdefault(user, set()).add(exchange)
        link, is_new = self._link, False
        if link is None or link.failure is not None:  # all who ask meanwhile get the same new one
            self._opening = self._opening or asyncio.create_task(self._open_with_retries())
            link, is_new = await asyncio.shield(self._opening), True
        link.begin(document, payload, exchange)
        return is_new

    def forget(self, user: Channel, exchange: Exchange) -> None:
        """Receive no more of an exchange."""
        self._users.get(user, set()).discard(exchange)
        exchange.close()

    async def release(self, user: Channel) -> None:
        """End the exchanges of a user; without users, close the connection after a while."""
        for exchange in self._users.pop(user, ()):
            exchange.end(Unreachable(f"{self.name}: the connection was closed"))
        asyncio.get_running_loop().call_later(LINGER_SECONDS, self._leave)

    def _leave(self) -> None:
        if not self._users and self._link is not None:
            self._link.end(Unreachable(f"{self.name}: the connection was closed"))

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._link is not None and self._link.failure is None

    async def close(self) -> None:
        """Close the connection now."""
        if self._link is not None:
            await self._link.close(Unreachable(f"{self.name}: the connection was closed"))

    async def _open_with_retries(self) -> _Link:
        try:
            self._link = await stamina.AsyncRetryingCaller(**RETRIES)(Dropped, self._open)
        finally:
            self._opening = None
        return self._link

    async def _open(self) -> _Link:
        """Log in and start the agent."""
        pythons = (*PYTHONS, f"{self._root}/{software.PYTHON_FOLDER}/bin/python3")
        command = _FIND_PYTHON.format(pythons=" ".join(pythons), seconds=SILENCE_SECONDS)
        link = _Link(self, self._words(f"exec sh -c '{command}'"))
        mark = f"tfbench-{secrets.token_hex(8)}"
        common = {"root": self._root, "image_file": self._image_file, "pythons": pythons}
        settings = {"mark": mark, "limits": LIMITS, "silence_seconds": SILENCE_SECONDS, **common}
        await link.open(b"%d\n%s%s\n" % (len(AGENT), AGENT, json.dumps(settings).encode()), mark.encode())
        return link

    def install_python(self) -> list[bytes]:
        """Install a Python over a connection of its own; return the lines of the script's answer.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
        """
        mark = f"tfbench-{secrets.token_hex(8)}"
        script = software.install_script(self._root, mark).encode()

        def install() -> list[bytes]:
            words, seconds = self._words("exec sh -s"), software.INSTALL_SECONDS
            answer = ask(words, script, seconds=seconds, max_bytes=MAX_PROFILE_BYTES + MAX_LINE_BYTES)
            before, marked, lines = answer.output.partition(mark.encode())
            if answer.exceeded:
                raise Unreachable(f"{self.name}: {answer.exceeded}")
            self.explain(answer.code, bool(marked), before, answer.errors)
            return lines.splitlines()[1:]

        return with_retries(install)

    def _words(self, command: str) -> list[str]:
        if self._address is None:
            return [sys.executable, "-u", "-c", _READ_AGENT.format(seconds=SILENCE_SECONDS)]
        return ssh_command(self._address, self._keys, "-T", *self._flags, remote=command)

    def login_timed_out(self) -> Unreachable:
        """Return the error of a login without an answer; the first time, it is tried again without a shared connection.

        The user's shared connection may be dead.
        """
        kind = Unreachable if self._flags else Dropped
        self._flags = [OWN_CONNECTION]
        return kind(f"{self.name}: no answer for {SECONDS:.0f} s")

    def read(self, line: bytes, limit: int) -> dict[str, Any]:
        """Parse a line of an answer, which is not trusted.

        Raises:
            Unreachable: It is malformed.
        """
        try:
            document = read_json(line, limit)
        except ValueError as error:
            problem = f"its answer is not JSON: {plain_text(repr(line[:1000]), 200)} ({plain_text(str(error), 100)})"
            raise Unreachable(f"{self.name}: {problem}") from error
        if not isinstance(document, dict):
            raise Unreachable(f"{self.name}: its answer is not an object: {plain_text(repr(line[:1000]), 200)}")
        return document

    def explain(self, code: int | None, marked: bool, before: bytes, errors: bytes) -> None:
        """Raise the error that ended a connection, if any.

        Args:
            code: Exit code of ssh.
            marked: Whether the host had begun to answer.
            before: What it printed before.
            errors: Standard error of ssh.
        """
        if code == NO_PYTHON and not marked:
            names = ", ".join(PYTHONS)
            raise NoPython(f"{self.name}: no Python 3.8 or newer was found. Looked for: {names}")
        if code == SSH_FAILED and self._address is not None and (errors or not before):
            failure = ssh_failure(self._address.target, errors, code)
            raise Unreachable(failure.cause) if marked else failure
        if not marked:
            raise Unreachable(f"{self.name}: {own_words(code, before + errors)}")
        if code != 0:
            raise Unreachable(f"{self.name}: the connection broke. {plain_text(errors.decode(errors='replace'), 300)}")


_CONNECTIONS: dict[tuple[SSHAddress | None, str, str, HostKeys], Connection] = {}
"""One for each agent; belongs to the loop."""


@atexit.register
def _close_all() -> None:
    if any(connection.is_open for connection in _CONNECTIONS.values()):
        loop.wait_for(_close())


async def _close() -> None:
    async with anyio.create_task_group() as group:
        for connection in _CONNECTIONS.values():
            group.start_soon(connection.close)


class Exchange:
    """A request and its answer, in the loop.

    Args:
        name: Of the host.
        silence_seconds: Longest wait for a line.
        seconds: Longest total duration.
        max_bytes: Maximum size of the answer.
        max_line_bytes: Maximum size of a line.

    Attributes:
        exceeded: Whether a limit was exceeded.
        has_ended: Whether the answer is complete.
    """

    def __init__(self, name: str, silence_seconds: float, seconds: float, max_bytes: int, max_line_bytes: int) -> None:
        self.exceeded = self.has_ended = False
        self._failure: HostError = Unreachable(f"{name}: the connection ended")
        self.max_line_bytes = max_line_bytes
        self._name = name
        self._silence_seconds, self._seconds = silence_seconds, seconds
        self._ends_at = time.monotonic() + seconds
        self._max_bytes = self._bytes_left = max_bytes
        self._lines: tuple[MemoryObjectSendStream[dict[str, Any]], MemoryObjectReceiveStream[dict[str, Any]]]
        self._lines = anyio.create_memory_object_stream(MAX_UNREAD_LINES)
        self.link: _Link | None = None
        self._number = 0

    def begin(self, link: _Link, number: int) -> None:
        """Begin over a connection, under a number."""
        self.link, self._number = link, number

    async def put(self, answer: dict[str, Any], size: int) -> None:
        """Add a line of the answer, of a size in bytes; wait while many are unread.

        Raises:
            Unreachable: The answer is too long.
        """
        self._bytes_left -= size
        if self._bytes_left < 0:
            self.exceeded = True
            raise Unreachable(f"{self._name}: {TooLong(self._max_bytes)}")
        self.has_ended = answer.pop("end", None) is True
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            if answer:
                await self._lines[0].send(answer)
        if self.has_ended:
            self._lines[0].close()

    def end(self, failure: HostError) -> None:
        """End an incomplete answer for a reason."""
        self._failure = failure
        self._close_lines()

    async def receive(self) -> list[dict[str, Any]]:
        """Wait for lines of the answer and return them; empty: it is complete.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded; then it is closed, because it may have stalled.
        """
        left, received = self._ends_at - time.monotonic(), []
        with anyio.move_on_after(max(0.0, min(left, self._silence_seconds))):
            with contextlib.suppress(anyio.EndOfStream, anyio.ClosedResourceError):
                received.append(await self._lines[1].receive())
            with contextlib.suppress(anyio.WouldBlock, anyio.EndOfStream, anyio.ClosedResourceError):
                while True:
                    received.append(self._lines[1].receive_nowait())
            if not received and not self.has_ended:
                raise Unreachable(self._failure.cause)
            return received
        self.exceeded = True
        is_silent = self._silence_seconds < left
        why = f"no answer for {self._silence_seconds:.0f} s" if is_silent else f"not done within {self._seconds:.0f} s"
        if self.link is not None:
            await self.link.close(Unreachable(f"{self._name}: {why}"))
        raise Unreachable(f"{self._name}: {why}")

    def close(self) -> None:
        """Stop receiving."""
        self._close_lines()
        if self.link is not None:
            self.link.forget(self._number, self)

    def _close_lines(self) -> None:
        for end in self._lines:
            end.close()


class _Link:
    """An open connection, and the exchanges over it.

    Args:
        connection: What it belongs to.
        command: Starts the agent.

    Attributes:
        failure: Why the connection has ended; None: it has not.
    """

    def __init__(self, connection: Connection, command: list[str]) -> None:
        self.failure: HostError | None = None
        self._connection = connection
        self._talk = Conversation(command)
        self._to_send, self._sending = anyio.create_memory_object_stream[bytes](math.inf)
        self._exchanges: dict[int, Exchange] = {}
        self._numbers = itertools.count(1)
        self._stray_bytes = 0

    async def open(self, program: bytes, mark: bytes) -> None:
        """Send the agent's program and wait for its mark.

        Raises:
            Unreachable: The connection failed.
            NoPython: The host has no suitable Python.
        """
        self._opened = asyncio.get_running_loop().create_future()
        self._to_send.send_nowait(program)
        self._task = asyncio.create_task(self._work(mark))
        await asyncio.wait([self._opened, self._task], timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not self._opened.done() and not self._task.done():
            await self.close(self._connection.login_timed_out())
        if self.failure is not None:
            raise self.failure

    def begin(self, document: dict[str, Any], payload: bytes, exchange: Exchange) -> None:
        """Send a request, unless the connection has failed."""
        number = next(self._numbers)
        exchange.begin(self, number)
        if self.failure is None:
            self._exchanges[number] = exchange
            self._to_send.send_nowait(json.dumps({"id": number, **document}).encode() + b"\n" + payload)
        else:
            exchange.end(self.failure)

    def forget(self, number: int, exchange: Exchange) -> None:
        """Receive no more of an exchange, and ask the agent to end it."""
        if self._exchanges.pop(number, None) is not None and not exchange.has_ended:
            self._to_send.send_nowait(json.dumps({"do": "cancel", "id": number}).encode() + b"\n")

    async def close(self, failure: HostError) -> None:
        """End the connection for a reason."""
        self.end(failure)
        await asyncio.wait([self._task], timeout=END_SECONDS)
        self._task.cancel()

    def end(self, failure: HostError) -> None:
        """Begin to end the connection for a reason."""
        if self.failure is None:
            self.failure = failure
            self._talk.kill()
            for exchange in self._exchanges.values():
                exchange.end(failure)
            self._exchanges.clear()

    async def _work(self, mark: bytes) -> None:
        """Receive answers until the end of the connection."""
        talks = asyncio.create_task(self._speak())
        try:
            async with self._talk:
                try:
                    await self._receive(mark)
                except TooLong as error:
                    self.end(Unreachable(f"{self._connection.name}: {error}"))
                except HostError as error:
                    self.end(error)
        finally:
            talks.cancel()
            for end in (self._to_send, self._sending):
                end.close()

    async def _speak(self) -> None:
        """Send what there is to send, and signs of life."""
        while True:
            data = b"\n"
            with anyio.move_on_after(SIGN_OF_LIFE_SECONDS):
                data = await self._sending.receive()
            await self._talk.send(data)

    async def _receive(self, mark: bytes) -> None:
        marked, before = False, bytearray()
        async for line in self._talk.lines(self._max_line_bytes):
            if marked:
                if line.endswith(b"\n"):  # otherwise the connection broke within it
                    await self._take(line)
            elif mark in line:  # after what a login profile printed without a line end
                marked = True
                self._opened.set_result(None)
            else:
                before += line
            if len(before) > MAX_PROFILE_BYTES:
                raise Unreachable(f"{self._connection.name}: its login prints more than {MAX_PROFILE_BYTES >> 20} MiB")
        self._connection.explain(await self._talk.exit_code(), marked, bytes(before), self._talk.errors)
        raise Unreachable(f"{self._connection.name}: the connection ended")

    def _max_line_bytes(self) -> int:
        return max((exchange.max_line_bytes for exchange in self._exchanges.values()), default=MAX_LINE_BYTES)

    async def _take(self, line: bytes) -> None:
        """Pass a line to its exchange."""
        document = self._connection.read(line, self._max_line_bytes())
        number = document.pop("id", None)
        exchange = self._exchanges.get(number) if isinstance(number, int) else None
        if exchange is not None:
            await exchange.put(document, len(line))
            if exchange.has_ended:
                self._exchanges.pop(number, None)
            return
        self._stray_bytes += len(line)
        if self._stray_bytes > MAX_STREAM_BYTES:
            raise Unreachable(f"{self._connection.name}: it sends answers to no request")

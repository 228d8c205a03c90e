"""The channel to an agent: one connection per host, which carries all requests of a run.

The agent runs on a host over ssh, or on this machine over a pipe. The connection begins with the agent's program. A
connection that has broken or stalled is opened again.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import itertools
import json
import math
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import stamina

from orchestrate import loop
from orchestrate.connections.conversation import (
    END_SECONDS,
    MAX_LINE_BYTES,
    RETRIES,
    CommandResult,
    Conversation,
    LimitExceeded,
    TooLong,
    ask,
    own_words,
    ssh_failure,
    with_retries,
)
from orchestrate.connections.ssh import OWN_CONNECTION, ssh_command
from orchestrate.engines.base import NotThere
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

MAX_OUTPUT_BYTES = 32 << 20
"""Limit for the output of a command, in base64: the states of 100,000 repeats of a queue."""

MAX_STREAM_BYTES = 64 << 20
"""Limit for a whole answer: an agent stores up to 20 MB of a benchmark's output, and sends it in base64."""

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
"""Interval of signs to an agent that nothing else is sent to. So long a connection stays open that nobody uses: between
the probe and the run, and between parts of a run."""

READ_PROGRAM = (
    "import signal, sys; signal.alarm({seconds}); "
    "program = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())); exec(program)"
)
_FIND_PYTHON = (
    'for p in {pythons}; do "$p" -c "import sys; sys.exit(sys.version_info < (3, 6))" </dev/null >/dev/null 2>&1 '
    f'&& exec "$p" -u -c "{READ_PROGRAM}"; done; exit {NO_PYTHON}'
)
"""Contains no single quotes, because it is passed to the login shell in single quotes."""


class NoPython(LaunchFailed):
    """The host has no Python 3.6 or newer for the agent."""


@dataclass(frozen=True, kw_only=True)
class AgentPlace:
    """Where an agent runs.

    Attributes:
        login: Address of the host; None: this machine.
        root: The agent's folder on the host.
        image_file: Path of the file that describes the image of the host, if it was started from one of ours.
        keys: Host keys that ssh accepts.
        finds: A program that the agent finds as a login of the user does; empty: it needs no login's variables.
    """

    login: SSHAddress | None
    root: str = ROOT
    image_file: str = IMAGE_FILE
    keys: HostKeys = AS_CONFIGURED
    finds: str = ""

    @property
    def name(self) -> str:
        """Return the name of the host, for messages."""
        return "this machine" if self.login is None else f"ssh {self.login.target}"


class Channel:
    """Sends requests to the agent on a host; all but `answer` and `answers` from any thread but the loop's.

    All channels to an agent share one connection, which stays open for a minute after the last was closed.

    Args:
        login: As of `AgentPlace`.
        place: More arguments of `AgentPlace`.

    Attributes:
        name: Of the host, for messages.
    """

    def __init__(self, login: SSHAddress | None, **place: Any) -> None:  # noqa: ANN401
        wanted = AgentPlace(login=login, **place)
        self._connection = _CONNECTIONS.get(wanted) or _CONNECTIONS.setdefault(wanted, Connection(wanted))
        self._connection.users.add(self)
        self.name = wanted.name

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
        limits: dict[str, Any] = {"seconds": seconds, "silence_seconds": math.inf, "max_bytes": max_bytes}
        answers = self.answers(do, payload, max_line_bytes=max_bytes, **limits, **request)
        async with contextlib.aclosing(answers):
            answer = await anext(answers, None)
            if answer is None or await anext(answers, None) is not None:
                raise Unreachable(f"{self.name}: {'no answer' if answer is None else 'several answers'} to {do!r}")
        return answer

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

        A connection that exceeds a limit is closed, because it may have stalled.

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
        ends_at, is_final = time.monotonic() + seconds, False
        while True:
            if self not in self._connection.users:
                raise Unreachable(f"{self.name}: the connection was closed")
            exchange = Exchange(max_bytes, max_line_bytes)
            try:
                is_final = True  # also if it cannot be opened
                link, is_final = await self._connection.link()
                link.begin(document, payload, exchange)
                while True:
                    left = ends_at - time.monotonic()
                    with anyio.move_on_after(max(0.0, min(left, silence_seconds))) as limit:
                        answer = await exchange.get()
                    if limit.cancelled_caught:
                        why = f"no answer for {silence_seconds:.0f} s"
                        why = why if silence_seconds < left else f"not done within {seconds:.0f} s"
                        is_final = True
                        raise await link.close(Unreachable(f"{self.name}: {why}"))
                    if answer is None:
                        return
                    is_final = True
                    raise_failure(self.name, answer)
                    yield answer
            except Unreachable:  # a connection that was idle may have been dead for long
                if is_final or exchange.bytes_left < 0:
                    raise
            finally:
                exchange.close()

    async def run(self, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> CommandResult:
        """Run a command of the host with more variables and a time limit, in the loop; raises as `answer`.

        Raises:
            NotThere: The host has no such command.
        """
        about: dict[str, Any] = {"words": list(words), "environment": dict(environment), "limit_seconds": seconds}
        answer = await self.answer("command", seconds=seconds + 10, max_bytes=MAX_OUTPUT_BYTES, **about)
        if "missing" in answer:
            raise NotThere(f"{self.name}: {words[0]} is not in PATH")
        output, errors = (self.decode(answer.get(stream)) for stream in ("output", "errors"))
        return CommandResult(output, answer["code"] if isinstance(answer.get("code"), int) else None, errors)

    def decode(self, text: object) -> bytes:
        """Decode bytes in an answer.

        Raises:
            LaunchFailed: They are malformed.
        """
        try:
            return base64.b64decode(str(text), validate=True)
        except ValueError as error:
            raise LaunchFailed(f"{self.name}: not the agent's answer: {plain_text(str(error), 200)}") from error

    def install_python(self) -> None:
        """Install a Python below the agent's folder, in a connection of its own that needs only sh.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
            LaunchFailed: The installation failed.
        """
        for line in with_retries(self._connection.install_python):
            raise_failure(self.name, read_line(self.name, line, MAX_LINE_BYTES))

    def close(self) -> None:
        """Refuse new requests."""
        self._connection.users.discard(self)


def read_line(name: str, line: bytes, limit: int) -> dict[str, Any]:
    """Parse a line of an answer of the named host, which is not trusted.

    Raises:
        Unreachable: It is malformed.
    """
    try:
        document = read_json(line, limit)
    except ValueError as error:
        problem = f"its answer is not JSON: {plain_text(repr(line[:1000]), 200)} ({plain_text(str(error), 100)})"
        raise Unreachable(f"{name}: {problem}") from error
    if not isinstance(document, dict):
        raise Unreachable(f"{name}: its answer is not an object: {plain_text(repr(line[:1000]), 200)}")
    return document


def raise_failure(name: str, answer: Mapping[str, Any]) -> None:
    """Raise the error that an answer of the named host reports, if any."""
    for key, kind in (("failed", LaunchFailed), ("lost", Lost)):
        if isinstance(answer.get(key), str):
            raise kind(f"{name}: {plain_text(answer[key], 500)}")


class Connection:
    """The connection to an agent, which is opened for the first request, and again after it has failed.

    Args:
        place: Where the agent runs.

    Attributes:
        users: Channels that may send more requests.
    """

    def __init__(self, place: AgentPlace) -> None:
        self.users: set[Channel] = set()
        self._place = place
        self._opening: asyncio.Task[_Link] | None = None
        self._link: _Link | None = None
        self._flags: list[str] = []

    async def link(self) -> tuple[_Link, bool]:
        """Return the open connection, and whether it was opened for this call.

        Raises:
            Unreachable: The connection failed.
            NoPython: The host has no suitable Python.
        """
        if self._link is not None and self._link.failure is None:
            return self._link, False
        self._opening = self._opening or asyncio.create_task(self._open_with_retries())
        return await asyncio.shield(self._opening), True  # all who ask meanwhile get the same

    async def close(self) -> None:
        """Close the connection now."""
        if self._link is not None:
            await self._link.close(Unreachable(f"{self._place.name}: the connection was closed"))

    async def _open_with_retries(self) -> _Link:
        try:
            self._link = await stamina.AsyncRetryingCaller(**RETRIES)(Dropped, self._open)
        finally:
            self._opening = None
        return self._link

    async def _open(self) -> _Link:
        """Log in and start the agent."""
        place, mark = self._place, f"tfbench-{secrets.token_hex(8)}"
        pythons = (*PYTHONS, f"{place.root}/{software.PYTHON_FOLDER}/bin/python3")
        read_program = READ_PROGRAM.format(seconds=SILENCE_SECONDS)
        words = [sys.executable, "-u", "-c", read_program]
        if place.login is not None:
            command = _FIND_PYTHON.format(pythons=" ".join(pythons), seconds=SILENCE_SECONDS)
            words = self._ssh(f"exec sh -c '{command}'")
        about = {"root": place.root, "image_file": place.image_file, "finds": place.finds, "mark": mark}
        ours = {"pythons": pythons, "silence_seconds": SILENCE_SECONDS, "read_program": read_program}
        settings = json.dumps({**about, **ours, **LIMITS}).encode()
        link = _Link(place, words, self.users)
        if not await link.open(b"%d\n%s%s\n" % (len(AGENT), AGENT, settings), mark.encode()):
            # The first time, it is tried again without the user's shared connection, which may be dead.
            kind = Unreachable if self._flags else Dropped
            self._flags = [OWN_CONNECTION]
            raise await link.close(kind(f"{place.name}: no answer for {SECONDS:.0f} s"))
        return link

    def _ssh(self, command: str) -> list[str]:
        assert self._place.login is not None
        return ssh_command(self._place.login, self._place.keys, "-T", *self._flags, remote=command)

    def install_python(self) -> list[bytes]:
        """Install a Python over a connection of its own; return the lines of the script's answer.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
        """
        mark = f"tfbench-{secrets.token_hex(8)}"
        script = software.install_script(self._place.root, mark).encode()
        size = MAX_PROFILE_BYTES + MAX_LINE_BYTES
        try:
            answer = ask(self._ssh("exec sh -s"), script, seconds=software.INSTALL_SECONDS, max_bytes=size)
        except LimitExceeded as error:
            raise Unreachable(f"{self._place.name}: {error}") from error
        before, marked, lines = answer.output.partition(mark.encode())
        explain(self._place, answer.code, bool(marked), before, answer.errors)
        return lines.splitlines()[1:]


def explain(place: AgentPlace, code: int | None, marked: bool, before: bytes, errors: bytes) -> None:
    """Raise the error that ended a connection, if any.

    Args:
        place: Where the agent runs.
        code: Exit code of ssh.
        marked: Whether the host had begun to answer.
        before: What it printed before.
        errors: Standard error of ssh.
    """
    if code == NO_PYTHON and not marked:
        raise NoPython(f"{place.name}: no Python 3.6 or newer was found. Looked for: {', '.join(PYTHONS)}")
    if code == SSH_FAILED and place.login is not None and (errors or not before):
        failure = ssh_failure(place.login.target, errors, code)
        raise Unreachable(failure.cause) if marked else failure
    if not marked:
        raise Unreachable(f"{place.name}: {own_words(code, before + errors)}")
    if code != 0:
        raise Unreachable(f"{place.name}: the connection broke. {plain_text(errors.decode(errors='replace'), 300)}")


_CONNECTIONS: dict[AgentPlace, Connection] = {}
"""One for each agent; belongs to the loop."""


@atexit.register
def _close_all() -> None:
    async def close() -> None:
        async with anyio.create_task_group() as group:
            for connection in _CONNECTIONS.values():
                group.start_soon(connection.close)

    if _CONNECTIONS:
        loop.wait_for(close())


class Exchange:
    """A request and its answer, in the loop.

    Args:
        max_bytes: Maximum size of the answer.
        max_line_bytes: Maximum size of a line.

    Attributes:
        bytes_left: Size of the rest that is accepted; negative: the answer is too long.
        has_ended: Whether the answer is complete.
        link: The connection, and the number of the request there; None: it was not sent.
    """

    def __init__(self, max_bytes: int, max_line_bytes: int) -> None:
        self.max_line_bytes = max_line_bytes
        self.bytes_left = self._max_bytes = max_bytes
        self.has_ended = False
        self.link: tuple[_Link, int] | None = None
        self._failure: HostError | None = None
        self._lines, self._received = anyio.create_memory_object_stream[dict[str, Any]](MAX_UNREAD_LINES)

    async def put(self, answer: dict[str, Any], size: int) -> None:
        """Add a line of the answer, of a size in bytes; wait while many are unread.

        Raises:
            TooLong: The answer is too long.
        """
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise TooLong(self._max_bytes)
        self.has_ended = answer.pop("end", None) is True
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            if answer:
                await self._lines.send(answer)
        if self.has_ended:
            self._lines.close()

    async def get(self) -> dict[str, Any] | None:
        """Wait for a line of the answer; None: it is complete.

        Raises:
            Unreachable: The connection failed.
        """
        try:
            return await self._received.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            if self._failure is not None and not self.has_ended:
                raise Unreachable(self._failure.cause) from None
            return None

    def end(self, failure: HostError) -> None:
        """End an incomplete answer for a reason."""
        self._failure = self._failure or failure
        self._lines.close()

    def close(self) -> None:
        """Stop receiving."""
        self._lines.close()
        self._received.close()
        if self.link is not None:
            link, number = self.link
            link.forget(number, self)


class _Link:
    """An open connection, and the exchanges over it.

    Args:
        place: Where the agent runs.
        command: Starts the agent.
        users: Channels that may send more requests.

    Attributes:
        failure: Why the connection has ended; None: it has not.
    """

    def __init__(self, place: AgentPlace, command: list[str], users: Collection[Channel]) -> None:
        self.failure: HostError | None = None
        self._users = users
        self._place = place
        self._talk = Conversation(command)
        self._to_send, self._sending = anyio.create_memory_object_stream[bytes](math.inf)
        self._exchanges: dict[int, Exchange] = {}
        self._numbers = itertools.count(1)
        self._stray_bytes = 0

    async def open(self, program: bytes, mark: bytes) -> bool:
        """Send the agent's program and wait for its mark; return whether it came in time.

        Raises:
            Unreachable: The connection failed.
            NoPython: The host has no suitable Python.
        """
        self._opened = asyncio.get_running_loop().create_future()
        self._to_send.send_nowait(program)
        self._task = asyncio.create_task(self._work(mark))
        await asyncio.wait([self._opened, self._task], timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self.failure is not None:
            raise self.failure
        return self._opened.done()

    def begin(self, document: dict[str, Any], payload: bytes, exchange: Exchange) -> None:
        """Send a request, unless the connection has failed."""
        if self.failure is not None:
            exchange.end(self.failure)
            return
        number = next(self._numbers)
        exchange.link = self, number
        self._exchanges[number] = exchange
        self._to_send.send_nowait(json.dumps({"id": number, **document}).encode() + b"\n" + payload)

    def forget(self, number: int, exchange: Exchange) -> None:
        """Receive no more of an exchange, and ask the agent to end it."""
        if self._exchanges.pop(number, None) is not None and not exchange.has_ended:
            self._to_send.send_nowait(json.dumps({"do": "cancel", "id": number}).encode() + b"\n")

    async def close(self, failure: HostError) -> HostError:
        """End the connection for a reason, and return it."""
        self.end(failure)
        await asyncio.wait([self._task], timeout=END_SECONDS)
        self._task.cancel()
        return failure

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
                    self.end(Unreachable(f"{self._place.name}: {error}"))
                except HostError as error:
                    self.end(error)
        finally:
            talks.cancel()
            for end in (self._to_send, self._sending):
                end.close()

    async def _speak(self) -> None:
        """Send what there is to send, and signs of life; end the connection once it is neither used nor will be."""
        while True:
            data = b"\n"
            with anyio.move_on_after(SIGN_OF_LIFE_SECONDS):
                data = await self._sending.receive()
            if data == b"\n" and not self._users and not self._exchanges:
                self.end(Unreachable(f"{self._place.name}: the connection was closed"))
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
                raise Unreachable(f"{self._place.name}: its login prints more than {MAX_PROFILE_BYTES >> 20} MiB")
        explain(self._place, await self._talk.exit_code(), marked, bytes(before), self._talk.errors)
        raise Unreachable(f"{self._place.name}: the connection ended")

    def _max_line_bytes(self) -> int:
        return max((exchange.max_line_bytes for exchange in self._exchanges.values()), default=MAX_LINE_BYTES)

    async def _take(self, line: bytes) -> None:
        """Pass a line to its exchange."""
        document = read_line(self._place.name, line, self._max_line_bytes())
        number = document.pop("id", None)
        exchange = self._exchanges.get(number) if isinstance(number, int) else None
        if exchange is not None:
            await exchange.put(document, len(line))
            if exchange.has_ended:
                self._exchanges.pop(number, None)
            return
        self._stray_bytes += len(line)
        if self._stray_bytes > MAX_STREAM_BYTES:
            raise Unreachable(f"{self._place.name}: it sends answers to no request")

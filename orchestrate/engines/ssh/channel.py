"""The channel to an agent: one connection per host, which carries all requests of a run.

The agent runs on a host over ssh, or on this machine over a pipe. The connection begins with the agent's program. A
connection that has broken or stalled is opened again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import math
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from orchestrate import loop
from orchestrate.connections.link import Link, new_mark, with_retries
from orchestrate.connections.ssh import NAME_PREFIX, OWN_CONNECTION, ssh_command
from orchestrate.engines.base import NotThere
from orchestrate.engines.ssh import software
from orchestrate.errors import HostError, LaunchFailed, Lost, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.text import plain_text

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

MAX_STREAM_BYTES = 64 << 20
"""Limit for a whole answer: an agent stores up to 20 MB of a benchmark's output, and sends it in base64. Also for all
that belongs to no request."""

MAX_UNREAD_LINES = 16
"""Lines of a request that wait for their reader, before the host waits."""

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
"""Interval of signs to an agent. So long a connection stays open that nobody uses: between the probe and the run, and
between parts of a run."""

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
        **request: Any,  # noqa: ANN401
    ) -> dict[str, Any]:
        """Send a request and return its answer, in the loop.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
            LaunchFailed: The request failed on the host.
            Lost: The repeat no longer exists.
        """
        limits: dict[str, Any] = {"seconds": seconds, "silence_seconds": math.inf}
        async with contextlib.aclosing(self.answers(do, payload, **limits, **request)) as answers:
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
        **request: object,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request and yield the lines of its answer, in the loop; raises as `answer`.

        A connection that exceeds a limit is closed, because it may have stalled.

        Args:
            do: Name of the request; see `agent.REQUESTS`.
            payload: Bytes after the request.
            silence_seconds: Longest wait for a line.
            seconds: Longest total duration.
            request: Arguments of the request.
        """
        ends_at, left_bytes, is_final = time.monotonic() + seconds, MAX_STREAM_BYTES, False
        while True:
            if self not in self._connection.users:
                raise Unreachable(f"{self.name}: the connection was closed")
            is_final = not await self._connection.ensure() or is_final
            sent, received = anyio.create_memory_object_stream[tuple[dict[str, Any], int] | None](MAX_UNREAD_LINES)
            number = self._connection.send(sent, payload, do=do, **request)
            try:
                while True:
                    left = ends_at - time.monotonic()
                    with anyio.move_on_after(max(0.0, min(left, silence_seconds))) as limit:
                        line = await received.receive()
                    if limit.cancelled_caught:
                        silent, late = f"no answer for {silence_seconds:.0f} s", f"not done within {seconds:.0f} s"
                        raise self._connection.end(silent if silence_seconds < left else late)
                    if line is None:
                        return
                    answer, size = line
                    is_final, left_bytes = True, left_bytes - size
                    if left_bytes < 0:
                        raise self._connection.end(f"its answer exceeds {MAX_STREAM_BYTES >> 20} MiB")
                    raise_failure(self.name, answer)
                    yield answer
            except anyio.EndOfStream:  # a connection that was idle may have been dead for long
                if is_final:
                    raise self._connection.failure() from None
            finally:
                received.close()
                self._connection.forget(number)

    async def run(self, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> CommandResult:
        """Run a command of the host with more variables and a time limit, in the loop; raises as `answer`.

        Raises:
            NotThere: The host has no such command.
        """
        about: dict[str, Any] = {"words": list(words), "environment": dict(environment), "limit_seconds": seconds}
        answer = await self.answer("command", seconds=seconds + 10, **about)
        if "missing" in answer:
            raise NotThere(f"{self.name}: {words[0]} is not in PATH")
        code, output, errors = (answer.get(key) for key in ("code", "output", "errors"))
        return CommandResult(code if isinstance(code, int) else None, str(output), str(errors))

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
        loop.wait_for(self._connection.install_python())

    def close(self) -> None:
        """Refuse new requests."""
        self._connection.users.discard(self)


class CommandResult(NamedTuple):
    """Exit code of a command (None: malformed), its output, and the end of its standard error."""

    code: int | None
    output: str
    errors: str


def raise_failure(name: str, answer: Mapping[str, Any]) -> None:
    """Raise the error that an answer of the named host reports, if any."""
    for key, kind in (("failed", LaunchFailed), ("lost", Lost)):
        if isinstance(answer.get(key), str):
            raise kind(f"{name}: {plain_text(answer[key], 500)}")


class Connection:
    """The connection to an agent, which is opened for the first request, and again after it has failed; in the loop.

    Args:
        place: Where the agent runs.

    Attributes:
        name: Of the host, for messages.
        users: Channels that may send more requests.
    """

    def __init__(self, place: AgentPlace) -> None:
        self.name = "this machine" if place.login is None else f"{NAME_PREFIX}{place.login.target}"
        self.users: set[Channel] = set()
        self._place = place
        self._opening: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._exchanges: dict[int, MemoryObjectSendStream[tuple[dict[str, Any], int] | None]] = {}
        self._numbers = itertools.count(1)
        self._stray_bytes = 0
        self._flags: list[str] = []

    async def ensure(self) -> bool:
        """Open it unless it is open; return whether it was.

        Raises:
            Unreachable: The connection failed.
            NoPython: The host has no suitable Python.
        """
        if self._link is not None and self._link.failure is None:
            return True
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(with_retries(self._open))
        await asyncio.shield(self._opening)  # all who ask meanwhile get the same
        return False

    def send(self, answers: MemoryObjectSendStream[Any], payload: bytes, **request: object) -> int:
        """Send a request, whose answers go to a stream, and after the last one None; return its number."""
        assert self._link is not None
        number = next(self._numbers)
        self._exchanges[number] = answers
        document = {"id": number, "payload_bytes": len(payload), **request}
        self._link.send(json.dumps(document).encode() + b"\n" + payload)
        if self._link.failure is not None:  # it has ended since it was opened
            self.forget(number)
        return number

    def forget(self, number: int) -> None:
        """Receive no more answers to a request."""
        if (answers := self._exchanges.pop(number, None)) is not None:
            answers.close()

    def failure(self) -> HostError:
        """Return why it has ended last."""
        ended = self._link.failure if self._link is not None else None
        return Unreachable(ended.cause if ended else f"{self.name}: the connection broke")

    def end(self, why: str) -> HostError:
        """End it, and return the reason."""
        return self._end(Unreachable(f"{self.name}: {why}"))

    def _end(self, failure: HostError) -> HostError:
        if self._link is not None:
            self._link.end(failure)
        for number in list(self._exchanges):
            self.forget(number)
        return failure

    async def _open(self) -> None:
        """Log in and start the agent."""
        place, mark = self._place, new_mark()
        pythons = (*PYTHONS, f"{place.root}/{software.PYTHON_FOLDER}/bin/python3")
        read_program = READ_PROGRAM.format(seconds=SILENCE_SECONDS)
        words = [sys.executable, "-u", "-c", read_program]
        if place.login is not None:
            command = _FIND_PYTHON.format(pythons=" ".join(pythons), seconds=SILENCE_SECONDS)
            words = self._ssh(f"exec sh -c '{command}'")
        about = {"root": place.root, "image_file": place.image_file, "finds": place.finds, "mark": mark}
        ours = {"pythons": pythons, "silence_seconds": SILENCE_SECONDS, "read_program": read_program}
        text = b"%d\n%s%s\n" % (len(AGENT), AGENT, json.dumps({**about, **ours, **LIMITS}).encode())
        no_python = NoPython(f"{self.name}: no Python 3.6 or newer was found. Looked for: {', '.join(PYTHONS)}")
        try:
            with anyio.fail_after(SECONDS):
                self._link = await Link.open(self.name, words, text, mark, {NO_PYTHON: no_python})
        except TimeoutError as error:
            self._flags = [OWN_CONNECTION]  # next time without the user's shared connection, which may be dead
            raise Unreachable(f"{self.name}: no answer for {SECONDS:.0f} s") from error
        self._stray_bytes = 0
        self._serving = asyncio.create_task(self._serve(self._link))

    def _ssh(self, command: str) -> list[str]:
        assert self._place.login is not None
        return ssh_command(self._place.login, self._place.keys, "-T", *self._flags, remote=command)

    async def _serve(self, link: Link) -> None:
        """Pass answers on, and send signs of life, until the connection ends or is neither used nor will be."""
        sign_at = time.monotonic() + SIGN_OF_LIFE_SECONDS
        try:
            while link.failure is None:
                line = None
                with anyio.move_on_after(sign_at - time.monotonic()):
                    line = await link.receive()
                if line is not None:
                    await self._pass_on(*line)
                if time.monotonic() >= sign_at:
                    sign_at += SIGN_OF_LIFE_SECONDS
                    link.send(b"\n")
                    if not self.users and not self._exchanges:
                        self.end("the connection was closed")
        except HostError as error:
            if link.failure is None:
                self._end(error)

    async def _pass_on(self, answer: dict[str, Any], size: int) -> None:
        number, is_last = answer.pop("id", None), answer.pop("end", None) is True
        answers = self._exchanges.get(number) if isinstance(number, int) else None
        if answers is None:
            self._stray_bytes += size
            if self._stray_bytes > MAX_STREAM_BYTES:
                raise Unreachable(f"{self.name}: it sends answers to no request")
            return
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            if answer:
                await answers.send((answer, size))
            if is_last:
                await answers.send(None)

    async def install_python(self) -> None:
        """See `Channel.install_python`."""
        mark = new_mark()
        script = software.install_script(self._place.root, mark).encode()
        link = None
        try:
            with anyio.fail_after(software.INSTALL_SECONDS):
                link = await with_retries(Link.open, self.name, self._ssh("exec sh -s"), script, mark)
                answer: dict[str, Any] = {}
                while "python" not in answer:
                    answer, _ = await link.receive()
                    raise_failure(self.name, answer)
        except TimeoutError as error:
            raise Unreachable(f"{self.name}: not done within {software.INSTALL_SECONDS:.0f} s") from error
        finally:
            if link is not None:
                link.end(Unreachable(f"{self.name}: Python is installed"))


_CONNECTIONS: dict[AgentPlace, Connection] = {}
"""One for each agent; belongs to the loop."""

"""The channel to an agent: one connection per host, which carries all requests of a run.

The agent runs on a host over ssh, or on this machine over a pipe. The connection begins with the agent's program. A
connection that has broken or stalled is opened again.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from orchestrate import loop
from orchestrate.connections.link import MARK, Link, with_retries
from orchestrate.connections.ssh import NAME_PREFIX, OWN_CONNECTION, ssh_command
from orchestrate.engines.ssh import software
from orchestrate.errors import Dropped, HostError, LaunchFailed, Lost, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.text import plain_text

AGENT = Path(__file__).with_name("agent.py").read_bytes()

LIMITS = {"wait_seconds": 5.0, "stop_grace_seconds": 5.0, "log_bytes": 20 << 20}
"""How long an agent waits for output before it answers, how long a repeat may take to end when asked, how much output
is kept."""

ROOT = "~/.tfbench"
"""Folder of the agent's files on a host."""

IMAGE_FILE = "/opt/tfbench/image.json"
"""Written by the Dockerfile, because labels and variables of an image are not visible through an sshd in it."""

SECONDS = 60.0
"""Longest duration of a request, unless it names another."""

PYTHONS = (
    *("python3.11", "python3", "/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda/bin/python3"),
    *("/venv/main/bin/python3", "~/miniconda3/bin/python3", "~/miniforge3/bin/python3"),
)
"""Pythons to try: on the PATH, which sshd may set differently from the image, and where images of rented machines
install them."""

SILENCE_SECONDS = 1800
"""Longest an agent waits for a request: a host learns of a dead link only after hours, with the defaults of sshd."""

_READ_PROGRAM = (
    f"import signal, sys; signal.alarm({SILENCE_SECONDS}); "
    "program = sys.stdin.buffer.read(int(sys.stdin.buffer.readline())); exec(program)"
)
ANY_PYTHON = "import sys; assert sys.version_info >= (3, 6)"
"""Succeeds with a Python that the agent can use."""

_FIND_PYTHON = (
    """fits="{fits}"; [ -f {image_file} ] && fits="{any}"; """
    'for p in {pythons}; do "$p" -c "$fits" </dev/null >/dev/null 2>&1 && exec "$p" -u -c "{program}"; done; '
    f'echo {MARK[:1]}""{MARK[1:]}; echo {{{{}}}}'
)
"""Does not contain the mark, because hosts may quote what they refuse."""


class NoPython(LaunchFailed):
    """The host has no Python that fits."""


class Broken(Unreachable):
    """The connection ended while an answer was awaited."""


class Channel:
    """The connection to an agent, which is opened for the first request, and again after it has failed.

    Args:
        login: Address of the host; None: this machine.
        keys: Host keys that ssh accepts.
        place: Settings of the agent: `root`, its folder; `image_file`, which describes the image of the host, if it was
            started from one of ours; `finds`, a program that it finds as a login of the user does; `fits`, a program
            that chooses its Python; `python`, the only one to try.

    Attributes:
        name: Of the host, for messages.
    """

    def __init__(self, login: SSHAddress | None, keys: HostKeys = AS_CONFIGURED, **place: str) -> None:
        self.name = "this machine" if login is None else f"{NAME_PREFIX}{login.target}"
        self._login, self._keys = login, keys
        self._place = {"root": ROOT, "image_file": IMAGE_FILE, "finds": "", "fits": ANY_PYTHON, "python": "", **place}
        self._flags: list[str] = []
        self._opening: asyncio.Task[Link] | None = None
        self._installing = asyncio.Lock()
        self._link: Link | None = None
        self._awaited: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._numbers = itertools.count(1)

    def request(self, do: str, payload: bytes = b"", **request: Any) -> dict[str, Any]:  # noqa: ANN401
        """Do what `answer` does, from any thread but the loop's."""
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

        A connection that exceeds the limit is closed, because it may have stalled.

        Args:
            do: Name of the request; see `agent.REQUESTS`.
            payload: Bytes after the request.
            seconds: Longest duration, without that of a login.
            request: Arguments of the request.

        Raises:
            Unreachable: The connection failed, or the limit was exceeded.
            LaunchFailed: The request failed on the host.
            Lost: The repeat no longer exists.
        """
        was_open = self._link is not None and self._link.is_open
        try:
            answer = await self._ask(payload, seconds, do=do, **request)
        except Broken:
            if not was_open:
                raise
            answer = await self._ask(payload, seconds, do=do, **request)  # it was idle, and may have been dead for long
        raise_failure(self.name, answer)
        return answer

    async def _ask(self, payload: bytes, seconds: float, **request: object) -> dict[str, Any]:
        if self._link is None or not self._link.is_open:
            if self._opening is None or self._opening.done():
                self._opening = asyncio.create_task(with_retries(self._open))
            await asyncio.shield(self._opening)  # all who ask meanwhile get the same
        link, number = self._link, next(self._numbers)
        assert link is not None
        if link.failure is not None:
            raise Broken(link.failure.cause)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._awaited[number] = answer
        link.send(json.dumps({"id": number, "payload_bytes": len(payload), **request}).encode() + b"\n" + payload)
        with anyio.move_on_after(seconds):
            return await answer
        late = Unreachable(f"{self.name}: no answer for {seconds:.0f} s")
        link.end(late)
        raise late

    async def run(self, words: Sequence[str], environment: Mapping[str, str], seconds: float) -> str:
        """Run a command of the host with more variables and a time limit, in the loop, and return its output.

        Raises:
            Unreachable: As `answer`.
            LaunchFailed: It was not found, or failed.
        """
        about: dict[str, Any] = {"words": list(words), "environment": dict(environment), "limit_seconds": seconds}
        return str((await self.answer("command", seconds=seconds + 10, **about)).get("output"))

    def decode(self, text: object) -> bytes:
        """Decode bytes in an answer.

        Raises:
            LaunchFailed: They are malformed.
        """
        try:
            return base64.b64decode(str(text), validate=True)
        except ValueError as error:
            raise LaunchFailed(f"{self.name}: not the agent's answer: {plain_text(str(error), 200)}") from error

    async def install_python(self) -> None:
        """Install a Python below the agent's folder, in a connection of its own that needs only sh; in the loop.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
            LaunchFailed: The installation failed.
        """
        script = software.install_script(self._place["root"], MARK).encode()
        words, seconds = self._ssh("exec sh -s"), software.INSTALL_SECONDS
        async with self._installing:  # a host that is probed again may still install it
            link = await with_retries(Link.open, self.name, words, script, seconds)
        link.end(Unreachable(f"{self.name}: Python is installed"))
        raise_failure(self.name, link.first)

    async def _open(self) -> Link:
        """Log in and start the agent."""
        words, place = [sys.executable, "-u", "-c", _READ_PROGRAM], self._place
        ours = f"{place['root']}/{software.PYTHON_FOLDER}/bin/python3"
        pythons = shlex.quote(place["python"]) if place["python"] else " ".join([*PYTHONS, ours])
        if self._login is not None:
            find = _FIND_PYTHON.format(**place, pythons=pythons, any=ANY_PYTHON, program=_READ_PROGRAM)
            words = self._ssh(f"exec sh -c {shlex.quote(find)}")
        settings = {**place, **LIMITS, "silence_seconds": SILENCE_SECONDS, "mark": MARK}
        text = b"%d\n%s%s\n" % (len(AGENT), AGENT, json.dumps(settings).encode())
        try:
            link = await Link.open(self.name, words, text)
        except Unreachable as error:
            if not isinstance(error, Dropped):  # the user's shared connection may be dead, or the only login
                self._flags = [] if self._flags else [OWN_CONNECTION]
            raise
        if "agent" not in link.first:
            failure = NoPython(f"{self.name}: found no usable Python. Tried: {pythons}")
            link.end(failure)
            raise failure
        self._link, self._awaited = link, {}
        self._serving = asyncio.create_task(self._serve(link, self._awaited))
        return link

    def _ssh(self, command: str) -> list[str]:
        assert self._login is not None
        return ssh_command(self._login, self._keys, "-T", *self._flags, remote=command)

    async def _serve(self, link: Link, awaited: dict[int, asyncio.Future[dict[str, Any]]]) -> None:
        """Pass answers on until the connection ends."""
        while link.failure is None:
            try:
                answer = await link.receive()
                number = answer.pop("id", None)
                if not isinstance(number, int) or number not in awaited:
                    raise Unreachable(f"{self.name}: it answers what nobody has asked")
            except HostError as error:
                link.end(error)
            else:
                if not (waiter := awaited.pop(number)).done():
                    waiter.set_result(answer)
        for waiter in awaited.values():
            if not waiter.done():
                waiter.set_exception(Broken(link.failure.cause))


def raise_failure(name: str, answer: Mapping[str, Any]) -> None:
    """Raise the error that an answer of the named host reports, if any."""
    for key, kind in (("failed", LaunchFailed), ("lost", Lost)):
        if isinstance(answer.get(key), str):
            raise kind(f"{name}: {plain_text(answer[key], 500)}")


_CHANNELS: dict[Any, Channel] = {}


def shared_channel(login: SSHAddress | None, keys: HostKeys = AS_CONFIGURED, **place: str) -> Channel:
    """Return the channel to an agent, see `Channel`, which all who ask for it share until this process ends."""
    return _CHANNELS.setdefault((login, keys, *place.items()), Channel(login, keys, **place))

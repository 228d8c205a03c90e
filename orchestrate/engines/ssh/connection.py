"""Requests to an agent, each in its own connection that begins with the agent's program.

The agent runs on a host over ssh, or on this machine over a pipe.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from orchestrate.connections.conversation import MAX_LINE_BYTES, Conversation, attempts, own_words, ssh_failure
from orchestrate.connections.ssh import OWN_CONNECTION, ssh_command
from orchestrate.engines.ssh import software
from orchestrate.errors import Dropped, LaunchFailed, Lost, Unreachable
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
"""Longest duration of a request with a single answer, and longest silence of the others, in which the agent reports at
least every 5 seconds."""

MAX_PROFILE_BYTES = 1 << 20
"""Limit for the output of login profiles."""

MAX_STREAM_BYTES = 64 << 20
"""Limit for a whole answer: an agent stores up to 20 MB of a benchmark's output, and sends it in base64."""

SSH_FAILED = 255
NO_PYTHON = 97

PYTHONS = (
    *("python3.11", "python3.12", "python3.13", "python3", "/usr/bin/python3", "/usr/local/bin/python3"),
    *("/opt/conda/bin/python3", "/venv/main/bin/python3", "~/miniconda3/bin/python3", "~/miniforge3/bin/python3"),
)
"""Pythons to try: on the PATH, which sshd may set differently from the image, and where images of rented machines
install them."""

REQUEST_SECONDS = 600
"""Longest an agent waits for its request: a host learns of a dead link only after hours, with the defaults of sshd."""

_READ_AGENT = (
    "import signal, sys; signal.alarm({seconds}); exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
)
_FIND_PYTHON = (
    'for p in {pythons}; do "$p" -c "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1 '
    f'&& exec "$p" -u -c "{_READ_AGENT}"; done; exit {NO_PYTHON}'
)
"""Contains no single quotes, because it is passed to the login shell in single quotes."""


class NoPython(LaunchFailed):
    """The host has no Python 3.8 or newer for the agent."""


class Connection:
    """Sends requests to the agent on a host.

    Args:
        address: Address of the host; None: this machine.
        root: The agent's folder on the host.
        image_file: Path of the file that describes the image of the host, if it was started from one of ours.
        keys: Host keys that ssh accepts.
    """

    def __init__(
        self,
        address: SSHAddress | None,
        root: str = ROOT,
        image_file: str = IMAGE_FILE,
        keys: HostKeys = AS_CONFIGURED,
    ) -> None:
        self._address = address
        self._keys = keys
        pythons = (*PYTHONS, f"{root}/{software.PYTHON_FOLDER}/bin/python3")
        self._common = {"root": root, "image_file": image_file, "pythons": pythons}
        self._start_agent = f"exec sh -c '{_FIND_PYTHON.format(pythons=' '.join(pythons), seconds=REQUEST_SECONDS)}'"
        self._open: set[Conversation] = set()
        self._closed = False
        self._flags: list[str] = []
        self.name = "this machine" if address is None else f"ssh {address.target}"

    def request(
        self,
        do: str,
        payload: bytes = b"",
        *,
        seconds: float | None = None,
        max_bytes: int = MAX_LINE_BYTES,
        **request: object,
    ) -> dict[str, Any]:
        """Send a request and return the first line of its answer.

        Raises:
            Unreachable: The connection failed, or a limit was exceeded.
            LaunchFailed: The request failed on the host.
            Lost: The repeat no longer exists.
        """
        whole = MAX_PROFILE_BYTES + max_bytes
        limits = {"seconds": seconds or SECONDS, "max_bytes": whole, "max_line_bytes": max_bytes}
        with contextlib.closing(self._send(do, payload, limits, request)) as lines:
            for line in lines:
                return line
        raise Unreachable(f"{self.name}: the connection ended without an answer to {do!r}")

    def stream(
        self,
        do: str,
        payload: bytes = b"",
        *,
        silence_seconds: float | None = None,
        seconds: float = math.inf,
        **request: object,
    ) -> Generator[dict[str, Any]]:
        """Send a request and yield the lines of its answer; raises as `request`.

        Args:
            do: Name of the request; see `agent.main`.
            payload: Bytes after the request.
            silence_seconds: Longest wait for a line.
            seconds: Longest total duration.
            request: Arguments of the request.
        """
        limits = {"silence_seconds": silence_seconds or SECONDS, "seconds": seconds, "max_bytes": MAX_STREAM_BYTES}
        yield from self._send(do, payload, limits, request)

    def install_python(self) -> Generator[dict[str, Any]]:
        """Install a Python below the agent's folder using only sh, and yield the steps; raises as `request`."""
        mark = f"tfbench-{secrets.token_hex(8)}"
        script = software.install_script(str(self._common["root"]), mark).encode()
        limits = {"seconds": software.INSTALL_SECONDS, "max_bytes": MAX_LINE_BYTES}
        yield from self._talk("exec sh -s", script, mark, limits)

    def close(self) -> None:
        """End all conversations, and refuse new ones."""
        self._closed = True
        for conversation in list(self._open):
            conversation.kill()

    def _send(
        self, do: str, payload: bytes, limits: dict[str, Any], request: dict[str, object]
    ) -> Generator[dict[str, Any]]:
        mark = f"tfbench-{secrets.token_hex(8)}"
        document = {"do": do, "mark": mark, "payload_bytes": len(payload), "limits": LIMITS, **self._common, **request}
        text = b"%d\n%s%s\n%s" % (len(AGENT), AGENT, json.dumps(document).encode(), payload)
        yield from self._talk(self._start_agent, text, mark, limits)

    def _talk(self, command: str, text: bytes, mark: str, limits: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Run a command in the login shell, send it a text, and yield the lines of its answer after the mark."""
        for attempt in attempts():
            with attempt:
                yield from self._talk_once(command, text, mark, limits)
                return

    def _talk_once(self, command: str, text: bytes, mark: str, limits: dict[str, Any]) -> Generator[dict[str, Any]]:
        """Do what `_talk` does, without retries.

        Raises:
            Dropped: The connection was not established.
        """
        with Conversation(self._words(command), text, **limits) as talk, self._kept(talk):
            marked, before = False, b""
            for line in talk.lines():
                if marked:
                    yield self._read(line, limits["max_bytes"])
                elif mark.encode() in line:  # after what a login profile printed without a line end
                    marked = True
                elif len(before := before + line) > MAX_PROFILE_BYTES:
                    raise Unreachable(f"{self.name}: its login prints more than {MAX_PROFILE_BYTES >> 20} MiB")
            code, errors = talk.result()
            if talk.exceeded and not marked and not self._flags:  # the user's shared connection may be dead
                self._flags = [OWN_CONNECTION]
                raise Dropped(f"{self.name}: {talk.exceeded}")
            if talk.exceeded:
                raise Unreachable(f"{self.name}: {talk.exceeded}")
            self._explain(code, marked, before, errors)

    @contextlib.contextmanager
    def _kept(self, talk: Conversation) -> Iterator[None]:
        """Keep a conversation for `close`.

        Raises:
            Unreachable: `close` was called already.
        """
        self._open.add(talk)
        try:
            if self._closed:
                raise Unreachable(f"{self.name}: the connection was closed")
            yield
        finally:
            self._open.discard(talk)

    def _words(self, command: str) -> list[str]:
        if self._address is None:
            return [sys.executable, "-u", "-c", _READ_AGENT.format(seconds=REQUEST_SECONDS)]
        return ssh_command(self._address, self._keys, "-T", *self._flags, remote=command)

    def _read(self, line: bytes, limit: int) -> dict[str, Any]:
        """Parse a line of the answer, which is not trusted."""
        try:
            document = read_json(line, limit)
        except ValueError as error:
            problem = f"its answer is not JSON: {plain_text(repr(line[:1000]), 200)} ({plain_text(str(error), 100)})"
            raise Unreachable(f"{self.name}: {problem}") from error
        if not isinstance(document, dict):
            raise Unreachable(f"{self.name}: its answer is not an object: {plain_text(repr(line[:1000]), 200)}")
        for key, kind in (("failed", LaunchFailed), ("lost", Lost)):
            if isinstance(document.get(key), str):
                raise kind(f"{self.name}: {plain_text(document[key], 500)}")
        return document

    def _explain(self, code: int, marked: bool, before: bytes, errors: bytes) -> None:
        """Raise the error that ended a connection, if any."""
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

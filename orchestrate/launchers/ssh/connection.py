"""Requests to a host over ssh: one connection each, with our agent as its first words."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

from orchestrate.errors import LaunchFailed, Lost, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.links.refusals import ssh_failure
from orchestrate.links.ssh import OWN_CONNECTION, ssh_command
from orchestrate.links.starts import persist_stream, starting
from orchestrate.text import plain_text

AGENT = Path(__file__).with_name("agent.py").read_bytes()

ROOT = "~/.tfbench"
"""Where everything of ours lies on a host."""

IMAGE_FILE = "/opt/tfbench/image.json"
"""Written by the Dockerfile: an image does not pass its labels and variables on to an sshd inside."""

SECONDS = 60.0
"""Longest silence of an agent: while it follows or installs it reports every 5 seconds."""

MAX_LINE_BYTES = 32 << 20  # a record in base64 is one line
SSH_FAILED = 255
NO_PYTHON = 97

_READ_AGENT = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
_FIND_PYTHON = (
    "for p in python3 python3.13 python3.12 python3.11 /usr/bin/python3 /usr/local/bin/python3 /opt/conda/bin/python3; "
    f'do command -v "$p" >/dev/null 2>&1 && exec "$p" -u -c "{_READ_AGENT}"; done; exit {NO_PYTHON}'
)
"""In double quotes only, because the login shell, whichever it is, gets it in single quotes."""


class Connection:
    """Sends requests to the agent on a host.

    Args:
        address: Where the host is.
        root: Folder of ours on the host.
        image_file: Describes the image that the host was started from, if it was.
        keys: Which host keys ssh accepts.
    """

    def __init__(
        self,
        address: SSHAddress,
        root: str = ROOT,
        image_file: str = IMAGE_FILE,
        keys: HostKeys = AS_CONFIGURED,
    ) -> None:
        self._address = address
        self._keys = keys
        self._common = {"root": root, "image_file": image_file}
        self.name = f"ssh {address.target}"

    def ask(self, do: str, payload: bytes = b"", seconds: float = SECONDS, **request: object) -> dict[str, Any]:
        """Send a request and return the last line of its answer.

        Raises:
            Unreachable: No connection, or it broke.
            LaunchFailed: The agent could not do it.
            Lost: What it was asked about is gone.
        """
        answer: dict[str, Any] | None = None
        with contextlib.closing(self.stream(do, payload, seconds, **request)) as lines:
            for line in lines:
                answer = line
        if answer is None:
            raise Unreachable(f"{self.name}: the connection ended without an answer to {do!r}")
        return answer

    def stream(
        self, do: str, payload: bytes = b"", seconds: float = SECONDS, **request: object
    ) -> Generator[dict[str, Any]]:
        """Send a request and yield the lines of its answer; see `ask` for what it raises.

        Args:
            do: What the agent shall do; see `agent.main`.
            payload: Follows the request.
            seconds: Longest wait for a line.
            request: The rest of it.
        """
        yield from persist_stream(lambda: self._stream(do, payload, seconds, request))

    def _stream(self, do: str, payload: bytes, seconds: float, request: dict[str, object]) -> Generator[dict[str, Any]]:
        """Send a request once; see `stream`.

        Raises:
            Dropped: The connection never stood.
        """
        mark = f"tfbench-{secrets.token_hex(8)}"
        document = {"do": do, "mark": mark, "payload_bytes": len(payload), **self._common, **request}
        text = b"%d\n%s%s\n%s" % (len(AGENT), AGENT, json.dumps(document).encode(), payload)
        with (
            tempfile.TemporaryFile() as errors,
            starting(self._address) as opened,
            self._process(errors) as process,
        ):
            # Sent by a thread, because an answer that fills its pipe must not stop the request half way. Our end of
            # standard input stays open: the agent ends with it.
            threading.Thread(target=_send, args=(process.stdin, text), daemon=True).start()
            silence = _Silence(process, seconds)
            try:
                marked = False
                assert process.stdout is not None
                while line := process.stdout.readline(MAX_LINE_BYTES):
                    silence.broken()
                    if marked:
                        yield self._read(line)
                    if not marked and line.strip() == mark.encode():
                        marked = True
                        opened()
                code = process.wait()
            finally:
                silence.end()
            self._explain(code, marked, silence.too_long, errors)

    def _command(self) -> list[str]:
        return ssh_command(self._address, self._keys, "-T", OWN_CONNECTION, remote=f"exec sh -c '{_FIND_PYTHON}'")

    @contextlib.contextmanager
    def _process(self, errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
        try:
            process = subprocess.Popen(
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise Unreachable(f"ssh cannot be started: {error}. Install an OpenSSH client") from error
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError, ValueError):
                    assert pipe is not None
                    pipe.close()

    def _read(self, line: bytes) -> dict[str, Any]:
        """Read a line of the answer; nothing in it is trusted."""
        try:
            document = json.loads(line)
        except ValueError as error:
            raise Unreachable(f"{self.name}: its answer is not JSON: {plain_text(repr(line), 200)}") from error
        if not isinstance(document, dict):
            raise Unreachable(f"{self.name}: its answer is not an object: {plain_text(repr(line), 200)}")
        if isinstance(document.get("failed"), str):
            raise LaunchFailed(f"{self.name}: {plain_text(document['failed'], 500)}")
        if isinstance(document.get("lost"), str):
            raise Lost(f"{self.name}: {plain_text(document['lost'], 500)}")
        return document

    def _explain(self, code: int, marked: bool, too_long: bool, errors: IO[bytes]) -> None:
        """Raise what the end of a connection means, unless all is well."""
        errors.seek(0)
        said = errors.read(10_000)
        if too_long:
            raise Unreachable(f"{self.name}: no answer for {SECONDS:.0f} s")
        if code == NO_PYTHON and not marked:
            raise LaunchFailed(f"{self.name}: no python3 found. Install one, e.g. apt-get install python3")
        if code == SSH_FAILED:
            failure = ssh_failure(self._address.target, said, code)
            raise Unreachable(failure.cause) if marked else failure
        if code != 0 or not marked:
            raise Unreachable(f"{self.name}: the connection broke. {plain_text(said.decode('utf-8', 'replace'), 300)}")


def _send(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        pipe.write(data)
        pipe.flush()


class _Silence:
    """Kills a connection that says nothing for too long."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.too_long = False
        self._process = process
        self._seconds = seconds
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def broken(self) -> None:
        """Note that something was said."""
        self._last = time.monotonic()

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(min(1.0, self._seconds / 4)):
            if time.monotonic() - self._last > self._seconds:
                self.too_long = True
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGKILL)
                return

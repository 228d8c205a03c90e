"""Requests to a host over ssh: one connection each, with our agent as its first words."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO, Any

from orchestrate.errors import LaunchFailed, Lost, Unreachable
from orchestrate.inventory.addresses import AS_CONFIGURED, HostKeys, SSHAddress
from orchestrate.launchers.ssh import bootstrap
from orchestrate.launchers.ssh.bootstrap import PLACE, bring_script
from orchestrate.links.refusals import Dropped, ssh_failure
from orchestrate.links.ssh import OWN_CONNECTION, ssh_command
from orchestrate.links.starts import delays, starting
from orchestrate.text import plain_text

AGENT = Path(__file__).with_name("agent.py").read_bytes()

ROOT = "~/.tfbench"
"""Where everything of ours lies on a host."""

IMAGE_FILE = "/opt/tfbench/image.json"
"""Written by the Dockerfile: an image does not pass its labels and variables on to an sshd inside."""

SECONDS = 60.0
"""Longest silence of an agent: while it follows or installs it reports every 5 seconds."""

MAX_LINE_BYTES = 32 << 20  # a record in base64 is one line
MAX_PROFILE_BYTES = 1 << 20
"""Of what a login may print before the agent's first word."""

MAX_SAID_BYTES = 10_000
"""Of what is kept of ssh's standard error."""

SSH_FAILED = 255
NO_PYTHON = 97

PYTHONS = (
    *("python3.11", "python3.12", "python3.13", "python3", "/usr/bin/python3", "/usr/local/bin/python3"),
    *("/opt/conda/bin/python3", "/venv/main/bin/python3", "~/miniconda3/bin/python3", "~/miniforge3/bin/python3"),
)
"""Where a Python is looked for: on the PATH, which sshd may set otherwise than the image does, and where images of
rented machines have theirs."""

_READ_AGENT = "import sys; exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
_FIND_PYTHON = (
    'for p in {pythons}; do "$p" -c "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1 '
    f'&& exec "$p" -u -c "{_READ_AGENT}"; done; exit {NO_PYTHON}'
)
"""In double quotes only, because the login shell, whichever it is, gets it in single quotes."""


class NoPython(LaunchFailed):
    """The host has no Python 3.8 or newer, so that the agent cannot run."""


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
        pythons = (*PYTHONS, f"{root}/{PLACE}/bin/python3")
        self._common = {"root": root, "image_file": image_file, "pythons": pythons}
        self._find_python = _FIND_PYTHON.format(pythons=" ".join(pythons))
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
        mark = f"tfbench-{secrets.token_hex(8)}"
        document = {"do": do, "mark": mark, "payload_bytes": len(payload), **self._common, **request}
        text = b"%d\n%s%s\n%s" % (len(AGENT), AGENT, json.dumps(document).encode(), payload)
        yield from self._talk(f"exec sh -c '{self._find_python}'", text, mark, seconds)

    def bring_python(self) -> Generator[dict[str, Any]]:
        """Put a Python below our folder, with nothing but sh, and yield the steps; see `ask` for what it raises."""
        mark = f"tfbench-{secrets.token_hex(8)}"
        script = bring_script(str(self._common["root"]), mark).encode()
        yield from self._talk("exec sh -s", script, mark, bootstrap.SECONDS)

    def _talk(self, command: str, text: bytes, mark: str, seconds: float) -> Generator[dict[str, Any]]:
        """Run a command of the host's login shell, send it a text, and yield the lines of its answer after the mark."""
        for delay in delays():
            try:
                yield from self._talk_once(command, text, mark, seconds)
                return
            except Dropped:  # before the mark: nothing was yielded
                time.sleep(delay)
        yield from self._talk_once(command, text, mark, seconds)

    def _talk_once(self, command: str, text: bytes, mark: str, seconds: float) -> Generator[dict[str, Any]]:
        """Do what `_talk` does, in one connection.

        Raises:
            Dropped: The connection never stood.
        """
        with starting(self._address) as opened, self._process(command) as process, _Said(process) as said:
            # Sent by a thread, because an answer that fills its pipe must not stop the request half way. Our end of
            # standard input stays open: the agent ends with it.
            threading.Thread(target=_send, args=(process.stdin, text), daemon=True).start()
            silence = _Silence(process, seconds)
            try:
                marked, before = False, 0
                assert process.stdout is not None
                while line := process.stdout.readline(MAX_LINE_BYTES):
                    silence.broken()
                    if marked:
                        yield self._read(line)
                    if not marked and line.strip() == mark.encode():
                        marked = True
                        opened()
                    before += len(line)
                    if not marked and before > MAX_PROFILE_BYTES:
                        raise Unreachable(f"{self.name}: its login prints more than {MAX_PROFILE_BYTES >> 20} MiB")
                code = process.wait()
            finally:
                silence.end()
            if silence.too_long:
                raise Unreachable(f"{self.name}: no answer for {seconds:.0f} s")
            self._explain(code, marked, said.text())

    def _command(self, command: str) -> list[str]:
        return ssh_command(self._address, self._keys, "-T", OWN_CONNECTION, remote=command)

    @contextlib.contextmanager
    def _process(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        words = self._command(command)
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        except OSError as error:
            raise Unreachable(f"ssh cannot be started: {error}. Install an OpenSSH client") from error
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for end in (process.stdin, process.stdout):
                with contextlib.suppress(OSError, ValueError):
                    assert end is not None
                    end.close()

    def _read(self, line: bytes) -> dict[str, Any]:
        """Read a line of the answer; nothing in it is trusted."""
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Unreachable(f"{self.name}: its answer is not JSON: {plain_text(repr(line), 200)}") from error
        if not isinstance(document, dict):
            raise Unreachable(f"{self.name}: its answer is not an object: {plain_text(repr(line), 200)}")
        if isinstance(document.get("failed"), str):
            raise LaunchFailed(f"{self.name}: {plain_text(document['failed'], 500)}")
        if isinstance(document.get("lost"), str):
            raise Lost(f"{self.name}: {plain_text(document['lost'], 500)}")
        return document

    def _explain(self, code: int, marked: bool, said: bytes) -> None:
        """Raise what the end of a connection means, unless all is well."""
        if code == NO_PYTHON and not marked:
            names = ", ".join(PYTHONS)
            raise NoPython(f"{self.name}: no Python 3.8 or newer was found. Looked for: {names}")
        if code == SSH_FAILED:
            failure = ssh_failure(self._address.target, said, code)
            raise Unreachable(failure.cause) if marked else failure
        if code != 0 or not marked:
            raise Unreachable(f"{self.name}: the connection broke. {plain_text(said.decode('utf-8', 'replace'), 300)}")


class _Said:
    """Reads what ssh writes on its standard error, and keeps the first of it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        self._pipe = process.stderr
        self._kept = b""
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> _Said:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let the thread end with the process."""

    def text(self) -> bytes:
        """Return what was kept, after the process has ended."""
        self._thread.join(1.0)  # a helper of ssh's, e.g. of a jump host, may hold the pipe a little longer
        return self._kept

    def _read(self) -> None:
        with self._pipe, contextlib.suppress(OSError):
            while chunk := os.read(self._pipe.fileno(), 1 << 16):
                self._kept += chunk[: MAX_SAID_BYTES - len(self._kept)]


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

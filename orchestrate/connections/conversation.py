"""Runs ssh with time and size limits, retries dropped connections, and explains failures in one line.

An sshd drops new connections while many are unauthenticated: 30 % from the 10th on, all from the 100th on
(`MaxStartups 10:30:100`). All connections to a fleet behind a jump host reach the same sshd: `make test-fresh-hosts`.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TypeVar

import stamina

from orchestrate.connections.children import end_child, kill_child, start_child
from orchestrate.errors import Dropped, Unreachable
from orchestrate.text import plain_text

ATTEMPTS = 9
RETRY_SECONDS = 45.0
"""Time after which no other attempt begins: a server that does not speak ssh costs seconds each time."""

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.5, 8.0
"""Delays between attempts, about 45 s in all: longer than a connection through a loaded jump host takes to log in."""

MAX_ERROR_BYTES = 10_000
"""Limit for the stored part of a command's standard error."""

MAX_LINE_BYTES = 1 << 20
"""Default limit for a line of an answer."""

CHUNK_BYTES = 1 << 16

END_SECONDS = 10.0
"""Longest time between the end of an answer and that of the connection."""

T = TypeVar("T")


def attempts() -> Iterator[contextlib.AbstractContextManager[object]]:
    """Yield contexts for attempts at a connection, as long as an sshd drops it."""
    return iter(
        stamina.retry_context(
            on=Dropped,
            attempts=ATTEMPTS,
            timeout=RETRY_SECONDS,
            wait_initial=FIRST_DELAY_SECONDS,
            wait_max=LONGEST_DELAY_SECONDS,
        )
    )


def with_retries(start: Callable[[], T]) -> T:
    """Start a connection, with retries if an sshd drops it.

    Raises:
        Dropped: All attempts were dropped.
    """
    for attempt in attempts():
        with attempt:
            return start()
    raise AssertionError("the last attempt raises")


class Conversation:
    """A process that receives a text and sends an answer, with limits on silence, time and bytes.

    Args:
        command: The command, which is started in a new session.
        text: Written to its standard input, which stays open until the end.
        silence_seconds: Longest time without a line.
        seconds: Longest total duration.
        max_bytes: Maximum size of the answer.
        max_line_bytes: Longer lines are split.

    Attributes:
        exceeded: The exceeded limit, in words, or empty.

    Raises:
        Unreachable: The command cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        text: bytes,
        *,
        silence_seconds: float = math.inf,
        seconds: float = math.inf,
        max_bytes: int,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> None:
        self.exceeded = ""
        self._silence_seconds, self._seconds = silence_seconds, seconds
        self._max_bytes, self._max_line_bytes = max_bytes, max_line_bytes
        self._began = self._last_line_at = time.monotonic()
        self._ended = threading.Event()
        self._errors = b""
        pipe = subprocess.PIPE
        try:
            self._process = start_child(command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise Unreachable(f"{command[0]} cannot be started: {error}. Install an OpenSSH client") from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._output = self._process.stdout
        # In a thread, to avoid a deadlock when the answer fills its pipe before the request is complete.
        _in_background(_send, self._process.stdin, text)
        self._reading = _in_background(self._read_errors, self._process.stderr)
        _in_background(self._watch)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        end_child(self._process)
        for end in (self._process.stdin, self._output):
            with contextlib.suppress(OSError, ValueError):
                assert end is not None
                end.close()

    def kill(self) -> None:
        """Kill the process and its own children, unless it has ended."""
        kill_child(self._process)

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the answer, including line ends."""
        left = self._max_bytes
        while line := self._output.readline(self._max_line_bytes):
            self._last_line_at = time.monotonic()
            if (left := left - len(line)) < 0:
                self._end(f"its answer exceeds {self._max_bytes / (1 << 20):g} MiB")
                return
            yield line

    def result(self) -> tuple[int, bytes]:
        """Wait for the end after the last line; return the exit code and the first bytes of standard error."""
        try:
            code = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._end("its answer ended, but not its command")
            code = self._process.wait()
        self._reading.join(1.0)  # a child of ssh, e.g. for a jump host, may hold the pipe a little longer
        return code, self._errors

    def _watch(self) -> None:
        shortest = min(self._silence_seconds, self._seconds)
        while not self._ended.wait(min(1.0, shortest / 4)):
            now = time.monotonic()
            if now - self._last_line_at > self._silence_seconds:
                self._end(f"no answer for {self._silence_seconds:.0f} s")
            if now - self._began > self._seconds:
                self._end(f"not done within {self._seconds:.0f} s")

    def _end(self, exceeded: str) -> None:
        self.exceeded = exceeded
        self.kill()

    def _read_errors(self, pipe: IO[bytes]) -> None:
        with pipe, contextlib.suppress(OSError):
            while chunk := os.read(pipe.fileno(), CHUNK_BYTES):
                self._errors += chunk[: MAX_ERROR_BYTES - len(self._errors)]


def _in_background(work: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _send(pipe: IO[bytes], data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        pipe.write(data)
        pipe.flush()


MAX_QUOTED = 500
"""Maximum length of a quoted message of ssh, in characters."""


def ssh_failure(target: str, errors: bytes, exit_code: int) -> Unreachable:
    """Explain in one line why ssh ended, with a remedy if the reason is known.

    Args:
        target: The ssh target.
        errors: Standard error of ssh.
        exit_code: Exit code of ssh.

    Returns:
        A `Dropped` if a retry may succeed.
    """
    text = errors.decode("utf-8", "replace")
    if changed := _changed_key(text):
        return Unreachable(f"ssh {target}: {changed}")
    message = _quoted(text) or f"exit code {exit_code}"
    remedy = next((remedy for sign, remedy in _REMEDIES.items() if sign in message), None)
    cause = f"ssh {target}: {message}" + (f" {remedy}" if remedy else "")
    if _DROPPED.search(message) and not any(sign in message for sign in _FINAL):
        return Dropped(cause if remedy else f"{cause} {_BUSY}")
    return Unreachable(cause)


def own_words(exit_code: int, output: bytes) -> str:
    """Explain in one line why a login ended before it ran a command, in the host's own words."""
    said = _quoted(output.decode("utf-8", "replace"))
    return f"the login ended with exit code {exit_code}" + (f". It printed: {said}" if said else " and printed nothing")


def _quoted(text: str) -> str:
    lines = [plain_text(line, 300).strip() for line in text.splitlines()]
    return plain_text(" ".join(line for line in lines if line and not set(line) <= {"@"}), MAX_QUOTED)


def _changed_key(text: str) -> str | None:
    """Return an explanation if ssh failed because of a changed host key, or None."""
    offered, known, where = _OFFERED.search(text), _OFFENDING.search(text), _WHERE.search(text)
    if offered is None or known is None or where is None:
        return None
    path, machine = known["file"], where["where"]
    forget = shlex.join(["ssh-keygen", "-R", machine, "-f", path])
    return plain_text(
        f"REMOTE HOST IDENTIFICATION HAS CHANGED: {machine} offers the {offered['kind']} key {offered['fingerprint']}, "
        f"and {path}:{known['line']} has another key. If this address was given to another machine, as is usual with "
        f"rented ones, forget the old key: {forget}. Otherwise compare the key before you replace it: somebody may be "
        "intercepting the connection",
        2_000,
    )


_OFFERED = re.compile(r"fingerprint for the (?P<kind>\S+) key sent by the remote host is\s+(?P<fingerprint>\S+?)\.?\s")
_OFFENDING = re.compile(r"Offending \S+ key in (?P<file>.+):(?P<line>\d+)\s")
_WHERE = re.compile(r"ost key for (?P<where>\S+) has changed and you have requested strict checking")

_DROPPED = re.compile(
    r"kex_exchange_identification|ssh_exchange_identification|during banner exchange|"
    r"Connection (?:closed|reset) by (?:\S+ )+port \d+"
)
"""Messages for a connection closed before the login; later, it is `Connection to … closed` and the like."""

_FINAL = (
    "Host key verification failed",
    "Permission denied",
    "Could not resolve",
    "connect to host",
    "stdio forwarding failed",
    "Too many authentication failures",
)
"""Messages of the host or a jump host that explain a dropped connection; a retry would not help."""

_BUSY = "Its sshd drops connections while many are being opened (MaxStartups), or refuses this address"


_REMEDIES = {
    "Host key verification failed": "To accept new hosts, set host_keys: accept-new in hosts.yml. To compare the "
    "key's fingerprint, connect once with ssh",
    "Permission denied": "Add your key to the host, or name it in ~/.ssh/config (IdentityFile). For a second factor, "
    "share a connection (ControlMaster auto) and stay logged in",
    "Could not resolve": "Check the name in hosts.yml",
    "Connection refused": "Check the port, and that sshd runs there. After a change, correct it in hosts.yml",
}

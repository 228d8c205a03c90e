"""Runs ssh with time and size limits, retries dropped connections, and explains failures in one line.

An sshd drops new connections while many are unauthenticated: 30 % from the 10th on, all from the 100th on
(`MaxStartups 10:30:100`). All connections to a fleet behind a jump host reach the same sshd: `make test-fresh-hosts`.
The processes end with this one, however it ends, together with their own children.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import anyio
import stamina

from orchestrate import loop
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

POLL_SECONDS = 0.02

T = TypeVar("T")


RETRIES: dict[str, Any] = {
    "attempts": ATTEMPTS,
    "timeout": RETRY_SECONDS,
    "wait_initial": FIRST_DELAY_SECONDS,
    "wait_max": LONGEST_DELAY_SECONDS,
}
"""Of connections that an sshd drops, for stamina."""


def with_retries(start: Callable[[], T]) -> T:
    """Start a connection, with retries if an sshd drops it.

    Raises:
        Dropped: All attempts were dropped.
    """
    return stamina.RetryingCaller(**RETRIES)(Dropped, start)


class Conversation:
    """A process that receives bytes and sends lines, without limits on time; an async context manager of the loop.

    Args:
        command: The command, which is started in a new session.

    Attributes:
        errors: The first bytes of its standard error.

    Raises:
        Unreachable: The command cannot be started.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.errors = b""
        pipe = subprocess.PIPE
        try:
            self._process = start_child(command, stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            raise Unreachable(f"{command[0]} cannot be started: {error}. Install an OpenSSH client") from error
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._pipes = self._process.stdin, self._process.stdout, self._process.stderr
        for end in self._pipes:
            os.set_blocking(end.fileno(), False)

    async def __aenter__(self) -> Conversation:
        """Read its standard error in the background."""
        self._reading = asyncio.create_task(self._read_errors())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill the process and its own children."""
        self.kill()
        self._reading.cancel()
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_SECONDS):
            while self._process.poll() is None:
                await anyio.sleep(POLL_SECONDS)
        end_child(self._process)
        for end in self._pipes:
            with contextlib.suppress(OSError):
                end.close()

    def kill(self) -> None:
        """Kill the process and its own children, unless it has ended."""
        kill_child(self._process)

    async def send(self, data: bytes) -> None:
        """Send bytes, one call at a time; that it has ended shows in `chunks`."""
        number, left = self._pipes[0].fileno(), memoryview(data)
        with contextlib.suppress(BrokenPipeError):
            while left:
                try:
                    left = left[os.write(number, left) :]
                except BlockingIOError:
                    await anyio.wait_writable(number)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield its output until it closes it."""
        number = self._pipes[1].fileno()
        while True:
            await anyio.wait_readable(number)
            if not (chunk := os.read(number, CHUNK_BYTES)):
                return
            yield chunk

    async def lines(self, max_line_bytes: Callable[[], int]) -> AsyncIterator[bytes]:
        """Yield the lines of its output, including line ends.

        Args:
            max_line_bytes: Returns the current limit.

        Raises:
            TooLong: A line is longer.
        """
        line = bytearray()
        async for chunk in self.chunks():
            first, *others = chunk.split(b"\n")
            line += first
            for piece in others:
                yield bytes(line) + b"\n"
                line = bytearray(piece)
            if len(line) > max_line_bytes():
                raise TooLong(max_line_bytes())
        if line:
            yield bytes(line)

    async def exit_code(self) -> int | None:
        """Wait for the end after its output; None: it goes on, and is killed."""
        with anyio.move_on_after(END_SECONDS):
            while self._process.poll() is None:
                await anyio.sleep(POLL_SECONDS)
        with anyio.move_on_after(1.0):  # a child of ssh, e.g. for a jump host, may hold the pipe a little longer
            await asyncio.wait([self._reading])
        return self._process.poll()

    async def _read_errors(self) -> None:
        number = self._pipes[2].fileno()
        while True:
            await anyio.wait_readable(number)
            if not (chunk := os.read(number, CHUNK_BYTES)):
                return
            self.errors += chunk[: MAX_ERROR_BYTES - len(self.errors)]


class LimitExceeded(Exception):
    """A command exceeded its limit, which the message names."""


class TooLong(LimitExceeded):
    """An answer is longer than its limit in bytes."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"its answer exceeds {limit / (1 << 20):g} MiB")


@dataclass(frozen=True)
class CommandResult:
    """What a command has answered.

    Attributes:
        output: Its output, at most as long as its limit.
        code: Its exit code.
        errors: The first bytes of its standard error.
    """

    output: bytes
    code: int | None
    errors: bytes


def ask(command: Sequence[str], text: bytes, *, seconds: float, max_bytes: int) -> CommandResult:
    """Run a command with a text as its input, which stays open until the end.

    Args:
        command: The command.
        text: Its input.
        seconds: Longest duration.
        max_bytes: Maximum size of the answer.

    Raises:
        Unreachable: The command cannot be started.
        LimitExceeded: It takes too long, or answers too much.
    """
    return loop.wait_for(_ask(command, text, seconds, max_bytes))


async def _ask(command: Sequence[str], text: bytes, seconds: float, max_bytes: int) -> CommandResult:
    output = bytearray()
    async with Conversation(command) as talk:
        with anyio.move_on_after(seconds):
            sending = asyncio.create_task(talk.send(text))  # a deadlock otherwise, if the answer fills its pipe first
            try:
                async for chunk in talk.chunks():
                    output += chunk
                    if len(output) > max_bytes:
                        raise TooLong(max_bytes)
                if (code := await talk.exit_code()) is None:
                    raise LimitExceeded("its answer ended, but not its command")
                return CommandResult(bytes(output), code, talk.errors)
            finally:
                sending.cancel()
    raise LimitExceeded(f"not done within {seconds:.0f} s")


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


def own_words(exit_code: int | None, output: bytes) -> str:
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


_REAPER = """\
trap '' HUP INT TERM
groups=' ' found=
while read -r change group; do
    case $change in
        +) groups="$groups$group " ;;
        *) groups="${groups%% $group *} ${groups#* $group }" ;;
    esac
done
for sign in TERM KILL; do
    for group in $groups; do kill -s $sign -- "-$group" && found=yes; done 2>/dev/null
    [ -z "$found" ] || sleep 1
done
"""
"""Reads which process groups were started and ended; when its input closes, it ends those that remain.

PR_SET_PDEATHSIG would not do: macOS has none, and it ends a child with the thread that started it.
"""

_REAPERS: list[subprocess.Popen[bytes]] = []
"""The first is used."""


def start_child(command: Sequence[str], **pipes: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 (as `Popen`)
    """Start a command in a session of its own, so that the controller handles Ctrl-C.

    Args:
        command: The command.
        pipes: Arguments of `subprocess.Popen`.

    Raises:
        OSError: It cannot be started.
    """
    if _reaper().closed:
        raise ChildProcessError("tfbench is ending")
    child = subprocess.Popen(command, start_new_session=True, **pipes)
    _note("+", child)
    return child


def end_child(child: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """End a child and its own children, and wait for it."""
    kill_child(child, number)
    try:
        child.wait(timeout=5)
    except subprocess.TimeoutExpired:
        kill_child(child)
        child.wait()
    _note("-", child)


def kill_child(child: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to a child and its own children, unless it has ended."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)


def _note(change: str, child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):  # this process ends
        os.write(_reaper().fileno(), f"{change} {child.pid}\n".encode())  # short writes to a pipe are atomic


def _reaper() -> IO[bytes]:
    """Return the input of the process that ends those that outlive this one."""
    if not _REAPERS:
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        command = ["sh", "-c", _REAPER]
        _REAPERS.append(subprocess.Popen(command, stdin=pipe, stdout=null, stderr=null, start_new_session=True))
    assert _REAPERS[0].stdin is not None
    return _REAPERS[0].stdin


@atexit.register
def _end_all() -> None:
    for reaper in _REAPERS:
        reaper.communicate()

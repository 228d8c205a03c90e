"""Processes of tests: servers that are started and ended, waiting, signals, and what /proc shows."""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

READY_SECONDS = 120.0
"""A server that does not answer after so long is not going to."""

_PORTS = itertools.count(random.SystemRandom().randrange(10_000, 30_000))
"""Below 32,768, where Linux's own choice begins; each process of a session begins somewhere else."""

STOP_SECONDS = 30.0
"""A server that has not ended so long after SIGTERM is killed."""


class EngineError(RuntimeError):
    """A server did not start; the message carries the end of its log."""


def not_root() -> str | None:
    """Say why nothing that needs root can be done here; None when it can."""
    return None if os.name == "posix" and os.geteuid() == 0 else "it needs root"


def missing(*programs: str) -> str | None:
    """Say which programs are not installed here; None: all are."""
    absent = [name for name in programs if find_program(name) is None]
    return f"not installed: {', '.join(absent)} (.ci/run installs them)" if absent else None


def missing_requirements() -> str | None:
    """Say why no Docker engine can be started here; None when it can."""
    programs = ("dockerd", "docker-registry", "sshd", "ssh", "ssh-keygen", "debootstrap", "dpkg-deb", "setpriv")
    return not_root() or missing(*programs)


def find_program(name: str) -> str | None:
    """Find a program, also where only root's PATH leads."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


def run_program(program: str, *arguments: object) -> None:
    """Run a program, perhaps one of root's, to its end.

    Raises:
        EngineError: It failed; the message carries the end of its output.
    """
    command = [find_program(program) or program, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"{program} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def free_port(count: int = 1) -> int:
    """Return the first of `count` neighbouring TCP ports of the loopback interface that nobody listens on now.

    No port is returned twice, and none is of those that the kernel hands out itself: whoever asks listens on it later, and
    until then some connection of another test would take it.
    """
    while True:
        ports = [next(_PORTS) for _ in range(count)]
        with contextlib.ExitStack() as probes:
            try:
                for port in ports:
                    probes.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return ports[0]


def port_answers(port: int, address: str = "127.0.0.1") -> bool:
    """Say whether somebody listens on a port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


@contextlib.contextmanager
def short_folder(prefix: str) -> Iterator[Path]:
    """Give a folder with a short name while the context lasts: a unix socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 240.0) -> Any:
    """Wait until a condition holds, and return its value.

    Raises:
        EngineError: It never does.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise EngineError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)
    return value


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to processes, of which some may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def read_proc(pid: int, name: str) -> bytes:
    """Return a file of a process below /proc; empty: the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def all_pids() -> list[int]:
    """Return the numbers of all processes."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def with_variables(*variables: str) -> list[int]:
    """Return the processes that were started with variables, each `NAME=value`."""
    wanted = {variable.encode() for variable in variables}
    return [pid for pid in all_pids() if wanted <= set(read_proc(pid, "environ").split(b"\0"))]


def below(pid: int) -> list[int]:
    """Return all processes below a process; those that end meanwhile are passed over."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *below(child)]
    return found


class Service(abc.ABC):
    """What is started and stopped; as a context manager it runs while the context lasts."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start it, and return when it answers."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End it; it can be started again."""

    def close(self) -> None:
        """End it for good."""
        self.stop()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Server(Service):
    """A child process that serves until it is stopped.

    Attributes:
        log: Where its output goes.
    """

    def __init__(self, command: Sequence[str], log: Path, is_ready: Callable[[], bool]) -> None:
        program = find_program(command[0])
        if program is None:
            raise EngineError(f"{command[0]} is not installed")
        # The kernel ends the server when the test process dies, however it dies: nothing is left behind.
        self._command = ["setpriv", "--pdeathsig", "TERM", program, *command[1:]]
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    @property
    def pid(self) -> int:
        """Of the process; the server must run."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and return when it answers; nothing happens when it runs already.

        Raises:
            EngineError: It ended or did not answer in time.
        """
        if self._process is not None:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EngineError(f"{self._command[3]} did not start:\n{self._last_lines()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server and wait for its end; nothing happens when it does not run."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

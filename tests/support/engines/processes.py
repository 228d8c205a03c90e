"""Servers, waiting, signals and /proc, for tests."""

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

from tests.support.patience import patience

READY_SECONDS = 120.0
"""Timeout for the start of a server."""

_PORTS = itertools.count(random.SystemRandom().randrange(10_000, 30_000))
"""Ports below 32,768, from which Linux chooses; each process of a session starts at another one."""

STOP_SECONDS = 30.0
"""Time between SIGTERM and SIGKILL."""


class EngineError(RuntimeError):
    """A server did not start; the message has the end of its log."""


def not_root() -> str | None:
    """Return why root is not available; None: it is."""
    return None if os.name == "posix" and os.geteuid() == 0 else "it needs root"


def missing(*programs: str) -> str | None:
    """Return which programs are not installed; None: all are."""
    absent = [name for name in programs if find_program(name) is None]
    return f"not installed: {', '.join(absent)} (.ci/run installs them)" if absent else None


def missing_requirements() -> str | None:
    """Return why no Docker engine can be started here; None: it can."""
    programs = ("dockerd", "docker-registry", "sshd", "ssh", "ssh-keygen", "debootstrap", "dpkg-deb", "setpriv")
    return not_root() or missing(*programs)


def find_program(name: str) -> str | None:
    """Find a program, including root's PATH."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


def run_program(program: str, *arguments: object) -> None:
    """Run a program to its end.

    Raises:
        EngineError: It failed; the message has the end of its output.
    """
    command = [find_program(program) or program, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(f"{program} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def free_port(count: int = 1) -> int:
    """Return the first of `count` consecutive free TCP ports on loopback, none twice.

    They are outside the kernel's ephemeral range: no connection of another test takes them before a server listens.
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
    """Return whether a port accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((address, port)) == 0


@contextlib.contextmanager
def short_folder(prefix: str) -> Iterator[Path]:
    """Create a temporary folder with a short name, because paths of unix sockets are limited to 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 240.0) -> Any:
    """Wait until a condition is true, and return its value.

    Raises:
        EngineError: It was not true in time.
    """
    deadline = time.monotonic() + patience(seconds)
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise EngineError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)
    return value


def send(number: int, pids: Iterable[int]) -> None:
    """Send a signal to processes, ignoring ended ones."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def read_proc(pid: int, name: str) -> bytes:
    """Read a file of a process in /proc; empty: the process has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def all_pids() -> list[int]:
    """Return the pids of all processes."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def with_variables(*variables: str) -> list[int]:
    """Return the pids of processes with these variables, each `NAME=value`."""
    wanted = {variable.encode() for variable in variables}
    return [pid for pid in all_pids() if wanted <= set(read_proc(pid, "environ").split(b"\0"))]


def below(pid: int) -> list[int]:
    """Return the pids of all descendants of a process, ignoring those that end meanwhile."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *below(child)]
    return found


class Service(abc.ABC):
    """A service that can be started and stopped; as a context manager it runs within the context."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start it and wait until it responds."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop it; it can be started again."""

    def close(self) -> None:
        """Stop it permanently."""
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
    """A server as a child process.

    Attributes:
        log: File with its output.
    """

    def __init__(self, command: Sequence[str], log: Path, is_ready: Callable[[], bool]) -> None:
        program = find_program(command[0])
        if program is None:
            raise EngineError(f"{command[0]} is not installed")
        # The kernel ends the server when the test process dies.
        self._command = ["setpriv", "--pdeathsig", "TERM", program, *command[1:]]
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None
        self.log = log

    @property
    def pid(self) -> int:
        """Pid of the running server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server unless it is running, and wait until it responds.

        Raises:
            EngineError: It ended or did not respond in time.
        """
        if self._process is not None:
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + patience(READY_SECONDS)
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                last_lines = self.log.read_text(errors="replace").splitlines()[-20:]
                raise EngineError("\n".join([f"{self._command[3]} did not start:", *last_lines]))
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server if it is running, and wait for its end."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

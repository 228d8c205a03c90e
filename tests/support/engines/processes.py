"""Start a server, wait until it answers, and end it."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

READY_SECONDS = 120.0
"""A server that does not answer after so long is not going to."""

_PORTS = itertools.count(random.SystemRandom().randrange(10_000, 30_000))
"""Below 32,768, where Linux's own choice begins; each process of a session begins somewhere else."""

STOP_SECONDS = 30.0
"""A server that has not ended so long after SIGTERM is killed."""


class EngineError(RuntimeError):
    """A server did not start; the message carries the end of its log."""


def missing_requirements() -> str | None:
    """Say why no engine can be started here; None when it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "starting a Docker engine needs root"
    programs = ("dockerd", "docker-registry", "sshd", "ssh", "ssh-keygen", "debootstrap", "dpkg-deb", "setpriv")
    missing = [name for name in programs if find_program(name) is None]
    return f"not installed: {', '.join(missing)} (.ci/run installs them)" if missing else None


def find_program(name: str) -> str | None:
    """Find a program, also where only root's PATH leads."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin")


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


def port_answers(port: int) -> bool:
    """Say whether somebody listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server:
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

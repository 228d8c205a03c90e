"""One supervised ssh per host, behind a local socket that leads to the engine's socket over there.

The Docker SDK's own ssh transports lose or fake results: a dropped link ends a log stream as if the benchmark had
ended, and a black-holed one blocks for ever. OpenSSH itself honours the user's configuration, agent, jump hosts and
known hosts, and its keep-alive ends a dead link.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress, HostKeys
from orchestrate.links.refusals import ssh_failure
from orchestrate.links.ssh import OWN_CONNECTION, ssh_command
from orchestrate.links.starts import persist, starting

OPEN_DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.05

FORWARDING = ("-N", "-T", OWN_CONNECTION, "-oExitOnForwardFailure=yes", "-oStreamLocalBindUnlink=yes")


_GUARDED = """\
exec 3<&0 </dev/null
"$@" &
child=$!
{ read -r _ <&3; kill "$child"; } 2>/dev/null &
guard=$!
trap 'kill "$child"' TERM
wait "$child"
code=$?
kill "$guard" 2>/dev/null
exit "$code"
"""
"""Runs a command that ends when our end of its standard input closes: also when we are killed, and cannot close it."""


class Tunnel(ABC):
    """A local socket that leads to an engine."""

    def __init__(self) -> None:
        # A socket's path may be 107 bytes long at most: hence the system's temporary folder and short names. Only its
        # owner may enter the folder: whoever connects there may do anything on the host.
        self._folder = Path(tempfile.mkdtemp(prefix="tfb-"))
        self._socket = self._folder / "engine.sock"
        self._lock = threading.Lock()
        self._closed = False

    @property
    def path(self) -> str:
        """The local socket that a client connects to."""
        return str(self._socket)

    def ensure(self) -> None:
        """Open the tunnel, or open it again when it has ended.

        Raises:
            Unreachable: Why it cannot be opened, in the words of ssh or sudo.
        """
        with self._lock:
            if self._closed:
                raise Unreachable(f"{self._where}: the connection was closed")
            self._ensure()

    def close(self) -> None:
        """End the tunnel and remove its socket."""
        with self._lock:
            self._closed = True
            self._close()
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    @abstractmethod
    def _where(self) -> str:
        """Name the host in messages."""

    @abstractmethod
    def _ensure(self) -> None:
        """See `ensure`."""

    @abstractmethod
    def _close(self) -> None:
        """End what runs for it."""


class SSHTunnel(Tunnel):
    """Forwards a local socket to the engine of an ssh host.

    Args:
        address: Where the engine is; its scheme is `ssh`.
        keys: Which host keys ssh accepts.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys) -> None:
        super().__init__()
        self._address = address
        self._ssh = SupervisedSSH(address, self._folder, self._socket)
        forward = f"{self._socket}:{address.socket}"
        self._command = lambda: ssh_command(address.login, keys, *FORWARDING, "-L", forward)

    @property
    def _where(self) -> str:
        return f"ssh {self._address.target}"

    def _ensure(self) -> None:
        if not self._ssh.stands():
            self._ssh.start(self._command)

    def _close(self) -> None:
        self._ssh.stop()


class SupervisedSSH:
    """An ssh that stays, and ends with us, however we end.

    Args:
        address: Where it goes; its scheme is `ssh`.
        folder: Takes its errors.
        sign: A socket that it makes: where it is, the connection stands.
    """

    def __init__(self, address: DockerAddress, folder: Path, sign: Path) -> None:
        self._address = address
        self._errors = folder / "errors"
        self._sign = sign
        self._process: subprocess.Popen[bytes] | None = None

    def stands(self) -> bool:
        """Return whether the connection stands, as far as ssh knows."""
        return self._process is not None and self._process.poll() is None and self._sign.exists()

    def start(self, command: Callable[[], Sequence[str]]) -> None:
        """Start it, after ending the one before.

        Args:
            command: Gives the command line, asked before each try: host keys may have become known.

        Raises:
            Unreachable: ssh ended, in its own words, or did not open the socket in time.
        """
        persist(lambda: self._start(command()))

    def stop(self) -> None:
        """End it, if it runs."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def _start(self, command: Sequence[str]) -> None:
        self.stop()
        self._sign.unlink(missing_ok=True)
        with starting(self._address.login):
            try:
                with self._errors.open("wb") as stderr:
                    self._process = process = subprocess.Popen(
                        ["sh", "-c", _GUARDED, "tfbench-tunnel", *command],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.DEVNULL,
                        stderr=stderr,
                        start_new_session=True,  # Ctrl-C is the controller's to handle
                    )
            except OSError as error:
                raise Unreachable(f"ssh cannot be started: {error}. Install an OpenSSH client") from error
            self._wait_for_sign(process)

    def _wait_for_sign(self, process: subprocess.Popen[bytes]) -> None:
        deadline, target = time.monotonic() + OPEN_DEADLINE_SECONDS, self._address.target
        while not self._sign.exists():
            if process.poll() is not None:
                errors = self._errors.read_bytes()
                self.stop()
                raise ssh_failure(target, errors, process.returncode)
            if time.monotonic() > deadline:
                self.stop()
                raise Unreachable(f"ssh {target}: no answer within {OPEN_DEADLINE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

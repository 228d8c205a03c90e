"""Tunnels to Docker engines: local sockets forwarded over ssh to the engine's socket.

The Docker SDK's own ssh transports lose or fake results: a dropped link ends a log stream as if the benchmark had
ended, and a black-holed one blocks forever. OpenSSH itself honours the user's configuration, agent, jump hosts and
known hosts, and its keep-alive ends a dead link.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress, HostKeys
from orchestrate.links.connections import ssh_failure, with_retries
from orchestrate.links.ssh import OWN_CONNECTION, ssh_command

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
"""Runs a command that ends when its standard input closes, which also happens when we are killed."""


class Tunnel:
    """A local socket forwarded to the engine's socket on an ssh host, by an ssh that ends with this process.

    Args:
        address: Address of the engine, with the scheme `ssh`.
        keys: Host keys that ssh accepts.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys) -> None:
        # In the temporary folder with a short name, because a socket's path may have at most 107 bytes. Only the owner
        # may enter the folder: access to the socket is root access to the host.
        self._folder = Path(tempfile.mkdtemp(prefix="tfb-"))
        self._socket = self._folder / "engine.sock"
        self._errors = self._folder / "errors"
        self._lock = threading.Lock()
        self._closed = False
        self._address = address
        self._keys = keys
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def path(self) -> str:
        """Path of the local socket."""
        return str(self._socket)

    def ensure(self) -> None:
        """Open the tunnel if it is not open.

        Raises:
            Unreachable: ssh failed, or did not open the socket in time.
        """
        with self._lock:
            if self._closed:
                raise Unreachable(f"ssh {self._address.target}: the connection was closed")
            if self._process is None or self._process.poll() is not None or not self._socket.exists():
                with_retries(self._start)

    def close(self) -> None:
        """End the tunnel and remove its socket."""
        with self._lock:
            self._closed = True
            self._stop()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        self._stop()
        self._socket.unlink(missing_ok=True)
        forward = f"{self._socket}:{self._address.socket}"
        command = ssh_command(self._address.login, self._keys, *FORWARDING, "-L", forward)
        try:
            with self._errors.open("wb") as stderr:
                self._process = process = subprocess.Popen(
                    ["sh", "-c", _GUARDED, "tfbench-tunnel", *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    start_new_session=True,  # the controller handles Ctrl-C
                )
        except OSError as error:
            raise Unreachable(f"ssh cannot be started: {error}. Install an OpenSSH client") from error
        self._wait_for_socket(process)

    def _wait_for_socket(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until ssh has opened the socket, which it does once connected."""
        deadline, target = time.monotonic() + OPEN_DEADLINE_SECONDS, self._address.target
        while not self._socket.exists():
            if process.poll() is not None:
                errors = self._errors.read_bytes()
                self._stop()
                raise ssh_failure(target, errors, process.returncode)
            if time.monotonic() > deadline:
                self._stop()
                raise Unreachable(f"ssh {target}: no answer within {OPEN_DEADLINE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _stop(self) -> None:
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

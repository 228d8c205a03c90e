"""Tunnels to Docker engines: local sockets forwarded over ssh to the engine's socket.

The Docker SDK's own ssh transports lose or fake results: a dropped link ends a log stream as if the benchmark had
ended, and a black-holed one blocks forever. OpenSSH itself honours the user's configuration, agent, jump hosts and
known hosts, and its keep-alive ends a dead link.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from orchestrate.connections.conversation import (
    LimitExceeded,
    ask,
    end_child,
    own_words,
    ssh_failure,
    start_child,
    with_retries,
)
from orchestrate.connections.ssh import shared_connection, ssh_command
from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress, HostKeys

OPEN_DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.05
MAX_ANSWER_BYTES = 1 << 20

_FORWARD = """\
control=$1 forward=$2
shift 2
of_master() { ssh -F none -S "$control" "$@" tfbench; }
if [ $# -gt 0 ]; then
    "$@" &
    master=$!
    trap 'kill "$master"' TERM
    until of_master -O check 2>/dev/null; do
        kill -0 "$master" 2>/dev/null || { wait "$master"; exit; }
        sleep 0.1
    done
    of_master -O forward -L "$forward" >&2 || { kill "$master"; exit 1; }
    wait "$master"
else
    trap 'of_master -O cancel -L "$forward"; exit' TERM
    of_master -O forward -L "$forward" || exit 1
    while of_master -O check 2>/dev/null; do sleep 5 & wait $!; done
fi
"""
"""Forwards a socket over a connection that a command opens, so no forwarding of the user's configuration comes along;
without a command, over a shared connection of the user, as long as that is open."""


class Tunnel:
    """A local socket forwarded to the engine's socket on an ssh host, by an ssh that ends with this process.

    One thread opens or closes it at a time: `DockerEngine` sees to that.

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
        if self._closed:
            raise Unreachable(f"ssh {self._address.target}: the connection was closed")
        if self._process is None or self._process.poll() is not None or not self._socket.exists():
            with_retries(self._start)

    def close(self) -> None:
        """End the tunnel and remove its socket."""
        self._closed = True
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def problem(self) -> str | None:
        """Log in to find out why an open tunnel leads nowhere; None: the engine's socket is missing or not usable."""
        mark = f"tfbench-{secrets.token_hex(8)}"
        socket = shlex.quote(self._address.socket)
        script = f"echo {mark}; if [ -S {socket} ] && [ -w {socket} ]; then echo {mark}-usable; fi; exit 0\n"
        command = ssh_command(self._address.login, self._keys, "-T", remote="exec sh -s")
        try:
            answer = ask(command, script.encode(), seconds=OPEN_DEADLINE_SECONDS, max_bytes=MAX_ANSWER_BYTES)
        except LimitExceeded:
            return None
        where = f"ssh {self._address.target}"
        if mark.encode() not in answer.output:
            return f"{where}: {own_words(answer.code, answer.output + answer.errors)}"
        if f"{mark}-usable".encode() not in answer.output:
            return None
        return (
            f"{where}: its sshd forbids forwarding to {self._address.socket}. Allow it there: "
            "AllowStreamLocalForwarding yes without DisableForwarding, and no restrict or no-port-forwarding in "
            "authorized_keys. Or use ssh: instead of docker:"
        )

    def _start(self) -> None:
        self._stop()
        self._socket.unlink(missing_ok=True)
        login, forward = self._address.login, f"{self._socket}:{self._address.socket}"
        shared, command = shared_connection(login, self._keys), list[str]()
        if shared is None:
            control = self._folder / "c"
            flags = ("-N", "-T", "-oControlMaster=yes", f"-oControlPath={control}", "-oControlPersist=no")
            shared, command = str(control), ssh_command(login, self._keys, *flags)
        words = ["sh", "-c", _FORWARD, "tfbench-tunnel", shared, forward, *command]
        try:
            with self._errors.open("wb") as stderr:
                null = subprocess.DEVNULL
                self._process = process = start_child(words, stdin=null, stdout=null, stderr=stderr)
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
        if process is not None:
            end_child(process, signal.SIGTERM)

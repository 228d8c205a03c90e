"""Tunnels to Docker engines: local sockets forwarded over ssh to the engine's socket.

The Docker SDK's own ssh transports lose or fake results: a dropped link ends a log stream as if the benchmark had
ended, and a black-holed one blocks forever. OpenSSH itself honours the user's configuration, agent, jump hosts and
known hosts, and its keep-alive ends a dead link.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchestrate import loop
from orchestrate.connections.link import MARK, Link, with_retries
from orchestrate.connections.ssh import CHECK_SECONDS, NAME_PREFIX, shared_connection, ssh_command
from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress, HostKeys
from orchestrate.text import plain_text

_OF_MASTER = ("ssh", "-F", "none", "-S")
"""Begins a command to an open connection, so that no forwarding of the user's configuration comes along."""

_CANCEL_AFTERWARDS = f'control=$1 forward=$2; shift 2; "$@"; code=$?; {" ".join(_OF_MASTER)} "$control" -O cancel \
-L "$forward" tfbench 2>/dev/null; exit $code'
"""Runs a command, then ends a forwarding, which would stay in a shared connection of the user."""


class Tunnel:
    """A local socket forwarded to the engine's socket on an ssh host, by an ssh that ends with this process.

    One thread opens or closes it at a time: `DockerEngine` sees to that.

    Args:
        address: Address of the engine, with the scheme `ssh`.
        keys: Host keys that ssh accepts.

    Attributes:
        path: Path of the local socket.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys) -> None:
        # In the temporary folder with a short name, because a socket's path may have at most 107 bytes. Only the owner
        # may enter the folder: access to the socket is root access to the host.
        self._folder = Path(tempfile.mkdtemp(prefix="tfb-"))
        self.path = str(self._folder / "engine.sock")
        self._name, self._address, self._keys = f"{NAME_PREFIX}{address.target}", address, keys
        self._link: Link | None = None

    def ensure(self) -> None:
        """Open the tunnel if it is not open.

        Raises:
            Unreachable: ssh failed, or did not open the socket in time.
        """
        if not self._folder.exists():
            raise Unreachable(f"{self._name}: the connection was closed")
        if self._link is None or not self._link.is_open or not Path(self.path).exists():
            self._end()
            self._start()

    def close(self) -> None:
        """End the tunnel and remove its socket."""
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def problem(self) -> str | None:
        """Return why an open tunnel leads nowhere; None: the engine's socket is missing or not usable."""
        if self._link is None or "usable" not in self._link.first:
            return None
        return (
            f"{self._name}: its sshd forbids forwarding to {self._address.socket}. Allow it there: "
            "AllowStreamLocalForwarding yes without DisableForwarding, and no restrict or no-port-forwarding in "
            "authorized_keys. Or use ssh: instead of docker:"
        )

    def _start(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        login, forward = self._address, f"{self.path}:{self._address.socket}"
        control, flags = shared_connection(login, self._keys), list[str]()
        if control is None:
            control = str(self._folder / "c")
            flags = ["-oControlMaster=yes", f"-oControlPath={control}", "-oControlPersist=no"]
        command = ssh_command(login, self._keys, "-T", *flags, remote="exec sh -s")
        words = ["sh", "-c", _CANCEL_AFTERWARDS, "tfbench-tunnel", control, forward, *command]
        socket = shlex.quote(self._address.socket)
        script = f"echo {MARK}; [ -S {socket} ] && [ -w {socket} ] && echo '{{\"usable\": true}}' || echo '{{}}'\n"
        self._link = loop.wait_for(with_retries(Link.open, self._name, words, script.encode()))
        asked = [*_OF_MASTER, control, "-O", "forward", "-L", forward, "tfbench"]
        try:
            subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_SECONDS, check=True)
        except subprocess.SubprocessError as error:
            said = plain_text((getattr(error, "stderr", None) or b"").decode(errors="replace"), 300)
            raise Unreachable(f"{self._name}: the connection forwards nothing. {said}") from error

    def _end(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            loop.wait_for(link.close())

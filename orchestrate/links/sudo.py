"""Engines that only root may use: each connection goes through `sudo -n docker system dial-stdio`.

sshd forwards to a socket with the user's own rights, so a forwarded socket is of no use here. A listener of ours starts
the command for each connection, with the connection as its standard input and output. Over ssh, all of them share
one supervised ssh: when it ends, they end.
"""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
import threading

from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress, HostKeys
from orchestrate.links.refusals import sudo_failure
from orchestrate.links.ssh import ssh_command
from orchestrate.links.tunnel import SSHTunnel, SupervisedSSH, Tunnel

TRIAL_SECONDS = 30.0
BACKLOG = 16


class SudoTunnel(Tunnel):
    """Leads to the engine of this machine or of an ssh host, by sudo.

    Args:
        address: Where the engine is; its scheme is `ssh` or `unix`.
        keys: Which host keys ssh accepts.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys) -> None:
        super().__init__()
        engine = address.socket if address.scheme == "ssh" else address.target
        self._dial = ["sudo", "-n", "docker", "-H", f"unix://{engine}", "system", "dial-stdio"]
        self._address = address
        self._keys = keys
        self._listener: socket.socket | None = None
        self._dialled: list[subprocess.Popen[bytes]] = []
        control = self._folder / "ctl"
        self._ssh = SupervisedSSH(address, self._folder, control) if address.scheme == "ssh" else None
        self._sharing = f"-oControlPath={control}"
        if self._ssh is not None:
            # Without a shared connection it must fail, not open one of its own: hence the proxy that ends at once.
            share = ["ssh", "-T", "-F", "none", self._sharing, "-oControlMaster=no", "-oProxyCommand=false"]
            share += ["-oBatchMode=yes", "-oLogLevel=ERROR", "--", address.target]
            self._dial = [*share, shlex.join(self._dial)]

    @property
    def _where(self) -> str:
        return "this machine" if self._ssh is None else f"ssh {self._address.target}"

    def _ensure(self) -> None:
        if self._listener is not None and (self._ssh is None or self._ssh.stands()):
            return
        if self._ssh is not None and not self._ssh.stands():
            # A master that went to the background by the user's ControlPersist would outlive us.
            flags = ("-N", "-T", "-oControlMaster=yes", self._sharing, "-oControlPersist=no")
            self._ssh.start(lambda: ssh_command(self._address.login, self._keys, *flags))
        self._try()
        if self._listener is None:
            self._listen()

    def _try(self) -> None:
        """Dial once, and hang up, because a connection that fails later only ends, without a reason."""
        try:
            done = subprocess.run(
                self._dial,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TRIAL_SECONDS,
                check=False,
                start_new_session=True,  # as below: a password that sudo remembers for this terminal does not count
            )
        except subprocess.TimeoutExpired as error:
            raise Unreachable(f"{self._where}: sudo docker: no answer within {TRIAL_SECONDS:.0f} s") from error
        except OSError as error:
            raise Unreachable(f"{self._dial[0]} cannot be started: {error}. Install it") from error
        if done.returncode != 0:
            if self._ssh is not None:
                self._ssh.stop()  # the next try starts from nothing
            raise sudo_failure(self._where, done.stderr, done.returncode)

    def _listen(self) -> None:
        self._listener = listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.path)
        listener.listen(BACKLOG)
        threading.Thread(target=self._serve, args=(listener,), name=f"sudo {self._where}", daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        """Start the command for each connection, until the listener is closed."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                process = subprocess.Popen(
                    self._dial,
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self._dialled = [*(one for one in self._dialled if one.poll() is None), process]

    def _close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # `close` alone would not wake the thread
            self._listener.close()
        if self._ssh is not None:
            self._ssh.stop()
        for process in self._dialled:
            with contextlib.suppress(PermissionError):  # sudo is root's: it ends because its connection is closed
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)


def tunnel_to(address: DockerAddress, keys: HostKeys) -> Tunnel | None:
    """Return a tunnel to an engine; None: it is reached directly."""
    if address.via == "sudo":
        return SudoTunnel(address, keys)
    return SSHTunnel(address, keys) if address.scheme == "ssh" else None

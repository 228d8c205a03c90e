"""Tunnels to Docker engines: a local socket that leads to the engine's socket of an ssh host, or to one of root's.

The Docker SDK's own ssh transports lose or fake results: a dropped link ends a log stream as if the benchmark had
ended, and a black-holed one blocks forever. OpenSSH itself honours the user's configuration, agent, jump hosts and
known hosts, and its keep-alive ends a dead link.

Of an engine that only root may use, each connection goes through `sudo -n docker system dial-stdio`: sshd forwards to a
socket with the user's own rights. A listener here starts that command for each connection, with the connection as its
standard input and output. Over ssh, all of them share one supervised ssh: when it ends, they end.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress, HostKeys
from orchestrate.links.connections import persist, ssh_failure, starting, sudo_failure
from orchestrate.links.ssh import OWN_CONNECTION, ssh_command

OPEN_DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.05
TRIAL_SECONDS = 30.0
BACKLOG = 16

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


class Tunnel:
    """A local socket that leads to the engine's socket on an ssh host.

    Args:
        address: Where the engine is.
        keys: Which host keys ssh accepts.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys) -> None:
        # A socket's path may be 107 bytes long at most: hence the system's temporary folder and short names. Only its
        # owner may enter the folder: whoever connects there may do anything on the host.
        self._folder = Path(tempfile.mkdtemp(prefix="tfb-"))
        self._socket = self._folder / "engine.sock"
        self._lock = threading.Lock()
        self._closed = False
        self._address = address
        self._keys = keys
        self._ssh = SupervisedSSH(address, self._folder, self._sign)

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
    def _sign(self) -> Path:
        """The socket whose presence shows that the connection stands."""
        return self._socket

    @property
    def _where(self) -> str:
        return f"ssh {self._address.target}"

    def _ensure(self) -> None:
        if not self._ssh.stands():
            forward = f"{self._socket}:{self._address.socket}"
            self._ssh.start(lambda: ssh_command(self._address.login, self._keys, *FORWARDING, "-L", forward))

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


class SudoTunnel(Tunnel):
    """Leads to the engine of this machine or of an ssh host, by sudo.

    Args:
        address: Where the engine is; its scheme is `ssh` or `unix`.
        keys: Which host keys ssh accepts.
    """

    def __init__(self, address: DockerAddress, keys: HostKeys) -> None:
        super().__init__(address, keys)
        engine = address.socket if address.scheme == "ssh" else address.target
        self._dial = ["sudo", "-n", "docker", "-H", f"unix://{engine}", "system", "dial-stdio"]
        self._listener: socket.socket | None = None
        self._dialled: list[subprocess.Popen[bytes]] = []
        self._sharing = f"-oControlPath={self._sign}"
        self._by_ssh = address.scheme == "ssh"
        if self._by_ssh:
            # Without a shared connection it must fail, not open one of its own: hence the proxy that ends at once.
            share = ["ssh", "-T", "-F", "none", self._sharing, "-oControlMaster=no", "-oProxyCommand=false"]
            share += ["-oBatchMode=yes", "-oLogLevel=ERROR", "--", address.target]
            self._dial = [*share, shlex.join(self._dial)]

    @property
    def _sign(self) -> Path:
        return self._folder / "ctl"

    @property
    def _where(self) -> str:
        return super()._where if self._by_ssh else "this machine"

    def _ensure(self) -> None:
        if self._listener is not None and (not self._by_ssh or self._ssh.stands()):
            return
        if self._by_ssh and not self._ssh.stands():
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
        super()._close()
        for process in self._dialled:
            with contextlib.suppress(PermissionError):  # sudo is root's: it ends because its connection is closed
                process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)


def tunnel_to(address: DockerAddress, keys: HostKeys) -> Tunnel | None:
    """Return a tunnel to an engine; None: it is reached directly."""
    if address.via == "sudo":
        return SudoTunnel(address, keys)
    return Tunnel(address, keys) if address.scheme == "ssh" else None

"""One supervised `ssh -N -L` per host, from a local socket to the engine's socket over there.

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
from pathlib import Path

from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.text import plain_text

CONNECT_TIMEOUT_SECONDS = 10
OPEN_DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.05

OPTIONS = (
    "-oBatchMode=yes",  # never ask: a question would wait for ever
    f"-oConnectTimeout={CONNECT_TIMEOUT_SECONDS}",
    "-oServerAliveInterval=5",  # a dead link is noticed within 20 s; a false alarm costs a reconnection, no more
    "-oServerAliveCountMax=3",
    "-oStrictHostKeyChecking=yes",
    "-oControlMaster=no",  # a shared master would outlive us, or end under us
    "-oControlPath=none",
    "-oLogLevel=ERROR",
)
"""Of every ssh that we start."""

FORWARDING = ("-N", "-T", "-oExitOnForwardFailure=yes", "-oStreamLocalBindUnlink=yes")


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


class SSHTunnel:
    """A local socket that leads to the engine of an ssh host.

    Args:
        address: Where the engine is; its scheme is `ssh`.
    """

    def __init__(self, address: DockerAddress) -> None:
        self._address = address
        # A socket's path may be 107 bytes long at most: hence the system's temporary folder and short names.
        self._folder = Path(tempfile.mkdtemp(prefix="tfb-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def path(self) -> str:
        """The local socket that a client connects to."""
        return str(self._socket)

    @property
    def _socket(self) -> Path:
        return self._folder / "engine.sock"

    def ensure(self) -> None:
        """Open the tunnel, or open it again when it has ended.

        Raises:
            Unreachable: ssh ended, in its own words, or did not open the socket in time.
        """
        with self._lock:
            if self._closed:
                raise Unreachable(f"ssh {self._address.target}: the connection was closed")
            if self._process is not None and self._process.poll() is None and self._socket.exists():
                return
            self._stop_process()
            self._start()

    def close(self) -> None:
        """End the tunnel and remove its socket."""
        with self._lock:
            self._closed = True
            self._stop_process()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self) -> list[str]:
        address = self._address
        command = ["ssh", *FORWARDING, *OPTIONS, "-L", f"{self._socket}:{address.socket}"]
        if address.ssh_config is not None:
            command += ["-F", address.ssh_config]
        if address.port is not None:
            command += ["-p", str(address.port)]
        return [*command, "--", address.target]

    def _start(self) -> None:
        errors = self._folder / "errors"
        self._socket.unlink(missing_ok=True)
        try:
            with errors.open("wb") as stderr:
                self._process = subprocess.Popen(
                    ["sh", "-c", _GUARDED, "tfbench-tunnel", *self._command()],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    start_new_session=True,  # Ctrl-C is the controller's to handle
                )
        except OSError as error:
            raise Unreachable(f"ssh cannot be started: {error}. Install an OpenSSH client") from error
        deadline = time.monotonic() + OPEN_DEADLINE_SECONDS
        while not self._socket.exists():
            if self._process.poll() is not None:
                raise Unreachable(explain_ssh(self._address.target, errors.read_bytes(), self._process.returncode))
            if time.monotonic() > deadline:
                self._stop_process()
                raise Unreachable(f"ssh {self._address.target}: no answer within {OPEN_DEADLINE_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _stop_process(self) -> None:
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


def explain_ssh(target: str, errors: bytes, exit_code: int) -> str:
    """Explain in one line why ssh ended, with a remedy if the reason is known.

    Args:
        target: Where it went.
        errors: What it wrote on stderr.
        exit_code: Of ssh.
    """
    lines = [plain_text(line, 300).strip() for line in errors.decode("utf-8", "replace").splitlines()]
    said = " ".join(line for line in lines if line and not set(line) <= {"@"}) or f"exit code {exit_code}"
    cause = f"ssh {target}: {plain_text(said, 500)}"
    for sign, remedy in _REMEDIES.items():
        if sign in said:
            return f"{cause} {remedy}"
    return cause


_REMEDIES = {
    "IDENTIFICATION HAS CHANGED": "Another machine may be answering: compare the key before you replace it",
    "Host key verification failed": "Compare the host's key and add it: ssh-keyscan HOST >> ~/.ssh/known_hosts",
    "Permission denied": "Add your key to the host, or name it in ~/.ssh/config (IdentityFile)",
    "Could not resolve": "Check the name in hosts.yml",
    "Connection refused": "Check the port, and that sshd runs there",
}

"""A registry and an ssh server on loopback."""

from __future__ import annotations

import getpass
import subprocess
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.engines.processes import Server, find_program, free_port, port_answers

USER, PASSWORD = "bench", "correct-horse-battery"
PASSWORD_FILE = "bench:$2y$05$abcdefghijklmnopqrstuuSnF5tLPqPFqc0z9CY0HcSLFbSRlL67u\n"
"""For htpasswd: the hash (bcrypt) of PASSWORD."""


class Registry:
    """A registry of container images on loopback, which engines trust without TLS.

    Attributes:
        address: `127.0.0.1:PORT`, the first part of an image's name.
    """

    def __init__(self, folder: Path, name: str = "registry", more: str = "") -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        configuration = folder / f"{name}.yml"
        configuration.write_text(
            "version: 0.1\n"
            "log: {level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder / name}}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{self.address}'}}\n{more}"
        )
        self._server = Server(["docker-registry", "serve", str(configuration)], folder / f"{name}.log", self._answers)

    def start(self) -> None:
        """Start serving, with the images it had."""
        self._server.start()

    def stop(self) -> None:
        """Stop serving; images stay."""
        self._server.stop()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/v2/", timeout=2) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class GuardedRegistry(Registry):
    """A registry that lets in `USER` with `PASSWORD` only."""

    def __init__(self, folder: Path) -> None:
        passwords = folder / "guarded.htpasswd"
        passwords.write_text(PASSWORD_FILE)
        super().__init__(folder, "guarded", f"auth: {{htpasswd: {{realm: tests, path: {passwords}}}}}\n")

    def _answers(self) -> bool:
        return port_answers(self._port)


@dataclass(frozen=True)
class SshHost:
    """How to reach an engine through ssh.

    Attributes:
        alias: Name of the host in `config_file`.
        config_file: For `ssh -F`: knows port, user, key and host key of `alias`.
        remote_socket: The engine's socket on the far side.
    """

    alias: str
    address: str
    port: int
    user: str
    identity_file: Path
    known_hosts: Path
    config_file: Path
    remote_socket: Path
    server: Server

    def start(self) -> None:
        """Accept connections."""
        self.server.start()

    def stop(self) -> None:
        """Accept no more connections; those that stand go on."""
        self.server.stop()


def make_ssh_host(
    folder: Path,
    remote_socket: Path,
    alias: str = "tfbench-second",
    *,
    user: str | None = None,
    enter: Sequence[str] = (),
) -> SshHost:
    """Prepare an sshd with keys of its own; the machine's and the user's ssh settings play no part.

    Args:
        folder: For its keys and configuration.
        remote_socket: `DOCKER_HOST` there.
        alias: Name of the host in its `config_file`.
        user: Whom it logs in; None: who runs the tests.
        enter: Words before sshd's own that start it somewhere else.
    """
    host_key, identity = folder / "ssh_host_key", folder / "ssh_identity"
    for key in (host_key, identity):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    port, user = free_port(), user or getpass.getuser()
    known_hosts = folder / "ssh_known_hosts"
    host_key_words = host_key.with_suffix(".pub").read_text().split()
    known_hosts.write_text(f"[127.0.0.1]:{port} {' '.join(host_key_words[:2])}\n")
    server_configuration = folder / "sshd_config"
    server_configuration.write_text(
        f"ListenAddress 127.0.0.1:{port}\n"
        f"HostKey {host_key}\n"
        f"AuthorizedKeysFile {identity.with_suffix('.pub')}\n"
        f"AllowUsers {user}\n"
        f"PidFile {folder / 'sshd.pid'}\n"
        f"SetEnv DOCKER_HOST=unix://{remote_socket}\n"
        "AcceptEnv SLURM_CONF FAKE_BENCHMARK\n"
        "AuthenticationMethods publickey\n"
        "PermitRootLogin prohibit-password\n"
        "AllowStreamLocalForwarding yes\n"
        "StrictModes no\n"  # the keys lie below the system's folder for temporary files
        "UsePAM no\n"
    )
    config_file = folder / "ssh_config"
    config_file.write_text(
        f"Host {alias}\n"
        "  HostName 127.0.0.1\n"
        f"  Port {port}\n"
        f"  User {user}\n"
        f"  IdentityFile {identity}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known_hosts}\n"
        "  GlobalKnownHostsFile none\n"
        "  StrictHostKeyChecking yes\n"
    )
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start without this folder
    command = [*enter, find_program("sshd") or "sshd", "-D", "-e", "-f", str(server_configuration)]
    server = Server(command, folder / "sshd.log", lambda: port_answers(port))
    return SshHost(alias, "127.0.0.1", port, user, identity, known_hosts, config_file, remote_socket, server)

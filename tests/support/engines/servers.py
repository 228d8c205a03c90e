"""A registry and an ssh server on loopback."""

import getpass
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.engines.processes import Server, below, find_program, free_port, missing, port_answers, send
from tests.support.engines.required import skip_without

USER, PASSWORD = "bench", "correct-horse-battery"
PASSWORD_FILE = "bench:$2y$05$abcdefghijklmnopqrstuuSnF5tLPqPFqc0z9CY0HcSLFbSRlL67u\n"
"""Line of an htpasswd file with the bcrypt hash of PASSWORD."""


class Registry(Server):
    """A container registry on loopback, which engines trust without TLS; it keeps its images when stopped."""

    def __init__(self, folder: Path, name: str = "registry", more: str = "") -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        configuration = folder / f"{name}.yml"
        configuration.write_text(
            "version: 0.1\n"
            "log: {level: warn}\n"
            f"storage: {{filesystem: {{rootdirectory: {folder / name}}}, delete: {{enabled: true}}}}\n"
            f"http: {{addr: '{self.address}'}}\n{more}"
        )
        command = ["docker-registry", "serve", str(configuration)]
        super().__init__(command, folder / f"{name}.log", lambda: port_answers(port))


def guarded_registry(folder: Path) -> Registry:
    """Return a registry that requires `USER` and `PASSWORD`."""
    passwords = folder / "guarded.htpasswd"
    passwords.write_text(PASSWORD_FILE)
    return Registry(folder, "guarded", f"auth: {{htpasswd: {{realm: tests, path: {passwords}}}}}\n")


def new_key(path: Path) -> None:
    """Create or replace an ssh key."""
    for file in (path, path.with_name(f"{path.name}.pub")):
        file.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


def sshd_command(
    configuration: Path, host_key: Path, authorized: Path, listen: str, *settings: str, **variables: object
) -> list[str]:
    """Write the configuration of an sshd with its own host key, created here, and return its command.

    Args:
        configuration: The file to write.
        authorized: The authorised public key.
        listen: `ADDRESS:PORT`.
        settings: Further lines.
        variables: Of each login. With another HOME it reads no startup files, which can take a second.
    """
    new_key(host_key)
    lines = (
        f"ListenAddress {listen}",
        f"HostKey {host_key}",
        f"AuthorizedKeysFile {authorized}",
        f"PidFile {configuration.with_suffix('.pid')}",
        "AuthenticationMethods publickey",
        "PermitRootLogin prohibit-password",
        "StrictModes no",  # keys are in the folder for temporary files
        "UsePAM no",
        "KexAlgorithms curve25519-sha256",  # the default, sntrup761, takes 0.1 s of CPU time per login
        "MaxStartups 100",
        "SetEnv " + " ".join(f"{name}={value}" for name, value in variables.items()),
        *settings,
    )
    configuration.write_text("\n".join(lines) + "\n")
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd refuses to start without this folder
    return [find_program("sshd") or "sshd", "-D", "-e", "-f", str(configuration)]


class SshHost(Server):
    """An sshd for reaching an engine by ssh, without this machine's settings; connections survive its end.

    Args:
        remote_socket: `DOCKER_HOST` on the host; None: not set.
        alias: Name of the host in `config_file`.
        user: The user who logs in; None: the current one.
        enter: Prefix of the sshd command, to start it elsewhere.
        home: Home folder of logins; None: that of `user`, or `folder`.
        variables: Further ones of logins.

    Attributes:
        config_file: File for `ssh -F` with port, user, key and host key of `alias`.
    """

    def __init__(
        self,
        folder: Path,
        remote_socket: Path | None,
        alias: str = "tfbench-second",
        *,
        user: str | None = None,
        enter: Sequence[str] = (),
        home: Path | None = None,
        **variables: object,
    ) -> None:
        self.alias, self.remote_socket, self.user = alias, remote_socket, user or getpass.getuser()
        self.port = port = free_port()
        self.identity_file, self.known_hosts = folder / "ssh_identity", folder / "ssh_known_hosts"
        self.config_file = folder / "ssh_config"
        new_key(self.identity_file)
        host_key, authorized = folder / "ssh_host_key", self.identity_file.with_suffix(".pub")
        if remote_socket:
            variables["DOCKER_HOST"] = f"unix://{remote_socket}"
        if home or not user:
            variables["HOME"] = home or folder
        settings = (f"AllowUsers {self.user}", "AcceptEnv SLURM_CONF FAKE_BENCHMARK", "AllowStreamLocalForwarding yes")
        listen = f"127.0.0.1:{port}"
        command = sshd_command(folder / "sshd_config", host_key, authorized, listen, *settings, **variables)
        host_key_words = host_key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"[127.0.0.1]:{port} {' '.join(host_key_words[:2])}\n")
        settings_of_alias = {
            "HostName": "127.0.0.1",
            "Port": port,
            "User": self.user,
            "IdentityFile": self.identity_file,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "none",
            "StrictHostKeyChecking": "yes",
        }
        lines = [f"Host {alias}", *(f"  {name} {value}" for name, value in settings_of_alias.items())]
        self.config_file.write_text("\n".join(lines) + "\n")
        super().__init__([*enter, *command], folder / "sshd.log", lambda: port_answers(port))

    def sessions(self) -> list[int]:
        """Return the processes of the connections that stand, but none of what outlives them."""
        return below(self.pid)

    def cut(self) -> None:
        """End every connection."""
        send(signal.SIGKILL, self.sessions())

    def swallow(self) -> None:
        """Keep every connection open, and answer nothing any more."""
        send(signal.SIGSTOP, [self.pid, *self.sessions()])

    def answer(self) -> None:
        """End `swallow`."""
        send(signal.SIGCONT, [*self.sessions(), self.pid])

    def connection(self) -> dict[str, Any]:
        """Return the engine as a host of hosts.yml."""
        named = {"docker": f"ssh://{self.alias}", "docker_socket": str(self.remote_socket)}
        return {**named, "ssh_config": str(self.config_file)}


def skip_without_sshd() -> None:
    """Skip a test that needs an sshd, or fail it if engines are required."""
    skip_without("an sshd", lambda: missing("sshd"))

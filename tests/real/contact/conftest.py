"""Fresh ssh hosts behind a jump host, all on loopback: an sshd each, with a new host key that nobody knows."""

import contextlib
import getpass
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.engines.processes import Server, free_port, port_answers, short_folder
from tests.support.engines.servers import new_key, skip_without_sshd, sshd_command


@dataclass
class FreshHosts:
    """Some sshds; `ssh -F config` knows `node-0000`, … through `bastion`.

    `near` is `node-0000` reached directly, `deep` is `node-0000` through `bastion` and `node-0001`.

    Attributes:
        config: Says nothing about host keys but where the user's own known-hosts file is.
        own: That file, empty at first.
    """

    folder: Path
    config: Path
    own: Path
    servers: dict[str, Server] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, *settings: str) -> None:
        """Start an sshd with a key and a port of its own, which the user's ssh configuration then knows."""
        self.ports[name] = port = free_port()
        key, config = self.folder / f"{name}.key", self.folder / f"{name}.sshd_config"
        public, listen = self.folder / "identity.pub", f"127.0.0.1:{port}"
        command = sshd_command(config, key, public, listen, *settings, HOME=self.folder)
        self.servers[name] = Server(command, self.folder / f"{name}.log", lambda: port_answers(port))
        self.servers[name].start()
        self._write_config()

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()

    def replace(self, name: str) -> None:
        """Let another machine have the address of a host, as rented ones get it: with another key."""
        self.servers[name].stop()
        new_key(self.folder / f"{name}.key")
        self.servers[name].start()

    def fingerprint(self, name: str) -> str:
        """Return the fingerprint of a host's key, in the words of `ssh-keygen`."""
        command = ["ssh-keygen", "-lf", str(self.folder / f"{name}.key.pub")]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]

    def _write_config(self) -> None:
        for_all = f"  HostName 127.0.0.1\n  User {getpass.getuser()}\n  IdentityFile {self.folder / 'identity'}\n"
        for_all += f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.own}\n  GlobalKnownHostsFile none\n"
        text = "".join(f"Host {name}\n  Port {port}\n" for name, port in self.ports.items())
        text += f"Host near\n  Port {self.ports.get('node-0000', 22)}\n"
        text += f"Host deep\n  Port {self.ports.get('node-0000', 22)}\n  ProxyJump bastion,node-0001\n"
        self.config.write_text(f"{text}Host node-*\n  ProxyJump bastion\nHost *\n{for_all}")

    def dropped(self, name: str = "bastion") -> int:
        """Count the connections that an sshd dropped because of MaxStartups."""
        return (self.folder / f"{name}.log").read_text().count("drop connection")


@pytest.fixture(scope="module")
def make_fresh_hosts() -> Iterator[Callable[..., FreshHosts]]:
    """Give a function that starts hosts; all end with the module."""
    skip_without_sshd()
    with contextlib.ExitStack() as stack:

        def make(count: int, *bastion: str) -> FreshHosts:
            folder = stack.enter_context(short_folder("tfb-new-"))
            hosts = FreshHosts(folder, folder / "ssh_config", folder / "own_known_hosts")
            stack.callback(hosts.stop)
            new_key(folder / "identity")
            hosts.own.touch()
            hosts.add("bastion", *bastion)
            for number in range(count):
                hosts.add(f"node-{number:04d}")
            return hosts

        yield make

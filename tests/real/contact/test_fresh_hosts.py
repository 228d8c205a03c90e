"""Host keys of fresh and replaced hosts, directly and through a jump host; no host of a fleet is lost on the way.

What is real: ssh, an sshd per host with a key of its own, the jump host's sshd, the controller. What is simulated: the
machines, which are one, and the engines behind the sshds, whose benchmark only waits (studies/fleet).

`TFBENCH_TEST_FRESH_HOSTS=50` takes 50 hosts through a jump host with sshd's default of MaxStartups, which takes minutes
of a small machine; without it there are fewer hosts, and a jump host that drops connections accordingly sooner.
"""

import contextlib
import getpass
import json
import os
import secrets
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrate.engines.ssh.channel import Channel
from orchestrate.errors import Unreachable
from orchestrate.inventory.hosts import Host, read_hosts
from studies.controller_cost import run_controller
from studies.fleet.bench_fleet import fake_engines, faults_of, write_hosts
from tests.support.engines.processes import Server, free_port, port_answers, short_folder
from tests.support.engines.servers import new_key, skip_without_sshd, sshd_command

MANY = int(os.environ.get("TFBENCH_TEST_FRESH_HOSTS", "0"))
FEW = 6
DROPS_SOON = "MaxStartups 2:50:6"


@dataclass(frozen=True)
class FreshHosts:
    """Some sshds, by name; `ssh -F config` knows `node-0000`, … through `bastion`.

    `near` is `node-0000` reached directly, `deep` is `node-0000` through `bastion` and `node-0001`.

    Attributes:
        config: Says nothing about host keys but where the user's own known-hosts file is.
        own: That file, empty at first.
    """

    folder: Path
    config: Path
    own: Path
    servers: dict[str, Server]
    ports: dict[str, int]

    def replace(self, name: str) -> None:
        """Let another machine have the address of a host, as rented ones get it: with another key."""
        self.servers[name].stop()
        new_key(self.folder / f"{name}.key")
        self.servers[name].start()


@contextlib.contextmanager
def fresh_hosts(count: int, *bastion: str) -> Iterator[FreshHosts]:
    """Start hosts, each with a key and a port of its own, behind a jump host with these settings."""
    skip_without_sshd()
    with short_folder("tfb-new-") as folder, contextlib.ExitStack() as stack:
        new_key(folder / "identity")
        ports = {name: free_port() for name in ("bastion", *(f"node-{number:04d}" for number in range(count)))}
        servers = {}
        for name, port in ports.items():
            settings = bastion if name == "bastion" else ()
            key, public, listen = folder / f"{name}.key", folder / "identity.pub", f"127.0.0.1:{port}"
            command = sshd_command(folder / f"{name}.sshd_config", key, public, listen, *settings, HOME=folder)
            servers[name] = Server(command, folder / f"{name}.log", lambda port=port: port_answers(port))
            stack.enter_context(servers[name])
        config, own = folder / "ssh_config", folder / "own_known_hosts"
        own.touch()
        known = {**ports, "near": ports["node-0000"], "deep": ports["node-0000"]}
        hosts = [f"Host {name}\n  Port {port}\n" for name, port in known.items()]
        config.write_text(
            "".join(hosts) + "Host deep\n  ProxyJump bastion,node-0001\nHost node-*\n  ProxyJump bastion\n"
            f"Host *\n  HostName 127.0.0.1\n  User {getpass.getuser()}\n  IdentityFile {folder / 'identity'}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {own}\n  GlobalKnownHostsFile none\n"
        )
        yield FreshHosts(folder, config, own, servers, ports)


@pytest.fixture(scope="module")
def fresh() -> Iterator[FreshHosts]:
    with fresh_hosts(2) as hosts:
        yield hosts


@pytest.fixture
def read(fresh: FreshHosts, tmp_path: Path) -> Callable[..., Host]:
    """Give a function that writes and reads a hosts file of one of these hosts."""

    def read_again(name: str, **settings: str) -> Host:
        entry = {"ssh": name, "ssh_config": str(fresh.config), **settings}
        (tmp_path / "hosts.yml").write_text(json.dumps({"version": 1, "fleets": {"rented": {"hosts": {name: entry}}}}))
        (host,) = read_hosts(tmp_path / "hosts.yml")
        return host

    fresh.own.write_text("")
    return read_again


def reach(host: Host) -> bool:
    """Ask the host's agent something, over a connection of its own."""
    channel = Channel(host.login, root=f"/nowhere/{secrets.token_hex(4)}", keys=host.host_keys)
    return channel.request("running", run="none") == {"jobs": []}


def refusal(host: Host) -> str:
    with pytest.raises(Unreachable) as caught:
        reach(host)
    return caught.value.cause


def test_a_fresh_host_is_refused_with_the_setting_that_accepts_it(fresh, read):
    cause = refusal(read("near"))
    assert "Host key verification failed" in cause and "host_keys: accept-new" in cause
    assert reach(read("near", host_keys="accept-new")) and reach(read("near", host_keys="strict"))


def test_accept_new_adds_hosts_and_jump_hosts_to_the_fleets_file(fresh, read, tmp_path):
    assert reach(read("deep", host_keys="accept-new")) and reach(read("deep", host_keys="strict"))
    known = (tmp_path / "hosts.rented.known_hosts").read_text()
    assert [line.split()[0] for line in known.splitlines()] == [
        f"[127.0.0.1]:{fresh.ports[name]}" for name in ("bastion", "node-0001", "node-0000")
    ]
    assert fresh.own.read_text() == "", "the user's own file is not ours to write"


def test_where_nothing_is_set_the_users_configuration_decides(fresh, read, tmp_path):
    config = fresh.config.read_text()
    try:
        fresh.config.write_text(f"StrictHostKeyChecking accept-new\n{config}")
        assert reach(read("near"))
    finally:
        fresh.config.write_text(config)
    assert str(fresh.ports["node-0000"]) in fresh.own.read_text()
    assert not (tmp_path / "hosts.rented.known_hosts").exists()


@pytest.mark.parametrize(("name", "replaced"), [("near", "node-0000"), ("node-0001", "bastion")])
def test_a_replaced_host_is_refused_with_its_key_and_the_way_out(fresh, read, tmp_path, name, replaced):
    host = read(name, host_keys="accept-new")
    reach(host)
    fresh.replace(replaced)
    cause = refusal(host)
    assert f"CHANGED: [127.0.0.1]:{fresh.ports[replaced]} offers the ED25519 key" in cause
    command = ["ssh-keygen", "-lf", str(fresh.folder / f"{replaced}.key.pub")]
    fingerprint = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]
    assert fingerprint in cause and str(tmp_path / "hosts.rented.known_hosts") in cause
    forget = cause.partition("forget the old key: ")[2].partition(". Otherwise")[0]
    subprocess.run(shlex.split(forget), check=True, capture_output=True)
    assert reach(host)


def test_no_fresh_host_behind_a_jump_host_is_lost():
    count = MANY or FEW
    with fresh_hosts(count, *([] if MANY else [DROPS_SOON])) as fresh:
        hosts_file = write_hosts(fresh.folder, count, cases=1)
        document = json.loads(hosts_file.read_text())
        for fleet in document["fleets"].values():
            for name, entry in fleet["hosts"].items():
                entry |= {"docker": f"ssh://{name}", "docker_socket": entry["docker"].removeprefix("unix://")}
                entry |= {"ssh_config": str(fresh.config), "host_keys": "accept-new"}
        hosts_file.write_text(json.dumps(document))
        with fake_engines(fresh.folder, count, seconds=0.3):
            ran = run_controller(fresh.folder)
        assert ran.exit_code == 0, (fresh.folder / "output.txt").read_text()
        assert faults_of(fresh.folder, ran) == []
        (journal,) = fresh.folder.glob("runs/*/events.jsonl")
        events = map(json.loads, journal.read_text().splitlines())
        assert [event for event in events if event["event"] in ("host_lost", "warned")] == []
        dropped = "drop connection" in (fresh.folder / "bastion.log").read_text()
        assert MANY or dropped, "the jump host was not busy enough to show anything"

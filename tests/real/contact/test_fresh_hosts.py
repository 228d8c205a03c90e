"""Host keys of fresh and replaced hosts, directly and through a jump host; no host of a fleet is lost on the way.

What is real: ssh, an sshd per host with a key of its own, the jump host's sshd, the controller. What is simulated: the
machines, which are one, and the engines behind the sshds, whose benchmark only waits (studies/fleet).

`TFBENCH_TEST_FRESH_HOSTS=50` takes 50 hosts through a jump host with sshd's default of MaxStartups, which takes minutes
of a small machine; without it there are fewer hosts, and a jump host that drops connections accordingly sooner.
"""

import json
import os
import secrets
import shlex
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrate.engines.ssh.channel import Channel
from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import HostKeys, SSHAddress
from orchestrate.inventory.hosts import Host, read_hosts
from studies.controller_cost import run_controller
from studies.fleet.bench_fleet import fake_engines, faults_of, write_hosts
from studies.fleet.engine import socket_path
from tests.real.contact.conftest import FreshHosts

MANY = int(os.environ.get("TFBENCH_TEST_FRESH_HOSTS", "0"))
FEW = 6
DROPS_SOON = "MaxStartups 2:50:6"


@pytest.fixture(scope="module")
def fresh(make_fresh_hosts: Callable[..., FreshHosts]) -> FreshHosts:
    return make_fresh_hosts(2)


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


@pytest.mark.parametrize("policy", [{}, {"host_keys": "strict"}])
def test_a_fresh_host_is_refused_with_the_setting_that_accepts_it(fresh, read, tmp_path, policy):
    cause = refusal(read("near", **policy))
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
    assert fresh.fingerprint(replaced) in cause and str(tmp_path / "hosts.rented.known_hosts") in cause
    forget = cause.partition("forget the old key: ")[2].partition(". Otherwise")[0]
    subprocess.run(shlex.split(forget), check=True, capture_output=True)
    assert reach(host)


def test_a_stale_key_of_the_users_is_harmless_where_the_fleets_decide(fresh, read):
    stale = (fresh.folder / "identity.pub").read_text().split()[:2]
    fresh.own.write_text(f"[127.0.0.1]:{fresh.ports['node-0000']} {' '.join(stale)}\n")
    assert str(fresh.own) in refusal(read("near"))
    assert reach(read("near", host_keys="accept-new"))


def through_the_jump_host(fresh: FreshHosts, hosts_file: Path) -> None:
    """Let every engine of a hosts file be reached by ssh, with a key that nobody has seen."""
    document = json.loads(hosts_file.read_text())
    for fleet in document["fleets"].values():
        for name, entry in fleet["hosts"].items():
            number = int(name.removeprefix("node-"))
            entry |= {"docker": f"ssh://{name}", "docker_socket": str(socket_path(fresh.folder, number))}
            entry |= {"ssh_config": str(fresh.config), "host_keys": "accept-new"}
    hosts_file.write_text(json.dumps(document))


def test_no_fresh_host_behind_a_jump_host_is_lost(make_fresh_hosts: Callable[..., FreshHosts]):
    count = MANY or FEW
    fresh = make_fresh_hosts(count, *([] if MANY else [DROPS_SOON]))
    hosts_file = write_hosts(fresh.folder, count, cases=1)
    through_the_jump_host(fresh, hosts_file)
    with fake_engines(fresh.folder, count, seconds=0.3):
        ran = run_controller(fresh.folder)
    assert ran.exit_code == 0, (fresh.folder / "output.txt").read_text()
    assert faults_of(fresh.folder, ran) == []
    (run,) = (fresh.folder / "runs").iterdir()
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    assert [event for event in events if event["event"] in ("host_lost", "warned")] == []
    assert MANY or fresh.dropped(), "the jump host was not busy enough to show anything"


def test_requests_that_the_jump_host_dropped_are_made_again(make_fresh_hosts: Callable[..., FreshHosts]):
    fresh = make_fresh_hosts(1, DROPS_SOON)
    address = SSHAddress(target="node-0000", ssh_config=str(fresh.config))
    keys = HostKeys(policy="accept-new", file=str(fresh.folder / "fleet.known_hosts"))
    channel = Channel(address, root=str(fresh.folder / "home"), keys=keys)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: channel.request("running", run=f"run-{number}"), range(6)))
    assert answers == [{"jobs": []}] * 6

"""Host keys of fresh, known and replaced hosts, directly and through a jump host, with real sshds."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrate.errors import Unreachable
from orchestrate.inventory.hosts import Host, read_hosts
from orchestrate.launchers.slurm.commands import LoginShell
from orchestrate.links.first_contact import remember_new_keys
from tests.real.contact.conftest import FreshHosts


@pytest.fixture(scope="module")
def fresh(make_fresh_hosts: Callable[..., FreshHosts]) -> FreshHosts:
    return make_fresh_hosts(2)


@pytest.fixture
def read(fresh: FreshHosts, tmp_path: Path) -> Callable[..., list[Host]]:
    """Give a function that writes and reads a hosts file of these hosts."""

    def read_again(*names: str, **settings: str) -> list[Host]:
        entries = {name: {"ssh": name, "ssh_config": str(fresh.config), **settings} for name in names}
        (tmp_path / "hosts.yml").write_text(json.dumps({"version": 1, "fleets": {"rented": {"hosts": entries}}}))
        return read_hosts(tmp_path / "hosts.yml")

    fresh.own.write_text("")
    return read_again


def reach(host: Host) -> str:
    (line,) = filter(None, LoginShell(host.login, host.host_keys).run("echo reached"))
    return line


def refusal(host: Host) -> str:
    with pytest.raises(Unreachable) as caught:
        reach(host)
    return caught.value.cause


def test_new_keys_behind_a_jump_host_are_shown_once_and_then_known(fresh, read, tmp_path):
    hosts = read("node-0000", "node-0001")
    new = remember_new_keys(hosts)
    assert [(item.fleet, item.name, item.key.kind, item.key.fingerprint) for item in new] == [
        ("rented", "jump host bastion", "ED25519", fresh.fingerprint("bastion")),
        ("rented", "node-0000", "ED25519", fresh.fingerprint("node-0000")),
        ("rented", "node-0001", "ED25519", fresh.fingerprint("node-0001")),
    ]
    known = tmp_path / "hosts.rented.known_hosts"
    assert {item.file for item in new} == {str(known)} and len(known.read_text().splitlines()) == 3
    assert fresh.own.read_text() == "", "the user's own file is not ours to write"
    assert remember_new_keys(hosts) == []
    for policy in ({}, {"host_keys": "strict"}):
        assert [reach(host) for host in read("node-0001", **policy)] == ["reached"], policy
    assert len(known.read_text().splitlines()) == 3


def test_keys_behind_two_jump_hosts_are_remembered_one_after_another(fresh, read):
    (host,) = read("deep", host_keys="strict")
    new = [item.key.fingerprint for item in remember_new_keys([host])]
    assert new == [fresh.fingerprint(name) for name in ("bastion", "node-0001", "node-0000")]
    assert reach(host) == "reached"


@pytest.mark.parametrize("policy", [{}, {"host_keys": "strict"}])
def test_a_fresh_host_is_refused_with_the_command_that_remembers_it(read, policy):
    (host,) = read("near", **policy)
    cause = refusal(host)
    assert "Host key verification failed" in cause and "check --trust-new" in cause
    (item,) = remember_new_keys([host])
    assert (item.name, reach(host)) == ("near", "reached")


def test_accept_new_adds_fresh_hosts_and_jump_hosts_to_the_fleets_file(fresh, read, tmp_path):
    (host,) = read("node-0000", host_keys="accept-new")
    assert reach(host) == "reached"
    known = (tmp_path / "hosts.rented.known_hosts").read_text()
    assert [line.split()[0] for line in known.splitlines()] == [
        f"[127.0.0.1]:{fresh.ports[name]}" for name in ("bastion", "node-0000")
    ]
    assert fresh.own.read_text() == ""


def test_where_nothing_is_set_the_users_configuration_decides(fresh, read, tmp_path):
    config = fresh.config.read_text()
    try:
        fresh.config.write_text(f"StrictHostKeyChecking accept-new\n{config}")
        (host,) = read("near")
        assert reach(host) == "reached"
    finally:
        fresh.config.write_text(config)
    assert str(fresh.ports["node-0000"]) in fresh.own.read_text()
    assert not (tmp_path / "hosts.rented.known_hosts").exists()


@pytest.mark.parametrize(("name", "policy"), [("near", {}), ("node-0000", {"host_keys": "accept-new"})])
def test_a_replaced_host_is_refused_with_both_fingerprints_and_the_way_out(fresh, read, tmp_path, name, policy):
    (host,) = read(name, **policy)
    remember_new_keys([host])
    old = fresh.fingerprint("node-0000")
    fresh.replace("node-0000")
    cause = refusal(host)
    known = tmp_path / "hosts.rented.known_hosts"
    line = len(known.read_text().splitlines())  # of the host: the jump host is asked first
    assert f"offers the ED25519 key {fresh.fingerprint('node-0000')}" in cause
    assert f"{known}:{line} has the ED25519 key {old}" in cause
    forget = cause.partition("forget the old key: ")[2].partition(", then remember the new one: ")[0]
    assert remember_new_keys([host]) == [] and refusal(host) == cause, "a changed key is not a new one"
    subprocess.run(shlex.split(forget), check=True, capture_output=True)
    (item,) = remember_new_keys([host])
    assert (item.key.fingerprint, reach(host)) == (fresh.fingerprint("node-0000"), "reached")


def test_a_replaced_jump_host_is_refused_by_its_own_name(fresh, read):
    (host,) = read("node-0001", host_keys="strict")
    remember_new_keys([host])
    fresh.replace("bastion")
    cause = refusal(host)
    assert f"CHANGED: [127.0.0.1]:{fresh.ports['bastion']} offers" in cause and fresh.fingerprint("bastion") in cause


def test_a_stale_key_of_the_users_is_harmless_where_the_fleets_decide(fresh, read):
    stale = fresh.folder / "stale.key.pub"
    stale.write_text((fresh.folder / "identity.pub").read_text())
    fresh.own.write_text(f"[127.0.0.1]:{fresh.ports['node-0000']} {' '.join(stale.read_text().split()[:2])}\n")
    (host,) = read("near")
    assert str(fresh.own) in refusal(host)
    (host,) = read("near", host_keys="accept-new")
    assert reach(host) == "reached"


def test_a_shared_connection_of_the_users_saves_the_login(fresh, read):
    config, authorized = fresh.config.read_text(), fresh.folder / "identity.pub"
    key = authorized.read_text()
    try:
        fresh.config.write_text(f"ControlPath {fresh.folder}/%n.ctl\n{config}")
        (host,) = read("near", host_keys="accept-new")
        words = ["ssh", "-F", str(fresh.config), "-oStrictHostKeyChecking=no", "-M", "-N", "-f", "near"]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        authorized.write_text("")  # as if each login took a second factor
        assert reach(host) == "reached"
        subprocess.run(["ssh", "-F", str(fresh.config), "-O", "exit", "near"], check=True, capture_output=True)
        assert "Permission denied" in refusal(host)
    finally:
        authorized.write_text(key)
        fresh.config.write_text(config)

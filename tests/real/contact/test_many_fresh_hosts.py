"""A fleet of fresh hosts through one jump host: `check --trust-new`, then `run`, and no host is lost.

What is real: ssh, an sshd per host with a key of its own, the jump host's sshd, the controller. What is simulated: the
machines, which are one, and the engines behind the sshds, whose benchmark only waits (tests/benchmarks/fleet).

`TFBENCH_TEST_FRESH_HOSTS=50` takes 50 hosts through a jump host with sshd's default of MaxStartups, which takes minutes
of a small machine; without it there are fewer hosts, and a jump host that drops connections accordingly sooner.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from orchestrate.inventory.addresses import HostKeys, SSHAddress
from orchestrate.launchers.ssh.connection import Connection
from tests.benchmarks.controller_cost import run_controller
from tests.benchmarks.fleet.__main__ import socket_path
from tests.benchmarks.fleet.bench_fleet import find_faults, stand_in_engines, write_hosts
from tests.real.contact.conftest import FreshHosts
from tests.support.wheel import PROJECT as ROOT

MANY = int(os.environ.get("TFBENCH_TEST_FRESH_HOSTS", "0"))
FEW = 6
DROPS_SOON = "MaxStartups 2:50:6"


def through_the_jump_host(fresh: FreshHosts, hosts_file: Path) -> None:
    """Let every engine of a hosts file be reached by ssh."""
    document = json.loads(hosts_file.read_text())
    for fleet in document["fleets"].values():
        for name, entry in fleet["hosts"].items():
            number = int(name.removeprefix("node-"))
            entry["docker"] = f"ssh://{name}"
            entry |= {"docker_socket": str(socket_path(fresh.folder, number)), "ssh_config": str(fresh.config)}
    hosts_file.write_text(json.dumps(document))


def check(hosts_file: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrate", "check", "--trust-new", f"--hosts={hosts_file}"]
    environment = {**os.environ, "COLUMNS": "240"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_no_fresh_host_behind_a_jump_host_is_lost(make_fresh_hosts: Callable[..., FreshHosts]):
    count = MANY or FEW
    fresh = make_fresh_hosts(count, *([] if MANY else [DROPS_SOON]))
    hosts_file = write_hosts(fresh.folder, count, cases=1)
    through_the_jump_host(fresh, hosts_file)
    with stand_in_engines(fresh.folder, count, seconds=0.3):
        checked = check(hosts_file)
        ran = run_controller(fresh.folder)
    assert checked.returncode == 0, checked.stderr
    for name in fresh.servers:
        assert checked.stdout.count(fresh.fingerprint(name)) == 1, f"{name}:\n{checked.stdout}"
    assert "unusable" not in checked.stdout and "cannot be measured" not in checked.stdout, checked.stdout
    assert ran.exit_code == 0, (fresh.folder / "output.txt").read_text()
    assert find_faults(fresh.folder) == []
    (run,) = (fresh.folder / "runs").iterdir()
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    assert [event for event in events if event["event"] in ("host_lost", "warned")] == []
    assert MANY or fresh.dropped(), "the jump host was not busy enough to show anything"


def test_requests_that_the_jump_host_dropped_are_made_again(
    make_fresh_hosts: Callable[..., FreshHosts],
):
    fresh = make_fresh_hosts(1, DROPS_SOON)
    address = SSHAddress(target="node-0000", ssh_config=str(fresh.config))
    keys = HostKeys(policy="accept-new", file=str(fresh.folder / "fleet.known_hosts"))
    connection = Connection(address, root=str(fresh.folder / "home"), keys=keys)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda number: connection.ask("running", run=f"run-{number}"), range(6)))
    assert answers == [{"jobs": []}] * 6

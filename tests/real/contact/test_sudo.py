"""Engines that only root may use, through a real sshd, a real jump host and the real Docker CLI.

`sudo` is a fake: tests run as root, whom no sudo asks for a password. The engine is that of tests/benchmarks/fleet.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrate.errors import Unreachable
from orchestrate.inventory.addresses import DockerAddress, HostKeys
from orchestrate.launchers.docker.engine import ContainerEngine
from orchestrate.links import ssh
from tests.benchmarks.controller_cost import run_controller
from tests.benchmarks.fleet.__main__ import socket_path
from tests.benchmarks.fleet.bench_fleet import find_faults, stand_in_engines, write_hosts
from tests.real.contact.conftest import FreshHosts
from tests.support.engines.processes import find_program
from tests.support.engines.required import skip_without
from tests.support.wheel import PROJECT as ROOT

SUDO = """\
#!/bin/sh
[ "$1" = -n ] || { echo "it would wait for a password" >&2; exit 1; }
shift
[ ! -e "$0.asks" ] || { echo "sudo: a password is required" >&2; exit 1; }
exec "$@"
"""


@pytest.fixture(scope="module")
def fresh(make_fresh_hosts: Callable[..., FreshHosts]) -> FreshHosts:
    skip_without("a Docker CLI", lambda: None if find_program("docker") else "install docker.io")
    hosts = make_fresh_hosts(0)
    (hosts.folder / "bin").mkdir()
    sudo = hosts.folder / "bin" / "sudo"
    sudo.write_text(SUDO)
    sudo.chmod(0o755)
    hosts.add("node-0000", f"SetEnv PATH={hosts.folder / 'bin'}:{os.environ['PATH']}")
    return hosts


@pytest.fixture(params=["ssh", "unix"])
def engine(
    request: pytest.FixtureRequest, fresh: FreshHosts, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ContainerEngine]:
    """Give an engine there or here; over ssh, a dead link is noticed within 4 seconds."""
    monkeypatch.setenv("PATH", f"{fresh.folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "OPTIONS", tuple(word.replace("Interval=5", "Interval=1") for word in ssh.OPTIONS))
    socket = str(socket_path(fresh.folder, 0))
    address = DockerAddress(scheme="unix", target=socket, via="sudo")
    if request.param == "ssh":
        address = DockerAddress(
            scheme="ssh", target="node-0000", socket=socket, ssh_config=str(fresh.config), via="sudo"
        )
    keys = HostKeys(policy="accept-new", file=str(fresh.folder / "fleet.known_hosts"))
    made = ContainerEngine(address, keys)
    with stand_in_engines(fresh.folder, 1, seconds=0.3):
        yield made
    made.close()


def below(pid: int) -> dict[int, str]:
    """Return the command lines of all processes below a process that still run."""
    found: dict[int, str] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        children: list[int] = []
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            children = [*map(int, (task / "children").read_text().split())]
        for child in children:
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
                found |= below(child)
    return found


def ends(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.05)


def test_a_run_by_sudo_through_a_jump_host_keeps_nothing(fresh: FreshHosts):
    hosts_file = write_hosts(fresh.folder, 1, cases=1)
    document = json.loads(hosts_file.read_text())
    document["defaults"] |= {"docker_via": "sudo", "host_keys": "accept-new"}
    entry = document["fleets"]["fleet-00"]["hosts"]["node-0000"]
    entry |= {
        "docker": "ssh://node-0000",
        "docker_socket": str(socket_path(fresh.folder, 0)),
        "ssh_config": str(fresh.config),
    }
    hosts_file.write_text(json.dumps(document))
    with stand_in_engines(fresh.folder, 1, seconds=0.3):
        ran = run_controller(fresh.folder)
    assert ran.exit_code == 0, (fresh.folder / "output.txt").read_text()
    assert find_faults(fresh.folder) == []


def test_a_sudo_that_asks_for_a_password_says_how_to_allow_it(fresh: FreshHosts, engine: ContainerEngine):
    asks = fresh.folder / "bin" / "sudo.asks"
    asks.touch()
    try:
        with pytest.raises(Unreachable) as caught:
            engine.info()
    finally:
        asks.unlink()
    assert "sudo docker: sudo: a password is required To allow it without a password" in caught.value.cause
    assert "NOPASSWD: /usr/bin/docker" in caught.value.cause
    assert engine.info()["NCPU"] == 8, "the next try starts from nothing"


def test_a_connection_that_ends_is_made_again_and_closing_ends_all(engine: ContainerEngine):
    assert engine.info()["NCPU"] == 8
    for pid, command in below(os.getpid()).items():
        if command.startswith(("ssh ", "docker ")):
            os.kill(pid, signal.SIGKILL)
    assert engine.info()["NCPU"] == 8
    engine.close()
    wait_until(lambda: not any(" dial-stdio" in command for command in below(os.getpid()).values()), "the end of all")


@pytest.mark.parametrize("engine", ["ssh"], indirect=True)
def test_a_link_that_swallows_everything_is_noticed_and_made_again(fresh: FreshHosts, engine: ContainerEngine):
    assert engine.info()["NCPU"] == 8
    processes = below(os.getpid())
    sessions = [pid for pid, command in processes.items() if command.startswith("sshd: ") and "listener" not in command]
    (master,) = [pid for pid, command in processes.items() if command.startswith("ssh -N ")]
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: ends(master), "ssh to notice that nobody answers")
        assert engine.info()["NCPU"] == 8
    finally:
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


CONTROLLER = """
import sys, time
from orchestrate.inventory.addresses import DockerAddress, HostKeys
from orchestrate.launchers.docker.engine import ContainerEngine
config, known, socket = sys.argv[1:]
address = DockerAddress(scheme="ssh", target="node-0000", socket=socket, ssh_config=config, via="sudo")
engine = ContainerEngine(address, HostKeys(policy="accept-new", file=known))
engine.info()
print("connected", flush=True)
time.sleep(600)
"""


def test_a_killed_controller_leaves_no_process(fresh: FreshHosts):
    words = [str(fresh.config), str(fresh.folder / "fleet.known_hosts"), str(socket_path(fresh.folder, 0))]
    with (
        stand_in_engines(fresh.folder, 1, seconds=0.3),
        subprocess.Popen(
            [sys.executable, "-c", CONTROLLER, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as controller,
    ):
        assert controller.stdout is not None and controller.stdout.readline() == "connected\n"
        started = below(controller.pid)
        assert sum(command.startswith("ssh ") for command in started.values()) >= 2, started
        controller.kill()
        wait_until(lambda: all(ends(pid) for pid in started), "the end of what it started")

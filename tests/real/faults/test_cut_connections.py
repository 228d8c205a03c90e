"""The connection to a host is cut, or swallows everything: no record is lost, nothing ends that has not ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from results.schema import Status
from tests.real.faults.conftest import FakeImages
from tests.real.ssh.rented import below
from tests.support.controller import Runs, counted, ours, running, wait_until
from tests.support.engines.docker import Engines
from tests.support.engines.farhost import Wire, make_far_host, wires_missing
from tests.support.engines.required import skip_without
from tests.support.engines.servers import SshHost

pytestmark = pytest.mark.docker

SWALLOWED_SECONDS = 8


def connection(host: SshHost) -> dict[str, Any]:
    return {
        "docker": f"ssh://{host.alias}",
        "ssh_config": str(host.config_file),
        "docker_socket": str(host.remote_socket),
    }


def start_run(
    runs: Runs, engines: Engines, fake_images: FakeImages, far: SshHost, seconds: float
) -> subprocess.Popen[str]:
    hosts = {"far": connection(far), "near": {"docker": engines.first.url}}
    file = runs.hosts({"all": {"hosts": hosts}}, image=fake_images.image(seconds=seconds))
    return runs.start("run", f"--hosts={file}", "--display=plain")


def wait_for_first_step(engines: Engines) -> None:
    (benchmark,) = wait_until(lambda: running(engines.second), "a benchmark")
    wait_until(lambda: b"step" in benchmark.logs(), "its first step")


def assert_nothing_was_lost(runs: Runs, engines: Engines) -> None:
    assert {host: record.status for host, record in runs.by_host().items()} == {"far": Status.OK, "near": Status.OK}
    assert sum(counted(engines.second, "start", runs.path.name).values()) == 1
    assert runs.events("host_lost") == []
    assert ours(engines.second) == []
    (log,) = (runs.path / "logs").glob("all.far.*")
    steps = [int(number) for number in re.findall(r"^step +(\d+)", log.read_text(), re.MULTILINE)]
    assert steps == list(range(1, len(steps) + 1)), "lines were lost, or came twice"
    assert len(steps) > 5


def test_an_ssh_connection_that_is_cut_twice_is_made_again(
    engines: Engines, fake_images: FakeImages, runs: Runs, ssh_host: SshHost
):
    with start_run(runs, engines, fake_images, ssh_host, seconds=6) as controller:
        try:
            for _ in range(2):
                wait_for_first_step(engines)
                sessions = wait_until(lambda: below(sshd_pid(ssh_host)), "an ssh connection")
                for pid in sessions:
                    with contextlib.suppress(ProcessLookupError):  # it ended with its parent
                        os.kill(pid, signal.SIGKILL)
            assert controller.wait(180) == 0
        finally:
            controller.kill()
    assert_nothing_was_lost(runs, engines)


def sshd_pid(host: SshHost) -> int:
    return int((host.config_file.parent / "sshd.pid").read_text())


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    """Make a wire."""
    skip_without("a network namespace", wires_missing)
    with Wire() as wire:
        yield wire


@pytest.fixture(scope="module")
def far_host(engine_folder: Path, engines: Engines, wire: Wire) -> Iterator[SshHost]:
    """Start an sshd at its far end, which leads to the second engine."""
    folder = engine_folder / "far"
    folder.mkdir()
    host = make_far_host(folder, engines.second.socket, wire)
    try:
        host.start()
        yield host
    finally:
        wire.mend()
        host.stop()


def test_packets_that_disappear_for_a_while_lose_nothing(
    engines: Engines, fake_images: FakeImages, runs: Runs, wire: Wire, far_host: SshHost
):
    with start_run(runs, engines, fake_images, far_host, seconds=4) as controller:
        try:
            wait_for_first_step(engines)
            wire.drop_packets()
            time.sleep(SWALLOWED_SECONDS)  # the benchmark ends meanwhile, and nobody can tell us
            wait_until(lambda: not running(engines.second), "the end of the benchmark")
            assert controller.poll() is None
            wire.mend()
            assert controller.wait(180) == 0
        finally:
            wire.mend()
            controller.kill()
    assert_nothing_was_lost(runs, engines)


def test_a_connection_that_swallows_everything_is_given_up_and_made_again(
    engines: Engines, fake_images: FakeImages, runs: Runs, wire: Wire, far_host: SshHost
):
    with start_run(runs, engines, fake_images, far_host, seconds=4) as controller:
        try:
            wait_for_first_step(engines)
            (tunnel,) = wait_until(lambda: only(filter(is_ssh, below(controller.pid))), "a single tunnel")
            wire.drop_packets()
            wait_until(lambda: not is_ssh(tunnel), "ssh to notice that nobody answers", seconds=100)
            assert controller.poll() is None
            wire.mend()
            assert controller.wait(180) == 0
        finally:
            wire.mend()
            controller.kill()
    assert_nothing_was_lost(runs, engines)


def only(found: Iterable[int]) -> list[int]:
    """Return what was found where it is a single one: another connection may just end."""
    listed = list(found)
    return listed if len(listed) == 1 else []


def is_ssh(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "ssh"
    except OSError:
        return False

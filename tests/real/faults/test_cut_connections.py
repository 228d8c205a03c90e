"""The connection to a host is cut, or swallows everything: no record is lost, nothing ends that has not ended."""

import time
from collections.abc import Iterable, Iterator

import pytest

from results.schema import Status
from tests.real.faults.conftest import FakeImages
from tests.support.controller import Controller, Runs, counted, ours, running
from tests.support.engines.docker import Engines
from tests.support.engines.processes import below, read_proc, wait_until
from tests.support.engines.servers import SshHost

pytestmark = pytest.mark.docker

SWALLOWED_SECONDS = 8


def begin(runs: Runs, engines: Engines, fake_images: FakeImages, far: SshHost, seconds: float) -> Controller:
    hosts = {"far": far.connection(), "near": {"docker": engines.first.url}}
    return runs.begin({"all": {"hosts": hosts}}, image=fake_images.image(seconds=seconds))


def wait_for_first_step(engines: Engines) -> None:
    (benchmark,) = wait_until(lambda: running(engines.second), "a benchmark")
    wait_until(lambda: b"step" in benchmark.logs(), "its first step")


def assert_nothing_was_lost(runs: Runs, engines: Engines) -> None:
    assert {host: record.status for host, record in runs.by_host().items()} == {"far": Status.OK, "near": Status.OK}
    assert sum(counted(engines.second, "start", runs.path.name).values()) == 1
    assert runs.events("host_lost") == []
    assert ours(engines.second) == []
    runs.assert_no_step_was_lost("far")


def test_an_ssh_connection_that_is_cut_twice_is_made_again(engines: Engines, fake_images, runs: Runs, ssh_host):
    with begin(runs, engines, fake_images, ssh_host, seconds=6) as controller:
        for _ in range(2):
            wait_for_first_step(engines)
            wait_until(ssh_host.sessions, "an ssh connection")
            ssh_host.cut()
        assert controller.wait(180) == 0
    assert_nothing_was_lost(runs, engines)


@pytest.fixture
def hole(ssh_host: SshHost) -> Iterator[SshHost]:
    """Give a host that can swallow everything, and answers the next test."""
    yield ssh_host
    ssh_host.answer()


def test_a_connection_that_swallows_everything_for_a_while_loses_nothing(engines, fake_images, runs: Runs, hole):
    with begin(runs, engines, fake_images, hole, seconds=4) as controller:
        wait_for_first_step(engines)
        hole.swallow()
        time.sleep(SWALLOWED_SECONDS)  # the benchmark ends meanwhile, and no message arrives
        wait_until(lambda: not running(engines.second), "the end of the benchmark")
        assert controller.poll() is None
        hole.answer()
        assert controller.wait(180) == 0
    assert_nothing_was_lost(runs, engines)


def test_a_connection_that_swallows_everything_is_given_up_and_made_again(engines, fake_images, runs: Runs, hole):
    with begin(runs, engines, fake_images, hole, seconds=4) as controller:
        wait_for_first_step(engines)
        (tunnel,) = wait_until(lambda: only(filter(is_ssh, below(controller.pid))), "a single tunnel")
        hole.swallow()
        wait_until(lambda: not is_ssh(tunnel), "ssh to notice that nobody answers", seconds=100)
        assert controller.poll() is None
        hole.answer()
        assert controller.wait(180) == 0
    assert_nothing_was_lost(runs, engines)


def only(found: Iterable[int]) -> list[int]:
    """Return what was found where it is a single one: another connection may just end."""
    listed = list(found)
    return listed if len(listed) == 1 else []


def is_ssh(pid: int) -> bool:
    return read_proc(pid, "comm").strip() == b"ssh"

"""The connection to a host ends, is cut, then swallows everything: no record is lost, nothing ends before its time."""

from collections.abc import Iterator

import pytest

from results.schema import Status
from tests.support.controller import Runs, counted, ours, running
from tests.support.engines.docker import Engines
from tests.support.engines.processes import below, read_proc, wait_until
from tests.support.engines.servers import SshHost

pytestmark = pytest.mark.docker


@pytest.fixture
def hole(ssh_host: SshHost) -> Iterator[SshHost]:
    """Give a host that can swallow everything, and answers the next test."""
    yield ssh_host
    ssh_host.answer()


def clients(controller: int) -> list[int]:
    """Return the ssh clients of a controller."""
    return [pid for pid in below(controller) if read_proc(pid, "comm").strip() == b"ssh"]


def states(runs: Runs) -> list[tuple[str, str]]:
    return [(event["host"], event["state"]) for event in runs.events("job_state")]


def test_a_connection_that_ends_is_cut_and_swallows_loses_nothing(engines: Engines, fake_images, runs: Runs, hole):
    hosts = {"far": hole.connection(), "near": {"docker": engines.first.url}}
    with runs.begin({"all": {"hosts": hosts}}, image=fake_images.image(seconds=20)) as controller:
        (benchmark,) = wait_until(lambda: running(engines.second), "a benchmark")
        wait_until(lambda: b"step" in benchmark.logs(), "its first step")
        controller.kill()
    wait_until(lambda: not hole.sessions(), "the end of the dead controller's tunnel")
    assert [container.id for container in ours(engines.second)] == [benchmark.id]
    with runs.start("resume", "--display=plain") as controller:
        wait_until(lambda: ("all.far", "reattached") in states(runs), "the next controller")
        for _ in range(2):
            wait_until(hole.sessions, "an ssh connection")
            hole.cut()
        wait_until(hole.sessions, "the connection to be made again")
        (tunnel,) = wait_until(lambda: len(found := clients(controller.pid)) == 1 and found, "a single tunnel")
        hole.swallow()  # the benchmark ends meanwhile, and no message arrives
        wait_until(lambda: tunnel not in clients(controller.pid), "ssh to notice that nobody answers", seconds=100)
        hole.answer()
        wait_until(lambda: not running(engines.second), "the end of the benchmark")
        assert controller.wait(180) == 0, runs.stderr
    assert {host: record.status for host, record in runs.by_host().items()} == {"far": Status.OK, "near": Status.OK}
    assert sum(counted(engines.second, "start", runs.path.name).values()) == 1
    assert runs.events("host_lost") == []
    assert ours(engines.second) == []
    runs.assert_no_step_was_lost("far")

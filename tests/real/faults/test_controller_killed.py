"""A controller dies at the worst moments; `resume` leaves every repeat exactly once, and starts none twice."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.schema import Status
from tests.real.faults.relay import Moment, Relay
from tests.support.controller import Controller, Runs, counted, ours, running
from tests.support.engines.docker import DockerEngine
from tests.support.engines.processes import all_pids, read_proc, send, wait_until
from tests.support.engines.servers import SshHost
from tests.support.patience import patience

pytestmark = pytest.mark.docker

REPEATS = 2
CREATE = r"POST /containers/create"
START = r"POST /containers/\S+/start"
COLLECT = r"GET /containers/\S+/archive"
REMOVE = r"DELETE /containers/"

MOMENTS = {
    "before the first is created": (Moment(CREATE), 0),
    "created, and it does not know": (Moment(CREATE, after=True), 1),
    "started, and it does not know": (Moment(START, after=True), 1),
    "ended, before its record is collected": (Moment(COLLECT), 1),
    "collected, before it is removed": (Moment(REMOVE), 0),
    "between two repeats": (Moment(REMOVE, after=True), 0),
    "collected, before the last one is removed": (Moment(REMOVE, count=REPEATS), 0),
}
"""When the controller dies, and how many containers the next one reattaches to."""


def assert_each_once(runs: Runs, engine: DockerEngine) -> None:
    """Check that every repeat is there once, and was started once."""
    records = runs.records()
    assert len(records) == REPEATS
    assert {record.status for record in records.values()} == {Status.OK}
    once = dict.fromkeys(records, 1)
    assert counted(engine, "create", runs.path.name) == once
    assert counted(engine, "start", runs.path.name) == once
    assert sorted(event["job"] for event in runs.events("job_result")) == sorted(once)
    assert ours(engine) == [], "containers were left behind"


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_survives_the_death_of_its_controller(moment: str, engines, fake_images, runs: Runs, short_path: Path):
    when, reattached = MOMENTS[moment]
    victim: list[Controller] = []
    engine = engines.second

    with Relay(short_path / "r.sock", engine.socket, moment=when, act=lambda: victim[0].kill()) as relay:
        fleets = {"here": {"hosts": {"one": {"docker": relay.url}}}}
        victim.append(runs.begin(fleets, REPEATS, image=fake_images.image()))
        assert victim[0].wait(180) == -9
        assert relay.reached.wait(patience())
        runs.resume()

    assert runs.states().count("reattached") == reattached
    assert_each_once(runs, engine)


def test_a_running_benchmark_is_reattached_and_a_dead_tunnel_ends(engines, fake_images, runs, ssh_host, no_tunnels):
    fleets = {"far": {"hosts": {"one": ssh_host.connection()}}}
    with runs.begin(fleets, REPEATS, image=fake_images.image(seconds=6)) as controller:
        (survivor,) = wait_until(lambda: running(engines.second), "a benchmark")
        wait_until(lambda: b"step" in survivor.logs(), "its first step")
        controller.kill()
    wait_until(lambda: not tunnels(ssh_host), "the end of the tunnel")
    # Running or, on a slow machine, ended by now.
    assert [container.id for container in ours(engines.second)] == [survivor.id]

    runs.resume()
    assert runs.states().count("reattached") == 1
    assert_each_once(runs, engines.second)
    assert not tunnels(ssh_host)


@pytest.fixture
def no_tunnels(ssh_host: SshHost) -> Iterator[None]:
    """End tunnels that a failed test leaves."""
    yield
    send(signal.SIGTERM, tunnels(ssh_host))


def tunnels(ssh_host: SshHost) -> list[int]:
    """Return the process ids of the ssh clients that lead to a host now."""
    words = {pid: read_proc(pid, "cmdline").split(b"\0") for pid in all_pids()}
    config = str(ssh_host.config_file).encode()
    return [pid for pid, (program, *arguments) in words.items() if program.endswith(b"ssh") and config in arguments]

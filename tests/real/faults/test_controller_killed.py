"""A controller dies at the worst moments; `resume` leaves every repeat exactly once, and starts none twice."""

import signal
from pathlib import Path

import pytest

from results.schema import Status
from tests.real.faults.relay import Moment, Relay
from tests.support.controller import Runs, counted, ours

pytestmark = pytest.mark.docker

REPEATS = 2

MOMENTS = (
    ("before the first is created", r"POST /containers/create", False, 0),
    ("created, and it does not know", r"POST /containers/create", True, 0),
    ("started, and it does not know", r"POST /containers/\S+/start", True, 0),
    ("reattached, before its output is read", r"GET /containers/\S+/logs", False, 1),
    ("collected, before it is removed", r"DELETE /containers/", False, 2),
    ("between two repeats", r"DELETE /containers/", True, 2),
    ("its output was on its way", r"GET /containers/\S+/logs", True, 2),
)
"""When one controller after another dies, at a request or after it, and how many repeats they have reattached by then."""


def test_a_run_survives_the_death_of_seven_controllers(engines, fake_images, runs: Runs, short_path: Path):
    engine = engines.second
    with Relay(short_path / "r.sock", engine.socket) as relay:
        fleets = {"here": {"hosts": {"one": {"docker": relay.url}}}}
        command = ("run", f"--hosts={runs.hosts(fleets, REPEATS, image=fake_images.image())}")
        for when, request, after, reattached in MOMENTS:
            with runs.start(*command, "--display=none") as controller:
                relay.moment = Moment(request, after, controller.kill)
                assert controller.wait(180) == -signal.SIGKILL, when
            assert runs.states().count("reattached") == reattached, when
            command = ("resume",)
        relay.moment = None
        runs.resume()
    records = runs.records()
    assert [record.status for record in records.values()] == [Status.OK] * REPEATS
    once = dict.fromkeys(records, 1)
    assert counted(engine, "create", runs.path.name) == counted(engine, "start", runs.path.name) == once
    assert sorted(event["job"] for event in runs.events("job_result")) == sorted(once)
    assert ours(engine) == [], "containers were left behind"

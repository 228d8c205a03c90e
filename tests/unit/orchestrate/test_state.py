"""What is left of a run: it counts down, learns from what has ended, and survives the controller."""

import dataclasses
import re

from orchestrate.events import (
    Event,
    HostLost,
    ImageProgress,
    JobResult,
    JobState,
    RunFinished,
    RunStarted,
    Stopping,
    event_document,
    stored_event,
)
from orchestrate.planning.durations import Durations, fitting_repeats, host_seconds, usd_text
from orchestrate.planning.plan import Plan
from orchestrate.running.state import TRIED_AGAIN, RunState
from tests.unit.orchestrate.test_display import PLAN, plain

HOST = PLAN.hosts[0].host.key
FIRST, SECOND = PLAN.hosts[0].jobs
KNOWN = Durations({("a4000", job.case.name): 100.0 for job in PLAN.jobs})
ALONE = dataclasses.replace(PLAN, hosts=PLAN.hosts[:1])
SETUP = host_seconds(PLAN.hosts[0])
STARTED = RunStarted(run_id="run1", jobs=2, done=0, folder="runs/run1")


def state_of(*events: tuple[Event, float], plan: Plan = ALONE, durations: Durations = KNOWN) -> RunState:
    state = RunState(plan, durations)
    for event, at in events:
        state.note(event, at)
    return state


def phase(state: str, job: str = FIRST.id) -> JobState:
    return JobState(job=job, host=HOST, state=state)


def ended(seconds: float, status: str = "ok", job: str = FIRST.id) -> JobResult:
    speed = {"samples_per_second": 5.0, "unit": "images"}
    return JobResult(job=job, host=HOST, status=status, cause=None, seconds=seconds, **speed)


def test_the_time_left_counts_down_and_includes_the_pull():
    state = state_of((STARTED, 0.0))
    assert state.seconds_left(now=0.0) == 200 + SETUP
    assert state.seconds_left(now=10.0) == 190 + SETUP
    state.note(ImageProgress(host=HOST, image="i", done_bytes=25, total_bytes=100), 20.0)
    assert state.seconds_left(now=20.0) == 200 + 60, "a quarter took 20 s"
    state.note(phase("launching"), 100.0)
    assert state.seconds_left(now=130.0) == 170


def test_the_time_left_learns_from_the_first_repeat_that_ends():
    state = state_of((STARTED, 0.0), (phase("launching"), 0.0), (ended(300.0), 300.0))
    assert state.seconds_left(now=300.0) == 300, "not 100"
    unknown = state_of((STARTED, 0.0), (phase("launching"), 0.0), durations=Durations())
    assert unknown.seconds_left(now=0.0) == 0, "a guess is not shown"
    unknown.note(ended(300.0), 300.0)
    assert unknown.seconds_left(now=300.0) == 300
    unknown.note(HostLost(host=HOST, status="lost", cause=""), 301.0)
    assert unknown.seconds_left(now=301.0) == 0


def test_after_ctrl_c_the_time_left_is_that_of_the_running_repeat():
    state = state_of((STARTED, 0.0), (phase("timing"), 0.0), (Stopping(now=False, hint=""), 40.0))
    assert state.seconds_left(now=40.0) == 60


def test_a_resumed_run_has_less_left_and_repeats_what_was_stopped():
    happened = (STARTED, phase("timing"), ended(50.0), phase("timing", SECOND.id), ended(5.0, "stopped", SECOND.id))
    lines = [*map(event_document, happened), {"event": "unheard of"}]
    state = RunState(ALONE, KNOWN)
    state.resume([found for line in lines if (found := stored_event(line))], TRIED_AGAIN)
    assert round(state.seconds_left()) == 50
    assert stored_event({"event": "job_result", "at": "yesterday"}) is None


def test_a_stopped_repeat_is_no_failure_and_has_one_duration():
    cause = "the host did not respond in time; abandoned after 4 s"
    lost = dataclasses.replace(ended(79.0, "lost"), cause=cause, samples_per_second=None)
    said = plain([STARTED, lost, RunFinished(run_id="run1", ok=1, failed=1, missing=2, stopped=1, seconds=9)])
    assert "1 ok, 0 failed, 1 stopped, 2 not run" in said
    assert not re.search(r"after \d+ s after", said) and f"lost after 79 s: {cause}" in said


def test_a_limit_of_cost_says_how_many_repeats_fit():
    host = dataclasses.replace(ALONE.hosts[0].host, usd_per_gpu_hour=18.0)  # two GPUs: a cent a second
    plan = dataclasses.replace(ALONE, hosts=[dataclasses.replace(ALONE.hosts[0], host=host)])
    costs = [(SETUP + 100 * repeats) / 100 for repeats in (1, 2)]
    limits = (costs[0] - 0.01, costs[0] + 0.01, costs[1] - 0.01, costs[1] + 0.01)
    assert [fitting_repeats(plan, KNOWN, limit) for limit in limits] == [0, 1, 1, 2]
    assert [usd_text(usd) for usd in (0.0, 0.0042, 0.053, 0.17, 12.5)] == ["0.00", "0.0042", "0.053", "0.17", "12.50"]

"""What all queues share: one poller, a clock that stops while a repeat waits, costs of repeats that run."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from orchestrate import loop
from orchestrate.engines.base import Ending, OnTurn, OutputLine, Poller, Turn, always_running
from orchestrate.errors import Lost, Unreachable
from orchestrate.events import EventBus, JobResult, JobState, RunOutcome
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.options import How
from orchestrate.planning import durations as durations_module
from orchestrate.planning.durations import GUESSED_REPEAT_SECONDS, estimate
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, Plan, make_plan, plan_to_json
from orchestrate.running.context import RunContext, Stop, StorageFailed
from orchestrate.running.run import execute
from orchestrate.running.session import HostSession, RunningPart
from orchestrate.running.state import RunState
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import GPU
from tests.support.patience import patience
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher

SUITE = Suite(cases=[CaseBlock(**{"model": ["resnet50", "googlenet"], "batch_per_gpu": 8, "num_gpus": [1, 2]})])
GPUS = tuple(GPU(index=index, name="a5000") for index in range(2))


def queue_plan(**settings: Any) -> Plan:
    queue = SlurmQueue(container="none", shared_folder="/home/bench", gres="gpu:a5000:2", max_jobs=4)
    host = Host(fleet="lab", name="slurm", docker=None, slurm=queue, **settings)
    facts: dict[HostPlace, Facts | str] = {host.place: Facts(gpus=GPUS)}
    return make_plan([host], facts, lambda name: SUITE, run_id="r", seed=1)


def result(job: Job, seconds: float) -> JobResult:
    figures = {"cause": None, "samples_per_second": 1.0, "unit": "images", "seconds": seconds}
    return JobResult(job=job.id, host="lab.slurm", status="ok", case=job.case.name, fleet="lab", **figures)


def test_one_look_serves_all_who_wait_and_only_a_long_silence_is_told():
    answers: list[BaseException | None] = [None, Unreachable("busy"), None]

    async def look() -> None:
        await anyio.sleep(0.01)
        answer = answers.pop(0) if answers else Unreachable("the login host is gone")
        if answer is not None:
            raise answer

    async def wait() -> None:
        poller = Poller("queue", look, 0.001, patience_seconds=0.1)
        await asyncio.gather(*(poller.wait() for _ in range(50)))
        assert len(answers) == 2, "one look for fifty"
        for _ in range(2):
            await poller.wait()  # the first look fails
        with pytest.raises(Lost, match="queue stopped responding: the login host is gone"):
            while True:
                await poller.wait()

    loop.wait_for(wait())


def test_a_repeats_clock_starts_with_its_machine_also_after_preemption():
    plan = queue_plan(silence_minutes=1e-9)
    entry = plan.hosts[0]
    states = list[str]()
    run = SimpleNamespace(bus=SimpleNamespace(emit=lambda event: states.append(event.state)))
    session = HostSession(entry, FakeLauncher(entry.host, FakeHost()), cast(RunContext, run))
    part = RunningPart(job=entry.jobs[0], session=session)
    waits, first, second = Turn(waiting=True), *(Turn(waiting=False, node=node) for node in ("n1", "n0"))
    for turn in (waits, waits):
        part.take_turn(turn)
    waited = part.began
    part.take_turn(first)
    assert part.began > waited
    time.sleep(0.01)
    assert "printed nothing" in part.exceeded()
    for turn in (first, second, waits):
        part.take_turn(turn)
    assert part.exceeded() == "", "its limits wait, too"
    assert states == ["queued", "on n1", "on n0", "queued"], "Slurm moved it"


def test_a_repeat_in_a_queue_costs_while_it_has_a_machine():
    plan = queue_plan(usd_per_gpu_hour=3600.0)
    job, state = plan.jobs[0], RunState(plan)
    begins = time.time()
    happened = ["launching", "queued", "on n1", "on n0", "queued", "on n2"]
    for second, words in enumerate(happened):
        state.note(JobState(job=job.id, host="lab.slurm", state=words), begins + 10 * second)
    state.note(result(job, seconds=1.0), begins + 10 * len(happened))
    assert state.spent_usd() == pytest.approx(2 * 30), "two GPUs of a node, a dollar a second each; waiting is free"


def test_what_runs_is_reserved_and_not_twice_what_it_has_cost():
    plan = queue_plan(usd_per_gpu_hour=1.0)
    each, (first, second, *_) = 2 * GUESSED_REPEAT_SECONDS / 3600, plan.jobs
    state = RunState(plan)
    assert state.rest_usd(first) == pytest.approx(each) and state.rest_usd() == 0
    for job, began in ((first, GUESSED_REPEAT_SECONDS / 2), (second, 0.0)):
        state.note(JobState(job=job.id, host="lab.slurm", state="on n1"), time.time() - began)
    assert state.spent_usd() == pytest.approx(each / 2, rel=0.05)
    assert state.rest_usd() == pytest.approx(1.5 * each, rel=0.05)


def test_estimates_of_a_queue_count_its_slots(monkeypatch: pytest.MonkeyPatch):
    """Repeats run side by side."""
    monkeypatch.setattr(durations_module, "host_seconds", lambda entry: 0.0)
    estimated = estimate(queue_plan(usd_per_gpu_hour=1.0), {})
    assert estimated.seconds == 12 * GUESSED_REPEAT_SECONDS / 4
    assert estimated.usd == pytest.approx(12 * GUESSED_REPEAT_SECONDS / 3600 * 2)


class LateQueue(FakeLauncher):
    """A queue that has begun everything when it is to be taken back."""

    def submit(self, jobs: Sequence[Job]) -> None:
        self._machine.containers.update((job.id, "running") for job in jobs)

    def clear(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._note("clear", job)
            self._machine.containers.pop(job.id, None)

    cancel_waiting = clear

    async def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        on_turn(Turn(waiting=False))
        return await super().follow(job, on_line, on_turn)


def run_queue(
    plan: Plan, tmp_path: Path, machine: FakeHost, kind: type[LateQueue] = LateQueue, **how: Any
) -> tuple[RunOutcome, RunFolder]:
    folder = RunFolder.create(tmp_path, plan.run_id)
    folder.write_plan(plan_to_json(plan))
    bus, state = EventBus(), RunState(plan)
    bus.subscribe(state.note)
    return execute(RunContext(plan, folder, lambda host: kind(host, machine), bus, Stop(), How(**how), state)), folder


def test_a_full_disk_is_no_bug_though_jobs_still_wait_in_the_queue(tmp_path: Path):
    plan, full = queue_plan(), asyncio.Event()

    class FullDisk(LateQueue):
        async def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
            if job.id == plan.jobs[0].id:
                await anyio.sleep(0.1)  # until the others wait
                full.set()
                raise StorageFailed("the disk is full")
            await full.wait()
            on_turn(Turn(waiting=True))
            return Ending(exit_code=0)

    with pytest.raises(StorageFailed, match="the disk is full"):
        run_queue(plan, tmp_path, FakeHost(), FullDisk)


def test_what_a_queue_began_too_late_does_not_stay_when_a_run_costs_more(tmp_path: Path, monkeypatch):
    plan, slots, clock = queue_plan(usd_per_gpu_hour=3600.0), threading.Barrier(4), [0.0]
    monkeypatch.setattr("orchestrate.running.state.GUESS", (0.001, ""))
    monkeypatch.setattr("time.clock_gettime", lambda _: clock[0])

    def take_long_once_all_slots_work(_: Job) -> None:
        slots.wait(patience())
        clock[0] = 1.0

    machine = FakeHost(facts=Facts(gpus=GPUS), on_follow=take_long_once_all_slots_work)
    outcome, folder = run_queue(plan, tmp_path, machine, max_cost=0.05)
    assert (outcome.ok, outcome.failed, outcome.missing) == (4, 0, 8)
    assert machine.containers == {}, "nothing runs that nobody follows"
    left = {job.id for job in plan.jobs if folder.read_record(job.id) is None}
    assert len(left) == 8 and left <= {job for call, job in machine.calls if call == "clear"}


def test_a_repeat_that_a_queue_lost_is_left_to_resume_and_ends_no_other(tmp_path: Path):
    plan = queue_plan()
    machine = FakeHost(facts=Facts(gpus=GPUS), failures={"remove": Unreachable("the login host is busy")})

    def lose(job: Job) -> None:
        if job.id == plan.jobs[0].id:
            raise Lost("its node does not answer")

    machine.on_follow = lose
    outcome, _ = run_queue(plan, tmp_path, machine)
    assert (outcome.ok, outcome.failed, outcome.missing) == (11, 1, 0)
    assert ("remove", plan.jobs[0].id) not in machine.calls

"""`--decide`: repeats end when the comparisons between fleets are decided; `resume` and `status` find the same."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrate.deciding.decisions import Decisions, Side
from orchestrate.deciding.left_out import LeftOut
from orchestrate.display.wording import describe
from orchestrate.events import Decided, JobSpared
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host, Place
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.planning.codec import plan_from_json, plan_to_json
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, Plan, make_plan
from orchestrate.running.options import Stop
from orchestrate.running.run import Outcome, count_records
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import Status
from results.schema.record_json import to_json
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher, ok_record
from tests.unit.orchestrate.test_run import Bench

SUITE = Suite("s", "", 10, (CaseBlock(model=["resnet50", "googlenet"], batch_per_gpu=2, warmup_steps=1, num_steps=4),))


def host(fleet: str, name: str, **settings: object) -> Host:
    return Host(fleet=fleet, name=name, docker=DockerAddress(scheme="unix", target=f"/{name}"), **settings)  # type: ignore[arg-type]


def seconds_of(job: Job) -> float:
    """Two steady fleets: GoogLeNet on `b1` varies from repeat to repeat."""
    base = {"a": 2.0, "b": 3.0}[job.origin.fleet] + {"1": 0.0, "2": 0.002}[job.origin.host[-1]]
    noise = (0.6, -0.5, 0.4, -0.3, 0.5, -0.4, 0.35, -0.45, 0.2, 0.1)
    noisy = job.case.model == "googlenet" and job.origin.host == "b1"
    return base + (noise[job.origin.repeat - 1] if noisy else 0.0)


class DecideBench(Bench):
    """Two fleets of two hosts, ten repeats of two cases at most, to be decided to ± 2 %."""

    seconds: Callable[[Job], float] = staticmethod(seconds_of)

    def __init__(self, tmp_path: Path, **settings: object) -> None:
        self._settings = settings
        names = ("a1", "a2", "b1", "b2")
        machines = {
            name: FakeHost(payload=lambda job: to_json(ok_record(job.case, seconds=self.seconds(job))).encode())
            for name in names
        }
        super().__init__(tmp_path, **machines)

    def make_plan(self) -> Plan:
        self.hosts = [host(name[0], name, **self._settings) for name in self.machines]
        probed: dict[Place, Facts | str] = {one.place: Facts() for one in self.hosts}
        plan = make_plan(self.hosts, probed, lambda name: SUITE, run_id="run1", seed=7)
        return plan_from_json(plan_to_json(dataclasses.replace(plan, decide=0.02)))

    @property
    def starts(self) -> int:
        return sum(machine.count("start") for machine in self.machines.values())


def test_a_decided_comparison_ends_and_the_noisy_one_goes_on(tmp_path):
    bench = DecideBench(tmp_path)
    outcome = bench.run(max_parallel=4)
    assert outcome.missing == outcome.failed == 0 and outcome.ok + outcome.spared == 80
    ended = {(event.case.split("-")[0], event.host) for event in bench.seen(JobSpared)}
    assert {place for place in ended if "googlenet" not in place[0]} >= {("resnet50", key) for key in ("a.a1", "b.b2")}
    noisy = [job for job in bench.plan.jobs if job.case.model == "googlenet"]
    assert all(bench.folder.read_record(job.id) is not None for job in noisy), "all ten repeats, on both fleets"
    decided = bench.seen(Decided)
    assert len(decided) == 1 and "a / b is known to ± " in decided[0].answer
    assert describe(decided[0]).startswith("decided: resnet50")
    answers = sorted(outcome.answers)
    assert "not decided: ± " in answers[0] and "known to ± " in answers[1]
    assert count_records(bench.plan, bench.folder) == outcome


def test_resume_leaves_out_what_the_run_left_out_and_starts_nothing(tmp_path):
    bench = DecideBench(tmp_path)
    first = bench.run()
    starts = bench.starts
    assert bench.run() == first and bench.starts == starts == first.ok


def test_a_run_that_was_stopped_goes_on_to_the_same_answers(tmp_path):
    bench = DecideBench(tmp_path)
    seen = []
    guard = threading.Lock()

    def stop_soon(job: Job) -> None:
        with guard:
            seen.append(job)
            if len(seen) == 9:
                bench.stop.ask()

    for machine in bench.machines.values():
        machine.on_follow = stop_soon
    stopped = bench.run()
    assert stopped.missing > 0
    bench.stop = Stop()
    outcome = bench.run()
    assert outcome.missing == 0 and outcome.ok + outcome.spared == 80
    assert outcome.answers == count_records(bench.plan, bench.folder).answers
    assert [text.partition("known to")[2] for text in outcome.answers if "resnet50" in text]


def test_the_answer_does_not_depend_on_the_order_in_which_repeats_end(tmp_path):
    plan = DecideBench(tmp_path).plan
    answers = set()
    for jobs in (plan.jobs, plan.jobs[::-1]):
        decisions = Decisions(plan, 0.02)
        for job in jobs:
            decisions.add(job, ok_record(job.case, seconds=seconds_of(job)))
        answers.add(tuple(question.text for question in decisions.questions))
    assert len(answers) == 1


def test_of_a_round_the_least_known_comparison_comes_first_and_what_is_decided_is_left_out_at_once(tmp_path):
    plan = DecideBench(tmp_path).plan
    early = LeftOut(plan)
    for job in plan.jobs:
        if job.origin.repeat <= 2:
            early.add(job, ok_record(job.case, seconds=seconds_of(job)))
    taken = sorted((job for job in plan.jobs_on(plan.hosts[0].host) if job.origin.repeat > 2), key=early.rank)
    assert early.ranks and len(taken) == 16
    assert [job.case.model for job in taken] == ["resnet50"] * 8 + ["googlenet"] * 8
    assert all(map(early.spares, taken[:8])) and not any(map(early.spares, taken[8:]))
    assert [job.origin.repeat for job in taken[8:]] == list(range(3, 11))


def differing_hosts(job: Job, noise: float = 0.001) -> float:
    """Hosts of a fleet differ by 6 %: repeats cannot make up for that."""
    base = {"a": 2.0, "b": 3.0}[job.origin.fleet] * {"1": 1.0, "2": 1.06}[job.origin.host[-1]]
    return base * (1 + noise * (-1) ** job.origin.repeat)


def test_the_first_open_case_goes_ahead_and_spares_the_others_their_second_round(tmp_path):
    plan = DecideBench(tmp_path).plan
    decisions = Decisions(plan, 0.02)
    pilot, other = decisions.questions
    first = [job for job in plan.jobs if job.origin.repeat == 1]
    second = [job for job in plan.jobs if job.origin.repeat == 2]
    ahead = [job for job in second if Side.of(job) in pilot.sides]
    waiting = next(job for job in second if Side.of(job) in other.sides)
    for job in first:
        assert decisions.add(job, ok_record(job.case, seconds=differing_hosts(job))) == []
    assert decisions.width(ahead[0]) == math.inf > decisions.width(waiting) and not decisions.why_not(waiting)
    ended = [decisions.add(job, ok_record(job.case, seconds=differing_hosts(job))) for job in ahead]
    assert ended == [[], [], [], [pilot, other]]
    assert (pilot.repeats, other.repeats) == (2, 1)
    assert "after 1 repeat of each host; more repeats would hardly narrow it" in decisions.why_not(waiting)


def test_what_the_pilot_says_does_not_depend_on_what_ended_meanwhile(tmp_path):
    plan = DecideBench(tmp_path).plan
    for jobs in (plan.jobs, plan.jobs[::-1], sorted(plan.jobs, key=lambda job: (job.origin.host, job.case.name))):
        decisions = Decisions(plan, 0.02)
        for job in jobs:
            decisions.add(job, ok_record(job.case, seconds=differing_hosts(job)))
        assert [question.repeats for question in decisions.questions] == [2, 1]
        assert all("add hosts" in question.text for question in decisions.questions)


def test_where_the_pilots_repeats_vary_the_others_go_on(tmp_path):
    plan = DecideBench(tmp_path).plan
    decisions = Decisions(plan, 0.02)
    for job in plan.jobs:
        if job.origin.repeat <= 2:
            decisions.add(job, ok_record(job.case, seconds=differing_hosts(job, noise=0.05)))
    assert [(question.repeats, question.decided) for question in decisions.questions] == [(2, False)] * 2


def test_prices_decide_where_the_ratio_is_clear_of_theirs(tmp_path):
    bench = DecideBench(tmp_path, usd_per_gpu_hour=1.0)
    outcome = bench.run()
    assert any("above its price ratio of 1.00" in text for text in outcome.answers if "googlenet" in text)
    assert outcome.spared > 0


def test_a_fleet_that_fails_is_not_tried_ten_times(tmp_path):
    bench = DecideBench(tmp_path)
    for name in ("b1", "b2"):
        bench.machines[name].payload = lambda job: to_json(
            dataclasses.replace(
                ok_record(job.case), status=Status.OOM, cause="no memory", measurement=None, validity=None
            )
        ).encode()
    outcome = bench.run(max_parallel=1)
    assert all("no repeat on b succeeded (2 of each host)" in text for text in outcome.answers)
    assert 8 <= outcome.failed < 80 and outcome.spared > 0


@pytest.mark.parametrize("decide", [None, 0.02])
def test_a_plan_without_the_wish_is_read_as_before(tmp_path, decide):
    plan = dataclasses.replace(DecideBench(tmp_path).plan, decide=decide)
    text = plan_to_json(plan)
    assert plan_from_json(text).decide == decide
    old = text.replace(f',\n  "decide": {"null" if decide is None else decide}', "")
    assert plan_from_json(old).decide is None


class QueueLauncher(FakeLauncher):
    """A queue that takes everything and runs what is followed; it counts what is taken back."""

    withdrawn: set[str]

    def __init__(self, host: Host, machine: FakeHost) -> None:
        super().__init__(host, machine)
        self.withdrawn = set()

    def submit(self, jobs: object) -> None:
        """Take all."""

    def withdraw(self, jobs: list[Job]) -> None:
        self.withdrawn |= {job.id for job in jobs}

    def clear(self, jobs: list[Job]) -> None:
        self.withdraw(jobs)


def test_what_is_not_needed_is_taken_back_from_a_queue(tmp_path):
    queue = SlurmQueue(container="none", shared_folder="/home/bench", gres="gpu:a5000:2", max_jobs=2)
    fleet = Host(fleet="lab", name="slurm", docker=None, queue=queue)
    plan = make_plan([fleet], {fleet.place: Facts()}, lambda name: SUITE, run_id="r", seed=1)
    plan = dataclasses.replace(plan, decide=0.02)
    machine = FakeHost(payload=lambda job: to_json(ok_record(job.case, seconds=2.0)).encode())
    made: list[QueueLauncher] = []

    def make(one: Host) -> QueueLauncher:
        made.append(QueueLauncher(one, machine))
        return made[-1]

    from orchestrate.events import EventBus
    from orchestrate.running.options import Options
    from orchestrate.running.run import execute

    folder = RunFolder.create(tmp_path, "r")
    outcome = execute(plan, folder, make, EventBus(), Stop(), Options())  # type: ignore[arg-type]
    assert outcome.missing == outcome.failed == 0 and outcome.spared > 0
    left = {job.id for job in plan.jobs if folder.read_record(job.id) is None}
    assert set().union(*(one.withdrawn for one in made)) >= left and len(left) == outcome.spared
    assert isinstance(outcome, Outcome)

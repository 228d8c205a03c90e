"""`--stop-early`: repeats that no comparison needs are skipped; `resume` and `status` find the same answers."""

import dataclasses
from pathlib import Path

from orchestrate.display.display import describe
from orchestrate.events import Decided, JobSkipped
from orchestrate.planning.codec import plan_from_json, plan_to_json
from orchestrate.planning.plan import Job, Plan
from orchestrate.planning.stop_early import NOTHING_TO_COMPARE, StopEarly
from orchestrate.running.state import Recorded
from orchestrate.suites import CaseBlock, Suite
from results.schema import Device, Status
from results.schema.record_json import to_json
from tests.unit.orchestrate.fakes import FakeHost, ok_record
from tests.unit.orchestrate.test_run import Bench

BLOCK = CaseBlock(**{"model": ["resnet50", "googlenet"], "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 4})


def seconds_of(job: Job) -> float:
    """Two steady fleets: GoogLeNet on `b1` varies from repeat to repeat."""
    base = {"a": 2.0, "b": 3.0}[job.origin.fleet] + {"1": 0.0, "2": 0.002}[job.origin.host[-1]]
    noise = (0.6, -0.5, 0.4, -0.3, 0.5, -0.4, 0.35, -0.45, 0.2, 0.1)
    noisy = job.case.model == "googlenet" and job.origin.host == "b1"
    return base + (noise[job.origin.repeat - 1] if noisy else 0.0)


class EarlyBench(Bench):
    """Two fleets of two hosts, ten repeats of two cases at most, to be decided to ± 2 %."""

    suite = Suite("s", "", 10, (BLOCK,))

    def __init__(self, tmp_path: Path) -> None:
        payload = lambda job: to_json(ok_record(job.case, seconds=seconds_of(job))).encode()  # noqa: E731
        super().__init__(tmp_path, **{name: FakeHost(payload=payload) for name in ("a1", "a2", "b1", "b2")})

    def make_plan(self) -> Plan:
        self.hosts = [dataclasses.replace(host, fleet=host.name[0]) for host in self.hosts]
        return plan_from_json(plan_to_json(dataclasses.replace(super().make_plan(), stop_early=0.02)))

    @property
    def starts(self) -> int:
        return sum(machine.count("start") for machine in self.machines.values())


def test_a_decided_comparison_ends_and_the_noisy_one_goes_on(tmp_path):
    bench = EarlyBench(tmp_path)
    outcome = bench.run(max_parallel=4)
    assert outcome.missing == outcome.failed == 0 and outcome.ok + outcome.skipped == 80
    ended = {(event.case.split("-")[0], event.host) for event in bench.seen(JobSkipped)}
    assert {place for place in ended if "googlenet" not in place[0]} >= {("resnet50", key) for key in ("a.a1", "b.b2")}
    noisy = [job for job in bench.plan.jobs if job.case.model == "googlenet"]
    assert all(bench.folder.read_record(job.id) is not None for job in noisy), "all ten repeats, on both fleets"
    decided = bench.seen(Decided)
    assert len(decided) == 1 and "a / b is known to ± " in decided[0].answer
    assert describe(decided[0]).startswith("decided: resnet50")
    answers = sorted(outcome.answers)
    assert "not decided: ± " in answers[0] and "known to ± " in answers[1]
    assert Recorded.of(bench.plan, bench.folder).outcome() == outcome
    starts = bench.starts
    assert bench.run() == outcome and bench.starts == starts == outcome.ok, "resume finds the same, and starts nothing"


def test_prices_decide_where_the_ratio_is_clear_of_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr(EarlyBench, "settings", {"usd_per_gpu_hour": 1.0, "device": Device.CPU})
    outcome = EarlyBench(tmp_path).run()
    assert any("above its price ratio of 1.00" in text for text in outcome.answers if "googlenet" in text)
    assert outcome.skipped > 0


def test_a_fleet_that_fails_is_not_tried_ten_times(tmp_path):
    bench = EarlyBench(tmp_path)
    failed = {"status": Status.OOM, "cause": "no memory", "measurement": None, "validity": None}
    for name in ("b1", "b2"):
        bench.machines[name].payload = lambda job: to_json(dataclasses.replace(ok_record(job.case), **failed)).encode()
    outcome = bench.run(max_parallel=1)
    assert all("no repeat on b succeeded (2 of each host)" in text for text in outcome.answers)
    assert 8 <= outcome.failed < 80 and outcome.skipped > 0


def test_without_the_flag_or_without_two_fleets_nothing_is_skipped(tmp_path):
    plan = EarlyBench(tmp_path).plan
    one_fleet = dataclasses.replace(plan, hosts=plan.hosts[:2])
    for measured, answers in ((dataclasses.replace(plan, stop_early=None), []), (one_fleet, [NOTHING_TO_COMPARE])):
        early = StopEarly(measured)
        for job in measured.jobs:
            assert early.add(job, ok_record(job.case, seconds=2.0)) == [] and not early.skips(job)
        assert (early.answers, early.skipped, early.saved_seconds) == (answers, 0, 0.0)

"""`--target-ci`: repeats that are not needed are left out, said so, counted, and not run by `resume` either."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

import pytest

from orchestrate.deciding.early_end import known
from orchestrate.deciding.left_out import LeftOut
from orchestrate.events import JobSpared, RunFinished
from orchestrate.running.run import Outcome, count_records
from orchestrate.suites import CaseBlock, Suite
from results.schema import Record, Status
from results.schema.record_json import to_json
from tests.unit.orchestrate.fakes import NOW, FakeHost, ok_record
from tests.unit.orchestrate.test_run import Bench

TARGET = 0.02
BLOCKS = (CaseBlock(model=["resnet50", "googlenet"], batch_per_gpu=2, warmup_steps=1, num_steps=4),)


class TargetBench(Bench):
    """Ten repeats at most of two cases; what each repeat takes is planted by the test."""

    def make_plan(self):
        from orchestrate.planning.plan import make_plan
        from orchestrate.running.run import probe_hosts

        suite = Suite("tiny", "", 10, BLOCKS, target_ci=TARGET)
        probed = probe_hosts(self.hosts, self.launcher, self.bus)
        return make_plan(self.hosts, probed, lambda name: suite, run_id="run1", seed=7)


def with_seconds(record: Record, seconds: float, whole: float = 30.0) -> Record:
    """Return the record of a repeat whose steps took so long, of `whole` seconds from start to end."""
    began = datetime.fromisoformat(NOW)
    return dataclasses.replace(
        ok_record(record.case, seconds=seconds), finished_at=(began + timedelta(seconds=whole)).isoformat()
    )


def planted(times: dict[str, list[float]]):
    """Answer each case's repeats with these durations, in the order in which they are measured."""
    left = {model: list(seconds) for model, seconds in times.items()}
    return lambda job: to_json(with_seconds(ok_record(job.case), left[job.case.model].pop(0))).encode()


# Half-widths of the 95 % t-intervals of the first 4, 5, 6, 7, by scipy: 0.01696, 0.01678, 0.01284, 0.01116 of the mean.
RATES = [100.0, 101.0, 98.5, 100.4, 102.2, 100.9, 99.3]


@pytest.mark.parametrize(
    ("repeats", "asked"),
    [(4, 0.01696 / 0.2), (5, 0.01678 / 0.4), (6, 0.01284 / 0.6), (7, 0.01116 / 0.8)],
)
def test_few_repeats_must_agree_better_than_asked(repeats, asked):
    assert known(RATES[:repeats], asked * 1.01) and not known(RATES[:repeats], asked * 0.99)


def test_three_repeats_are_never_enough_even_if_they_agree_to_the_last_digit():
    assert not known([], TARGET) and not known([100.0], TARGET) and not known([100.0] * 3, TARGET)
    assert known([100.0] * 4, TARGET)


def test_a_case_ends_when_it_is_known_and_the_noisy_one_goes_on(tmp_path):
    steady = [2.0, 2.001, 2.002, 2.001]
    noisy = [2.0, 2.6, 1.8, 2.3, 2.0, 2.5, 1.9, 2.2, 2.4, 2.1]
    bench = TargetBench(tmp_path, a=FakeHost(payload=planted({"resnet50": steady, "googlenet": noisy})))
    outcome = bench.run()
    assert outcome == Outcome(ok=14, failed=0, missing=0, spared=6)
    spared = bench.seen(JobSpared)
    assert {event.case for event in spared} == {spared[0].case} and "resnet50" in spared[0].case
    assert len(spared) == 6 and "after 4 repeats (target: 2.0%)" in spared[0].why
    (finished,) = bench.seen(RunFinished)
    assert (finished.spared, finished.missing) == (6, 0)
    assert finished.saved_seconds == pytest.approx(6 * 30.0)
    assert count_records(bench.plan, bench.folder) == outcome


def test_resume_leaves_out_what_the_run_left_out(tmp_path):
    times = {"resnet50": [2.0, 2.001, 2.002, 2.001], "googlenet": [1.0, 1.001, 1.002, 1.001]}
    bench = TargetBench(tmp_path, a=FakeHost(payload=planted(times)))
    assert bench.run() == Outcome(ok=8, failed=0, missing=0, spared=12)
    starts = bench.machines["a"].count("start")
    assert bench.run() == Outcome(ok=8, failed=0, missing=0, spared=12)
    assert bench.machines["a"].count("start") == starts == 8


def test_a_failed_repeat_says_nothing_and_a_case_without_a_target_is_never_known(tmp_path):
    bench = TargetBench(tmp_path, a=FakeHost())
    job = bench.plan.jobs[0]
    free = dataclasses.replace(job, case=dataclasses.replace(job.case, target_ci=None))
    early = LeftOut(bench.plan)
    for other in (job, free):
        for _ in range(8):
            early.add(other, with_seconds(ok_record(other.case), 2.0))
    assert early.spares(job) and not early.spares(free)
    failed = LeftOut(bench.plan)
    for _ in range(8):
        failed.add(job, dataclasses.replace(ok_record(job.case), status=Status.OOM, cause="no memory"))
    assert not failed.spares(job)
    assert (failed.spared, failed.saved_seconds) == (0, 0.0)


def test_steps_that_were_not_needed_are_counted_as_saved(tmp_path):
    bench = TargetBench(tmp_path, a=FakeHost())
    job = bench.plan.jobs[0]
    long = dataclasses.replace(job, case=dataclasses.replace(job.case, num_steps=100))
    record = ok_record(dataclasses.replace(long.case, num_steps=60), seconds=6.0)
    early = LeftOut(bench.plan)
    early.add(long, dataclasses.replace(record, case=long.case))
    assert early.saved_seconds == pytest.approx(40 * 0.1)

"""The five steps of a repeat, each by itself: build, check, warm, time, describe."""

import dataclasses

import pytest

from results.schema import Mode, Status
from tests.real.training.tiny import TinyNetwork, tiny_case
from tfbench.flags import Options
from tfbench.machine.telemetry import Cooling
from tfbench.measuring.timing import TimedSteps, Warmup
from tfbench.models import build
from tfbench.outcomes.findings import Findings
from tfbench.outcomes.outcome import CaseFailedError

pytestmark = pytest.mark.tensorflow


class Share:
    """A replica's scalar."""

    device = "CPU:0"

    def __init__(self, value):
        self.value = value

    def numpy(self):
        return self.value


class Workload:
    """Counts steps and leaves losses that are known beforehand."""

    def __init__(self, losses):
        self.losses, self.steps = iter(losses), 0

    def step(self, batch):
        assert batch == "batch"
        self.steps += 1
        return [Share(next(self.losses))]


def repeat_of(case, strategy=None, **options):
    from tfbench.workload import Repeat

    return Repeat(case=case, network=TinyNetwork(), strategy=strategy, options=Options(peaks=False, **options))


def built_with(losses, model=None):
    from tfbench.workload import Built

    return Built(model=model, workload=Workload(losses), next_batch=lambda: "batch", data_set=None, seconds=1.5)


def test_building_takes_no_step_and_names_what_was_asked_for(one_replica, inference, step, workload):
    training = workload.build(repeat_of(tiny_case(), one_replica))
    assert type(training.workload) is step.Training
    assert training.data_set is None and training.seconds > 0
    assert float(training.workload.updater.first_moments[0].numpy().max()) == 0.0, "nothing was trained yet"
    assert type(workload.build(repeat_of(tiny_case(mode=Mode.INFER), one_replica)).workload) is inference.Inference


def test_checks_leave_the_first_loss_and_the_seconds_of_compiling(one_replica, workload):
    repeat, findings = repeat_of(tiny_case(), one_replica), Findings()
    first = workload.check_first_step(repeat, workload.build(repeat), findings)
    assert 0 < first.loss < 10 and first.compile_seconds > 0
    assert {check.name: check.passed for check in findings.checks} == {
        "loss_finite_at_first": True,
        "loss_of_an_untrained_network": True,
        "gradients_not_zero": True,
        "loss_equals_one_device": None,
        "update_equals_one_device": None,
        "replicas_equal": None,
    }


def test_warm_up_takes_the_fewest_steps_and_refuses_a_loss_of_nan(repeat, workload):
    case, findings, built = repeat_of(tiny_case(warmup_steps=3)), Findings(), built_with([3.0, 2.0, 1.0])
    warm = repeat.warm_through(case, built, workload.FirstStep(4.0, 0.1), findings)
    assert (warm.warmup.steps, warm.warmup.losses, warm.warmup.settled) == (3, [3.0, 2.0, 1.0], None)
    assert (warm.cooling.seconds, warm.cooling.celsius) == (None, []), "there are no GPUs"
    assert [(check.name, check.passed) for check in findings.checks] == [("loss_finite_before_timing", True)]
    with pytest.raises(CaseFailedError, match="loss_finite_before_timing") as caught:
        failing = built_with([3.0, float("nan"), 1.0])
        repeat.warm_through(case, failing, workload.FirstStep(4.0, 0.1), Findings())
    assert caught.value.status is Status.NOT_FINITE


def test_timing_takes_the_steps_asked_for_and_keeps_telemetry(repeat):
    case, findings, built = repeat_of(tiny_case(num_steps=12)), Findings(), built_with(map(float, range(13)))
    timed = repeat.time_steps(case, built, repeat.Warm(Cooling(seconds=7.0, celsius=[41.0]), Warmup()), findings)
    assert timed.interval.losses == [float(step) for step in range(1, 13)], "after an untimed step"
    assert (built.workload.steps, len(timed.interval.step_seconds)) == (13, 12)
    assert (timed.latency, timed.input_limit, timed.ranks, timed.per_wait) == (None, None, [], 1)
    assert (findings.telemetry.cooling_seconds, findings.telemetry.temperature_start_celsius) == (7.0, 41.0)
    asked = repeat_of(tiny_case(num_steps=5), steps_per_wait=2)
    timed = repeat.time_steps(asked, built_with(map(float, range(6))), repeat.Warm(Cooling(), Warmup()), Findings())
    first, second, third, fourth, _ = timed.interval.step_seconds
    assert (timed.per_wait, first, third) == (2, second, fourth)
    findings = Findings()
    with pytest.raises(CaseFailedError, match="loss_finite_while_timing"):
        repeat.time_steps(case, built_with([float("inf")] * 13), repeat.Warm(Cooling(), Warmup()), findings)
    assert findings.telemetry is not None


def test_what_is_described_follows_from_the_steps_before(one_replica, repeat, workload):
    case = tiny_case(accumulate=2, num_steps=4)
    asked = repeat_of(case, one_replica)
    model = build(TinyNetwork(), case.batch_norm, asked.size, one_replica)
    interval = TimedSteps(seconds=2.0, step_seconds=[0.5] * 4, losses=[4.0, 2.0, 1.0], lead_seconds=[0.1, 0.3, 0.2])
    warmup = Warmup(steps=2, seconds=0.25, losses=[5.0, 4.5], settled=None)
    built = dataclasses.replace(built_with([]), model=model)
    found = repeat.describe(asked, built, workload.FirstStep(6.0, 9.0), warmup, repeat.Timed(interval=interval))
    assert (found.samples, found.samples_per_second, found.global_batch) == (16 * 2 * 4, 64.0, 32)
    assert (found.build_seconds, found.compile_seconds) == (1.5, 9.0)
    assert (found.warmup_steps, found.warmup_seconds, found.warmup_settled) == (2, 0.25, None)
    assert (found.loss_first, found.loss_last, found.lead_p50_seconds) == (6.0, 1.0, 0.2)
    assert (found.image_size, found.sequence_length) == (asked.size, None)
    assert (found.parameters_trainable, found.parameters_total) == (322, 338)
    assert (found.peak_flops_per_second, found.communication, found.ranks) == (None, None, [])

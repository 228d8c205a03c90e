"""The parts of a repeat, each by itself: build, check, warm, time, describe."""

import pytest

from results.schema import Status
from tests.real.training.tiny import TinyNetwork, tiny_case
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings
from tfbench.flags import Options
from tfbench.models import build

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


@pytest.fixture
def repeat_of(repeat):
    """Return a repeat of a case; with losses, it is built and leaves these."""

    def make(case, strategy=None, losses=None, **options):
        made = repeat.Repeat(case, TinyNetwork(), strategy, Options(peaks=False, **options), Findings())
        if losses is not None:
            made.workload, made.next_batch = Workload(losses), lambda: "batch"
            made.figures |= {"loss_first": 4.0, "compile_seconds": 9.0, "build_seconds": 1.5}
        return made

    return make


def test_a_first_step_of_one_replica_is_compared_with_no_other(one_replica, repeat_of):
    training = repeat_of(tiny_case(), one_replica)
    training.build()
    training.check_first_step()
    assert 0 < training.figures["loss_first"] < 10 and training.figures["compile_seconds"] > 0
    assert {check.name: check.passed for check in training.findings.checks} == {
        "loss_finite_at_first": True,
        "loss_of_an_untrained_network": True,
        "gradients_not_zero": True,
        "loss_equals_one_device": None,
        "update_equals_one_device": None,
        "replicas_equal": None,
    }


def test_warm_up_takes_the_fewest_steps_and_refuses_a_loss_of_nan(repeat_of):
    case = tiny_case(warmup_steps=3)
    warm = repeat_of(case, losses=[3.0, 2.0, 1.0])
    warm.warm_through()
    assert (warm.figures["warmup_steps"], warm.figures["warmup_settled"]) == (3, None)
    assert [(check.name, check.passed) for check in warm.findings.checks] == [("loss_finite_before_timing", True)]
    with pytest.raises(CaseFailedError, match="loss_finite_before_timing") as caught:
        repeat_of(case, losses=[3.0, float("nan"), 1.0]).warm_through()
    assert caught.value.status is Status.NOT_FINITE


def test_timing_takes_the_steps_asked_for_and_what_is_described_follows(one_replica, repeat_of):
    case = tiny_case(accumulate=2, num_steps=12, warmup_steps=0)
    timed = repeat_of(case, one_replica, losses=map(float, range(13)))
    timed.model = build(TinyNetwork(), case.batch_norm, timed.size, one_replica)
    timed.warm_through()
    timed.time_steps()
    assert timed.workload.steps == 13, "an untimed step goes first"
    found = timed.described()
    assert timed.findings.telemetry.cooling_seconds is None, "there are no GPUs"
    assert (len(found.step_seconds), found.num_steps, found.global_batch, found.samples) == (12, 12, 32, 16 * 2 * 12)
    assert found.samples_per_second == pytest.approx(found.samples / sum(found.step_seconds))
    assert (found.loss_first, found.loss_last, found.build_seconds, found.compile_seconds) == (4.0, 12.0, 1.5, 9.0)
    assert (found.latency, found.input_limit, found.ranks, found.steps_per_wait) == (None, None, [], 1)
    assert (found.image_size, found.sequence_length) == (timed.size, None)
    assert (found.parameters_trainable, found.parameters_total) == (322, 338)
    assert (found.peak_flops_per_second, found.communication) == (None, None)


def test_steps_may_share_a_wait_and_a_loss_of_infinity_fails(repeat_of):
    asked = repeat_of(tiny_case(num_steps=5, warmup_steps=0), losses=map(float, range(6)), steps_per_wait=2)
    asked.warm_through()
    asked.time_steps()
    first, second, third, fourth, _ = asked.figures["step_seconds"]
    assert (asked.figures["steps_per_wait"], first, third) == (2, second, fourth)
    failing = repeat_of(tiny_case(num_steps=5, warmup_steps=0), losses=[float("inf")] * 13)
    failing.warm_through()
    with pytest.raises(CaseFailedError, match="loss_finite_while_timing"):
        failing.time_steps()
    assert failing.findings.telemetry is not None

import numpy as np
import pytest

from results.schema import XLA, Mode
from tests.real.training.test_networks import passed
from tests.real.training.tiny import CLASSES, IMAGE_SIZE, TinyNetwork, measure_repeat, tiny_case
from tfbench.measuring.timing import wait_for_loss
from tfbench.models import build

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("xla", list(XLA))
def test_two_replicas_answer_as_one_device_in_every_xla_mode(two_replicas, xla):
    findings = measure_repeat(tiny_case(mode=Mode.INFER, num_gpus=2, xla=xla), two_replicas)
    assert passed(findings) == {
        "outputs_finite_at_first",
        "outputs_equal_one_device",
        "outputs_not_zero",
        "outputs_finite_before_timing",
        "outputs_finite_while_timing",
    }
    assert findings.measurement.samples == 12 * 32
    assert np.isfinite(findings.measurement.loss_last)


def test_one_replica_has_its_own_checks_and_latency_of_single_samples(one_replica):
    findings = measure_repeat(tiny_case(mode=Mode.INFER), one_replica)
    checks, latency = {check.name: check.passed for check in findings.checks}, findings.measurement.latency
    assert (checks["outputs_equal_one_device"], checks["outputs_finite_at_first"]) == (None, True)
    assert len(latency.step_seconds) == 100, "fewer calls have no 99th percentile"
    assert 0 < min(latency.step_seconds) <= latency.p50_seconds <= latency.p95_seconds <= latency.p99_seconds
    assert latency.p99_seconds == pytest.approx(np.percentile(latency.step_seconds, 99))


def test_inference_uses_the_moving_averages_and_changes_no_weight(one_replica, inference, validity, inputs):
    case = tiny_case(mode=Mode.INFER)
    model = build(TinyNetwork(), case.batch_norm, IMAGE_SIZE, one_replica)
    before = [np.array(weight) for weight in model.get_weights()]
    batch = inputs.batch_source(case, IMAGE_SIZE, CLASSES, one_replica)()
    (images, _) = validity.replicas_of(one_replica, batch)[0]
    mean = wait_for_loss(inference.Inference(case, model, one_replica).step(batch))
    assert mean == pytest.approx(float(np.mean(model(images, training=False))), rel=1e-4, abs=1e-6)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)

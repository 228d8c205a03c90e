import numpy as np
import pytest

from results.schema import XLA, Mode, Precision, Status
from results.schema.networks import NETWORKS
from tests.real.training import tiny
from tests.real.training.small import small_case
from tests.real.training.test_networks import LAYERS_IN_BF16, measured, passed
from tests.real.training.tiny import CLASSES, IMAGE_SIZE, TinyNetwork, build_tiny, measure_repeat, tiny_case
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings
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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in LAYERS_IN_BF16 else [pytest.mark.rare]) for name in NETWORKS]
)
def test_every_network_answers_alike_on_every_replica(two_replicas, name):
    findings = measured(small_case(name, mode=Mode.INFER, precision=Precision.BF16), two_replicas)
    assert "outputs_equal_one_device" in passed(findings)
    measurement = findings.measurement
    assert measurement.latency.p50_seconds > 0
    assert measurement.bytes_per_sample > measurement.fused_bytes_per_sample > 0


def test_one_replica_has_its_own_checks_and_latency_of_single_samples(one_replica):
    findings = measure_repeat(tiny_case(mode=Mode.INFER), one_replica)
    checks, latency = {check.name: check.passed for check in findings.checks}, findings.measurement.latency
    assert checks["outputs_equal_one_device"] is None
    assert checks["outputs_finite_at_first"] is True
    assert len(latency.step_seconds) == 100, "fewer calls have no 99th percentile"
    assert min(latency.step_seconds) > 0
    assert latency.p50_seconds <= latency.p95_seconds <= latency.p99_seconds <= max(latency.step_seconds)
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


def test_a_replica_with_other_weights_is_caught(two_replicas, inference, keras_versions, inputs):
    case = tiny_case(mode=Mode.INFER, num_gpus=2)
    model = build(TinyNetwork(), case.batch_norm, IMAGE_SIZE, two_replicas)
    weight = keras_versions.tensorflow_variable(model.trainable_variables[0])
    _, second = keras_versions.components(two_replicas, weight)
    second.assign(second * 1.01)
    batch = inputs.batch_source(case, IMAGE_SIZE, CLASSES, two_replicas)()
    found = {check.name: check for check in inference.Inference(case, model, two_replicas).checks(batch)}
    assert found["outputs_equal_one_device"].passed is False
    assert found["outputs_equal_one_device"].value > 1e-3


def test_an_output_that_is_not_finite_leaves_no_number(one_replica, monkeypatch, keras_versions):
    def infinite(*arguments, **options):
        model = build_tiny(*arguments, **options)
        biases = keras_versions.tensorflow_variable(model.trainable_variables[-1])
        biases.assign([np.inf, -np.inf] + [0.0] * (CLASSES - 2))
        return model

    monkeypatch.setattr(tiny, "build_tiny", infinite)
    findings = Findings()
    with pytest.raises(CaseFailedError, match="32 of 160 outputs are not finite") as caught:
        measure_repeat(tiny_case(mode=Mode.INFER), one_replica, TinyNetwork(), findings)
    assert caught.value.status is Status.NOT_FINITE
    assert findings.measurement is None

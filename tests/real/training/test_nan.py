"""A device that gives no numbers never passes a check, whichever device it is."""

import functools
import math

import pytest

from results.schema import Case, Device, Mode, Status
from tests.real.training.test_training import build as build_training
from tests.real.training.tiny import CLASSES, IMAGE_SIZE, TinyNetwork, measure_repeat, tiny_case
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings
from tfbench.flags import Options
from tfbench.machine.nvml import GPUs
from tfbench.models import build

pytestmark = pytest.mark.tensorflow

EITHER = pytest.mark.parametrize("place", [0, 1])
"""The device that gives NaN."""


def poison(strategy, variable, place):
    """Make one replica's component of a variable NaN."""
    component = strategy.experimental_local_results(variable)[place]
    component.assign(component * math.nan)


@pytest.fixture
def trained(two_replicas):
    """Give a training of two replicas after a step."""
    training, next_batch = build_training(tiny_case(num_gpus=2), two_replicas)
    training.step(next_batch())
    return training, next_batch


@EITHER
def test_weights(trained, two_replicas, validity, place):
    training, _ = trained
    assert validity.replicas_check(training).passed
    poison(two_replicas, training.variables[1], place)
    assert validity.replicas_check(training).passed is False


@EITHER
def test_weights_that_should_change(trained, two_replicas, validity, place):
    training, next_batch = trained
    witness = validity.LearningWitness(training)
    training.step(next_batch())
    assert [check.passed for check in witness.checks([7.0, 6.9])] == [True, True]
    assert [check.passed for check in witness.checks([7.0, math.nan])] == [True, False]
    poison(two_replicas, training.variables[-1], place)
    assert [check.passed for check in witness.checks([7.0, 6.9])] == [False, True]


@EITHER
def test_gradients(trained, two_replicas, validity, place):
    training, _ = trained
    assert validity.gradients_check(training).passed
    poison(two_replicas, training.updater.first_moments[1], place)
    assert validity.gradients_check(training).passed is False


@EITHER
def test_updates(two_replicas, validity, place):
    training, next_batch = build_training(tiny_case(num_gpus=2), two_replicas)
    batch = next_batch()
    reference = validity.OneDeviceReference(training, validity.replicas_of(two_replicas, batch))
    training.step(batch)
    assert validity.update_check(training, reference).passed
    assert validity.loss_check(training, reference, math.nan).passed is False
    poison(two_replicas, training.updater.first_moments[0], place)
    assert validity.update_check(training, reference).passed is False


@EITHER
def test_outputs_of_inference(two_replicas, inference, validity, inputs, keras_versions, place):
    case = tiny_case(mode=Mode.INFER, num_gpus=2)
    model = build(TinyNetwork(), case.batch_norm, IMAGE_SIZE, two_replicas)
    poison(two_replicas, keras_versions.tensorflow_variable(model.trainable_variables[0]), place)
    batch = inputs.batch_source(case, IMAGE_SIZE, CLASSES, two_replicas)()
    checks = inference.Inference(case, model, two_replicas).checks(batch)
    assert {check.name: check.passed for check in checks} == {
        "outputs_finite_at_first": False,
        "outputs_equal_one_device": False,
    }
    assert validity.output_check(math.nan).passed is False


@EITHER
def test_sums_over_replicas(two_replicas, monkeypatch, tf, transfers, place):
    sums = [tf.fill([9], 3.0), tf.fill([9], 3.0)]
    sums[place] = tf.fill([9], math.nan)
    monkeypatch.setattr(transfers, "sum_over_replicas", lambda *_: lambda: sums)
    check = transfers.all_reduce_check(two_replicas)
    assert (check.passed, check.value) == (False, None)


def test_products(tensorflow, monkeypatch, tf, peaks):
    monkeypatch.setattr(peaks, "product_call", lambda factor, *_: lambda: tf.matmul(factor, factor) * math.nan)
    assert peaks.product_check("fp32", "CPU:0").passed is False
    monkeypatch.setattr(tf, "matmul", lambda *_: tf.fill([256, 256], math.nan))
    assert peaks.tf32_observed("CPU:0") is None, "it is unknown how it rounds"


def test_the_doctors_trial(tensorflow, monkeypatch, tf):
    from tfbench.doctor.trial import all_reduces
    from tfbench.roofline import transfers

    monkeypatch.setattr(transfers, "sum_over_replicas", lambda *_: lambda: [tf.fill([9], 3.0), tf.fill([9], math.nan)])
    assert all_reduces(["CPU:0", "CPU:1"])["all_reduce"] is False


class TwoHosts:
    """Another host whose weights differ by `divergence`, or are the same as here."""

    size, rank = 2, 0

    def __init__(self, divergence=None):
        self.divergence = divergence

    def gather(self, what, value):
        if what == "weights":
            return [value, value if self.divergence is None else ["other"] * len(value)]
        return [value, self.divergence]


def test_weights_of_hosts(trained, two_replicas, monkeypatch, ranks):
    training, _ = trained
    monkeypatch.setattr(ranks, "_mean_over_replicas", lambda _, values: values / 2)
    assert ranks.ranks_check(training, TwoHosts()).value == 0.0
    assert ranks.ranks_check(training, TwoHosts(divergence=1e-9)).passed
    assert ranks.ranks_check(training, TwoHosts(divergence=math.nan)).passed is False
    poison(two_replicas, training.variables[1], 0)
    for divergence in (None, 1e-9):
        assert ranks.ranks_check(training, TwoHosts(divergence)).passed is False


@EITHER
def test_a_training_in_which_one_replica_adds_nan_leaves_no_number(two_replicas, tf, step, place):
    def one_adds_nan(tensors):
        here = tf.distribute.get_replica_context().replica_id_in_sync_group
        wrong = tf.where(tf.equal(here, place), math.nan, 1.0)
        return [tensor * wrong for tensor in step.sum_over_replicas(tensors)]

    findings = Findings()
    with pytest.raises(CaseFailedError) as caught:
        faulty = functools.partial(step.Training, all_reduce=one_adds_nan)
        measure_repeat(tiny_case(num_gpus=2), two_replicas, findings=findings, make_training=faulty)
    assert caught.value.status in (Status.INVALID, Status.NOT_FINITE)
    assert findings.measurement is None and not findings.valid


def test_a_case_of_the_devices_whose_sums_are_nan_is_invalid(two_replicas, monkeypatch, tf, transfers, device_case):
    monkeypatch.setattr(transfers, "sum_over_replicas", lambda *_: lambda: [tf.fill([9], 3.0), tf.fill([9], math.nan)])
    for name in ("connect", "all_reduce", "host_transfers"):
        monkeypatch.setattr(transfers, name, lambda *_: [])
    monkeypatch.setattr(device_case, "product_of", lambda *_: (None, device_case.validity.does_not_apply("product")))
    monkeypatch.setattr(device_case.peaks, "memory_add", lambda *_: None)
    case = Case(model="device", mode=Mode.DEVICE, device=Device.CPU, num_gpus=2)
    findings = Findings()
    with pytest.raises(CaseFailedError, match="all_reduce") as caught:
        device_case.measure_devices(case, two_replicas, findings, Options(), GPUs(0))
    assert caught.value.status is Status.INVALID and not findings.valid

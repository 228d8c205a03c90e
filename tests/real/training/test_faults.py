"""Whatever a device or an all-reduce does wrong, a repeat ends without a figure and names the check that saw it."""

import functools
import math

import numpy as np
import pytest

from results.schema import Mode, Precision, Status
from tests.real.training import tiny
from tests.real.training.test_training import POLICIES, build
from tests.real.training.tiny import CLASSES, IMAGE_SIZE, TinyNetwork, build_tiny, measure_repeat, tiny_case
from tfbench import models
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings

pytestmark = pytest.mark.tensorflow

EITHER = pytest.mark.parametrize("place", [0, 1])
"""The device that is wrong."""


def not_reduced(step):
    return {"all_reduce": list}


def summed_twice(step):
    return {"all_reduce": lambda tensors: [tensor * 2.0 for tensor in step.sum_over_replicas(tensors)]}


def nan_of_one(step):
    def one_adds_nan(tensors):
        import tensorflow as tf

        here = tf.distribute.get_replica_context().replica_id_in_sync_group
        wrong = tf.where(tf.equal(here, 1), math.nan, 1.0)
        return [tensor * wrong for tensor in step.sum_over_replicas(tensors)]

    return {"all_reduce": one_adds_nan}


def diverging(step):
    return {"learning_rate": 1e38}


def loss_of_one_replica(step):
    class Faulty(step.Training):
        def _step(self, batch):
            shares = self.strategy.run(self._replica_step, args=batch)
            return self.strategy.experimental_local_results(shares)[:1]

    return Faulty


def late_nan(step):
    class Faulty(step.Training):
        steps = 0

        def step(self, batch):
            self.steps += 1
            return [loss * (math.nan if self.steps == 8 else 1.0) for loss in super().step(batch)]

    return Faulty


def nothing_computed(step):
    """Give losses and gradients as a device that drops every kernel leaves them."""

    class Faulty(step.Training):
        def forward_backward(self, features, labels, loss_scale):
            loss, gradients = super().forward_backward(features, labels, loss_scale)
            return loss * 0.0, [gradient * 0.0 for gradient in gradients]

    return Faulty


def one_gradient_only(step):
    class Faulty(step.Training):
        def forward_backward(self, features, labels, loss_scale):
            loss, gradients = super().forward_backward(features, labels, loss_scale)
            return loss, [*(gradient * 0.0 for gradient in gradients[:-1]), gradients[-1]]

    return Faulty


def nothing_updated(step):
    class Faulty(step.Training):
        def _update(self, gradients):
            return [gradient + 0.0 for gradient in gradients]

    return Faulty


TWO, FP16 = {"num_gpus": 2}, {"num_gpus": 2, "precision": Precision.FP16}
UPDATE, LARGE = "update_equals_one_device", 16_384
FAULTS = [
    (not_reduced, TWO, None, Status.INVALID, f"{UPDATE}.*replicas_equal"),
    (summed_twice, TWO, None, Status.INVALID, UPDATE),
    (not_reduced, FP16, LARGE, Status.INVALID, UPDATE),
    (summed_twice, FP16, LARGE, Status.INVALID, UPDATE),
    (nan_of_one, TWO, None, Status.INVALID, UPDATE),
    (loss_of_one_replica, TWO, None, Status.INVALID, "loss_equals_one_device"),
    (nothing_computed, {}, None, Status.INVALID, "loss_of_an_untrained_network.*gradients_not_zero"),
    (one_gradient_only, {}, None, Status.INVALID, "gradients_not_zero"),
    (nothing_updated, {}, None, Status.INVALID, "gradients_not_zero"),  # the first moments stay 0
    (diverging, {}, None, Status.NOT_FINITE, "loss_finite_before_timing"),
    (late_nan, {}, None, Status.NOT_FINITE, "loss_finite_while_timing"),
]
"""What is planted, into which case, its global batch where that is not its replicas' own, the status and the checks."""


@pytest.fixture
def measured(two_replicas, one_replica, step, keras, monkeypatch):
    """Give a function that measures a case with a fault; its loss is divided by `global_batch`, as if there were as many samples."""

    def measure(case, fault=None, global_batch=None):
        found = {} if fault is None else fault(step)
        make = found if isinstance(found, type) else functools.partial(step.Training, **found)

        def divided(*arguments, **options):
            training = make(*arguments, **options)
            training.global_batch = global_batch or training.global_batch
            return training

        if global_batch:  # the loss then says nothing about the network
            monkeypatch.setattr("tfbench.measuring.validity.UNTRAINED_LIMIT", math.inf)
        keras.mixed_precision.set_global_policy(POLICIES[case.precision])
        findings = Findings()
        strategy = two_replicas if case.num_gpus == 2 else one_replica
        try:
            return measure_repeat(case, strategy, findings=findings, make_training=divided)
        except CaseFailedError:
            assert findings.measurement is None and not findings.valid
            raise

    return measure


@pytest.mark.parametrize(("fault", "changes", "global_batch", "status", "checks"), FAULTS)
def test_a_fault_leaves_no_figure_and_is_named(measured, fault, changes, global_batch, status, checks):
    with pytest.raises(CaseFailedError, match=checks) as caught:
        measured(tiny_case(**changes), fault, global_batch)
    assert caught.value.status is status


def test_gradients_below_what_fp16_can_hold_pass_the_checks(measured):
    findings = measured(tiny_case(**FP16, accumulate=2), global_batch=LARGE)
    (check,) = [check for check in findings.checks if check.name == UPDATE]
    assert check.passed and check.value < 0.02


def test_the_reference_halves_its_scale_until_its_gradients_are_finite(one_replica, keras, validity):
    keras.mixed_precision.set_global_policy("mixed_float16")
    training, next_batch = build(tiny_case(precision=Precision.FP16), one_replica)
    shards = validity.replicas_of(one_replica, next_batch())
    wanted = validity.OneDeviceReference(training, shards).gradients
    training._loss_scale.assign(2.0**30)
    for ours, theirs in zip(validity.OneDeviceReference(training, shards).gradients, wanted, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=1e-4)


def poison(strategy, variable, place, factor=math.nan):
    """Multiply one replica's component of a variable, by default with NaN."""
    component = strategy.experimental_local_results(variable)[place]
    component.assign(component * factor)


@EITHER
def test_a_device_that_gives_nan_passes_no_check(two_replicas, validity, place):
    training, next_batch = build(tiny_case(**TWO), two_replicas)
    batch = next_batch()
    reference = validity.OneDeviceReference(training, validity.replicas_of(two_replicas, batch))
    witness = validity.LearningWitness(training)

    def verdicts(losses):
        of_weights, of_gradients = validity.replicas_check(training), validity.gradients_check(training)
        checks = (of_weights, of_gradients, validity.update_check(training, reference), *witness.checks(losses))
        return [check.passed for check in checks]

    assert validity.failures(witness.checks([7.0] * 5)).count("change") == 2, "neither weights nor losses have changed"
    training.step(batch)
    assert verdicts([7.0, 6.9]) == [True] * 5
    assert verdicts([7.0, math.nan]) == [True] * 4 + [False]
    assert validity.loss_check(training, reference, math.nan).passed is False
    for variable in (training.variables[1], training.variables[-1], training.updater.first_moments[1]):
        poison(two_replicas, variable, place)
    assert verdicts([7.0, 6.9]) == [False] * 4 + [True]
    assert math.isnan(validity.worst([1.0, math.nan, 2.0])), "as between hosts"


@EITHER
@pytest.mark.parametrize(("factor", "finite"), [(math.nan, False), (1.01, True)])
def test_outputs_of_a_wrong_replica_are_seen(two_replicas, inference, inputs, keras_versions, place, factor, finite):
    case = tiny_case(mode=Mode.INFER, num_gpus=2)
    model = models.build(TinyNetwork(), case.batch_norm, IMAGE_SIZE, two_replicas)
    poison(two_replicas, keras_versions.tensorflow_variable(model.trainable_variables[0]), place, factor)
    batch = inputs.batch_source(case, IMAGE_SIZE, CLASSES, two_replicas)()
    checks = {check.name: check.passed for check in inference.Inference(case, model, two_replicas).checks(batch)}
    assert checks == {"outputs_finite_at_first": finite, "outputs_equal_one_device": False}


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
    assert caught.value.status is Status.NOT_FINITE and findings.measurement is None


@EITHER
def test_sums_that_are_nan_pass_neither_a_case_nor_the_doctor(two_replicas, monkeypatch, tf, transfers, place):
    from tfbench.doctor.trial import all_reduces

    sums = [tf.fill([9], 3.0), tf.fill([9], 3.0)]
    sums[place] = tf.fill([9], math.nan)
    monkeypatch.setattr(transfers, "sum_over_replicas", lambda *_: lambda: sums)
    check = transfers.all_reduce_check(two_replicas)
    assert (check.passed, check.value) == (False, None)
    assert all_reduces(["CPU:0", "CPU:1"])["all_reduce"] is False


def test_products_that_are_nan_are_wrong(monkeypatch, tf, peaks):
    monkeypatch.setattr(peaks, "product_call", lambda factor, *_: lambda: tf.matmul(factor, factor) * math.nan)
    assert peaks.product_check("fp32", "CPU:0").passed is False
    monkeypatch.setattr(tf, "matmul", lambda *_: tf.fill([256, 256], math.nan))
    assert peaks.tf32_observed("CPU:0") is None, "it is unknown how it rounds"


@pytest.mark.parametrize("loss", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_value_fails_and_prints(tensorflow, loss, validity):
    assert "loss_of_an_untrained_network" in validity.failures([validity.untrained_loss_check(loss, math.log(1000))])
    check = validity.finite_check("x", [7.0, math.nan, math.inf])
    assert validity.failures([check]) == "x: the value of step 2 is nan"
    assert validity.output_check(math.nan).passed is validity.output_check(0.0).passed is False

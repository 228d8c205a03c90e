import functools

import numpy as np
import pytest

from results.schema import XLA, BatchNorm, Data, Precision, Status
from results.schema.networks import NETWORKS
from tests.real.training.tiny import CLASSES, IMAGE_SIZE, TinyNetwork, measure_repeat, tiny_case
from tfbench import models
from tfbench.failures import CaseFailedError
from tfbench.findings import Findings
from tfbench.measuring.timing import wait_for_loss

pytestmark = pytest.mark.tensorflow


def build(case, strategy, **options):
    from tfbench.training.inputs import batch_source
    from tfbench.training.step import Training

    model = models.build(TinyNetwork(), case.batch_norm, IMAGE_SIZE, strategy)
    training = Training(case, model, strategy, **options)
    return training, batch_source(case, IMAGE_SIZE, CLASSES, strategy)


def weights_of(training, replica=0):
    from tfbench.keras_versions import components

    return [components(training.strategy, variable)[replica].numpy() for variable in training.variables]


def test_two_replicas_train_as_one_device_on_the_global_batch(two_replicas, one_replica, tf, inputs):
    twice, _ = build(tiny_case(num_gpus=2), two_replicas, learning_rate=0.1)
    alone, _ = build(tiny_case(batch_per_gpu=32), one_replica, learning_rate=0.1)
    for mine, theirs in zip(alone.variables, weights_of(twice), strict=True):
        mine.assign(theirs)
    # Each replica gets the same half, so that batch normalisation sees the same statistics everywhere.
    half = inputs.synthetic_batch(tiny_case(), IMAGE_SIZE, CLASSES, replica=0)
    whole = tuple(tf.concat([part, part], 0) for part in half)
    halves = tuple(
        two_replicas.experimental_distribute_values_from_function(lambda _, part=part: part) for part in half
    )
    for _ in range(5):
        loss_twice, loss_alone = wait_for_loss(twice.step(halves)), wait_for_loss(alone.step(whole))
        assert loss_twice == pytest.approx(loss_alone, rel=1e-5)
    for ours, theirs in zip(weights_of(twice), weights_of(alone), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
    for first, second in zip(weights_of(twice, 0), weights_of(twice, 1), strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_update_is_that_of_momentum_sgd(one_replica):
    training, next_batch = build(tiny_case(), one_replica, learning_rate=0.5)
    before = weights_of(training)
    training.step(next_batch())
    first_velocity = [variable.numpy() for variable in training.updater.first_moments]
    after = weights_of(training)
    for old, new, velocity in zip(before, after, first_velocity, strict=True):
        np.testing.assert_allclose(new, old - 0.5 * velocity, rtol=1e-5, atol=1e-7)
    assert any(np.abs(velocity).max() > 0 for velocity in first_velocity)


def test_replicas_see_different_batches_that_are_the_same_in_every_process(tensorflow, inputs):
    case = tiny_case()
    first, again, other = (inputs.synthetic_batch(case, IMAGE_SIZE, CLASSES, replica) for replica in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    assert np.abs(first[0] - other[0]).max() > 0.1
    assert first[1].numpy().min() >= 0 and first[1].numpy().max() < CLASSES


def test_moving_averages_belong_to_each_replica(two_replicas, keras_versions):
    training, next_batch = build(tiny_case(num_gpus=2), two_replicas)
    training.step(next_batch())
    moving = [keras_versions.tensorflow_variable(v) for v in training.model.non_trainable_variables]
    first, second = (part.numpy() for part in keras_versions.components(two_replicas, moving[0]))
    assert np.abs(first).max() > 0
    assert np.abs(first - second).max() > 0


def test_a_step_of_infinite_gradients_only_halves_the_loss_scale(one_replica):
    case = tiny_case(precision=Precision.FP16)
    training, next_batch = build(case, one_replica)
    before = weights_of(training)
    training._loss_scale.assign(float("inf"))
    training.step(next_batch())
    assert not training.was_updated()
    for old, new in zip(before, weights_of(training), strict=True):
        np.testing.assert_array_equal(old, new)
    training._loss_scale.assign(2.0**10)
    training.step(next_batch())
    assert training.was_updated()
    assert any((old != new).any() for old, new in zip(before, weights_of(training), strict=True))


def test_the_loss_scale_doubles_after_2000_finite_steps(one_replica):
    training, next_batch = build(tiny_case(precision=Precision.FP16), one_replica)
    training._finite_steps.assign(1998.0)
    scales = []
    for _ in range(3):
        training.step(next_batch())
        scales.append(training.loss_scale)
    assert scales == [2.0**15, 2.0**16, 2.0**16]


@pytest.mark.parametrize(
    ("precision", "data"),
    [
        *((precision, Data.SYNTHETIC) for precision in Precision),
        (Precision.FP32, Data.HOST),
        (Precision.FP16, Data.HOST),
    ],
)
def test_loss_falls_with_every_precision_and_input(two_replicas, precision, data, keras):
    policies = {Precision.FP16: "mixed_float16", Precision.BF16: "mixed_bfloat16"}
    keras.mixed_precision.set_global_policy(policies.get(precision, "float32"))
    case = tiny_case(num_gpus=2, precision=precision, data=data)
    training, next_batch = build(case, two_replicas, learning_rate=0.1)
    losses = [wait_for_loss(training.step(next_batch())) for _ in range(12)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


def measured(case, strategy, **faults):
    from tfbench.training.step import Training

    return measure_repeat(case, strategy, make_training=functools.partial(Training, **faults))


@pytest.mark.parametrize(("xla", "factor"), [(XLA.OFF, 1), (XLA.AUTO, 10), (XLA.REPLICA, 10)])
def test_checks_pass_for_sound_training_in_every_xla_mode(two_replicas, xla, factor):
    findings = measured(tiny_case(num_gpus=2, xla=xla), two_replicas)
    limits = {check.name: check.limit for check in findings.checks if check.passed}
    assert limits["update_equals_one_device"] == pytest.approx(5e-3 * factor)
    assert limits["loss_equals_one_device"] == pytest.approx(1e-4 * factor)
    assert "replicas_equal" in limits
    measurement = findings.measurement
    assert (measurement.replicas, measurement.batch_per_gpu, measurement.global_batch) == (2, 16, 32)
    assert len(measurement.step_seconds) == measurement.num_steps == 12


def not_reduced(tensors):
    return tensors


def summed(factor):
    """Return an all-reduce whose sums are wrong by a factor."""
    from tfbench.training.step import sum_over_replicas

    return lambda tensors: [tensor * factor for tensor in sum_over_replicas(tensors)]


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (None, "update_equals_one_device.*replicas_equal"),
        (2.0, "update_equals_one_device"),
        (0.5, "update_equals_one_device"),
    ],
)
def test_a_broken_all_reduce_is_caught_and_the_repeat_is_invalid(two_replicas, fault, check):
    with pytest.raises(CaseFailedError, match=check) as caught:
        measured(tiny_case(num_gpus=2), two_replicas, all_reduce=summed(fault) if fault else not_reduced)
    assert caught.value.status is Status.INVALID


def test_a_wrong_loss_is_caught(two_replicas, step):
    class LossOfOneReplica(step.Training):
        def _step(self, batch):
            shares = self.strategy.run(self._replica_step, args=batch)
            return self.strategy.experimental_local_results(shares)[:1]

    with pytest.raises(CaseFailedError, match="loss_equals_one_device"):
        measure_repeat(tiny_case(num_gpus=2), two_replicas, make_training=LossOfOneReplica)


def test_a_learning_rate_that_diverges_is_not_finite_and_leaves_no_number(one_replica, step):
    findings = Findings()
    with pytest.raises(CaseFailedError) as caught:
        diverging = functools.partial(step.Training, learning_rate=1e38)
        measure_repeat(tiny_case(), one_replica, findings=findings, make_training=diverging)
    assert caught.value.status is Status.NOT_FINITE
    assert findings.measurement is None
    assert not findings.valid


@pytest.mark.parametrize(
    ("version", "replicas", "refused"),
    [("3.4.1", 2, True), ("3.9.2", 2, True), ("3.4.1", 1, False), ("3.10.0", 8, False), ("2.9.0", 8, False)],
)
def test_keras_releases_that_train_wrongly_need_one_replica(tensorflow, version, replicas, refused, validity):
    assert (validity.keras_refusal(version, replicas) is not None) == refused


def test_an_unknown_variant_is_unsupported_with_what_there_is(tensorflow, repeat):
    with pytest.raises(CaseFailedError, match="--batch_norm=none is not for resnet50: it has fused or keras") as caught:
        repeat.refuse_unsupported(tiny_case(model="resnet50", batch_norm=BatchNorm.NONE), NETWORKS["resnet50"])
    assert caught.value.status is Status.UNSUPPORTED


def test_a_tensorflow_without_the_private_call_of_a_graph_trains_alike(one_replica, keras_versions):
    class PublicGraph:
        def __init__(self, graph):
            self.captured_inputs, self._graph = graph.captured_inputs, graph

        def __call__(self, argument):
            self._graph(argument)

    training, next_batch = build(tiny_case(), one_replica, learning_rate=0.1)
    batch, traced = next_batch(), training._call._function.get_concrete_function
    losses = [wait_for_loss(training.step(batch)) for _ in range(3)]
    training._call._graphs.clear()
    training._call._function = type("Function", (), {"get_concrete_function": lambda _, of: PublicGraph(traced(of))})()
    losses += [wait_for_loss(training.step(batch)) for _ in range(3)]
    assert sorted(losses, reverse=True) == losses and len(set(losses)) == 6, "each call trained"

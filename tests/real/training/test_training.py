"""Steps that are sound: replicas train and answer as one device, whatever the precision, the input and the optimizer."""

import itertools

import numpy as np
import pytest

from results.schema import XLA, AllReduceDtype, Communication, Data, Device, Mode, Optimizer, Precision
from tests.real.training.tiny import CLASSES, IMAGE_SIZE, TinyNetwork, measure_repeat, tiny_case
from tfbench import models
from tfbench.measuring.timing import wait_for_loss

pytestmark = pytest.mark.tensorflow

POLICIES = {
    Precision.FP32: "float32",
    Precision.TF32: "float32",
    Precision.BF16: "mixed_bfloat16",
    Precision.FP16: "mixed_float16",
}


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


def test_replicas_see_different_batches_that_are_the_same_in_every_process(tensorflow, inputs):
    first, again, other = (inputs.synthetic_batch(tiny_case(), IMAGE_SIZE, CLASSES, place) for place in (0, 0, 1))
    np.testing.assert_array_equal(first[0], again[0])
    assert np.abs(first[0] - other[0]).max() > 0.1
    assert first[1].numpy().min() >= 0 and first[1].numpy().max() < CLASSES


def test_the_loss_scale_halves_at_infinity_and_doubles_after_2000_steps(one_replica):
    training, next_batch = build(tiny_case(precision=Precision.FP16), one_replica)
    before = weights_of(training)
    training._finite_steps.assign(1998.0)
    scales = []
    for _ in range(3):
        training.step(next_batch())
        scales.append(training.loss_scale)
    assert scales == [2.0**15, 2.0**16, 2.0**16] and training.was_updated()
    assert any((old != new).any() for old, new in zip(before, weights_of(training), strict=True))
    before = weights_of(training)
    training._loss_scale.assign(float("inf"))
    training.step(next_batch())
    assert not training.was_updated()
    for old, new in zip(before, weights_of(training), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize(("precision", "data"), [(Precision.BF16, Data.SYNTHETIC), (Precision.FP16, Data.HOST)])
def test_loss_falls_with_half_precision_and_either_input(two_replicas, precision, data, keras):
    keras.mixed_precision.set_global_policy(POLICIES[precision])
    training, next_batch = build(tiny_case(num_gpus=2, precision=precision, data=data), two_replicas, learning_rate=0.1)
    losses = [wait_for_loss(training.step(next_batch())) for _ in range(12)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


@pytest.mark.parametrize(("xla", "factor"), [(XLA.OFF, 1), (XLA.AUTO, 10), (XLA.REPLICA, 10)])
def test_checks_pass_for_sound_training_in_every_xla_mode(two_replicas, xla, factor):
    findings = measure_repeat(tiny_case(num_gpus=2, xla=xla), two_replicas)
    limits = {check.name: check.limit for check in findings.checks if check.passed}
    assert limits["update_equals_one_device"] == pytest.approx(5e-3 * factor)
    assert limits["loss_equals_one_device"] == pytest.approx(1e-4 * factor)
    assert "replicas_equal" in limits
    measurement = findings.measurement
    assert (measurement.replicas, measurement.batch_per_gpu, measurement.global_batch) == (2, 16, 32)
    assert len(measurement.step_seconds) == measurement.num_steps == 12


def test_one_replica_is_compared_with_no_other_and_has_all_figures(one_replica):
    findings = measure_repeat(tiny_case(num_steps=6), one_replica, steps_per_wait=2)
    checks = {check.name: check.passed for check in findings.checks}
    assert [name for name, passed in checks.items() if passed is None] == [
        *("loss_equals_one_device", "update_equals_one_device", "replicas_equal")
    ]
    assert list(checks.values()).count(True) == len(checks) - 3
    assert findings.telemetry.cooling_seconds is None, "there are no GPUs"
    found = findings.measurement
    first, second, third, fourth, *_ = found.step_seconds
    assert (found.steps_per_wait, first, third) == (2, second, fourth)
    assert (len(found.step_seconds), found.num_steps, found.samples, found.warmup_steps) == (6, 6, 16 * 6, 2)
    assert found.samples_per_second == pytest.approx(found.samples / sum(found.step_seconds))
    assert (found.latency, found.input_limit, found.ranks, found.warmup_settled) == (None, None, [], None)
    assert (found.image_size, found.sequence_length, found.communication) == (IMAGE_SIZE, None, None)
    assert (found.parameters_trainable, found.parameters_total, found.peak_flops_per_second) == (322, 338, None)


@pytest.mark.parametrize(
    ("version", "replicas", "refused"), [("3.4.1", 2, True), ("3.9.2", 1, False), ("3.10.0", 8, False)]
)
def test_keras_releases_that_train_wrongly_need_one_replica(tensorflow, version, replicas, refused, validity):
    assert (validity.keras_refusal(version, replicas) is not None) == refused


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


def test_a_cpu_case_hides_the_gpus(tensorflow, monkeypatch, devices):
    hidden = []
    monkeypatch.setattr(tensorflow.config, "set_logical_device_configuration", lambda *_: None)
    monkeypatch.setattr(tensorflow.config, "set_visible_devices", lambda *given: hidden.append(given))
    devices.create_strategy(tiny_case(device=Device.CPU))
    assert hidden == [([], "GPU")]


@pytest.mark.parametrize(
    ("device", "asked", "used"), [("gpu", "auto", "nccl"), ("gpu", "ring", "ring"), ("cpu", "auto", "auto")]
)
def test_hosts_of_gpus_request_nccl_unless_set_otherwise(tensorflow, device, asked, used, devices):
    case = tiny_case(device=Device(device), num_hosts=2, communication=Communication(asked))
    assert devices.communication_of(case) == used


SHAPES = [(3, 3, 5), (5,), (4, 16), (), (1000,), (64, 3)]


@pytest.mark.parametrize(
    ("pack_bytes", "alone_bytes", "shapes"),
    [
        (0, None, [(84, 16)]),
        (1, None, SHAPES),
        (4 * 200, None, [(3 + 1 + 4 + 1, 16), (63 + 12, 16)]),
        (4 * 60, 4 * 192, [(3 + 1, 16), (4 + 1, 16), (1000,), (64, 3)]),
    ],
)
def test_buffers_fill_from_the_last_variable_and_give_back_gradients(tensorflow, pack_bytes, alone_bytes, shapes, step):
    gradients = [tensorflow.random.stateless_normal(shape, (1, len(shape))) for shape in SHAPES]
    packs = step.GradientPacks(SHAPES, pack_bytes, alone_bytes)
    buffers = packs.join(gradients)
    assert [tuple(buffer.shape) for buffer in buffers] == shapes
    for ours, theirs in zip(packs.split(buffers), gradients, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def traced(case, strategy, monkeypatch, pack_bytes):
    """Return the operations of one step whose packs are that small."""
    monkeypatch.setattr("tfbench.training.step.MEGABYTE", pack_bytes)
    training, next_batch = build(case, strategy)
    return training, training.traced(next_batch()).graph.get_operations()


def test_all_reduces_start_with_the_last_layers_and_keep_that_order(two_replicas, monkeypatch):
    training, operations = traced(tiny_case(num_gpus=2, all_reduce_pack_mb=1), two_replicas, monkeypatch, 1)
    sizes = [int(np.prod(variable.shape)) for variable in training.variables]
    for device in ("CPU:0", "CPU:1"):
        reduces = [op for op in operations if op.type == "CollectiveReduceV2" and op.device.endswith(device)]
        assert [op.inputs[0].shape.num_elements() for op in reduces] == sizes[::-1]
        for earlier, later in itertools.pairwise(reduces):
            assert earlier in later.control_inputs


def test_only_loss_scaling_packs_gradients_of_one_replica(one_replica, monkeypatch):
    case = tiny_case(precision=Precision.FP16, all_reduce_pack_mb=1)
    kinds = [op.type for op in traced(case, one_replica, monkeypatch, 10**6)[1]]
    assert kinds.count("L2Loss") == kinds.count("MulNoNan") == 1, "one check and one product per buffer"
    training, operations = traced(tiny_case(), one_replica, monkeypatch, 1)
    assert training.loss_scale == 1.0
    assert not {"ConcatV2", "SplitV"} & {op.type for op in operations}


@pytest.mark.parametrize(("kind", "name"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_gradients_travel_in_the_type_of_the_setting(two_replicas, monkeypatch, kind, name):
    case = tiny_case(num_gpus=2, precision=Precision(kind), all_reduce_dtype=AllReduceDtype(kind))
    operations = traced(case, two_replicas, monkeypatch, 10**6)[1]
    assert {op.inputs[0].dtype.name for op in operations if op.type == "CollectiveReduceV2"} == {name}


RATE = 0.1


def updated(tf, strategy, optimizer, gradients, finite=None):
    """Apply one list of gradients after another to a matrix and a bias; return them before and after, and the updater."""
    from tfbench.training.optimizers import make_updater

    with strategy.scope():
        variables = [tf.Variable(start, trainable=True) for start in random_pairs(1, seed=1)[0]]
        updater = make_updater(optimizer, variables, RATE)

    @tf.function
    def update(first, second):
        def on_replica(first, second):
            with tf.control_dependencies(updater.apply([first, second], finite)):
                return tf.constant(0.0)

        return strategy.run(on_replica, args=(first, second))

    before = [variable.numpy() for variable in variables]
    for pair in gradients:
        update(*(tf.constant(gradient) for gradient in pair))
    return before, [variable.numpy() for variable in variables], updater


def random_pairs(steps, seed=2):
    """Return values for a matrix and a bias, for each step."""
    generator = np.random.default_rng(seed)
    return [[generator.standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4,))] for _ in range(steps)]


def adamw(weights, gradients, is_matrix):
    """Update as Kingma and Ba 2014 do, and decay matrices as Loshchilov and Hutter 2019."""
    from tfbench.training.optimizers import BETA_1, BETA_2, EPSILON, WEIGHT_DECAY

    mean = square = 0.0
    for number, gradient in enumerate(gradients, start=1):
        mean = BETA_1 * mean + (1 - BETA_1) * gradient
        square = BETA_2 * square + (1 - BETA_2) * gradient**2
        direction = (mean / (1 - BETA_1**number)) / (np.sqrt(square / (1 - BETA_2**number)) + EPSILON)
        weights = weights - RATE * (direction + (WEIGHT_DECAY * weights if is_matrix else 0.0))
    return weights


def momentum(weights, gradients, _):
    velocity = 0.0
    for gradient in gradients:
        velocity = 0.9 * velocity + gradient
        weights = weights - RATE * velocity
    return weights


FORMULAS = {Optimizer.ADAMW: adamw, Optimizer.MOMENTUM: momentum}


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_updates_are_those_of_the_published_formulas(tensorflow, one_replica, optimizer):
    gradients = random_pairs(4)
    before, after, _ = updated(tensorflow, one_replica, optimizer, gradients)
    for index, is_matrix in ((0, True), (1, False)):
        wanted = FORMULAS[optimizer](before[index].astype(np.float64), [pair[index] for pair in gradients], is_matrix)
        np.testing.assert_allclose(after[index], wanted, rtol=2e-4, atol=2e-5)
    _, _, updater = updated(tensorflow, one_replica, optimizer, gradients[:1])
    for moment, gradient in zip(updater.first_moments, gradients[0], strict=True):
        np.testing.assert_allclose(moment.numpy(), updater.first_share * gradient, rtol=1e-5)


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_a_step_that_was_not_finite_changes_nothing(tensorflow, one_replica, optimizer):
    nothing = [[np.zeros_like(gradient) for gradient in pair] for pair in random_pairs(2)]
    before, after, updater = updated(tensorflow, one_replica, optimizer, nothing, tensorflow.constant(False))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)
    assert all(np.abs(moment.numpy()).max() == 0 for moment in updater.first_moments)


@pytest.mark.parametrize("xla", list(XLA))
def test_two_replicas_answer_as_one_device_in_every_xla_mode(two_replicas, xla):
    findings = measure_repeat(tiny_case(mode=Mode.INFER, num_gpus=2, xla=xla), two_replicas)
    assert {check.name for check in findings.checks if check.passed} == {
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
    model = models.build(TinyNetwork(), case.batch_norm, IMAGE_SIZE, one_replica)
    before = [np.array(weight) for weight in model.get_weights()]
    batch = inputs.batch_source(case, IMAGE_SIZE, CLASSES, one_replica)()
    (images, _) = validity.replicas_of(one_replica, batch)[0]
    mean = wait_for_loss(inference.Inference(case, model, one_replica).step(batch))
    assert mean == pytest.approx(float(np.mean(model(images, training=False))), rel=1e-4, abs=1e-6)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)

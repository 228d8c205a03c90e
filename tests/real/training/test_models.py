from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import numpy as np
import pytest

from results.schema import BatchNorm, Case, Data, Mode
from results.schema.networks import NETWORKS
from results.schema.refusals import network_refusal
from tests.real.training.small import small_case, small_network
from tfbench.models import build

if TYPE_CHECKING:
    from tfbench.roofline.limits import Work

pytestmark = pytest.mark.tensorflow

VARIANTS = [(name, variant) for name, network in NETWORKS.items() for variant in network.parameters]


class Published(NamedTuple):
    """What was counted of a network at its published size."""

    parameters: int
    trainable: int
    outputs: int
    work: Work
    inference: Work


def _zeros(shape, *_, dtype=None, **__):
    """Stand in for random weights, whose values are not counted: drawing them takes longer than all else."""
    import tensorflow as tf

    return tf.zeros(shape, dtype or "float32")


def drawing(draw):
    """Replace what draws random weights."""
    return mock.patch.multiple("keras.src.backend.random", normal=draw, truncated_normal=draw, uniform=draw)


@functools.cache
def counted(name, variant, size):
    """Build a variant at a size, and keep what was counted only."""
    import tensorflow as tf

    from tfbench.roofline import limits

    with drawing(_zeros):
        model = build(NETWORKS[name], variant, size, tf.distribute.get_strategy())
    trainable = sum(np.prod(weight.shape) for weight in model.trainable_weights)
    work = (limits.work_per_sample(model, mode) for mode in (Mode.TRAIN, Mode.INFER))
    return Published(model.count_params(), trainable, model.outputs[0].shape[-1], *work)


@pytest.fixture
def published(tensorflow):
    return counted


@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_a_network_has_the_parameters_that_it_states(published, name, variant):
    network = NETWORKS[name]
    found = published(name, variant, Case(model=name).size(network))
    assert found.parameters == network.parameters[variant]
    assert found.outputs == network.classes


# Trainable parameters. torchvision: the models' documentation; timm: the model card; Keras: keras.io/api/applications,
# total; BERT: 30,522 of the uncased vocabulary replaced in Devlin et al.'s 340 M by 28,996, and counted layer by layer
# below; GPT-2: 124 M of the released model (Radford et al. say 117 M by mistake).
LITERATURE = {
    "resnet50_v1.5": 25_557_032,  # torchvision
    "resnet152_v1.5": 60_192_808,  # torchvision
    "vgg16": 138_357_544,  # torchvision, Keras
    "alexnet": 61_100_840,  # torchvision
    "inception_v4": 42_679_816,  # timm
    "vit_b16": 86_567_656,  # torchvision
    "gpt2_small": 124_439_808,
}


@pytest.mark.parametrize("name", list(LITERATURE))
def test_trainable_parameters_are_those_of_the_literature(published, name):
    case = Case(model=name)
    assert published(name, case.batch_norm, case.size(NETWORKS[name])).trainable == LITERATURE[name]


# GFLOP per image forward and in training (without the images' gradient), and million elements per image moved without
# and with fusion: counted independently of this code, from the layer graphs of keras.applications.
PUBLISHED = [
    ("resnet50", BatchNorm.FUSED, 7.716, 22.91, 228, 127),
    ("resnet152", BatchNorm.FUSED, 22.565, 67.46, 491, 269),
    ("resnet50_v1.5", BatchNorm.FUSED, 8.178, 24.30, 238, 133),
    ("inception_v3", BatchNorm.FUSED, 11.426, 34.24, 231, 136),
    ("googlenet", BatchNorm.NONE, 3.165, 9.26, 61, 34),
    ("googlenet", BatchNorm.FUSED, 3.165, 9.26, 87, 50),
]


@pytest.mark.parametrize(("name", "variant", "forward", "training", "unfused", "fused"), PUBLISHED)
def test_work_per_image_agrees_with_the_published_counts(published, name, variant, forward, training, unfused, fused):
    found = published(name, variant, NETWORKS[name].image_size)
    assert found.inference.flops / 1e9 == pytest.approx(forward, rel=0.02)
    assert found.work.flops / 1e9 == pytest.approx(training, rel=0.02)
    assert found.work.elements / 1e6 == pytest.approx(unfused, rel=0.03)
    assert found.work.fused_elements / 1e6 == pytest.approx(fused, rel=0.03)


# GMAC forward per image or sequence. torchvision, timm: their model documentation; Keras's EfficientNets are
# torchvision's but for 0.7 % of the parameters. BERT: 24 layers of (24 s h² + 4 s² h) FLOP (Narayanan et al. 2021,
# without their factor for the backward pass), and the heads on 20 of 128 and 76 of 512 words. GPT-2: nanoGPT's count
# of 291.648 GFLOP for 1024 tokens.
GIGA_MULTIPLICATIONS = [
    ("resnet50_v1.5", None, 4.089),
    ("resnet152_v1.5", None, 11.514),
    ("inception_v4", None, 12.28),
    ("vgg16", None, 15.470),
    ("alexnet", None, 0.714),
    ("efficientnet_b0", None, 0.386),
    ("efficientnet_v2_s", None, 8.366),
    ("vit_b16", None, 17.564),
    ("bert_large", 128, 240.6 / 6),
    ("bert_large", 512, 1020.5 / 6),
    ("gpt2_small", 1024, 291.648 / 2),
]


@pytest.mark.parametrize(("name", "length", "multiplications"), GIGA_MULTIPLICATIONS)
def test_work_agrees_with_the_literature(published, name, length, multiplications):
    case = Case(model=name, sequence_length=length)
    found = published(name, case.batch_norm, case.size(NETWORKS[name]))
    work, inference = found.work, found.inference
    assert inference.flops == pytest.approx(2e9 * multiplications, rel=0.02)
    assert 2.85 * inference.flops < work.flops <= 3.0 * inference.flops
    assert work.elements > work.fused_elements > 0
    assert work.elements > inference.elements > inference.fused_elements > 0


def test_the_parameters_of_bert_large_add_up():
    width, words = 1024, 28_996
    embeddings = (words + 512 + 2 + 2) * width
    layer = 4 * (width + 1) * width + (width + 1) * 4 * width + (4 * width + 1) * width + 4 * width
    heads = (width + 1) * width + (width + 1) * 2 + (width + 1) * width + 2 * width + words
    assert NETWORKS["bert_large"].parameters[BatchNorm.NONE] == embeddings + 24 * layer + heads
    assert embeddings + 24 * layer + heads == pytest.approx(335e6, rel=0.01)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case(model="bert_large", image_size=224), "--image_size=224 is not for bert_large: it takes sequences"),
        (Case(model="bert_large", sequence_length=513), "512 positions"),
        (Case(model="bert_large", sequence_length=7), "at least 8 tokens"),
        (Case(model="bert_large", data=Data.TFRECORD), "--data=tfrecord is not for bert_large: it takes no images"),
        (Case(model="vgg16", sequence_length=128), "it takes images. Use image_size"),
        (Case(model="vit_b16", image_size=225), "multiple of 16"),
        (Case(model="inception_v4", image_size=64), "at least 75"),
        (Case(model="vgg16", batch_norm=BatchNorm.FUSED), "--batch_norm=fused is not for vgg16: it has none"),
    ],
)
def test_a_size_that_a_network_cannot_have_is_refused_with_what_it_can(case, words):
    assert words in network_refusal(case, NETWORKS[case.model]).as_flag
    assert network_refusal(Case(model=case.model), NETWORKS[case.model]) is None


def test_layer_normalisation_and_gelu_have_their_gradients(tensorflow, transformer_layers):
    tf = tensorflow

    def normalise_plainly(x, scale, offset):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-5) * scale + offset

    x = tf.random.stateless_normal((4, 5, 8), (1, 2)) * 2.0 + 1.0
    scale, offset = tf.random.stateless_normal((8,), (3, 4)), tf.random.stateless_normal((8,), (5, 6))
    pairs = [
        (lambda *a: transformer_layers.normalise_rows(*a, 1e-5), normalise_plainly, (x, scale, offset)),
        (transformer_layers.gelu_tanh, lambda x: tf.nn.gelu(x, approximate=True), (x,)),
        (transformer_layers.gelu_exact, lambda x: tf.nn.gelu(x, approximate=False), (x,)),
    ]
    for ours, theirs, arguments in pairs:
        results = []
        for function in (ours, theirs):
            with tf.GradientTape() as tape:
                tape.watch(arguments)
                value = function(*arguments)
                loss = tf.reduce_sum(value * tf.cos(value))
            results.append([value, *tape.gradient(loss, arguments)])
        for mine, reference in zip(*results, strict=True):
            np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-4)


def test_a_looked_up_table_that_is_also_the_decoder_has_one_dense_gradient(one_replica, tensorflow):
    network = small_network("gpt2_small")
    model = build(network, BatchNorm.NONE, small_case("gpt2_small").size(network), one_replica)
    names = [weight.name for weight in model.trainable_weights]
    tokens = tensorflow.constant([[1, 2, 2] + [0] * 13])
    with tensorflow.GradientTape() as tape:
        loss = tensorflow.reduce_sum(model(tokens)[:, :, 5])
    gradients = tape.gradient(loss, [w if not hasattr(w.value, "handle") else w.value for w in model.trainable_weights])
    assert all(isinstance(gradient, tensorflow.Tensor) for gradient in gradients), names
    assert len(names) == len({id(weight) for weight in model.trainable_weights})


def test_a_decoder_does_not_see_what_follows(one_replica, tensorflow):
    network = small_network("gpt2_small")
    model = build(network, BatchNorm.NONE, small_case("gpt2_small").size(network), one_replica)
    tokens = np.arange(16)[np.newaxis] % 7
    changed = tokens.copy()
    changed[0, 9:] = 3
    before, after = model(tensorflow.constant(tokens)).numpy(), model(tensorflow.constant(changed)).numpy()
    np.testing.assert_allclose(before[0, :9], after[0, :9], atol=1e-6)
    assert np.abs(before[0, 9:] - after[0, 9:]).max() > 1e-4


def test_networks_without_dropout_answer_alike_every_time(one_replica, tensorflow):
    network = small_network("efficientnet_b0")
    model = build(network, BatchNorm.FUSED, small_case("efficientnet_b0").size(network), one_replica)
    images = tensorflow.random.stateless_normal((2, 32, 32, 3), (1, 2))
    np.testing.assert_array_equal(model(images, training=True), model(images, training=True))


def test_fused_batch_norm_gives_what_keras_own_layer_gives(tensorflow, keras, convolution_layers):
    ours = convolution_layers.FusedBatchNormalization(momentum=0.9, epsilon=1e-3)
    theirs = keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-3)
    images = tensorflow.random.stateless_normal((4, 5, 5, 3), (1, 2)) * 3.0 + 1.0
    for _ in range(3):
        np.testing.assert_allclose(ours(images, training=True), theirs(images, training=True), atol=1e-4)
    # The fused operation keeps the unbiased variance, n / (n - 1) of Keras's; n = 100 here.
    np.testing.assert_allclose(ours(images, training=False), theirs(images, training=False), rtol=1e-2)
    np.testing.assert_allclose(ours.moving_mean, theirs.moving_mean, rtol=1e-4)


def test_a_rebuilt_network_uses_one_operation_per_batch_normalisation(one_replica, tensorflow):
    model = build(NETWORKS["googlenet"], BatchNorm.FUSED, 64, one_replica)
    step = tensorflow.function(lambda x: model(x, training=True))
    graph = step.get_concrete_function(tensorflow.TensorSpec((2, 64, 64, 3))).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("FusedBatchNormV3") == 57
    assert "SquaredDifference" not in kinds
    assert kinds.count("BiasAdd") == 1, "that of the last layer"


def test_weights_of_a_stock_network_are_drawn_once_in_its_policy(one_replica, tensorflow):
    tensorflow.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    drawn = []
    with drawing(lambda shape, *_, **named: drawn.append(tuple(shape)) or _zeros(shape, **named)):
        model = build(small_network("vgg16"), BatchNorm.NONE, 32, one_replica)
    assert drawn == [tuple(weight.shape) for weight in model.weights if weight.name == "kernel"]
    assert {layer.compute_dtype for layer in model.layers} == {"bfloat16"}


def test_biases_stay_where_nothing_cancels_them(one_replica, keras, convolution_layers):
    images = keras.Input((8, 8, 3))
    shared = keras.layers.Conv2D(4, 1, name="shared")(images)
    normalised = keras.layers.BatchNormalization()(shared)
    alone = keras.layers.Conv2D(4, 1, name="alone")(normalised)
    alone = keras.layers.BatchNormalization()(alone)
    with one_replica.scope():
        model = convolution_layers.rebuilt(keras.Model(images, keras.layers.Add()([alone, shared])), fuse=True)
    assert model.get_layer("shared").use_bias  # its output also goes round the batch normalisation
    assert not model.get_layer("alone").use_bias

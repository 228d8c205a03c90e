from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

import numpy as np
import pytest

from results.schema import BatchNorm, Case, Data, Mode, Status
from results.schema.networks import NETWORKS
from tests.real.training.small import small_case, small_network
from tests.real.training.test_networks import REPEATED
from tfbench.failures import CaseFailedError
from tfbench.models import build

if TYPE_CHECKING:
    from tfbench.roofline.limits import Work

pytestmark = pytest.mark.tensorflow

NONE, FUSED = BatchNorm.NONE, BatchNorm.FUSED


def of_networks(rows):
    """Mark rows rare whose network repeats the layers of others, or that have it at a second size."""
    rows = [(row, row[0] in REPEATED or row[:2] == ("bert_large", 512)) for row in rows]
    return [pytest.param(*row, marks=[pytest.mark.rare] if rare else []) for row, rare in rows]


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


@functools.cache
def counted(name, variant, size):
    """Build a variant at a size, and keep what was counted only."""
    import tensorflow as tf

    from tfbench.roofline import limits

    drawing = mock.patch.multiple("keras.src.backend.random", normal=_zeros, truncated_normal=_zeros, uniform=_zeros)
    with drawing:
        model = build(NETWORKS[name], variant, size, tf.distribute.get_strategy())
    trainable = sum(np.prod(weight.shape) for weight in model.trainable_weights)
    work = (limits.work_per_sample(model, mode) for mode in (Mode.TRAIN, Mode.INFER))
    return Published(model.count_params(), trainable, model.outputs[0].shape[-1], *work)


@pytest.mark.parametrize(
    ("name", "variant"),
    of_networks((name, variant) for name, network in NETWORKS.items() for variant in network.parameters),
)
def test_a_network_has_the_parameters_that_it_states(tensorflow, name, variant):
    network = NETWORKS[name]
    found = counted(name, variant, Case(model=name).size(network))
    assert (found.parameters, found.outputs) == (network.parameters[variant], network.classes)


# Trainable parameters, and GMAC forward per image or sequence. torchvision, timm, Keras: the documentation of their
# models (Keras's EfficientNets are torchvision's but for 0.7 % of the parameters). BERT: 30,522 of the uncased vocabulary
# replaced in Devlin et al.'s 340 M by 28,996, and counted layer by layer below; 24 layers of (24 s h² + 4 s² h) FLOP
# (Narayanan et al. 2021, without their factor for the backward pass), and the heads on 20 of 128 and 76 of 512 words.
# GPT-2: 124 M of the released model (Radford et al. say 117 M by mistake), and nanoGPT's 291.648 GFLOP for 1024 tokens.
LITERATURE = [
    ("resnet50_v1.5", None, 25_557_032, 4.089),  # torchvision
    ("resnet152_v1.5", None, 60_192_808, 11.514),  # torchvision
    ("vgg16", None, 138_357_544, 15.470),  # torchvision, Keras
    ("alexnet", None, 61_100_840, 0.714),  # torchvision
    ("inception_v4", None, 42_679_816, 12.28),  # timm
    ("vit_b16", None, 86_567_656, 17.564),  # torchvision
    ("efficientnet_b0", None, None, 0.386),  # Keras
    ("efficientnet_v2_s", None, None, 8.366),  # Keras
    ("bert_large", 128, 334_661_958, 240.6 / 6),
    ("bert_large", 512, 334_661_958, 1020.5 / 6),
    ("gpt2_small", 1024, 124_439_808, 291.648 / 2),
]


@pytest.mark.parametrize(("name", "length", "trainable", "multiplications"), of_networks(LITERATURE))
def test_parameters_and_work_agree_with_the_literature(tensorflow, name, length, trainable, multiplications):
    case = Case(model=name, sequence_length=length)
    found = counted(name, case.batch_norm, case.size(NETWORKS[name]))
    work, inference = found.work, found.inference
    assert trainable in (None, found.trainable)
    assert inference.flops == pytest.approx(2e9 * multiplications, rel=0.02)
    assert 2.85 * inference.flops < work.flops <= 3.0 * inference.flops
    assert work.elements > work.fused_elements > 0
    assert work.elements > inference.elements > inference.fused_elements > 0


# GFLOP per image forward and in training (without the images' gradient), and million elements per image moved without
# and with fusion: counted independently of this code, from the layer graphs of keras.applications.
COUNTED_ELSEWHERE = [
    ("resnet50", FUSED, 7.716, 22.91, 228, 127),
    ("resnet152", FUSED, 22.565, 67.46, 491, 269),
    ("resnet50_v1.5", FUSED, 8.178, 24.30, 238, 133),
    ("inception_v3", FUSED, 11.426, 34.24, 231, 136),
    ("googlenet", NONE, 3.165, 9.26, 61, 34),
    ("googlenet", FUSED, 3.165, 9.26, 87, 50),
]


@pytest.mark.parametrize(("name", "variant", "forward", "training", "unfused", "fused"), of_networks(COUNTED_ELSEWHERE))
def test_work_per_image_agrees_with_other_counts(tensorflow, name, variant, forward, training, unfused, fused):
    found = counted(name, variant, NETWORKS[name].image_size)
    assert found.inference.flops / 1e9 == pytest.approx(forward, rel=0.02)
    assert found.work.flops / 1e9 == pytest.approx(training, rel=0.02)
    assert found.work.elements / 1e6 == pytest.approx(unfused, rel=0.03)
    assert found.work.fused_elements / 1e6 == pytest.approx(fused, rel=0.03)


def test_the_parameters_of_bert_large_add_up():
    width, words = 1024, 28_996
    embeddings = (words + 512 + 2 + 2) * width
    layer = 4 * (width + 1) * width + (width + 1) * 4 * width + (4 * width + 1) * width + 4 * width
    heads = (width + 1) * width + (width + 1) * 2 + (width + 1) * width + 2 * width + words
    assert NETWORKS["bert_large"].parameters[NONE] == embeddings + 24 * layer + heads


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "bert_large", "image_size": 224}, "image_size: 224 is not for bert_large: it takes sequences"),
        ({"model": "bert_large", "sequence_length": 513}, "512 positions"),
        ({"model": "bert_large", "sequence_length": 7}, "at least 8 tokens"),
        ({"model": "bert_large", "data": Data.TFRECORD}, "data: tfrecord is not for bert_large: it takes no images"),
        ({"model": "vgg16", "sequence_length": 128}, "it takes images. Use image_size"),
        ({"model": "vit_b16", "image_size": 225}, "multiple of 16"),
        ({"model": "inception_v4", "image_size": 64}, "at least 75"),
        ({"model": "resnet50", "batch_norm": NONE}, "batch_norm: none is not for resnet50: it has fused or keras"),
    ],
)
def test_what_a_network_cannot_have_is_unsupported_with_what_it_can(changes, words, repeat):
    network = NETWORKS[changes["model"]]
    with pytest.raises(CaseFailedError, match=words) as caught:
        repeat.refuse_unsupported(Case(**changes), network)
    assert caught.value.status is Status.UNSUPPORTED
    repeat.refuse_unsupported(Case(model=changes["model"]), network)


def test_work_grows_with_the_tokens_and_the_square_of_the_image_size(one_replica, limits):
    network = small_network("gpt2_small")
    model = build(network, NONE, small_case("gpt2_small").size(network), one_replica)
    assert limits.work_per_sample(model).flops == 16 * limits.work_per_sample(model, samples_per_example=16).flops
    network = small_network("googlenet")
    small, large = (limits.work_per_sample(build(network, NONE, size, one_replica)) for size in (64, 128))
    assert large.flops / small.flops == pytest.approx(4.0, rel=0.02)


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


def test_a_decoder_sees_only_what_precedes_and_has_dense_gradients(one_replica, tensorflow):
    network = small_network("gpt2_small")
    model = build(network, NONE, small_case("gpt2_small").size(network), one_replica)
    tokens = np.arange(16)[np.newaxis] % 7
    changed = tokens.copy()
    changed[0, 9:] = 3
    before, after = model(tensorflow.constant(tokens)).numpy(), model(tensorflow.constant(changed)).numpy()
    np.testing.assert_allclose(before[0, :9], after[0, :9], atol=1e-6)
    assert np.abs(before[0, 9:] - after[0, 9:]).max() > 1e-4
    with tensorflow.GradientTape() as tape:
        loss = tensorflow.reduce_sum(model(tensorflow.constant(tokens))[:, :, 5])
    weights = [w if not hasattr(w.value, "handle") else w.value for w in model.trainable_weights]
    gradients = tape.gradient(loss, weights)
    assert all(isinstance(gradient, tensorflow.Tensor) for gradient in gradients), "also of the looked-up table"
    assert len(weights) == len({id(weight) for weight in model.trainable_weights})


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
    model = build(small_network("googlenet"), FUSED, 64, one_replica)
    step = tensorflow.function(lambda x: model(x, training=True))
    graph = step.get_concrete_function(tensorflow.TensorSpec((2, 64, 64, 3))).graph
    kinds = [operation.type for operation in graph.get_operations()]
    assert kinds.count("FusedBatchNormV3") == 3 + 3 * 6
    assert "SquaredDifference" not in kinds
    assert kinds.count("BiasAdd") == 1, "that of the last layer"


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

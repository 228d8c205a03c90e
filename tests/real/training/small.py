"""The networks at a size that trains in a test: fewer layers, fewer classes, small images or short sequences."""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from unittest import mock

from results.schema import BatchNorm, Case, Device
from results.schema.networks import NETWORKS, Network
from tfbench.keras_types import Model

FEWER = {
    "resnet50_v1.5": {"blocks": (1, 1, 1)},
    "resnet152_v1.5": {"blocks": (1, 2)},
    "bert_large": {"layers": 2, "width": 32, "heads": 4, "longest": 32},
    "gpt2_small": {"layers": 2, "width": 32, "heads": 4, "longest": 32},
    "vit_b16": {"layers": 2, "width": 32, "heads": 4},
    "inception_v4": {"blocks": (1, 1, 1)},
}
"""Options of the builders."""


def _resnet(blocks: Sequence[int], name: str, **arguments) -> Model:
    """Build the first blocks of each stage of `keras.applications.ResNet50` or `ResNet152`, at half the width."""
    from keras.src.applications.resnet import ResNet, stack_residual_blocks_v1

    def stages(x):
        for number, (width, count) in enumerate(zip((32, 64, 128, 256), blocks, strict=True), start=2):
            x = stack_residual_blocks_v1(x, width, count, stride1=1 if number == 2 else 2, name=f"conv{number}")
        return x

    return ResNet(stages, preact=False, use_bias=True, name=name, **arguments)


def _vgg16(*, input_shape, classes, classifier_activation, **_) -> Model:
    """Build a convolution and a pooling of each block of `keras.applications.VGG16`, and its head, at a quarter of the width."""
    from tensorflow import keras

    images = x = keras.Input(input_shape)
    for filters in (16, 32, 64, 128, 128):
        x = keras.layers.MaxPooling2D(2)(keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x))
    x = keras.layers.Flatten()(x)
    for _ in range(2):
        x = keras.layers.Dense(1024, activation="relu")(x)
    logits = keras.layers.Dense(classes, activation=classifier_activation, name="predictions")(x)
    return keras.Model(images, logits, name="vgg16")


def _efficientnet_b0(**arguments) -> Model:
    """Build the kinds of blocks of `keras.applications.EfficientNetB0` that differ, and two of one that repeats."""
    from keras.src.applications.efficientnet import DEFAULT_BLOCKS_ARGS, EfficientNet

    kinds = [{**kind, "repeats": min(2, kind["repeats"])} for kind in DEFAULT_BLOCKS_ARGS[:3]]
    return EfficientNet(1.0, 1.0, 224, 0.2, blocks_args=kinds, name="efficientnetb0", **arguments)


def _efficientnet_v2_s(**arguments) -> Model:
    """Build the fused stages of `keras.applications.EfficientNetV2S` and the first of the others, two blocks at most each."""
    from keras.src.applications.efficientnet_v2 import DEFAULT_BLOCKS_ARGS, EfficientNetV2

    stages = DEFAULT_BLOCKS_ARGS["efficientnetv2-s"][:4]
    kinds = [{**stage, "num_repeat": min(2, stage["num_repeat"])} for stage in stages]
    return EfficientNetV2(1.0, 1.0, 384, blocks_args=kinds, name="efficientnetv2-s", **arguments)


def _inception_v3(*, input_shape, classes, classifier_activation, **_) -> Model:
    """Build the stem of `keras.applications.InceptionV3` and one block of each kind, at a quarter of the width."""
    from keras.src.applications.inception_v3 import conv2d_bn
    from tensorflow import keras

    def chain(x, *convolutions, **options):
        """Apply convolutions of given filters, rows and columns; options are for the last."""
        for number, (filters, rows, columns) in enumerate(convolutions, start=1):
            x = conv2d_bn(x, filters // 4, rows, columns, **(options if number == len(convolutions) else {}))
        return x

    def pool(x):
        return keras.layers.MaxPooling2D(3, 2)(x)

    def mean(x):
        return keras.layers.AveragePooling2D(3, 1, padding="same")(x)

    halve = {"strides": (2, 2), "padding": "valid"}
    images = keras.Input(input_shape)
    x = pool(chain(chain(chain(images, (32, 3, 3), **halve), (32, 3, 3), padding="valid"), (64, 3, 3)))
    x = pool(chain(chain(x, (80, 1, 1), padding="valid"), (192, 3, 3), padding="valid"))
    x = keras.layers.Concatenate()(  # mixed 0
        [
            chain(x, (64, 1, 1)),
            chain(x, (48, 1, 1), (64, 5, 5)),
            chain(x, (64, 1, 1), (96, 3, 3), (96, 3, 3)),
            chain(mean(x), (32, 1, 1)),
        ]
    )
    x = keras.layers.Concatenate()(  # mixed 3
        [chain(x, (384, 3, 3), **halve), chain(x, (64, 1, 1), (96, 3, 3), (96, 3, 3), **halve), pool(x)]
    )
    x = keras.layers.Concatenate()(  # mixed 4
        [
            chain(x, (192, 1, 1)),
            chain(x, (128, 1, 1), (128, 1, 7), (192, 7, 1)),
            chain(x, (128, 1, 1), (128, 7, 1), (128, 1, 7), (128, 7, 1), (192, 1, 7)),
            chain(mean(x), (192, 1, 1)),
        ]
    )
    narrow = chain(x, (384, 1, 1))
    x = keras.layers.Concatenate()(  # mixed 9
        [chain(x, (320, 1, 1)), chain(narrow, (384, 1, 3)), chain(narrow, (384, 3, 1)), chain(mean(x), (192, 1, 1))]
    )
    x = keras.layers.GlobalAveragePooling2D(name="avg_pool")(x)
    logits = keras.layers.Dense(classes, activation=classifier_activation, name="predictions")(x)
    return keras.Model(images, logits, name="inception_v3")


INCEPTIONS = ((64, 96, 128, 16, 32, 32), None, (192, 96, 208, 16, 48, 64), None, (256, 160, 320, 32, 128, 128))
"""Of GoogLeNet's nine modules: one of each resolution."""


def _application(name: str, pattern: Callable[..., Model]) -> AbstractContextManager[object]:
    from tensorflow import keras

    return mock.patch.object(keras.applications, name, pattern)


def _shallow_googlenet() -> AbstractContextManager[object]:
    return mock.patch("tfbench.models.inception._INCEPTIONS", INCEPTIONS)


def _narrow_alexnet() -> AbstractContextManager[object]:
    """Give AlexNet a head of an eighth of the width."""
    from tensorflow import keras

    dense = keras.layers.Dense

    def narrow(units, **options):
        return dense(min(units, 512), **options)

    return mock.patch.object(keras.layers, "Dense", narrow)


def _narrow_inception_v4() -> AbstractContextManager[object]:
    """Give Inception v4 a quarter of the width."""
    from tfbench.models import inception

    convolution = inception.normalised_convolution

    def narrow(x, filters, *arguments, **options):
        return convolution(x, filters // 4, *arguments, **options)

    return mock.patch.object(inception, "normalised_convolution", narrow)


PATCHES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "resnet50": functools.partial(_application, "ResNet50", functools.partial(_resnet, (1, 2, 1, 1), "resnet50")),
    "resnet152": functools.partial(_application, "ResNet152", functools.partial(_resnet, (1, 1, 2, 1), "resnet152")),
    "vgg16": functools.partial(_application, "VGG16", _vgg16),
    "efficientnet_b0": functools.partial(_application, "EfficientNetB0", _efficientnet_b0),
    "efficientnet_v2_s": functools.partial(_application, "EfficientNetV2S", _efficientnet_v2_s),
    "inception_v3": functools.partial(_application, "InceptionV3", _inception_v3),
    "googlenet": _shallow_googlenet,
    "alexnet": _narrow_alexnet,
    "inception_v4": _narrow_inception_v4,
}
"""What is patched while a network is built that is made smaller than its builder's options can."""


def build_patched(size: int, classes: int, *, name: str, network: Network, **normalisation: BatchNorm) -> Model:
    """Build a network of `PATCHES`."""
    module, function = network.builder.split(":")
    builder = getattr(importlib.import_module(module, "tfbench.models"), function)
    with PATCHES[name]():
        return builder(size, classes, **normalisation, **network.options)


PIXELS = {"vgg16": 32, "alexnet": 64, "efficientnet_v2_s": 32, "inception_v3": 75, "inception_v4": 75}
TOKENS = 16
CLASSES = 40


def small_network(name: str) -> Network:
    """Return a network that is like the one of that name, but small and with fewer of its equal layers."""
    network = NETWORKS[name]
    if network.sequence_length is not None:
        sizes = {"sequence_length": TOKENS, "longest": 2 * TOKENS}
    else:
        sizes = {"image_size": PIXELS.get(name, 32)}
    options = {**network.options, **FEWER.get(name, {})}
    small = dataclasses.replace(network, classes=CLASSES, options=options, **sizes)
    if name in PATCHES:
        return dataclasses.replace(small, builder=f"{__name__}:build_patched", options={"name": name, "network": small})
    return small


def shrink(name: str, **changes: int) -> None:
    """Make this process train the small network of that name."""
    NETWORKS[name] = dataclasses.replace(small_network(name), **changes)


def small_case(name: str, **changes) -> Case:
    """Return a case of that network: two logical CPU replicas."""
    base = {"model": name, "device": Device.CPU, "num_gpus": 2, "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 3}
    return Case(**{**base, **changes})

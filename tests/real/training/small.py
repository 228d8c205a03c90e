"""The networks at a size that trains in a test: fewer layers, fewer classes, small images or short sequences."""

import dataclasses
import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from results.schema import BatchNorm, Case, Device
from results.schema.networks import NETWORKS, Network

Model = Any

FEWER = {
    "resnet50_v1.5": {"blocks": (1, 1, 1)},
    "resnet152_v1.5": {"blocks": (1, 2)},
    "bert_large": {"layers": 1, "width": 32, "heads": 4, "longest": 32},
    "gpt2_small": {"layers": 2, "width": 32, "heads": 4, "longest": 32},
    "vit_b16": {"layers": 2, "width": 32, "heads": 4},
    "inception_v4": {"blocks": (1, 1, 1)},
}
"""Options of the builders."""


def _resnet50(**arguments) -> Model:
    """Build the first blocks of the first two stages of `keras.applications.ResNet50`, at half the width."""
    from keras.src.applications.resnet import ResNet, stack_residual_blocks_v1

    def stages(x):
        for number, (width, count) in enumerate(((32, 1), (64, 2)), start=2):
            x = stack_residual_blocks_v1(x, width, count, stride1=1 if number == 2 else 2, name=f"conv{number}")
        return x

    return ResNet(stages, preact=False, use_bias=True, name="resnet50", **arguments)


def _efficientnet_b0(**arguments) -> Model:
    """Build the first two kinds of blocks of `keras.applications.EfficientNetB0`, and two of the second; a third has larger kernels."""
    from keras.src.applications.efficientnet import DEFAULT_BLOCKS_ARGS, EfficientNet

    kinds = [{**kind, "repeats": min(2, kind["repeats"])} for kind in DEFAULT_BLOCKS_ARGS[:2]]
    return EfficientNet(1.0, 1.0, 224, 0.2, blocks_args=kinds, name="efficientnetb0", **arguments)


def _efficientnet_v2_s(**arguments) -> Model:
    """Build the fused stages of `keras.applications.EfficientNetV2S` and the first of the others, two blocks at most each."""
    from keras.src.applications.efficientnet_v2 import DEFAULT_BLOCKS_ARGS, EfficientNetV2

    stages = DEFAULT_BLOCKS_ARGS["efficientnetv2-s"][:4]
    kinds = [{**stage, "num_repeat": min(2, stage["num_repeat"])} for stage in stages]
    return EfficientNetV2(1.0, 1.0, 384, blocks_args=kinds, name="efficientnetv2-s", **arguments)


INCEPTIONS = ((64, 96, 128, 16, 32, 32), None, (192, 96, 208, 16, 48, 64), None, (256, 160, 320, 32, 128, 128))
"""Of GoogLeNet's nine modules: one of each resolution."""


def _application(name: str, pattern: Callable[..., Model]) -> AbstractContextManager[object]:
    from tensorflow import keras

    return mock.patch.object(keras.applications, name, pattern)


def _shallow_googlenet() -> AbstractContextManager[object]:
    return mock.patch("tfbench.models.convolutional._INCEPTIONS", INCEPTIONS)


def _narrow_alexnet() -> AbstractContextManager[object]:
    """Give AlexNet a head of an eighth of the width."""
    from tensorflow import keras

    dense = keras.layers.Dense

    def narrow(units, **options):
        return dense(min(units, 512), **options)

    return mock.patch.object(keras.layers, "Dense", narrow)


PATCHES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "resnet50": functools.partial(_application, "ResNet50", _resnet50),
    "efficientnet_b0": functools.partial(_application, "EfficientNetB0", _efficientnet_b0),
    "efficientnet_v2_s": functools.partial(_application, "EfficientNetV2S", _efficientnet_v2_s),
    "googlenet": _shallow_googlenet,
    "alexnet": _narrow_alexnet,
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

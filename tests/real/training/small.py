"""The networks at a size that trains in a test: fewer layers, fewer classes, small images or short sequences."""

from __future__ import annotations

import dataclasses
from unittest import mock

from results.schema import BatchNorm, Case, Device
from tfbench.keras_versions.types import Model, Strategy
from tfbench.models import NETWORKS, Network

FEWER = {
    "resnet50_v1.5": {"blocks": (1, 1, 1, 1)},
    "resnet152_v1.5": {"blocks": (1, 2, 1, 1)},
    "bert_large": {"layers": 2, "width": 32, "heads": 4, "longest": 32},
    "gpt2_small": {"layers": 2, "width": 32, "heads": 4, "longest": 32},
    "vit_b16": {"layers": 2, "width": 32, "heads": 4},
    "inception_v4": {"blocks": (1, 1, 1)},
}
"""Options of the builders."""


def _resnet152(**arguments) -> Model:
    """Build the first two blocks of each stage of `keras.applications.ResNet152`, at half the width."""
    from keras.src.applications.resnet import ResNet, stack_residual_blocks_v1

    def stages(x):
        x = stack_residual_blocks_v1(x, 32, 2, stride1=1, name="conv2")
        for number, width in ((3, 64), (4, 128), (5, 256)):
            x = stack_residual_blocks_v1(x, width, 2, name=f"conv{number}")
        return x

    return ResNet(stages, preact=False, use_bias=True, name="resnet152", **arguments)


def _efficientnet_v2_s(**arguments) -> Model:
    """Build one block of each kind that repeats in `keras.applications.EfficientNetV2S`, and two where it repeats."""
    from keras.src.applications.efficientnet_v2 import DEFAULT_BLOCKS_ARGS, EfficientNetV2

    kinds = [{**kind, "num_repeat": min(2, kind["num_repeat"])} for kind in DEFAULT_BLOCKS_ARGS["efficientnetv2-s"]]
    return EfficientNetV2(1.0, 1.0, 384, blocks_args=kinds, name="efficientnetv2-s", **arguments)


SHALLOW = {"resnet152": ("ResNet152", _resnet152), "efficientnet_v2_s": ("EfficientNetV2S", _efficientnet_v2_s)}
"""Networks of `keras.applications` that have hundreds of equal layers: name there, and one with fewer of each kind."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShallowNetwork(Network):
    """A network whose pattern in `keras.applications` is taken with fewer layers."""

    def build(self, batch_norm: BatchNorm, size: int, strategy: Strategy) -> Model:
        from tensorflow import keras

        name, pattern = SHALLOW[self.name]
        with mock.patch.object(keras.applications, name, pattern):
            return super().build(batch_norm, size, strategy)


PIXELS = {"vgg16": 32, "alexnet": 64, "efficientnet_v2_s": 32, "inception_v3": 75, "inception_v4": 75}
TOKENS = 16
CLASSES = 40


def small_network(name: str) -> Network:
    """Return a network that is like the one of that name, but small."""
    network = NETWORKS[name]
    if network.inputs.sequence_length is not None:
        inputs = dataclasses.replace(network.inputs, sequence_length=TOKENS, longest=2 * TOKENS)
    else:
        inputs = dataclasses.replace(network.inputs, image_size=PIXELS.get(name, 32))
    options = {**network.options, **FEWER.get(name, {})}
    small = dataclasses.replace(network, inputs=inputs, classes=CLASSES, options=options)
    return ShallowNetwork(**vars(small)) if name in SHALLOW else small


def small_case(name: str, **changes) -> Case:
    """Return a case of that network: two logical CPU replicas."""
    base = {"model": name, "device": Device.CPU, "num_gpus": 2, "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 3}
    return Case(**{**base, **changes})

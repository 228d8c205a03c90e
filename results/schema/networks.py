"""The networks, one row each. To add one, write its row here and, unless Keras has it, a builder in `tfbench/models/`.

Standard library only, because this file also runs in every container. `tfbench.models` builds the networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from results.schema.enums import BatchNorm, Optimizer

FUSED, KERAS, NONE = BatchNorm.FUSED, BatchNorm.KERAS, BatchNorm.NONE

SMALLEST_IMAGE = 32
"""Smallest height and width of any network, in pixels."""

SHORTEST_SEQUENCE = 8
"""Shortest sequence of any network, in tokens."""

Parameters = Mapping[BatchNorm, int]
"""Number of parameters by variant of batch normalisation."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network at its published size.

    Attributes:
        parameters: Number of parameters, including moving averages, at the published size and classes, by supported
            variant of batch normalisation; the first is the default.
        builder: `module:function`, the module relative to `tfbench.models`; see `tfbench.models.build`.
        options: Further arguments of the builder, e.g. fewer layers in a test.
        image_size: Default height and width of its images in pixels; None: it takes sequences.
        smallest: Smallest image size that all pooling layers allow, in pixels.
        multiple: Image size must be a multiple of this, in pixels.
        sequence_length: Default length of its sequences in tokens; None: it takes images.
        longest: Number of positions, in tokens.
        classes: Size of the output: classes, or words of the vocabulary.
        task: Its task: a name in `tfbench.training.tasks.TASKS`.
        unit: Unit of samples.
        attention: How attention is computed; None: no attention.
        optimizer: Default; SGD with momentum, unless the authors trained it with Adam.
    """

    parameters: Parameters
    builder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    image_size: int | None = 224
    smallest: int = SMALLEST_IMAGE
    multiple: int = 1
    sequence_length: int | None = None
    longest: int | None = None
    classes: int = 1000
    task: str = "images"
    unit: str = "images"
    attention: str | None = None
    optimizer: Optimizer = Optimizer.MOMENTUM


def _images(
    builder: str, parameters: Parameters, size: int = 224, smallest: int = SMALLEST_IMAGE, **more: object
) -> Network:
    """Return a row of a convolutional network."""
    builder = f".convolutional:{builder}"
    return Network(builder=builder, parameters=parameters, image_size=size, smallest=smallest, options=more)


def _transformer(builder: str, parameters: int, image_size: int | None = None, **others: Any) -> Network:  # noqa: ANN401
    """Return a row of a transformer."""
    variants, builder = {NONE: parameters}, f".transformers:{builder}"
    others |= {"optimizer": Optimizer.ADAMW, "attention": "matmul"}
    return Network(builder=builder, parameters=variants, image_size=image_size, **others)


NETWORKS: dict[str, Network] = {
    # keras.applications.ResNet50: He et al. 2015, v1 (stride in the first 1x1)
    "resnet50": _images("stock", {FUSED: 25_610_152, KERAS: 25_636_712}, application="ResNet50"),
    # keras.applications.ResNet152: He et al. 2015, v1 (stride in the first 1x1)
    "resnet152": _images("stock", {FUSED: 60_344_232, KERAS: 60_419_944}, application="ResNet152"),
    # keras.applications.InceptionV3: Szegedy et al. 2015, no auxiliary head
    "inception_v3": _images("stock", {FUSED: 23_851_784, KERAS: 23_851_784}, 299, 75, application="InceptionV3"),
    # Szegedy et al. 2014: no auxiliary heads, no local response normalisation, no dropout
    "googlenet": _images("googlenet", {NONE: 6_998_552, FUSED: 7_020_392, KERAS: 7_020_392}),
    # He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet50 v1.5
    "resnet50_v1.5": _images("resnet_v1_5", {FUSED: 25_610_152, KERAS: 25_610_152}, blocks=(3, 4, 6, 3)),
    # He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet152 v1.5
    "resnet152_v1.5": _images("resnet_v1_5", {FUSED: 60_344_232, KERAS: 60_344_232}, blocks=(3, 8, 36, 3)),
    # Szegedy et al. 2016, no dropout, batch norm with scale
    "inception_v4": _images("inception_v4", {FUSED: 42_742_984, KERAS: 42_742_984}, 299, 75),
    # keras.applications.VGG16: Simonyan and Zisserman 2014, configuration D, no dropout
    "vgg16": _images("stock", {NONE: 138_357_544}, application="VGG16"),
    # Krizhevsky 2014, one tower, as in torchvision; no dropout
    "alexnet": _images("alexnet", {NONE: 61_100_840}, smallest=63),
    # keras.applications.EfficientNetB0: Tan and Le 2019, no dropout, no stochastic depth
    "efficientnet_b0": _images("stock", {FUSED: 5_330_571, KERAS: 5_330_571}, application="EfficientNetB0"),
    # keras.applications.EfficientNetV2S: Tan and Le 2021, no dropout, no stochastic depth
    "efficientnet_v2_s": _images("stock", {FUSED: 21_612_360, KERAS: 21_612_360}, 384, application="EfficientNetV2S"),
    # Devlin et al. 2018: cased, 24 layers of 1024, 16 heads, masked words and next sentence, no dropout
    "bert_large": _transformer(
        "bert", 334_661_958, sequence_length=128, longest=512, classes=28_996, task="masked_words", unit="sequences"
    ),
    # Radford et al. 2019: 12 layers of 768, 12 heads, 50257 tokens, tied output, no dropout
    "gpt2_small": _transformer(
        "gpt2", 124_439_808, sequence_length=1024, longest=1024, classes=50_257, task="next_token", unit="tokens"
    ),
    # Dosovitskiy et al. 2020: 12 layers of 768, 12 heads, patches of 16 pixels, no dropout
    "vit_b16": _transformer("vit", 86_567_656, 224, multiple=16),
}
"""By name, as in `--model`; each below the paper or code of its architecture, and the variant."""

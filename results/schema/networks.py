"""The networks, one row each. To add one, write its row here and, unless Keras has it, a builder in `tfbench/models/`.

Standard library only, because this file also runs in every container. `tfbench.models` builds the networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from results.schema.enums import BatchNorm, Optimizer

FUSED, KERAS, NONE = BatchNorm.FUSED, BatchNorm.KERAS, BatchNorm.NONE

SMALLEST_IMAGE = 32
"""Smallest height and width of any network, in pixels."""

SHORTEST_SEQUENCE = 8
"""Shortest sequence of any network, in tokens."""


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

    parameters: Mapping[BatchNorm, int]
    builder: str = ".convolutional:stock"
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
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


NETWORKS: dict[str, Network] = {
    # keras.applications.ResNet50: He et al. 2015, v1 (stride in the first 1x1)
    "resnet50": Network(parameters={FUSED: 25_610_152, KERAS: 25_636_712}, options={"application": "ResNet50"}),
    # keras.applications.ResNet152: He et al. 2015, v1 (stride in the first 1x1)
    "resnet152": Network(parameters={FUSED: 60_344_232, KERAS: 60_419_944}, options={"application": "ResNet152"}),
    # keras.applications.InceptionV3: Szegedy et al. 2015, no auxiliary head
    "inception_v3": Network(
        image_size=299,
        smallest=75,
        parameters={FUSED: 23_851_784, KERAS: 23_851_784},
        options={"application": "InceptionV3"},
    ),
    # Szegedy et al. 2014: no auxiliary heads, no local response normalisation, no dropout
    "googlenet": Network(
        parameters={NONE: 6_998_552, FUSED: 7_020_392, KERAS: 7_020_392},
        builder=".convolutional:googlenet",
    ),
    # He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet50 v1.5
    "resnet50_v1.5": Network(
        parameters={FUSED: 25_610_152, KERAS: 25_610_152},
        builder=".convolutional:resnet_v1_5",
        options={"blocks": (3, 4, 6, 3)},
    ),
    # He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet152 v1.5
    "resnet152_v1.5": Network(
        parameters={FUSED: 60_344_232, KERAS: 60_344_232},
        builder=".convolutional:resnet_v1_5",
        options={"blocks": (3, 8, 36, 3)},
    ),
    # Szegedy et al. 2016, no dropout, batch norm with scale
    "inception_v4": Network(
        image_size=299,
        smallest=75,
        parameters={FUSED: 42_742_984, KERAS: 42_742_984},
        builder=".convolutional:inception_v4",
    ),
    # keras.applications.VGG16: Simonyan and Zisserman 2014, configuration D, no dropout
    "vgg16": Network(parameters={NONE: 138_357_544}, options={"application": "VGG16"}),
    # Krizhevsky 2014, one tower, as in torchvision; no dropout
    "alexnet": Network(smallest=63, parameters={NONE: 61_100_840}, builder=".convolutional:alexnet"),
    # keras.applications.EfficientNetB0: Tan and Le 2019, no dropout, no stochastic depth
    "efficientnet_b0": Network(
        parameters={FUSED: 5_330_571, KERAS: 5_330_571},
        options={"application": "EfficientNetB0"},
    ),
    # keras.applications.EfficientNetV2S: Tan and Le 2021, no dropout, no stochastic depth
    "efficientnet_v2_s": Network(
        image_size=384,
        parameters={FUSED: 21_612_360, KERAS: 21_612_360},
        options={"application": "EfficientNetV2S"},
    ),
    # Devlin et al. 2018: cased, 24 layers of 1024, 16 heads, masked words and next sentence, no dropout
    "bert_large": Network(
        image_size=None,
        sequence_length=128,
        longest=512,
        optimizer=Optimizer.ADAMW,
        classes=28_996,
        parameters={NONE: 334_661_958},
        builder=".transformers:bert",
        task="masked_words",
        unit="sequences",
        attention="matmul",
    ),
    # Radford et al. 2019: 12 layers of 768, 12 heads, 50257 tokens, tied output, no dropout
    "gpt2_small": Network(
        image_size=None,
        sequence_length=1024,
        longest=1024,
        optimizer=Optimizer.ADAMW,
        classes=50_257,
        parameters={NONE: 124_439_808},
        builder=".transformers:gpt2",
        task="next_token",
        unit="tokens",
        attention="matmul",
    ),
    # Dosovitskiy et al. 2020: 12 layers of 768, 12 heads, patches of 16 pixels, no dropout
    "vit_b16": Network(
        multiple=16,
        optimizer=Optimizer.ADAMW,
        parameters={NONE: 86_567_656},
        builder=".transformers:vit",
        attention="matmul",
    ),
}
"""By name, as in `--model`; each below the paper or code of its architecture, and the variant."""

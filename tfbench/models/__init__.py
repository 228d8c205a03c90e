"""The networks, one row each, readable without TensorFlow.

To add a network, write its builder in a file here, and add a row to `NETWORKS` and its inputs to
`results.schema.networks`.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from results.schema import BatchNorm, Case
from results.schema.networks import INPUTS, Inputs
from tfbench.keras_types import Model, Strategy

FUSED, KERAS, NONE = BatchNorm.FUSED, BatchNorm.KERAS, BatchNorm.NONE


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network at its published size.

    Attributes:
        inputs: Its inputs, and its name as in `--model`.
        source: Paper or code of the architecture, and the variant.
        classes: Size of the output: classes, or words of the vocabulary.
        parameters: Number of parameters, including moving averages, by `batch_norm`, at the published size and classes.
        builder: `module:function` of this package; called as `function(batch_norm, size, classes, strategy,
            **options)`, the size in pixels or tokens.
        options: Further arguments of the builder, e.g. fewer layers in a test.
        task: Its task: a name in `tfbench.training.tasks.TASKS`.
        unit: Unit of samples.
        attention: How attention is computed; None: no attention.
    """

    inputs: Inputs
    source: str
    parameters: dict[BatchNorm, int]
    builder: str
    classes: int = 1000
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    task: str = "images"
    unit: str = "images"
    attention: str | None = None

    @property
    def name(self) -> str:
        """The network's name."""
        return self.inputs.name

    def size(self, case: Case) -> int:
        """Return the size of a case's examples, in pixels or tokens."""
        return self.inputs.size(case)

    def samples_per_example(self, case: Case) -> int:
        """Return the samples per example: 1, or the tokens of a sequence if samples are tokens."""
        return self.size(case) if self.unit == "tokens" else 1

    def build(self, batch_norm: BatchNorm, size: int, strategy: Strategy) -> Model:
        """Build the Keras model with logits as output, in the current dtype policy.

        Args:
            batch_norm: A variant that the network supports.
            size: Height and width in pixels, or tokens of a sequence.
            strategy: The `tf.distribute` strategy whose replicas hold the variables.

        Returns:
            A `keras.Model` from the features of its task to logits.
        """
        module, function = self.builder.split(":")
        build = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return typing.cast(Model, build(batch_norm, size, self.classes, strategy, **self.options))


NETWORKS = {
    network.name: network
    for network in (
        Network(
            inputs=INPUTS["resnet50"],
            source="keras.applications.ResNet50: He et al. 2015, v1 (stride in the first 1x1)",
            parameters={FUSED: 25_610_152, KERAS: 25_636_712},
            builder="convolutional:stock",
            options={"application": "ResNet50"},
        ),
        Network(
            inputs=INPUTS["resnet152"],
            source="keras.applications.ResNet152: He et al. 2015, v1 (stride in the first 1x1)",
            parameters={FUSED: 60_344_232, KERAS: 60_419_944},
            builder="convolutional:stock",
            options={"application": "ResNet152"},
        ),
        Network(
            inputs=INPUTS["inception_v3"],
            source="keras.applications.InceptionV3: Szegedy et al. 2015, no auxiliary head",
            parameters={FUSED: 23_851_784, KERAS: 23_851_784},
            builder="convolutional:stock",
            options={"application": "InceptionV3"},
        ),
        Network(
            inputs=INPUTS["googlenet"],
            source="Szegedy et al. 2014: no auxiliary heads, no local response normalisation, no dropout",
            parameters={NONE: 6_998_552, FUSED: 7_020_392, KERAS: 7_020_392},
            builder="inception:googlenet",
        ),
        Network(
            inputs=INPUTS["resnet50_v1.5"],
            source="He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet50 v1.5",
            parameters={FUSED: 25_610_152, KERAS: 25_610_152},
            builder="convolutional:resnet_v1_5",
            options={"blocks": (3, 4, 6, 3)},
        ),
        Network(
            inputs=INPUTS["resnet152_v1.5"],
            source="He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet152 v1.5",
            parameters={FUSED: 60_344_232, KERAS: 60_344_232},
            builder="convolutional:resnet_v1_5",
            options={"blocks": (3, 8, 36, 3)},
        ),
        Network(
            inputs=INPUTS["inception_v4"],
            source="Szegedy et al. 2016, no dropout, batch norm with scale",
            parameters={FUSED: 42_742_984, KERAS: 42_742_984},
            builder="inception:inception_v4",
        ),
        Network(
            inputs=INPUTS["vgg16"],
            source="keras.applications.VGG16: Simonyan and Zisserman 2014, configuration D, no dropout",
            parameters={NONE: 138_357_544},
            builder="convolutional:stock",
            options={"application": "VGG16"},
        ),
        Network(
            inputs=INPUTS["alexnet"],
            source="Krizhevsky 2014, one tower, as in torchvision; no dropout",
            parameters={NONE: 61_100_840},
            builder="convolutional:alexnet",
        ),
        Network(
            inputs=INPUTS["efficientnet_b0"],
            source="keras.applications.EfficientNetB0: Tan and Le 2019, no dropout, no stochastic depth",
            parameters={FUSED: 5_330_571, KERAS: 5_330_571},
            builder="convolutional:stock",
            options={"application": "EfficientNetB0"},
        ),
        Network(
            inputs=INPUTS["efficientnet_v2_s"],
            source="keras.applications.EfficientNetV2S: Tan and Le 2021, no dropout, no stochastic depth",
            parameters={FUSED: 21_612_360, KERAS: 21_612_360},
            builder="convolutional:stock",
            options={"application": "EfficientNetV2S"},
        ),
        Network(
            inputs=INPUTS["bert_large"],
            source="Devlin et al. 2018: cased, 24 layers of 1024, 16 heads, masked words and next sentence, no dropout",
            classes=28_996,
            parameters={NONE: 334_661_958},
            builder="transformers:bert",
            task="masked_words",
            unit="sequences",
            attention="matmul",
        ),
        Network(
            inputs=INPUTS["gpt2_small"],
            source="Radford et al. 2019: 12 layers of 768, 12 heads, 50257 tokens, tied output, no dropout",
            classes=50_257,
            parameters={NONE: 124_439_808},
            builder="transformers:gpt2",
            task="next_token",
            unit="tokens",
            attention="matmul",
        ),
        Network(
            inputs=INPUTS["vit_b16"],
            source="Dosovitskiy et al. 2020: 12 layers of 768, 12 heads, patches of 16 pixels, no dropout",
            parameters={NONE: 86_567_656},
            builder="transformers:vit",
            attention="matmul",
        ),
    )
}

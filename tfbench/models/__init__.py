"""The networks that can be trained: a row each, readable without TensorFlow.

A new network is one file (or function) beside this one and one row in `NETWORKS`.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from results.schema import BatchNorm, Case
from tfbench.types import Model, Strategy

FUSED, KERAS, NONE = BatchNorm.FUSED, BatchNorm.KERAS, BatchNorm.NONE


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network at its published size.

    Attributes:
        name: As in `--model`.
        source: Where the architecture comes from, and which variant of it.
        image_size: Height and width of its images in pixels; None: it takes sequences.
        sequence_length: Tokens of its sequences; None: it takes images.
        longest: Most tokens that it has positions for.
        multiple: Images are so many pixels, or a multiple of it.
        smallest: Fewest pixels that leave something after all poolings.
        classes: Size of the output: classes, or words of the vocabulary.
        parameters: All parameters of each variant, with moving averages, at its own size and classes.
        builder: `module:function` of this package; called as `function(batch_norm, size, classes, strategy,
            **options)`, the size in pixels or tokens.
        options: The builder's own, e.g. fewer layers in a test.
        task: What it learns: a name in `tfbench.tasks.TASKS`.
        unit: What a sample is.
        attention: How attention is computed; None: it has none.
    """

    name: str
    source: str
    parameters: dict[BatchNorm, int]
    builder: str
    image_size: int | None = None
    sequence_length: int | None = None
    longest: int | None = None
    multiple: int = 1
    smallest: int = 32
    classes: int = 1000
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    task: str = "images"
    unit: str = "images"
    attention: str | None = None

    def supports(self, batch_norm: BatchNorm) -> bool:
        """Say whether this network exists with that variant of batch normalisation."""
        return batch_norm in self.parameters

    def size(self, case: Case) -> int:
        """Return the pixels or tokens of a case's examples."""
        size = case.image_size or self.image_size if self.image_size else case.sequence_length or self.sequence_length
        return typing.cast(int, size)

    def samples_per_example(self, case: Case) -> int:
        """Return how many samples an image or a sequence is: every token is one where they are the unit."""
        return self.size(case) if self.unit == "tokens" else 1

    def refusal(self, case: Case) -> str | None:
        """Say which flag this network cannot follow, and what it has instead; None: it can follow all."""
        if not self.supports(case.batch_norm):
            known = ", ".join(f"--batch_norm={variant}" for variant in self.parameters)
            other = "needs it" if case.batch_norm is NONE else "has no batch normalisation of that kind"
            return f"--batch_norm={case.batch_norm}: {self.name} {other}. It has {known}."
        if self.image_size is None and case.image_size is not None:
            return f"--image_size={case.image_size}: {self.name} takes sequences. Use --sequence_length."
        if self.image_size is not None and case.sequence_length is not None:
            return f"--sequence_length={case.sequence_length}: {self.name} takes images. Use --image_size."
        if self.longest is not None and self.size(case) > self.longest:
            return f"--sequence_length={self.size(case)}: {self.name} has {self.longest} positions."
        if self.image_size is not None and self.size(case) < self.smallest:
            return f"--image_size={self.size(case)}: {self.name} needs at least {self.smallest} pixels."
        if self.size(case) % self.multiple:
            return f"--image_size={self.size(case)}: {self.name} needs a multiple of {self.multiple}."
        return None

    def build(self, batch_norm: BatchNorm, size: int, strategy: Strategy) -> Model:
        """Build the Keras model, logits as output, in the current dtype policy.

        Args:
            batch_norm: One that the network supports.
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
            name="resnet50",
            source="keras.applications.ResNet50: He et al. 2015, v1 (stride in the first 1x1)",
            image_size=224,
            parameters={FUSED: 25_610_152, KERAS: 25_636_712},
            builder="resnet:resnet50",
        ),
        Network(
            name="resnet152",
            source="keras.applications.ResNet152: He et al. 2015, v1 (stride in the first 1x1)",
            image_size=224,
            parameters={FUSED: 60_344_232, KERAS: 60_419_944},
            builder="resnet:resnet152",
        ),
        Network(
            name="inception_v3",
            source="keras.applications.InceptionV3: Szegedy et al. 2015, no auxiliary head",
            image_size=299,
            smallest=75,
            parameters={FUSED: 23_851_784, KERAS: 23_851_784},
            builder="inception:inception_v3",
        ),
        Network(
            name="googlenet",
            source="Szegedy et al. 2014: no auxiliary heads, no local response normalisation, no dropout",
            image_size=224,
            parameters={NONE: 6_998_552, FUSED: 7_020_392, KERAS: 7_020_392},
            builder="googlenet:googlenet",
        ),
        Network(
            name="resnet50_v1.5",
            source="He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet50 v1.5",
            image_size=224,
            parameters={FUSED: 25_610_152, KERAS: 25_610_152},
            builder="resnet:resnet_v1_5",
            options={"blocks": (3, 4, 6, 3)},
        ),
        Network(
            name="resnet152_v1.5",
            source="He et al. 2015, stride in the 3x3 as in Facebook's and NVIDIA's code: ResNet152 v1.5",
            image_size=224,
            parameters={FUSED: 60_344_232, KERAS: 60_344_232},
            builder="resnet:resnet_v1_5",
            options={"blocks": (3, 8, 36, 3)},
        ),
        Network(
            name="inception_v4",
            source="Szegedy et al. 2016, no dropout, batch norm with scale",
            image_size=299,
            smallest=75,
            parameters={FUSED: 42_742_984, KERAS: 42_742_984},
            builder="inception_v4:inception_v4",
        ),
        Network(
            name="vgg16",
            source="keras.applications.VGG16: Simonyan and Zisserman 2014, configuration D, no dropout",
            image_size=224,
            parameters={NONE: 138_357_544},
            builder="vgg:vgg16",
        ),
        Network(
            name="alexnet",
            source="Krizhevsky 2014, one tower, as in torchvision; no dropout",
            image_size=224,
            smallest=63,
            parameters={NONE: 61_100_840},
            builder="alexnet:alexnet",
        ),
        Network(
            name="efficientnet_b0",
            source="keras.applications.EfficientNetB0: Tan and Le 2019, no dropout, no stochastic depth",
            image_size=224,
            parameters={FUSED: 5_330_571, KERAS: 5_330_571},
            builder="efficientnet:efficientnet_b0",
        ),
        Network(
            name="efficientnet_v2_s",
            source="keras.applications.EfficientNetV2S: Tan and Le 2021, no dropout, no stochastic depth",
            image_size=384,
            parameters={FUSED: 21_612_360, KERAS: 21_612_360},
            builder="efficientnet:efficientnet_v2_s",
        ),
        Network(
            name="bert_large",
            source="Devlin et al. 2018: cased, 24 layers of 1024, 16 heads, masked words and next sentence, no dropout",
            sequence_length=128,
            longest=512,
            classes=28_996,
            parameters={NONE: 334_661_958},
            builder="bert:bert",
            task="masked_words",
            unit="sequences",
            attention="matmul",
        ),
        Network(
            name="gpt2_small",
            source="Radford et al. 2019: 12 layers of 768, 12 heads, 50257 tokens, tied output, no dropout",
            sequence_length=1024,
            longest=1024,
            classes=50_257,
            parameters={NONE: 124_439_808},
            builder="gpt2:gpt2",
            task="next_token",
            unit="tokens",
            attention="matmul",
        ),
        Network(
            name="vit_b16",
            source="Dosovitskiy et al. 2020: 12 layers of 768, 12 heads, patches of 16 pixels, no dropout",
            image_size=224,
            multiple=16,
            parameters={NONE: 86_567_656},
            builder="vit:vit",
            attention="matmul",
        ),
    )
}

"""The networks that can be trained: a row each, readable without TensorFlow.

A new network is one file (or function) beside this one and one row in `NETWORKS`.
"""

from __future__ import annotations

import importlib
import typing
from dataclasses import dataclass

from results.schema import BatchNorm
from tfbench.types import Model, Strategy

FUSED, KERAS, NONE = BatchNorm.FUSED, BatchNorm.KERAS, BatchNorm.NONE


@dataclass(frozen=True, kw_only=True)
class Network:
    """One network at its published size.

    Attributes:
        name: As in `--model`.
        source: Where the architecture comes from, and which variant of it.
        image_size: Height and width of its images in pixels.
        classes: Size of the output.
        parameters: All parameters of each variant, with moving averages, at 1000 classes.
        builder: `module:function` of this package; called as `function(batch_norm, image_size, classes,
            strategy)`.
        unit: What a sample is.
    """

    name: str
    source: str
    image_size: int
    parameters: dict[BatchNorm, int]
    builder: str
    classes: int = 1000
    unit: str = "images"

    def supports(self, batch_norm: BatchNorm) -> bool:
        """Say whether this network exists with that variant of batch normalisation."""
        return batch_norm in self.parameters

    def build(self, batch_norm: BatchNorm, image_size: int, strategy: Strategy) -> Model:
        """Build the Keras model, logits as output, in the current dtype policy.

        Args:
            batch_norm: One that the network supports.
            image_size: Height and width in pixels.
            strategy: The `tf.distribute` strategy whose replicas hold the variables.

        Returns:
            A `keras.Model` from (batch, image_size, image_size, 3) to (batch, classes).
        """
        module, function = self.builder.split(":")
        build = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return typing.cast(Model, build(batch_norm, image_size, self.classes, strategy))


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
    )
}

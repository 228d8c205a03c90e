"""Vision transformer after Dosovitskiy et al. 2020: patches of 16 pixels, a class token, positions; no dropout."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Shape, Strategy, Tensor
from tfbench.models.blocks.embeddings import First, Positions
from tfbench.models.blocks.parts import LayerNormalization, Part, Projection
from tfbench.models.blocks.transformer import pre_normalised_block

EPSILON = 1e-6
PATCH = 16


class ClassToken(Part):
    """A learned row before those of the input, shape (batch, length, width)."""

    def build(self, input_shape: Shape) -> None:
        """Create the row."""
        self.row = self.add("row", (1, 1, int(input_shape[-1])))
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Return (batch, length + 1, width)."""
        return tf.concat([tf.repeat(self.cast(self.row), tf.shape(inputs)[0], 0), inputs], 1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return (batch, length + 1, width)."""
        return (input_shape[0], input_shape[1] + 1, input_shape[2])


def vit(
    batch_norm: BatchNorm,
    image_size: int,
    classes: int,
    strategy: Strategy,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
) -> Model:
    """Build a vision transformer (see `Network.build`); `image_size` is a multiple of 16."""
    del batch_norm  # it has none
    places = (image_size // PATCH) ** 2
    own: dict[str, Any] = {"exact_gelu": True, "causal": False, "heads": heads, "epsilon": EPSILON}
    with strategy.scope():
        images = keras.Input((image_size, image_size, 3))
        x = keras.layers.Conv2D(width, PATCH, strides=PATCH, name="patches")(images)
        x = ClassToken(name="class_token")(keras.layers.Reshape((places, width), name="sequence")(x))
        x = Positions(places + 1, name="position")(x)
        for layer in range(layers):
            x = pre_normalised_block(x, **own, name=f"layer_{layer}")
        x = First(name="first")(LayerNormalization(EPSILON, name="normal")(x))
        return keras.Model(images, Projection(classes, name="head")(x), name="vit")

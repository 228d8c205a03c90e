"""Attention, and the blocks that transformers are made of."""

from __future__ import annotations

import tensorflow as tf
from tensorflow import keras

from tfbench.keras_versions.types import Layer, Shape, Tensor
from tfbench.models.blocks.parts import Gelu, LayerNormalization, Part, Projection, elements

MASKED = -10_000.0
"""Added to the score of what must not be seen: e to it is 0, and float16 holds it. Source: Devlin et al.'s code."""


class Attention(Part):
    """Scaled dot-product attention of several heads, from queries, keys and values side by side.

    Two batched matrix products around a softmax: TensorFlow has no fused operation for it.

    Args:
        heads: Divide the width.
        causal: Whether a position sees only itself and those before.

    Source: Vaswani et al. 2017.
    """

    def __init__(self, heads: int, *, causal: bool = False, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.heads, self.causal = heads, causal

    def call(self, inputs: Tensor | list[Tensor]) -> Tensor:
        """Attend.

        Args:
            inputs: (batch, length, 3 × width); or that and a mask, int64 (batch, length), 0 where nothing is to
                be seen.
        """
        joined, mask = inputs if isinstance(inputs, list | tuple) else (inputs, None)
        length, width = joined.shape[1], joined.shape[2] // 3
        split = tf.reshape(joined, (-1, length, 3, self.heads, width // self.heads))
        query, key, value = tf.unstack(tf.transpose(split, (2, 0, 3, 1, 4)))
        scores = tf.matmul(query * (width // self.heads) ** -0.5, key, transpose_b=True)
        if mask is not None:
            scores += ((1.0 - tf.cast(mask, scores.dtype)) * MASKED)[:, tf.newaxis, tf.newaxis, :]
        if self.causal:
            scores += (1.0 - tf.linalg.band_part(tf.ones((length, length), scores.dtype), -1, 0)) * MASKED
        context = tf.matmul(tf.nn.softmax(scores), value)
        return tf.reshape(tf.transpose(context, (0, 2, 1, 3)), (-1, length, width))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return (batch, length, width)."""
        joined = input_shape[0] if isinstance(input_shape, list) else input_shape
        return (*joined[:-1], joined[-1] // 3)

    @property
    def forward_flops(self) -> float:
        """Two products of (length × width) with (width × length): 4 length² width, the causal half counted too."""
        return 4.0 * int(self.output.shape[1]) * elements(self.output)


def feed_forward(x: Tensor, *, exact_gelu: bool, name: str) -> Tensor:
    """Widen four times, apply GELU, narrow again."""
    width = int(x.shape[-1])
    wide: Layer = Projection(4 * width, name=f"{name}_widen")(x)
    return Projection(width, name=f"{name}_narrow")(Gelu(exact=exact_gelu, name=f"{name}_gelu")(wide))


def pre_normalised_block(x: Tensor, *, heads: int, epsilon: float, causal: bool, exact_gelu: bool, name: str) -> Tensor:
    """Add attention and a feed-forward network to the sequence, each of it normalised (GPT-2, ViT)."""
    width = int(x.shape[-1])
    y = LayerNormalization(epsilon, name=f"{name}_normal_1")(x)
    y = Attention(heads, causal=causal, name=f"{name}_attention")(Projection(3 * width, name=f"{name}_qkv")(y))
    x = keras.layers.Add(name=f"{name}_add_1")([x, Projection(width, name=f"{name}_out")(y)])
    y = LayerNormalization(epsilon, name=f"{name}_normal_2")(x)
    return keras.layers.Add(name=f"{name}_add_2")([x, feed_forward(y, exact_gelu=exact_gelu, name=name)])

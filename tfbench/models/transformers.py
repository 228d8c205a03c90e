"""BERT, GPT-2 and ViT.

No dropout, so that a step is the same function on one device and on several, which the validity checks compare.
Queries, keys and values come from one matrix product instead of three, with the same weights concatenated.
"""

from __future__ import annotations

import functools

import tensorflow as tf
from tensorflow import keras

from tfbench.keras_types import Model, Shape, Tensor
from tfbench.models.embeddings import First, Pick, Positions, Segments, TiedDecoder, TokenEmbedding
from tfbench.models.transformer_layers import (
    Attention,
    Gelu,
    LayerNormalization,
    Part,
    Projection,
    feed_forward,
    pre_normalised_block,
)
from tfbench.training.tasks import masked_positions

BERT_EPSILON = 1e-12


def bert(
    sequence_length: int, vocabulary: int, *, layers: int = 24, width: int = 1024, heads: int = 16, longest: int = 512
) -> Model:
    """Build BERT.

    Returns:
        A model from tokens, segments and mask, int64 (batch, sequence_length) each, and masked positions, int64 (batch,
        masked), to scores of the masked words, (batch, masked, vocabulary), and of the next sentence, (batch, 2).
    """
    tokens, segments, mask = (
        keras.Input((sequence_length,), dtype="int64", name=name) for name in ("tokens", "segments", "mask")
    )
    positions = keras.Input((masked_positions(sequence_length),), dtype="int64", name="positions")
    embedding = TokenEmbedding(vocabulary, width, name="embedding")
    x = Segments(name="segment")([embedding(tokens), segments])
    x = LayerNormalization(BERT_EPSILON, name="embedding_normal")(Positions(longest, name="position")(x))
    for layer in range(layers):
        x = _encoder_layer(x, mask, heads, f"layer_{layer}")
    next_sentence = Projection(width, name="pooler")(First(name="first")(x))
    next_sentence = keras.layers.Activation("tanh", name="pooler_tanh")(next_sentence)
    next_sentence = Projection(2, name="next_sentence")(next_sentence)
    words = Projection(width, name="words")(Pick(name="masked")([x, positions]))
    words = LayerNormalization(BERT_EPSILON, name="words_normal")(Gelu(exact=False, name="words_gelu")(words))
    words = TiedDecoder(embedding, bias=True, name="decoder")(words)
    return keras.Model((tokens, segments, mask, positions), (words, next_sentence), name="bert")


def _encoder_layer(x: Tensor, mask: Tensor, heads: int, name: str) -> Tensor:
    """Apply attention and a feed-forward network, each added and then normalised (BERT)."""
    width = int(x.shape[-1])
    seen = Attention(heads, name=f"{name}_attention")([Projection(3 * width, name=f"{name}_qkv")(x), mask])
    seen = Projection(width, name=f"{name}_out")(seen)
    x = LayerNormalization(BERT_EPSILON, name=f"{name}_normal_1")(keras.layers.Add(name=f"{name}_add_1")([x, seen]))
    thought = feed_forward(x, exact_gelu=False, name=name)
    return LayerNormalization(BERT_EPSILON, name=f"{name}_normal_2")(
        keras.layers.Add(name=f"{name}_add_2")([x, thought])
    )


GPT2_EPSILON = 1e-5


def gpt2(
    sequence_length: int, vocabulary: int, *, layers: int = 12, width: int = 768, heads: int = 12, longest: int = 1024
) -> Model:
    """Build GPT-2.

    Returns:
        A model from tokens, int64 (batch, sequence_length), to scores of each next token, (batch, sequence_length,
        vocabulary).
    """
    block = functools.partial(pre_normalised_block, heads=heads, epsilon=GPT2_EPSILON, causal=True, exact_gelu=False)
    tokens = keras.Input((sequence_length,), dtype="int64", name="tokens")
    embedding = TokenEmbedding(vocabulary, width, name="embedding")
    x = Positions(longest, name="position")(embedding(tokens))
    for layer in range(layers):
        x = block(x, name=f"layer_{layer}")
    x = LayerNormalization(GPT2_EPSILON, name="normal")(x)
    return keras.Model(tokens, TiedDecoder(embedding, bias=False, name="decoder")(x), name="gpt2")


VIT_EPSILON = 1e-6
PATCH = 16


class ClassToken(Part):
    """Prepends a learned row to the input, shape (batch, length, width)."""

    def build(self, input_shape: Shape) -> None:
        """Create the row."""
        self.row = self.add("row", (1, 1, int(input_shape[-1])))
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Return (batch, length + 1, width)."""
        return tf.concat([tf.repeat(self.cast(self.row), tf.shape(inputs)[0], 0), inputs], 1)


def vit(image_size: int, classes: int, *, layers: int = 12, width: int = 768, heads: int = 12) -> Model:
    """Build a vision transformer; `image_size` is a multiple of 16."""
    places = (image_size // PATCH) ** 2
    block = functools.partial(pre_normalised_block, heads=heads, epsilon=VIT_EPSILON, causal=False, exact_gelu=True)
    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.Conv2D(width, PATCH, strides=PATCH, name="patches")(images)
    x = ClassToken(name="class_token")(keras.layers.Reshape((places, width), name="sequence")(x))
    x = Positions(places + 1, name="position")(x)
    for layer in range(layers):
        x = block(x, name=f"layer_{layer}")
    x = First(name="first")(LayerNormalization(VIT_EPSILON, name="normal")(x))
    return keras.Model(images, Projection(classes, name="head")(x), name="vit")

"""BERT after Devlin et al. 2018, as its authors' code trains it: masked words and next sentence.

No dropout, so that a step is the same function on one device and on many, which the validity gates check.
Queries, keys and values come from one matrix product instead of three: the same weights side by side.
"""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy, Tensor
from tfbench.models.blocks.embeddings import First, Pick, Positions, Segments, TiedDecoder, TokenEmbedding
from tfbench.models.blocks.parts import Gelu, LayerNormalization, Projection
from tfbench.models.blocks.transformer import Attention, feed_forward
from tfbench.training.tasks import masked_positions

EPSILON = 1e-12


def bert(
    batch_norm: BatchNorm,
    sequence_length: int,
    vocabulary: int,
    strategy: Strategy,
    *,
    layers: int = 24,
    width: int = 1024,
    heads: int = 16,
    longest: int = 512,
) -> Model:
    """Build BERT (see `Network.build`).

    Returns:
        From tokens, segments and mask, int64 (batch, sequence_length) each, and masked positions, int64
        (batch, masked), to scores of the masked words, (batch, masked, vocabulary), and of the next sentence,
        (batch, 2).
    """
    del batch_norm  # it has none
    with strategy.scope():
        tokens, segments, mask = (
            keras.Input((sequence_length,), dtype="int64", name=name) for name in ("tokens", "segments", "mask")
        )
        positions = keras.Input((masked_positions(sequence_length),), dtype="int64", name="positions")
        embedding = TokenEmbedding(vocabulary, width, name="embedding")
        x = Segments(name="segment")([embedding(tokens), segments])
        x = LayerNormalization(EPSILON, name="embedding_normal")(Positions(longest, name="position")(x))
        for layer in range(layers):
            x = _encoder_layer(x, mask, heads, f"layer_{layer}")
        next_sentence = Projection(width, name="pooler")(First(name="first")(x))
        next_sentence = keras.layers.Activation("tanh", name="pooler_tanh")(next_sentence)
        next_sentence = Projection(2, name="next_sentence")(next_sentence)
        words = Projection(width, name="words")(Pick(name="masked")([x, positions]))
        words = LayerNormalization(EPSILON, name="words_normal")(Gelu(exact=False, name="words_gelu")(words))
        words = TiedDecoder(embedding, bias=True, name="decoder")(words)
        return keras.Model((tokens, segments, mask, positions), (words, next_sentence), name="bert")


def _encoder_layer(x: Tensor, mask: Tensor, heads: int, name: str) -> Tensor:
    """Apply attention and a feed-forward network, each added and then normalised."""
    width = int(x.shape[-1])
    seen = Attention(heads, name=f"{name}_attention")([Projection(3 * width, name=f"{name}_qkv")(x), mask])
    seen = Projection(width, name=f"{name}_out")(seen)
    x = LayerNormalization(EPSILON, name=f"{name}_normal_1")(keras.layers.Add(name=f"{name}_add_1")([x, seen]))
    thought = feed_forward(x, exact_gelu=False, name=name)
    return LayerNormalization(EPSILON, name=f"{name}_normal_2")(keras.layers.Add(name=f"{name}_add_2")([x, thought]))

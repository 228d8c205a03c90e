"""GPT-2 after Radford et al. 2019: a decoder with learned positions and the embedding as its output; no dropout."""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy
from tfbench.models.blocks.embeddings import Positions, TiedDecoder, TokenEmbedding
from tfbench.models.blocks.parts import LayerNormalization
from tfbench.models.blocks.transformer import pre_normalised_block

EPSILON = 1e-5


def gpt2(
    batch_norm: BatchNorm,
    sequence_length: int,
    vocabulary: int,
    strategy: Strategy,
    *,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    longest: int = 1024,
) -> Model:
    """Build GPT-2 (see `Network.build`).

    Returns:
        From tokens, int64 (batch, sequence_length), to scores of each next token, (batch, sequence_length,
        vocabulary).
    """
    del batch_norm  # it has none
    with strategy.scope():
        tokens = keras.Input((sequence_length,), dtype="int64", name="tokens")
        embedding = TokenEmbedding(vocabulary, width, name="embedding")
        x = Positions(longest, name="position")(embedding(tokens))
        for layer in range(layers):
            x = pre_normalised_block(
                x, heads=heads, epsilon=EPSILON, causal=True, exact_gelu=False, name=f"layer_{layer}"
            )
        x = LayerNormalization(EPSILON, name="normal")(x)
        return keras.Model(tokens, TiedDecoder(embedding, bias=False, name="decoder")(x), name="gpt2")

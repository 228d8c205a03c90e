"""Embeddings of tokens, positions and segments, and the decoder that shares the token embedding's table."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfbench.keras_types import Shape, Tensor, Variable
from tfbench.keras_versions import tensorflow_variable
from tfbench.models.transformer_layers import Part, WithGradient, elements


class TokenEmbedding(Part):
    """Maps each token to a row of a table.

    Args:
        vocabulary: Rows.
        width: Length of a row.
    """

    def __init__(self, vocabulary: int, width: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.vocabulary, self.width = vocabulary, width

    def build(self, input_shape: Shape) -> None:
        """Create the table."""
        self.table = self.add("table", (self.vocabulary, self.width))
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Look up `inputs`, int64 (batch, length)."""
        return lookup(tf.convert_to_tensor(tensorflow_variable(self.table)), inputs, self.compute_dtype)


def lookup(table: Tensor, tokens: Tensor, dtype: str) -> Tensor:
    """Return `table[tokens]` as `dtype`; the table's gradient is dense.

    The gradient of a stock lookup is sparse (`IndexedSlices`). Adding it to the dense gradient of a decoder that shares
    the table, or reducing it over replicas, costs several times more than the sum by rows here.
    """

    @tf.custom_gradient
    def look_up(table: Tensor) -> WithGradient:
        def gradient(upstream: Tensor) -> Tensor:
            rows = tf.reshape(tf.cast(upstream, table.dtype), (-1, table.shape[-1]))
            return tf.math.unsorted_segment_sum(rows, tf.reshape(tokens, (-1,)), table.shape[0])

        return tf.cast(tf.gather(table, tokens), dtype), gradient

    return look_up(table)


class Positions(Part):
    """A learned vector for each position, added to the input.

    Args:
        longest: Maximum number of positions.
    """

    def __init__(self, longest: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.longest = longest

    def build(self, input_shape: Shape) -> None:
        """Create the vectors."""
        self.table = self.add("table", (self.longest, int(input_shape[-1])))
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Add to `inputs`, shape (batch, length, width)."""
        return inputs + self.cast(self.table)[: inputs.shape[1]]


class Segments(Part):
    """A learned vector for each of two segments, added to the input by a matrix product, as in Devlin et al."""

    def build(self, input_shape: Shape) -> None:
        """Create the two vectors."""
        self.table = self.add("table", (2, int(input_shape[0][-1])))
        super().build(input_shape)

    def call(self, inputs: list[Tensor]) -> Tensor:
        """Add to the first input, (batch, length, width), the vectors of the segments, int64 (batch, length)."""
        embedded, segments = inputs
        chosen = tf.reshape(tf.one_hot(segments, 2, dtype=self.compute_dtype), (-1, 2))
        return embedded + tf.reshape(tf.matmul(chosen, self.cast(self.table)), (-1, *embedded.shape[1:]))


class Pick(Part):
    """Selects rows of a sequence, shape (batch, length, width), by positions, int64 (batch, count)."""

    def call(self, inputs: list[Tensor]) -> Tensor:
        """Return (batch, count, width)."""
        return tf.gather(inputs[0], inputs[1], batch_dims=1)


class First(Part):
    """Selects the first row of a sequence."""

    def call(self, inputs: Tensor) -> Tensor:
        """Return (batch, width) of (batch, length, width)."""
        return inputs[:, 0]


class TiedDecoder(Part):
    """Scores each word of the vocabulary with the table of the token embedding.

    Args:
        embedding: Built already; owns the table.
        bias: Whether each word has a bias.
    """

    def __init__(self, embedding: TokenEmbedding, *, bias: bool, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.has_bias, self.vocabulary = bias, embedding.vocabulary
        self._table: Callable[[], Variable] = lambda: (
            embedding.table
        )  # hidden from Keras, which would count the weight twice

    def build(self, input_shape: Shape) -> None:
        """Create the bias."""
        if self.has_bias:
            self.bias = self.add("bias", (self.vocabulary,), "zeros")
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Score `inputs`, shape (batch, count, width); returns (batch, count, vocabulary)."""
        rows = tf.reshape(inputs, (-1, inputs.shape[-1]))
        scores = tf.matmul(rows, self.cast(self._table()), transpose_b=True)
        if self.has_bias:
            scores = tf.nn.bias_add(scores, self.cast(self.bias))
        return tf.reshape(scores, (-1, inputs.shape[1], self.vocabulary))

    @property
    def forward_flops(self) -> float:
        """Return 2 operations for each element of the table and scored position."""
        return 2.0 * int(self._table().shape[-1]) * elements(self.output)

"""BERT, GPT-2 and ViT, and their layers, in TensorFlow operations, the same in Keras 2 and 3.

Stock layers of the two differ in what they compute and save: Keras 3's layer normalisation is a dozen operations, each
of which keeps its result for the backward pass, and a stock embedding that is also the decoder has a sparse gradient
that is converted to a dense one. Here each layer has an explicit gradient and keeps only its input, and every gradient
is dense.

No dropout, so that a step is the same function on one device and on several, which the validity checks compare.
Queries, keys and values come from one matrix product instead of three, with the same weights concatenated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import tensorflow as tf
from tensorflow import keras

from tfbench.keras_versions import Layer, Model, Shape, Tensor, Variable, tensorflow_variable
from tfbench.models.convolutional import add_float32_weight
from tfbench.training.tasks import masked_positions

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights. Source: Devlin et al. 2018; Radford et al. 2019."""

WithGradient = tuple[Tensor, Callable[..., object]]
"""A result, and the function from its gradient to those of the arguments."""


class Part(keras.layers.Layer):
    """A layer of one or several inputs, with float32 weights that are cast where they are used."""

    def add(self, name: str, shape: tuple[int, ...], initializer: str = "normal") -> Variable:
        """Create a trained weight: `normal` (truncated at two standard deviations), `zeros` or `ones`."""
        if initializer == "normal":
            initializer = keras.initializers.TruncatedNormal(stddev=INITIAL_DEVIATION)
        return add_float32_weight(self, name, shape, initializer)

    def cast(self, weight: Variable) -> Tensor:
        """Return a weight in the layer's compute type."""
        return tf.cast(tf.convert_to_tensor(tensorflow_variable(weight)), self.compute_dtype)

    @property
    def forward_flops(self) -> float:
        """Return the floating point operations of one sample's forward pass; see `tfbench.roofline.limits`."""
        return 0.0


class Projection(Part):
    """A dense layer over the last axis, as a product of two matrices.

    Args:
        units: Length of the output's last axis.
    """

    def __init__(self, units: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape: Shape) -> None:
        """Create kernel and bias."""
        self.kernel = self.add("kernel", (int(input_shape[-1]), self.units))
        self.bias = self.add("bias", (self.units,), "zeros")
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Project `inputs`, shape (batch, …, width)."""
        rows = tf.reshape(inputs, (-1, inputs.shape[-1]))
        result = tf.nn.bias_add(tf.matmul(rows, self.cast(self.kernel)), self.cast(self.bias))
        return tf.reshape(result, (-1, *inputs.shape[1:-1], self.units))

    @property
    def forward_flops(self) -> float:
        """Return 2 operations for each weight of the kernel and row of the input."""
        return 2.0 * int(self.kernel.shape[0]) * elements(self.output)


class LayerNormalization(Part):
    """Normalisation of the last axis, in float32 under every policy; keeps its input and two numbers per row.

    Args:
        epsilon: Added to the variance.
    """

    def __init__(self, epsilon: float, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        """Create scale and offset."""
        self.gamma = self.add("gamma", (int(input_shape[-1]),), "ones")
        self.beta = self.add("beta", (int(input_shape[-1]),), "zeros")
        super().build(input_shape)

    def call(self, inputs: Tensor) -> Tensor:
        """Normalise each row of `inputs`, shape (batch, …, width)."""
        gamma, beta = (tf.convert_to_tensor(tensorflow_variable(weight)) for weight in (self.gamma, self.beta))
        return normalise_rows(inputs, gamma, beta, self.epsilon)


def normalise_rows(inputs: Tensor, scale: Tensor, offset: Tensor, epsilon: float) -> Tensor:
    """Normalise the last axis of `inputs` to mean 0 and variance 1, then scale and shift it.

    Args:
        inputs: Shape (…, width), any floating type; the result has the same.
        scale: Shape (width,), float32.
        offset: Shape (width,), float32.
        epsilon: Added to the variance.

    Source: Ba et al. 2016.
    """

    @tf.custom_gradient
    def normalise(inputs: Tensor, scale: Tensor, offset: Tensor) -> WithGradient:
        mean, variance = tf.nn.moments(tf.cast(inputs, tf.float32), -1, keepdims=True)
        inverse = tf.math.rsqrt(variance + epsilon)

        def normal(rows: Tensor) -> Tensor:
            return (tf.cast(rows, tf.float32) - mean) * inverse

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hat, wide = normal(_again(inputs, upstream)), tf.cast(upstream, tf.float32)
            rows = list(range(len(inputs.shape) - 1))
            slope = wide * scale
            along_mean = tf.reduce_mean(slope, -1, keepdims=True)
            along_hat = tf.reduce_mean(slope * hat, -1, keepdims=True)
            result = (slope - along_mean - hat * along_hat) * inverse
            return tf.cast(result, inputs.dtype), tf.reduce_sum(wide * hat, rows), tf.reduce_sum(wide, rows)

        return tf.cast(normal(inputs) * scale + offset, inputs.dtype), gradient

    return normalise(inputs, scale, offset)


class Gelu(Part):
    """Gaussian error linear unit; keeps its input only.

    Args:
        exact: Use the error function; otherwise the tanh approximation.

    Source: Hendrycks and Gimpel 2016.
    """

    def __init__(self, *, exact: bool, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.exact = exact

    def call(self, inputs: Tensor) -> Tensor:
        """Apply it to each element."""
        return gelu_exact(inputs) if self.exact else gelu_tanh(inputs)


@tf.custom_gradient
def gelu_tanh(inputs: Tensor) -> WithGradient:
    """Return x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³))) for each element."""
    factor, cubic = math.sqrt(2.0 / math.pi), 0.044715

    def saturation(x: Tensor) -> Tensor:
        return tf.tanh(factor * x * (1.0 + cubic * x * x))

    def gradient(upstream: Tensor) -> Tensor:
        x = _again(inputs, upstream)
        t = saturation(x)
        return upstream * 0.5 * (1.0 + t + x * (1.0 - t * t) * (factor * (1.0 + 3.0 * cubic * x * x)))

    return 0.5 * inputs * (1.0 + saturation(inputs)), gradient


@tf.custom_gradient
def gelu_exact(inputs: Tensor) -> WithGradient:
    """Return x Φ(x) for each element, Φ the normal distribution."""

    def share(x: Tensor) -> Tensor:
        return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))

    def gradient(upstream: Tensor) -> Tensor:
        x = _again(inputs, upstream)
        return upstream * (share(x) + x * tf.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))

    return inputs * share(inputs), gradient


def _again(kept: Tensor, upstream: Tensor) -> Tensor:
    """Return a kept input for the backward pass.

    Without the dependency TensorFlow's optimiser would merge the recomputation with the forward pass and keep its
    results in memory.
    """
    with tf.control_dependencies([upstream]):
        return tf.identity(kept)


def elements(tensor: Tensor) -> float:
    """Return the number of elements of one sample."""
    return float(math.prod(int(length) for length in tensor.shape[1:]))


MASKED = -10_000.0
"""Added to the scores of masked positions: its exponential is 0, and float16 holds it. Source: Devlin et al.'s code."""


class Attention(Part):
    """Multi-head scaled dot-product attention, from concatenated queries, keys and values.

    Two batched matrix products around a softmax: TensorFlow has no fused operation.

    Args:
        heads: Number of heads; must divide the width.
        causal: Whether a position attends only to itself and earlier ones.

    Source: Vaswani et al. 2017.
    """

    def __init__(self, heads: int, *, causal: bool = False, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.heads, self.causal = heads, causal

    def call(self, inputs: Tensor | list[Tensor]) -> Tensor:
        """Apply attention.

        Args:
            inputs: Shape (batch, length, 3 × width); or that and a mask, int64 (batch, length), 0 for padding.
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

    @property
    def forward_flops(self) -> float:
        """Return two products of (length × width) with (width × length): 4 length² width, including the masked half."""
        return 4.0 * int(self.output.shape[1]) * elements(self.output)


def feed_forward(x: Tensor, *, exact_gelu: bool, name: str) -> Tensor:
    """Apply the feed-forward network: four times the width, GELU, and back."""
    width = int(x.shape[-1])
    wide: Layer = Projection(4 * width, name=f"{name}_widen")(x)
    return Projection(width, name=f"{name}_narrow")(Gelu(exact=exact_gelu, name=f"{name}_gelu")(wide))


def pre_normalised_block(x: Tensor, *, heads: int, epsilon: float, causal: bool, exact_gelu: bool, name: str) -> Tensor:
    """Add attention and a feed-forward network, each of the normalised sequence (GPT-2, ViT)."""
    width = int(x.shape[-1])
    y = LayerNormalization(epsilon, name=f"{name}_normal_1")(x)
    y = Attention(heads, causal=causal, name=f"{name}_attention")(Projection(3 * width, name=f"{name}_qkv")(y))
    x = keras.layers.Add(name=f"{name}_add_1")([x, Projection(width, name=f"{name}_out")(y)])
    y = LayerNormalization(epsilon, name=f"{name}_normal_2")(x)
    return keras.layers.Add(name=f"{name}_add_2")([x, feed_forward(y, exact_gelu=exact_gelu, name=name)])


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
        # Hidden from Keras, which would count the weight twice.
        self._table: Callable[[], Variable] = lambda: embedding.table

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

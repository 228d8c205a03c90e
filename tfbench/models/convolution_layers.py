"""Layers of convolutional networks: convolutions and fused batch normalisation; rebuilding of stock networks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_types import Layer, Model, Shape, Tensor, Variable
from tfbench.keras_versions import assign_local, is_keras_2, tensorflow_variable

_UNIT_STRIDES = [1, 1, 1, 1]


class Convolution(keras.layers.Conv2D):
    """A two-dimensional convolution, with the arguments, weights and results of `keras.layers.Conv2D`.

    The form is chosen when the layer is built, in the strategy's scope: validity checks compare replicas with runs
    outside the scope, which must use the same form.
    """

    def build(self, input_shape: Shape) -> None:
        """Create kernel and bias."""
        super().build(input_shape)
        self._on_a_cpu = _scope_is_on_a_cpu()

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        """Convolve `inputs`, shape (batch, height, width, channels)."""
        convolve = self._form() if training and self.compute_dtype == "float32" and self._on_a_cpu else None
        if convolve is None:
            return super().call(inputs)
        return convolve(inputs, tf.convert_to_tensor(tensorflow_variable(self.kernel)))

    def _form(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return a faster form of this convolution, or None."""
        relu = self.activation is keras.activations.relu
        plain = set(self.dilation_rate) == {1} and self.groups == 1 and self.data_format == "channels_last"
        if not plain or not (relu or self.activation is keras.activations.linear):
            return None
        bias = tf.convert_to_tensor(tensorflow_variable(self.bias)) if self.use_bias else None
        dense = set(self.strides) == {1}
        if dense and self.kernel_size == (1, 1):
            return lambda inputs, kernel: pointwise_convolution(inputs, kernel, bias, relu=relu)
        if bias is not None:
            strides = [1, *self.strides, 1]
            return lambda inputs, kernel: biased_convolution(
                inputs, kernel, bias, strides=strides, padding=self.padding.upper(), relu=relu
            )
        if dense and self.kernel_size[1] == 1 and not relu:
            return lambda inputs, kernel: vertical_convolution(inputs, kernel, self.padding.upper())
        return None


def pointwise_convolution(inputs: Tensor, kernel: Tensor, bias: Tensor | None = None, *, relu: bool = False) -> Tensor:
    """Convolve with a 1 × 1 kernel, as the product of a matrix with one row per pixel.

    Args:
        inputs: Shape (batch, height, width, channels).
        kernel: Shape (1, 1, channels, filters).
        bias: Shape (filters,), or None.
        relu: Whether negative results become 0.

    Returns:
        Shape (batch, height, width, filters).
    """
    channels, filters = (int(length) for length in kernel.shape[2:])

    def convolve(inputs: Tensor, kernel: Tensor, *biases: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        rows, matrix = tf.reshape(inputs, (-1, channels)), tf.reshape(kernel, (channels, filters))
        result = tf.matmul(rows, matrix)
        for bias in biases:
            result = tf.nn.bias_add(result, bias)
        result = tf.nn.relu(result) if relu else result

        def gradient(upstream: Tensor) -> list[Tensor]:
            slope = tf.reshape(upstream, (-1, filters))
            if relu:
                slope = tf.raw_ops.ReluGrad(gradients=slope, features=result)
                upstream = tf.reshape(slope, tf.shape(upstream))
            if filters > channels:  # the product with a transposed matrix is slower here
                of_inputs = _input_gradient(inputs, kernel, upstream, "VALID")
            else:
                of_inputs = tf.reshape(tf.matmul(slope, matrix, transpose_b=True), tf.shape(inputs))
            of_kernel = tf.reshape(tf.matmul(rows, slope, transpose_a=True), kernel.shape)
            return [of_inputs, of_kernel, *(tf.raw_ops.BiasAddGrad(out_backprop=slope) for _ in biases)]

        return tf.reshape(result, (-1, *inputs.shape[1:-1], filters)), gradient

    return tf.custom_gradient(convolve)(inputs, kernel, *([] if bias is None else [bias]))


def biased_convolution(
    inputs: Tensor, kernel: Tensor, bias: Tensor, *, strides: list[int], padding: str, relu: bool = False
) -> Tensor:
    """Convolve and add a bias, whose gradient remains a separate operation.

    TensorFlow fuses it with the kernel's gradient if both use the same tensor, and the fused operation is slower.

    Args:
        inputs: Shape (batch, height, width, channels).
        kernel: Shape (height, width, channels, filters).
        bias: Shape (filters,).
        strides: One for each dimension of `inputs`.
        padding: `SAME` or `VALID`.
        relu: Whether negative results become 0.

    Returns:
        Shape (batch, height, width, filters), by strides and padding.
    """
    filters = int(kernel.shape[-1])

    @tf.custom_gradient
    def convolve(inputs: Tensor, kernel: Tensor, bias: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        result = tf.nn.bias_add(tf.nn.conv2d(inputs, kernel, strides, padding), bias)
        result = tf.nn.relu(result) if relu else result

        def gradient(upstream: Tensor) -> list[Tensor]:
            slope = tf.raw_ops.ReluGrad(gradients=upstream, features=result) if relu else upstream
            of_kernel = tf.raw_ops.Conv2DBackpropFilter(
                input=inputs, filter_sizes=kernel.shape, out_backprop=slope, strides=strides, padding=padding
            )
            of_bias = tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(slope, (-1, filters)))  # a different tensor
            return [_input_gradient(inputs, kernel, slope, padding, strides), of_kernel, of_bias]

        return result, gradient

    return convolve(inputs, kernel, bias)


def vertical_convolution(inputs: Tensor, kernel: Tensor, padding: str) -> Tensor:
    """Convolve with a kernel of width 1, with the gradient of a kernel of height 1 over the transposed image.

    Args:
        inputs: Shape (batch, height, width, channels).
        kernel: Shape (length, 1, channels, filters).
        padding: `SAME` or `VALID`.

    Returns:
        Shape (batch, height, width, filters); less high with `VALID`.
    """
    length, _, channels, filters = (int(size) for size in kernel.shape)

    @tf.custom_gradient
    def convolve(inputs: Tensor, kernel: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            of_kernel = tf.raw_ops.Conv2DBackpropFilter(
                input=_transposed(inputs),
                filter_sizes=[1, length, channels, filters],
                out_backprop=_transposed(upstream),
                strides=_UNIT_STRIDES,
                padding=padding,
            )
            return _input_gradient(inputs, kernel, upstream, padding), tf.reshape(of_kernel, kernel.shape)

        return tf.nn.conv2d(inputs, kernel, _UNIT_STRIDES, padding), gradient

    return convolve(inputs, kernel)


def _input_gradient(
    inputs: Tensor, kernel: Tensor, upstream: Tensor, padding: str, strides: list[int] = _UNIT_STRIDES
) -> Tensor:
    """Return the gradient with respect to a convolution's inputs, by the usual operation."""
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=tf.shape(inputs), filter=kernel, out_backprop=upstream, strides=strides, padding=padding
    )


def _transposed(images: Tensor) -> Tensor:
    return tf.transpose(images, (0, 2, 1, 3))


def _scope_is_on_a_cpu() -> bool:
    """Return whether the replicas of the current strategy are on CPUs; False without a strategy.

    `ReplicaContext.devices` fails over several hosts: TensorFlow looks a replica up among the devices of one host.
    """
    if not tf.distribute.has_strategy():
        return False
    return all("CPU:" in str(device).upper() for device in tf.distribute.get_strategy().extended.worker_devices)


class FusedBatchNormalization(keras.layers.Layer):
    """Batch normalisation of the last axis by `FusedBatchNormV3`, one operation forward and one backward.

    On TensorFlow, Keras 3's own layer computes mean, variance and normalisation as separate operations, which read and
    write the activations several more times. Statistics and moving averages are each replica's own, as usual, so that
    no replica waits for another.

    Args:
        momentum: Weight of the old moving average in the new one.
        epsilon: Added to the variance.
        scale: Whether the scale is trained; otherwise it is 1.
    """

    def __init__(self, *, momentum: float, epsilon: float, scale: bool = True, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.momentum, self.epsilon, self.scale = momentum, epsilon, scale

    def build(self, input_shape: Shape) -> None:
        """Create the variables, shape (channels,), in float32 under every policy."""
        shape = (input_shape[-1],)
        if self.scale:
            self.gamma = add_float32_weight(self, "gamma", shape, "ones")
        self.beta = add_float32_weight(self, "beta", shape, "zeros")
        self.moving_mean = add_float32_weight(self, "moving_mean", shape, "zeros", trainable=False)
        self.moving_variance = add_float32_weight(self, "moving_variance", shape, "ones", trainable=False)
        super().build(input_shape)

    def call(self, inputs: Tensor, training: bool | None = None, mask: None = None) -> Tensor:
        """Normalise `inputs`, shape (batch, height, width, channels); images have no mask."""
        mean = tensorflow_variable(self.moving_mean)
        variance = tensorflow_variable(self.moving_variance)
        offset = tf.convert_to_tensor(tensorflow_variable(self.beta))
        scale = tf.convert_to_tensor(tensorflow_variable(self.gamma)) if self.scale else tf.ones_like(offset)
        result = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            epsilon=self.epsilon,
            # With this factor the operation returns the new moving averages.
            exponential_avg_factor=1.0 - self.momentum if training else 1.0,
            is_training=bool(training),
        )
        if training:
            assign_local(mean, result.batch_mean)
            assign_local(variance, result.batch_variance)
        return result.y

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        """Return the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `__init__`."""
        own = {"momentum": self.momentum, "epsilon": self.epsilon, "scale": self.scale}
        return {**super().get_config(), **own}


def add_float32_weight(
    layer: Layer, name: str, shape: Shape, initializer: object, *, trainable: bool = True
) -> Variable:
    """Create a weight that is float32 under mixed policies, too, and never cast automatically."""
    automatic_cast = "experimental_autocast" if is_keras_2() else "autocast"
    return layer.add_weight(
        name=name,
        shape=shape,
        initializer=initializer,
        dtype="float32",
        trainable=trainable,
        **{automatic_cast: False},
    )


def normalised_convolution(
    x: Tensor,
    filters: int,
    size: int | tuple[int, int],
    batch_norm: BatchNorm,
    *,
    momentum: float,
    epsilon: float,
    strides: int = 1,
    padding: str = "same",
    relu: bool = True,
    name: str | None = None,
) -> Tensor:
    """Apply a convolution, batch normalisation and ReLU; the convolution has a bias only without normalisation.

    Args:
        x: Shape (batch, height, width, channels).
        filters: Channels of the result.
        size: Height and width of the kernel.
        batch_norm: Its variant.
        momentum: Weight of the old moving average in the new one.
        epsilon: Added to the variance.
        strides: Of the convolution.
        padding: `same` or `valid`.
        relu: Whether negative results become 0.
        name: Of the convolution, and prefix of the other layers' names.
    """
    convolution = keras.layers.Conv2D if batch_norm is BatchNorm.KERAS else Convolution
    settings = {"strides": strides, "padding": padding, "name": name}
    if batch_norm is BatchNorm.NONE:
        return convolution(filters, size, activation="relu" if relu else None, **settings)(x)
    x = convolution(filters, size, use_bias=False, **settings)(x)
    normalization = keras.layers.BatchNormalization if batch_norm is BatchNorm.KERAS else FusedBatchNormalization
    x = normalization(momentum=momentum, epsilon=epsilon, name=name and f"{name}_normal")(x)
    return keras.layers.Activation("relu", name=name and f"{name}_relu")(x) if relu else x


def rebuilt(model: Model, *, fuse: bool) -> Model:
    """Rebuild a stock network without dropout, and optionally with fused batch normalisation.

    Biases that fused batch normalisation would cancel are removed.

    Args:
        model: Functional model; its `BatchNormalization` layers are over the last axis.
        fuse: Whether to replace them.

    Returns:
        A new model with fresh weights, in the current strategy scope.
    """
    cancelled = _biased_convolutions_before_batch_norm(model) if fuse else set()

    def rebuild(layer: Layer) -> Layer:
        config = layer.get_config()
        if fuse and isinstance(layer, keras.layers.BatchNormalization):
            return FusedBatchNormalization(
                name=layer.name, momentum=layer.momentum, epsilon=layer.epsilon, scale=layer.scale
            )
        if isinstance(layer, keras.layers.Dropout):
            config["rate"] = 0.0
        if layer.name in cancelled:
            config["use_bias"] = False
        if fuse and type(layer) is keras.layers.Conv2D:
            return Convolution.from_config(config)
        return layer.__class__.from_config(config)

    return keras.models.clone_model(model, clone_function=rebuild)


def _biased_convolutions_before_batch_norm(model: Model) -> set[str]:
    """Return the names of convolutions whose output goes only into one batch normalisation."""
    producer_of = {id(layer.output): layer for layer in model.layers}
    consumers: Counter[str] = Counter()
    before: set[str] = set()
    for layer in model.layers:
        if isinstance(layer, keras.layers.InputLayer):
            continue
        inputs = layer.input if isinstance(layer.input, list) else [layer.input]
        producers = [producer_of[id(tensor)] for tensor in inputs]
        consumers.update(producer.name for producer in producers)
        if isinstance(layer, keras.layers.BatchNormalization):
            before.update(p.name for p in producers if isinstance(p, keras.layers.Conv2D))
    return {name for name in before if consumers[name] == 1}

"""Convolutions of images; on a CPU in the forms that TensorFlow's library for it, oneDNN, computes fastest.

The same sums, so the same results but for rounding: docs/method.md section 8 has what each form gains. Elsewhere than
on a CPU, in other types than float32 and in inference, where TensorFlow fuses normalisation into them, these are
Keras's own convolutions.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf
from tensorflow import keras

from tfbench.keras_versions.types import Shape, Tensor
from tfbench.keras_versions.variables import tensorflow_variable

_UNIT_STRIDES = [1, 1, 1, 1]


class Convolution(keras.layers.Conv2D):
    """A two-dimensional convolution: arguments, weights and results as those of `keras.layers.Conv2D`.

    Where it computes is known when it is built, in the strategy's scope: what the gates compare the replicas with runs
    outside of the strategy, and must take the same form.
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
        """Return the faster form of such a convolution; None: there is none."""
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
    """Convolve with a kernel of 1 × 1, as products of a matrix with a row per pixel.

    Args:
        inputs: Shape (batch, height, width, channels).
        kernel: Shape (1, 1, channels, filters).
        bias: Shape (filters,); None: there is none.
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
            if filters > channels:  # the product with a transposed matrix is the slower one there
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
    """Convolve and add a bias, whose gradient stays an operation by itself.

    TensorFlow joins it with the kernel's gradient where both take the same tensor, and the joint one is slower.

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
            of_bias = tf.raw_ops.BiasAddGrad(out_backprop=tf.reshape(slope, (-1, filters)))  # another tensor
            return [_input_gradient(inputs, kernel, slope, padding, strides), of_kernel, of_bias]

        return result, gradient

    return convolve(inputs, kernel, bias)


def vertical_convolution(inputs: Tensor, kernel: Tensor, padding: str) -> Tensor:
    """Convolve with a kernel of width 1; its gradient as that of a kernel of height 1 over the transposed image.

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
    """Return the gradient of a convolution's inputs from that of its result, by the usual operation."""
    return tf.raw_ops.Conv2DBackpropInput(
        input_sizes=tf.shape(inputs), filter=kernel, out_backprop=upstream, strides=strides, padding=padding
    )


def _transposed(images: Tensor) -> Tensor:
    return tf.transpose(images, (0, 2, 1, 3))


def _scope_is_on_a_cpu() -> bool:
    """Return whether the replicas of the strategy of this scope compute on a CPU; False without a strategy.

    Not by `ReplicaContext.devices`: over several hosts TensorFlow looks a replica up among the devices of one host.
    """
    if not tf.distribute.has_strategy():
        return False
    return all("CPU:" in str(device).upper() for device in tf.distribute.get_strategy().extended.worker_devices)

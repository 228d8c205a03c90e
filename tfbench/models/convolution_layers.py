"""Layers of convolutional networks: fused batch normalisation; rebuilding of stock networks."""

from __future__ import annotations

from collections import Counter

import tensorflow as tf
from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_types import Layer, Model, Shape, Tensor, Variable
from tfbench.keras_versions import assign_local, is_keras_2, tensorflow_variable


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
    settings = {"strides": strides, "padding": padding, "name": name}
    if batch_norm is BatchNorm.NONE:
        return keras.layers.Conv2D(filters, size, activation="relu" if relu else None, **settings)(x)
    x = keras.layers.Conv2D(filters, size, use_bias=False, **settings)(x)
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

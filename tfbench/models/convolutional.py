"""Convolutional networks: AlexNet, ResNet v1.5, GoogLeNet, Inception v4, and those of `keras.applications`, rebuilt.

Dropout and stochastic depth are omitted: with either, a step would not be the same function on one device and on
several, which the validity checks compare.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence

import tensorflow as tf
from tensorflow import keras

from results.schema import BatchNorm
from tfbench import keras_versions
from tfbench.keras_versions import Layer, Model, Shape, Tensor, Variable, tensorflow_variable


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
        mean, variance = tensorflow_variable(self.moving_mean), tensorflow_variable(self.moving_variance)
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
            keras_versions.assign_local(mean, result.batch_mean)
            keras_versions.assign_local(variance, result.batch_variance)
        return result.y


def add_float32_weight(
    layer: Layer, name: str, shape: Shape, initializer: object, *, trainable: bool = True
) -> Variable:
    """Create a weight that is float32 under mixed policies, too, and never cast automatically."""
    automatic_cast = "experimental_autocast" if keras_versions.is_keras_2() else "autocast"
    options = {"dtype": "float32", "trainable": trainable, automatic_cast: False}
    return layer.add_weight(name=name, shape=shape, initializer=initializer, **options)


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


def stock(image_size: int, classes: int, *, application: str, batch_norm: BatchNorm = BatchNorm.NONE) -> Model:
    """Build a network of `keras.applications` with random weights and logits as output.

    Args:
        image_size: Height and width in pixels.
        classes: Size of the output.
        application: Name of its function, e.g. `ResNet50`.
        batch_norm: `fused`; otherwise the network's own layers.
    """
    build = getattr(keras.applications, application)
    shape = (image_size, image_size, 3)
    pattern = keras_versions.structure(
        lambda: build(weights=None, input_shape=shape, classes=classes, classifier_activation=None)
    )
    return rebuilt(pattern, fuse=batch_norm is BatchNorm.FUSED)


def alexnet(image_size: int, classes: int) -> Model:
    """Build AlexNet."""
    images = keras.Input((image_size, image_size, 3))
    x = keras.layers.ZeroPadding2D(2)(images)
    x = keras.layers.Conv2D(64, 11, strides=4, activation="relu")(x)
    for filters, size, halves in ((192, 5, True), (384, 3, True), (256, 3, False), (256, 3, False)):
        x = keras.layers.MaxPooling2D(3, strides=2)(x) if halves else x
        x = keras.layers.Conv2D(filters, size, padding="same", activation="relu")(x)
    x = keras.layers.Flatten()(keras.layers.MaxPooling2D(3, strides=2)(x))
    for _ in range(2):
        x = keras.layers.Dense(4096, activation="relu")(x)
    return keras.Model(images, keras.layers.Dense(classes)(x), name="alexnet")


def resnet_v1_5(image_size: int, classes: int, *, blocks: tuple[int, ...], batch_norm: BatchNorm) -> Model:
    """Build a ResNet v1.5, in which the 3 × 3 convolution strides, not the first 1 × 1.

    Args:
        image_size: Height and width in pixels.
        classes: Size of the output.
        blocks: Bottlenecks of each stage; widths double from 64.
        batch_norm: `fused` or `keras`.
    """
    # Source: NVIDIA DeepLearningExamples, torchvision (whose momentum is 1 - 0.9).
    convolve = functools.partial(normalised_convolution, batch_norm=batch_norm, momentum=0.9, epsilon=1e-5)

    def bottleneck(x: Tensor, width: int, strides: int, name: str) -> Tensor:
        """Append 1 × 1, 3 × 3 and 1 × 1 convolutions, added to `x` or to its projection."""
        shortcut = x
        if int(x.shape[-1]) != 4 * width:
            shortcut = convolve(x, 4 * width, 1, strides=strides, relu=False, name=f"{name}_shortcut")
        x = convolve(x, width, 1, name=f"{name}_reduce")
        x = convolve(x, width, 3, strides=strides, name=f"{name}_middle")
        x = convolve(x, 4 * width, 1, relu=False, name=f"{name}_widen")
        return keras.layers.Activation("relu")(keras.layers.Add()([shortcut, x]))

    images = keras.Input((image_size, image_size, 3))
    x = convolve(images, 64, 7, strides=2, name="stem")
    x = keras.layers.MaxPooling2D(3, strides=2, padding="same")(x)
    for stage, count in enumerate(blocks):
        for block in range(count):
            halves = stage > 0 and block == 0
            x = bottleneck(x, 64 * 2**stage, 2 if halves else 1, f"stage{stage + 1}_{block + 1}")
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(classes, name="classes")(x), name="resnet_v1_5")


_INCEPTIONS = (
    # Filters: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, after pooling; None: halve the resolution.
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def googlenet(image_size: int, classes: int, *, batch_norm: BatchNorm) -> Model:
    """Build GoogLeNet."""
    convolve = functools.partial(normalised_convolution, batch_norm=batch_norm, momentum=0.99, epsilon=1e-3)

    def halve(x: Tensor) -> Tensor:
        return keras.layers.MaxPooling2D(3, strides=2, padding="same")(x)

    images = keras.Input((image_size, image_size, 3))
    x = halve(convolve(images, 64, 7, strides=2))
    x = halve(convolve(convolve(x, 64, 1), 192, 3))
    for widths in _INCEPTIONS:
        if widths is None:
            x = halve(x)
            continue
        one, three_reduce, three, five_reduce, five, pooled = widths
        pool = keras.layers.MaxPooling2D(3, strides=1, padding="same")(x)
        branches = [
            convolve(x, one, 1),
            convolve(convolve(x, three_reduce, 1), three, 3),
            convolve(convolve(x, five_reduce, 1), five, 5),
            convolve(pool, pooled, 1),
        ]
        x = _join(branches)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(classes)(x), name="googlenet")


Step = tuple[int, int, int]
"""Filters, and height and width of the kernel."""

Branch = tuple[bool, list[Step], list[Step]]
"""Whether it begins with average pooling; consecutive convolutions; and parallel convolutions at its end."""

_BLOCK_A: tuple[Branch, ...] = (
    (True, [], [(96, 1, 1)]),
    (False, [], [(96, 1, 1)]),
    (False, [(64, 1, 1)], [(96, 3, 3)]),
    (False, [(64, 1, 1), (96, 3, 3)], [(96, 3, 3)]),
)
"""Keeps 35 × 35 × 384 (figure 4)."""

_BLOCK_B: tuple[Branch, ...] = (
    (True, [], [(128, 1, 1)]),
    (False, [], [(384, 1, 1)]),
    (False, [(192, 1, 1), (224, 1, 7)], [(256, 7, 1)]),
    (False, [(192, 1, 1), (192, 7, 1), (224, 1, 7), (224, 7, 1)], [(256, 1, 7)]),
)
"""Keeps 17 × 17 × 1024 (figure 5)."""

_BLOCK_C: tuple[Branch, ...] = (
    (True, [], [(256, 1, 1)]),
    (False, [], [(256, 1, 1)]),
    (False, [(384, 1, 1)], [(256, 1, 3), (256, 3, 1)]),
    (False, [(384, 1, 1), (448, 3, 1), (512, 1, 3)], [(256, 1, 3), (256, 3, 1)]),
)
"""Keeps 8 × 8 × 1536 (figure 6)."""

_REDUCTIONS: tuple[tuple[list[Step], ...], ...] = (
    ([(384, 3, 3)], [(192, 1, 1), (224, 3, 3), (256, 3, 3)]),
    ([(192, 1, 1), (192, 3, 3)], [(256, 1, 1), (256, 1, 7), (320, 7, 1), (320, 3, 3)]),
    (),
)
"""Reductions between blocks: branches parallel to a pooling, whose last convolution strides (figures 7 and 8)."""


def inception_v4(
    image_size: int, classes: int, *, batch_norm: BatchNorm, blocks: tuple[int, int, int] = (4, 7, 3)
) -> Model:
    """Build Inception v4.

    Args:
        image_size: Height and width in pixels, at least 75.
        classes: Size of the output.
        batch_norm: `fused` or `keras`.
        blocks: Inception blocks of each grid: A, B and C.
    """
    # Source: the authors' code (TF-slim).
    normalised = functools.partial(normalised_convolution, batch_norm=batch_norm, momentum=0.9997, epsilon=1e-3)

    def convolve(x: Tensor, *steps: Step, strides: int = 1, padding: str = "same") -> Tensor:
        for filters, height, width in steps:
            x = normalised(x, filters, (height, width), strides=strides, padding=padding)
        return x

    def stride(x: Tensor, *steps: Step) -> Tensor:
        return convolve(convolve(x, *steps[:-1]), steps[-1], strides=2, padding="valid")

    def stem(x: Tensor) -> Tensor:
        """Apply the stem, from 299 px to 35 × 35 × 384 (figure 3)."""
        x = convolve(convolve(stride(x, (32, 3, 3)), (32, 3, 3), padding="valid"), (64, 3, 3))
        x = _join([_pool(x), stride(x, (96, 3, 3))])
        short = convolve(convolve(x, (64, 1, 1)), (96, 3, 3), padding="valid")
        long = convolve(x, (64, 1, 1), (64, 7, 1), (64, 1, 7))
        x = _join([short, convolve(long, (96, 3, 3), padding="valid")])
        return _join([stride(x, (192, 3, 3)), _pool(x)])

    def branch(x: Tensor, averages: bool, steps: Sequence[Step], ends: Sequence[Step]) -> list[Tensor]:
        x = keras.layers.AveragePooling2D(3, strides=1, padding="same")(x) if averages else x
        x = convolve(x, *steps)
        return [convolve(x, end) for end in ends]

    images = keras.Input((image_size, image_size, 3))
    x = stem(images)
    for count, block, reduction in zip(blocks, (_BLOCK_A, _BLOCK_B, _BLOCK_C), _REDUCTIONS, strict=True):
        for _ in range(count):
            x = _join([end for parts in block for end in branch(x, *parts)])
        if reduction:
            x = _join([_pool(x), *(stride(x, *steps) for steps in reduction)])
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(classes)(x), name="inception_v4")


def _join(branches: Sequence[Tensor]) -> Tensor:
    return keras.layers.Concatenate()(list(branches))


def _pool(x: Tensor) -> Tensor:
    return keras.layers.MaxPooling2D(3, strides=2)(x)

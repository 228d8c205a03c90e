"""AlexNet, and the convolutional networks of `keras.applications`: VGG, ResNet, Inception v3, EfficientNet.

Dropout and stochastic depth are omitted: with either, a step would not be the same function on one device and on
several, which the validity checks compare.
"""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_types import Model, Strategy, Tensor
from tfbench.keras_versions import structure
from tfbench.models.convolution_layers import normalised_convolution, rebuilt


def stock(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy, *, application: str) -> Model:
    """Build a network of `keras.applications` (see `Network.build`) with random weights and logits as output.

    Args:
        batch_norm: `fused`; otherwise the network's own layers.
        image_size: Height and width in pixels.
        classes: Size of the output.
        strategy: Holds the variables.
        application: Name of its function, e.g. `ResNet50`.
    """
    build = getattr(keras.applications, application)
    shape = (image_size, image_size, 3)
    pattern = structure(lambda: build(weights=None, input_shape=shape, classes=classes, classifier_activation=None))
    with strategy.scope():
        return rebuilt(pattern, fuse=batch_norm is BatchNorm.FUSED)


def alexnet(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build AlexNet (see `Network.build`)."""
    del batch_norm  # it has none
    with strategy.scope():
        images = keras.Input((image_size, image_size, 3))
        x = keras.layers.ZeroPadding2D(2)(images)
        x = keras.layers.Conv2D(64, 11, strides=4, activation="relu")(x)
        x = _padded_convolution(_halve(x), 192, 5)
        x = _padded_convolution(_halve(x), 384, 3)
        x = _padded_convolution(x, 256, 3)
        x = keras.layers.Flatten()(_halve(_padded_convolution(x, 256, 3)))
        for _ in range(2):
            x = keras.layers.Dense(4096, activation="relu")(x)
        return keras.Model(images, keras.layers.Dense(classes)(x), name="alexnet")


def _padded_convolution(x: Tensor, filters: int, size: int) -> Tensor:
    return keras.layers.Conv2D(filters, size, padding="same", activation="relu")(x)


def _halve(x: Tensor) -> Tensor:
    return keras.layers.MaxPooling2D(3, strides=2)(x)


_MOMENTUM, _EPSILON = 0.9, 1e-5
"""Batch normalisation of v1.5. Source: NVIDIA DeepLearningExamples, torchvision (whose momentum is 1 - 0.9)."""


def resnet_v1_5(
    batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy, *, blocks: tuple[int, ...]
) -> Model:
    """Build a ResNet v1.5 (see `Network.build`), in which the 3 × 3 convolution strides, not the first 1 × 1.

    Args:
        batch_norm: `fused` or `keras`.
        image_size: Height and width in pixels.
        classes: Size of the output.
        strategy: Holds the variables.
        blocks: Bottlenecks of each stage; widths double from 64.
    """
    with strategy.scope():
        images = keras.Input((image_size, image_size, 3))
        x = _convolution(images, 64, 7, batch_norm, strides=2, name="stem")
        x = keras.layers.MaxPooling2D(3, strides=2, padding="same")(x)
        for stage, count in enumerate(blocks):
            for block in range(count):
                halve = stage > 0 and block == 0
                x = _bottleneck(x, 64 * 2**stage, batch_norm, 2 if halve else 1, f"stage{stage + 1}_{block + 1}")
        x = keras.layers.GlobalAveragePooling2D()(x)
        return keras.Model(images, keras.layers.Dense(classes, name="classes")(x), name="resnet_v1_5")


def _bottleneck(x: Tensor, width: int, batch_norm: BatchNorm, strides: int, name: str) -> Tensor:
    """Append a bottleneck block: 1 × 1, 3 × 3 and 1 × 1 convolutions, added to `x` or to its projection."""
    shortcut = x
    if int(x.shape[-1]) != 4 * width:
        shortcut = _convolution(x, 4 * width, 1, batch_norm, strides=strides, relu=False, name=f"{name}_shortcut")
    x = _convolution(x, width, 1, batch_norm, name=f"{name}_reduce")
    x = _convolution(x, width, 3, batch_norm, strides=strides, name=f"{name}_middle")
    x = _convolution(x, 4 * width, 1, batch_norm, relu=False, name=f"{name}_widen")
    return keras.layers.Activation("relu")(keras.layers.Add()([shortcut, x]))


def _convolution(
    x: Tensor, filters: int, size: int, batch_norm: BatchNorm, *, name: str, strides: int = 1, relu: bool = True
) -> Tensor:
    return normalised_convolution(
        x,
        filters,
        size,
        batch_norm,
        strides=strides,
        relu=relu,
        momentum=_MOMENTUM,
        epsilon=_EPSILON,
        name=name,
    )

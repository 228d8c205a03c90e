"""AlexNet, and the convolutional networks of `keras.applications`: VGG, ResNet, Inception v3, EfficientNet.

Dropout and stochastic depth are omitted: with either, a step would not be the same function on one device and on
several, which the validity checks compare.
"""

from __future__ import annotations

import functools

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_types import Model, Tensor
from tfbench.keras_versions import structure
from tfbench.models.convolution_layers import normalised_convolution, rebuilt


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
    pattern = structure(lambda: build(weights=None, input_shape=shape, classes=classes, classifier_activation=None))
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


_MOMENTUM, _EPSILON = 0.9, 1e-5
"""Batch normalisation of v1.5. Source: NVIDIA DeepLearningExamples, torchvision (whose momentum is 1 - 0.9)."""


def resnet_v1_5(image_size: int, classes: int, *, blocks: tuple[int, ...], batch_norm: BatchNorm) -> Model:
    """Build a ResNet v1.5, in which the 3 × 3 convolution strides, not the first 1 × 1.

    Args:
        image_size: Height and width in pixels.
        classes: Size of the output.
        blocks: Bottlenecks of each stage; widths double from 64.
        batch_norm: `fused` or `keras`.
    """
    convolve = functools.partial(normalised_convolution, batch_norm=batch_norm, momentum=_MOMENTUM, epsilon=_EPSILON)

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

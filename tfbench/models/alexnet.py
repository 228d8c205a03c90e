"""AlexNet after Krizhevsky 2014, "One weird trick", as torchvision has it: one tower, no dropout."""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy, Tensor


def alexnet(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build AlexNet (see `Network.build`)."""
    del batch_norm  # it has none
    with strategy.scope():
        images = keras.Input((image_size, image_size, 3))
        x = keras.layers.ZeroPadding2D(2)(images)
        x = keras.layers.Conv2D(64, 11, strides=4, activation="relu")(x)
        x = _convolution(_halve(x), 192, 5)
        x = _convolution(_halve(x), 384, 3)
        x = _convolution(x, 256, 3)
        x = keras.layers.Flatten()(_halve(_convolution(x, 256, 3)))
        for _ in range(2):
            x = keras.layers.Dense(4096, activation="relu")(x)
        return keras.Model(images, keras.layers.Dense(classes)(x), name="alexnet")


def _convolution(x: Tensor, filters: int, size: int) -> Tensor:
    return keras.layers.Conv2D(filters, size, padding="same", activation="relu")(x)


def _halve(x: Tensor) -> Tensor:
    return keras.layers.MaxPooling2D(3, strides=2)(x)

"""GoogLeNet after Szegedy et al. 2014, "Going deeper with convolutions", table 1.

No auxiliary heads, no local response normalisation and no dropout: those cost little and no benchmark has
them. No batch normalisation either, as in tf_cnn_benchmarks; `--batch_norm=fused` adds it.
"""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy, Tensor
from tfbench.models.blocks.layers import normalised_convolution

_INCEPTIONS = (
    # 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, after pooling; None: halve the resolution.
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


def googlenet(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build GoogLeNet (see `Network.build`)."""
    with strategy.scope():
        return _googlenet(batch_norm, image_size, classes)


def _googlenet(batch_norm: BatchNorm, image_size: int, classes: int) -> Model:
    images = keras.Input((image_size, image_size, 3))
    x = _convolution(images, 64, 7, batch_norm, strides=2)
    x = _halve(x)
    x = _convolution(x, 64, 1, batch_norm)
    x = _convolution(x, 192, 3, batch_norm)
    x = _halve(x)
    for widths in _INCEPTIONS:
        x = _halve(x) if widths is None else _inception(x, widths, batch_norm)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(classes)(x), name="googlenet")


def _inception(x: Tensor, widths: tuple[int, ...], batch_norm: BatchNorm) -> Tensor:
    """Apply four parallel branches and put their channels side by side."""
    one, three_reduce, three, five_reduce, five, pooled = widths
    pool = keras.layers.MaxPooling2D(3, strides=1, padding="same")(x)
    branches = [
        _convolution(x, one, 1, batch_norm),
        _convolution(_convolution(x, three_reduce, 1, batch_norm), three, 3, batch_norm),
        _convolution(_convolution(x, five_reduce, 1, batch_norm), five, 5, batch_norm),
        _convolution(pool, pooled, 1, batch_norm),
    ]
    return keras.layers.Concatenate()(branches)


def _convolution(x: Tensor, filters: int, size: int, batch_norm: BatchNorm, strides: int = 1) -> Tensor:
    """Apply convolution, batch normalisation if any, and ReLU."""
    return normalised_convolution(x, filters, size, batch_norm, strides=strides, momentum=0.99, epsilon=1e-3)


def _halve(x: Tensor) -> Tensor:
    return keras.layers.MaxPooling2D(3, strides=2, padding="same")(x)

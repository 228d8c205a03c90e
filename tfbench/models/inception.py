"""GoogLeNet after Szegedy et al. 2014, table 1, and Inception v4 after Szegedy et al. 2016."""

from __future__ import annotations

from collections.abc import Sequence

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_types import Model, Strategy, Tensor
from tfbench.models.convolution_layers import normalised_convolution

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


_MOMENTUM, _EPSILON = 0.9997, 1e-3
"""Of the batch normalisation. Source: the authors' code (TF-slim)."""

Step = tuple[int, int, int]
"""Filters, and height and width of the kernel."""


def inception_v4(
    batch_norm: BatchNorm,
    image_size: int,
    classes: int,
    strategy: Strategy,
    *,
    blocks: tuple[int, int, int] = (4, 7, 3),
) -> Model:
    """Build Inception v4 (see `Network.build`).

    Args:
        batch_norm: `fused` or `keras`.
        image_size: Height and width in pixels, at least 75.
        classes: Size of the output.
        strategy: Holds the variables.
        blocks: Inception blocks of each grid: A, B and C.
    """
    parts = _Parts(batch_norm)
    with strategy.scope():
        images = keras.Input((image_size, image_size, 3))
        x = parts.stem(images)
        for _ in range(blocks[0]):
            x = parts.block_a(x)
        x = parts.reduce(x, [[(384, 3, 3)], [(192, 1, 1), (224, 3, 3), (256, 3, 3)]])
        for _ in range(blocks[1]):
            x = parts.block_b(x)
        x = parts.reduce(x, [[(192, 1, 1), (192, 3, 3)], [(256, 1, 1), (256, 1, 7), (320, 7, 1), (320, 3, 3)]])
        for _ in range(blocks[2]):
            x = parts.block_c(x)
        x = keras.layers.GlobalAveragePooling2D()(x)
        return keras.Model(images, keras.layers.Dense(classes)(x), name="inception_v4")


class _Parts:
    """The blocks of the network in one variant of batch normalisation."""

    def __init__(self, batch_norm: BatchNorm) -> None:
        self._batch_norm = batch_norm

    def stem(self, x: Tensor) -> Tensor:
        """Bring 299 px down to 35 × 35 × 384 (figure 3)."""
        x = self._convolution(x, (32, 3, 3), strides=2, padding="valid")
        x = self._convolution(x, (32, 3, 3), padding="valid")
        x = self._convolution(x, (64, 3, 3))
        x = _join([_pool(x), self._convolution(x, (96, 3, 3), strides=2, padding="valid")])
        short = self._convolution(self._chain(x, [(64, 1, 1)]), (96, 3, 3), padding="valid")
        long = self._chain(x, [(64, 1, 1), (64, 7, 1), (64, 1, 7)])
        x = _join([short, self._convolution(long, (96, 3, 3), padding="valid")])
        return _join([self._convolution(x, (192, 3, 3), strides=2, padding="valid"), _pool(x)])

    def block_a(self, x: Tensor) -> Tensor:
        """Keep 35 × 35 × 384 (figure 4)."""
        return _join(
            [
                self._chain(_average(x), [(96, 1, 1)]),
                self._chain(x, [(96, 1, 1)]),
                self._chain(x, [(64, 1, 1), (96, 3, 3)]),
                self._chain(x, [(64, 1, 1), (96, 3, 3), (96, 3, 3)]),
            ]
        )

    def block_b(self, x: Tensor) -> Tensor:
        """Keep 17 × 17 × 1024 (figure 5)."""
        return _join(
            [
                self._chain(_average(x), [(128, 1, 1)]),
                self._chain(x, [(384, 1, 1)]),
                self._chain(x, [(192, 1, 1), (224, 1, 7), (256, 7, 1)]),
                self._chain(x, [(192, 1, 1), (192, 7, 1), (224, 1, 7), (224, 7, 1), (256, 1, 7)]),
            ]
        )

    def block_c(self, x: Tensor) -> Tensor:
        """Keep 8 × 8 × 1536 (figure 6)."""
        fork = self._chain(x, [(384, 1, 1)])
        deep = self._chain(x, [(384, 1, 1), (448, 3, 1), (512, 1, 3)])
        return _join(
            [
                self._chain(_average(x), [(256, 1, 1)]),
                self._chain(x, [(256, 1, 1)]),
                *(self._convolution(fork, step) for step in ((256, 1, 3), (256, 3, 1))),
                *(self._convolution(deep, step) for step in ((256, 1, 3), (256, 3, 1))),
            ]
        )

    def reduce(self, x: Tensor, branches: Sequence[Sequence[Step]]) -> Tensor:
        """Halve the grid by pooling beside branches whose last convolution strides (figures 7 and 8)."""
        halved = [
            self._convolution(self._chain(x, steps[:-1]), steps[-1], strides=2, padding="valid") for steps in branches
        ]
        return _join([_pool(x), *halved])

    def _chain(self, x: Tensor, steps: Sequence[Step]) -> Tensor:
        for step in steps:
            x = self._convolution(x, step)
        return x

    def _convolution(self, x: Tensor, step: Step, *, strides: int = 1, padding: str = "same") -> Tensor:
        filters, height, width = step
        return normalised_convolution(
            x,
            filters,
            (height, width),
            self._batch_norm,
            strides=strides,
            padding=padding,
            momentum=_MOMENTUM,
            epsilon=_EPSILON,
        )


def _join(branches: Sequence[Tensor]) -> Tensor:
    return keras.layers.Concatenate()(list(branches))


def _pool(x: Tensor) -> Tensor:
    return keras.layers.MaxPooling2D(3, strides=2)(x)


def _average(x: Tensor) -> Tensor:
    return keras.layers.AveragePooling2D(3, strides=1, padding="same")(x)

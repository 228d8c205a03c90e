"""GoogLeNet after Szegedy et al. 2014, table 1, and Inception v4 after Szegedy et al. 2016."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_types import Model, Tensor
from tfbench.models.convolution_layers import normalised_convolution

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


_MOMENTUM, _EPSILON = 0.9997, 1e-3
"""Parameters of batch normalisation. Source: the authors' code (TF-slim)."""

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
    normalised = functools.partial(normalised_convolution, batch_norm=batch_norm, momentum=_MOMENTUM, epsilon=_EPSILON)

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

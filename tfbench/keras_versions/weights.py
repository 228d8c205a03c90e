"""Initial weights that are the same in every TensorFlow and Keras."""

from __future__ import annotations

import math

import numpy as np

from tfbench.keras_versions.types import Model, Shape

STREAM = 2**31
"""Keeps the weights' random numbers apart from those of the replicas' batches."""


def draw_weights(model: Model, seed: int) -> None:
    """Draw all kernels anew, one after another in the order of the layers.

    Uniform between ±√(6 / (inputs + outputs)) of each, whatever the network's own initializer is (Glorot and
    Bengio 2010). Weights of one axis (biases, normalisations) keep their constants.

    Args:
        model: Keras model.
        seed: At least 0.
    """
    for index, weight in enumerate(weight for weight in model.trainable_weights if len(weight.shape) > 1):
        shape = tuple(int(length) for length in weight.shape)
        generator = np.random.Generator(np.random.PCG64([seed, STREAM, index]))
        values = generator.random(shape, np.float32)
        values -= np.float32(0.5)
        values *= np.float32(2.0 * _glorot_limit(shape))
        weight.assign(values)


def _glorot_limit(shape: Shape) -> float:
    """Return √(6 / (inputs + outputs)); the last two axes are those of channels, all others the receptive field."""
    field = math.prod(shape[:-2])
    return math.sqrt(6.0 / (field * (shape[-2] + shape[-1])))

"""Inception v3 of `keras.applications`: 299 px, no auxiliary head, batch normalisation without scale."""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy
from tfbench.models.stock import build_stock


def inception_v3(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build Inception v3 (see `Network.build`)."""
    return build_stock(keras.applications.InceptionV3, batch_norm, image_size, classes, strategy)

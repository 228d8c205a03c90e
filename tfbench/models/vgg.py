"""VGG16 of `keras.applications`: Simonyan and Zisserman 2014, configuration D, no dropout."""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy
from tfbench.models.stock import build_stock


def vgg16(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build VGG16 (see `Network.build`)."""
    return build_stock(keras.applications.VGG16, batch_norm, image_size, classes, strategy)

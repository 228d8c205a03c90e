"""ResNet v1 of `keras.applications`, the variant that tf_cnn_benchmarks calls `resnet50` and `resnet152`."""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.models.stock import build_stock
from tfbench.types import Model, Strategy


def resnet50(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build ResNet50 (see `Network.build`)."""
    return build_stock(keras.applications.ResNet50, batch_norm, image_size, classes, strategy)


def resnet152(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build ResNet152 (see `Network.build`)."""
    return build_stock(keras.applications.ResNet152, batch_norm, image_size, classes, strategy)

"""EfficientNets of `keras.applications`: Tan and Le 2019 and 2021, no dropout and no stochastic depth.

A step with either is not the same function on one device and on many, which the validity gates check.
"""

from __future__ import annotations

from tensorflow import keras

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy
from tfbench.models.stock import build_stock


def efficientnet_b0(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build EfficientNet-B0 (see `Network.build`)."""
    return build_stock(keras.applications.EfficientNetB0, batch_norm, image_size, classes, strategy)


def efficientnet_v2_s(batch_norm: BatchNorm, image_size: int, classes: int, strategy: Strategy) -> Model:
    """Build EfficientNetV2-S (see `Network.build`)."""
    return build_stock(keras.applications.EfficientNetV2S, batch_norm, image_size, classes, strategy)

"""Networks of `keras.applications`, rebuilt without dropout, and with fused batch normalisation or their own."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from results.schema import BatchNorm
from tfbench.keras_versions.types import Model, Strategy
from tfbench.models.blocks.layers import rebuilt


def build_stock(
    application: Callable[..., Model],
    batch_norm: BatchNorm,
    image_size: int,
    classes: int,
    strategy: Strategy,
) -> Model:
    """Build a network of `keras.applications` with random weights and logits as output.

    Args:
        application: e.g. `keras.applications.ResNet50`.
        batch_norm: `fused`; any other leaves the network's own layers.
        image_size: Height and width in pixels.
        classes: Size of the output.
        strategy: The `tf.distribute` strategy whose replicas hold the variables.
    """
    with tf.device("CPU:0"):  # only its shape is used: it should take no GPU memory
        shape = (image_size, image_size, 3)
        pattern = application(weights=None, input_shape=shape, classes=classes, classifier_activation=None)
    with strategy.scope():
        return rebuilt(pattern, fuse=batch_norm is BatchNorm.FUSED)

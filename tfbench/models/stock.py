"""Networks of `keras.applications`, as they are or rebuilt with fused batch normalisation."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from results.schema import BatchNorm
from tfbench.models.layers import with_fused_batch_norm
from tfbench.types import Model, Strategy


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
        batch_norm: `fused` or `keras`.
        image_size: Height and width in pixels.
        classes: Size of the output.
        strategy: The `tf.distribute` strategy whose replicas hold the variables.
    """

    def stock() -> Model:
        shape = (image_size, image_size, 3)
        return application(weights=None, input_shape=shape, classes=classes, classifier_activation=None)

    if batch_norm is BatchNorm.FUSED:
        with tf.device("CPU:0"):  # only its shape is used: it should take no GPU memory
            pattern = stock()
        with strategy.scope():
            return with_fused_batch_norm(pattern)
    with strategy.scope():
        return stock()

"""The networks' builders, readable without TensorFlow.

To add a network, write its row in `results.schema.networks` and, unless Keras has it, its builder here.
"""

from __future__ import annotations

import importlib
from typing import Any

from results.schema import BatchNorm
from results.schema.networks import Network


def build(network: Network, batch_norm: BatchNorm, size: int, strategy: Any) -> Any:  # noqa: ANN401 (objects of Keras)
    """Build a Keras model with logits as output, in the current dtype policy.

    Calls the network's builder as `function(size, classes, **options)` in the strategy's scope; the options of a
    network that has batch normalisation include `batch_norm`.

    Args:
        network: The network.
        batch_norm: A variant that the network supports.
        size: Height and width in pixels, or tokens of a sequence.
        strategy: The `tf.distribute` strategy whose replicas hold the variables.

    Returns:
        A `keras.Model` from the features of its task to logits.
    """
    module, function = network.builder.split(":")
    builder = getattr(importlib.import_module(module, __name__), function)
    normalisation = {"batch_norm": batch_norm} if set(network.parameters) != {BatchNorm.NONE} else {}
    with strategy.scope():
        return builder(size, network.classes, **normalisation, **network.options)

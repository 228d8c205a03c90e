"""Type aliases for objects of TensorFlow and Keras, which carry no types."""

from __future__ import annotations

from typing import Any

Tensor = Any
"""A `tf.Tensor`; in replica context, that replica's."""

Variable = Any
"""A `tf.Variable`, mirrored over the replicas unless stated otherwise."""

Strategy = Any
"""A `tf.distribute.Strategy`."""

ReplicaContext = Any
"""A `tf.distribute.ReplicaContext`."""

ConcreteFunction = Any
"""A traced `tf.function`: its graph, and what it captures."""

Model = Any
"""A `keras.Model`."""

Layer = Any
"""A `keras.layers.Layer`."""

Shape = Any
"""A shape as Keras passes it: a tuple or `tf.TensorShape`, the batch's length None."""

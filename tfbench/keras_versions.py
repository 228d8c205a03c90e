"""One spelling for Keras 2 and 3: variables, functions and versions.

`tfbench.keras_types` names what both hand around, without TensorFlow.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow import keras

from tfbench.keras_types import ConcreteFunction, Strategy, Tensor, Variable


def tensorflow_variable(variable: Variable) -> Variable:
    """Return the TensorFlow variable of a Keras variable; Keras 2 has no other.

    Outside of a layer's call, or for a variable that is not cast automatically: Keras 3 else returns the
    cast value.
    """
    value = variable.value
    return variable if callable(value) else value


def assign_local(variable: Variable, value: Tensor) -> Tensor:
    """Assign to this replica's component only, without any exchange between replicas.

    A mirrored variable's own `assign` would reduce `value` over the replicas, once for each of hundreds of
    moving averages at every step.
    """
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def components(strategy: Strategy, variable: Variable) -> tuple[Variable, ...]:
    """Return a variable's components, one per replica."""
    return tuple(strategy.experimental_local_results(variable))


class ReplicaScalar:
    """A float32 for each replica, on its device, that a step leaves for the host; create it in the strategy's scope.

    A function that returns tensors returns them through operations that wait for all its side effects, on one device
    for all replicas (`AutomaticControlDependencies.mark_as_return`): the other replicas' values would be copied there,
    and on the host's device the call would not return before the step had finished. So a step returns nothing, and
    results for the host lie in variables.

    Args:
        strategy: Over the replicas.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._variable = tf.Variable(0.0, trainable=False)
        self._handles = [part.handle for part in components(strategy, self._variable)]

    def assign(self, value: Tensor) -> Tensor:
        """Assign to this replica's variable; return the operation."""
        return assign_local(self._variable, value)

    def read(self) -> list[Tensor]:
        """Return the scalars as the steps called so far leave them; does not wait, and later steps change nothing."""
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in self._handles]


class Traced:
    """A function of one argument as a graph, one for each signature of that argument.

    `tf.function` finds the graph of a call by hashing every variable that the function uses: 9 % of what a step of
    ResNet50 costs the host.

    Args:
        function: Traced when it is called with other types or shapes than before.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = tf.function(function, autograph=False)
        self._graphs: dict[tuple[object, ...], ConcreteFunction] = {}

    def __call__(self, argument: object) -> None:
        """Call the graph; all that the function leaves is in variables."""
        self.graph(argument)(argument)

    def graph(self, argument: object) -> ConcreteFunction:
        """Return the graph of such an argument."""
        tensors = tf.nest.flatten(argument, expand_composites=True)
        signature = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        if signature not in self._graphs:
            self._graphs[signature] = self._function.get_concrete_function(argument)
        return self._graphs[signature]


def keras_version() -> str:
    """Return the version of the Keras in use; Keras 2 inside TensorFlow does not carry its own."""
    return getattr(keras, "__version__", None) or importlib.metadata.version("keras")

"""Variables of Keras 2 and 3 as what they are below: TensorFlow variables, one component per replica."""

from __future__ import annotations

import tensorflow as tf

from tfbench.keras_versions.types import Strategy, Tensor, Variable


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
    what the host wants to know lies in a variable.

    Args:
        strategy: Over the replicas.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._variable = tf.Variable(0.0, trainable=False)
        self._handles = [part.handle for part in components(strategy, self._variable)]

    def assign(self, value: Tensor) -> Tensor:
        """Set this replica's; returns the operation."""
        return assign_local(self._variable, value)

    def read(self) -> list[Tensor]:
        """Return the scalars as the steps called so far leave them; does not wait, and later steps change nothing."""
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in self._handles]

"""Variables of Keras 2 and 3 as what they are below: TensorFlow variables, one component per replica."""

from __future__ import annotations

import tensorflow as tf

from tfbench.types import Strategy, Tensor, Variable


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

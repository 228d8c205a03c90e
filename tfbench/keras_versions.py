"""One interface to Keras 2 and 3: names for the types, which carry none, variables, functions and versions."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf
from tensorflow import keras

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


def tensorflow_variable(variable: Variable) -> Variable:
    """Return the TensorFlow variable behind a Keras variable; in Keras 2 they are the same.

    Call outside a layer's call, or for a variable that is not cast automatically: otherwise Keras 3 returns the cast
    value.
    """
    value = variable.value
    return variable if callable(value) else value


def assign_local(variable: Variable, value: Tensor) -> Tensor:
    """Assign to this replica's component only, without communication.

    The `assign` of a mirrored variable would reduce `value` over the replicas, for each of hundreds of moving averages
    in every step.
    """
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def components(strategy: Strategy, variable: Variable) -> tuple[Variable, ...]:
    """Return a variable's components, one per replica."""
    return tuple(strategy.experimental_local_results(variable))


class ReplicaResult:
    """A float32 tensor per replica, on its device, for results of a step.

    A function returns tensors through operations on one device that wait for all its side effects
    (`AutomaticControlDependencies.mark_as_return`): the other replicas' values would be copied there, and if it is the
    host, the call would not return before the end of the step. So a step returns nothing, and leaves its results in
    variables.

    Args:
        strategy: Over the replicas.
        elements: Of a vector; a scalar by default.
    """

    def __init__(self, strategy: Strategy, *elements: int) -> None:
        with strategy.scope():
            self._variable = tf.Variable(tf.zeros(elements), trainable=False)
        self._handles = [part.handle for part in components(strategy, self._variable)]

    def assign(self, value: Tensor) -> Tensor:
        """Assign to this replica's variable; return the operation."""
        return assign_local(self._variable, value)

    def read(self) -> list[Tensor]:
        """Return the tensors as of the steps called so far, without waiting; later steps do not change them."""
        return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) for handle in self._handles]


class Traced:
    """A function of one argument, traced once per signature and called as a graph.

    `tf.function` finds the graph of a call by hashing every variable that the function uses, and the graph's own call
    lists them again. Without both, a step of ResNet50 took the host 3.4 instead of 4.0 ms on a null GPU. That call is
    private; if a TensorFlow lacks it, the public one is used.

    Args:
        function: Traced whenever types or shapes are new.
    """

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = tf.function(function, autograph=False)
        self._graphs: dict[tuple[object, ...], tuple[ConcreteFunction, list[Tensor]]] = {}

    def __call__(self, argument: object) -> None:
        """Call the graph; results are in variables."""
        tensors, graph, captures = self._traced(argument)
        if hasattr(graph, "_call_flat"):
            graph._call_flat(tensors, captures)
        else:
            graph(argument)

    def graph(self, argument: object) -> ConcreteFunction:
        """Return the graph for arguments of this signature."""
        return self._traced(argument)[1]

    def _traced(self, argument: object) -> tuple[list[Tensor], ConcreteFunction, list[Tensor]]:
        """Return the argument's tensors, the graph for their signature, and the variables' handles in it."""
        tensors = tf.nest.flatten(argument, expand_composites=True)
        signature = tuple((tensor.dtype, tensor.shape) for tensor in tensors)
        if signature not in self._graphs:
            graph = self._function.get_concrete_function(argument)
            self._graphs[signature] = graph, graph.captured_inputs
        return tensors, *self._graphs[signature]


def structure(build: Callable[[], Model]) -> Model:
    """Return a model that is only looked at: Keras 3 gives its variables no values, which would take most of the time.

    Built in a thread of its own, whose state Keras forgets with it: otherwise it would make up for the values as soon
    as another scope of this kind ends. Keras 2 draws them, on the CPU, out of GPU memory.

    Args:
        build: Builds the model, in the current dtype policy.
    """
    policy = keras.mixed_precision.global_policy()
    scope = contextlib.nullcontext() if is_keras_2() else keras.StatelessScope(initialize_variables=False)

    def build_in_thread() -> Model:
        keras.mixed_precision.set_global_policy(policy)  # each thread has its own
        with tf.device("CPU:0"), scope:
            return build()

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(build_in_thread).result()


def is_keras_2() -> bool:
    """Return whether Keras is the one inside TensorFlow up to 2.15."""
    return keras_version().startswith("2.")


def keras_version() -> str:
    """Return the version of the Keras in use; Keras 2 inside TensorFlow has no version attribute."""
    return getattr(keras, "__version__", None) or importlib.metadata.version("keras")


def build_info() -> dict[str, Any]:
    """Return what TensorFlow was built for: the versions `cuda` and `cudnn`, None without CUDA, and `capabilities`."""
    build = tf.sysconfig.get_build_info()
    return {
        **{name: str(build[f"{name}_version"]) if build.get(f"{name}_version") else None for name in ("cuda", "cudnn")},
        "capabilities": [str(name) for name in build.get("cuda_compute_capabilities", [])],
    }

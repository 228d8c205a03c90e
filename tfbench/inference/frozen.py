"""A frozen graph of a network: weights are constants in the type they are used in, batch normalisation is folded.

Whatever depends on no input of the network is computed once: reading weights, casting them, the inverse deviation of a
normalisation. The results become constants; the rest of the traced graph stays, but for what
`tfbench.inference.folding` folds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from tensorflow import keras

from tfbench.inference.folding import Fold, Values, find_folds
from tfbench.keras_versions.types import ConcreteFunction, GraphDef, Model, NodeDef, Operation, Tensor
from tfbench.models.blocks.layers import FusedBatchNormalization
from tfbench.training.tasks import SEED


class FrozenModel:
    """The forward pass of a model with the weights that it has when this is created.

    Each call imports the graph anew, so that its constants and operations lie where the caller's other operations do:
    in a function that `Strategy.run` calls, on the replica's device.

    Args:
        model: Keras model; of mirrored weights the first replica's are taken.
    """

    def __init__(self, model: Model) -> None:
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tf.nest.flatten(model.inputs)]

        @tf.function(autograph=False)
        def forward(*inputs: Tensor) -> list[Tensor]:
            return list(tf.nest.flatten(model(inputs[0] if len(inputs) == 1 else inputs, training=False)))

        traced = forward.get_concrete_function(*specs)
        self._inputs = [tensor.name for tensor in traced.inputs[: len(specs)]]
        self._outputs = [tensor.name for tensor in traced.outputs]
        self._graph_def = _freeze(traced, set(self._inputs))

    def __call__(self, inputs: Tensor) -> list[Tensor]:
        """Answer; call it in a function.

        Args:
            inputs: A tensor or a tuple of tensors, as the model takes them.

        Returns:
            The model's outputs, flat.
        """
        tensors = [tf.identity(tensor) for tensor in tf.nest.flatten(inputs)]  # of this graph, eager ones too
        replaced = dict(zip(self._inputs, tensors, strict=True))
        return list(
            tf.graph_util.import_graph_def(
                self._graph_def, input_map=replaced, return_elements=self._outputs, name="frozen"
            )
        )


def draw_vectors(model: Model) -> None:
    """Move weights of one axis off the 0 and 1 that they start at, so that a frozen graph does a trained one's work.

    TensorFlow drops a product with a constant 1 and a sum with a constant 0: biases and scales would cost nothing. A
    fold might leave mean and offset out unseen. And with a variance of 1 nothing is normalised: activations of some
    networks then grow from layer to layer, which overflows half precision and magnifies rounding until two correct
    graphs differ (EfficientNetV2-S in float32 by 1e-3). With one of about 4 each normalisation halves them.

    Args:
        model: Keras model.
    """
    generator = np.random.Generator(np.random.PCG64(SEED))
    kinds = FusedBatchNormalization | keras.layers.BatchNormalization
    variances = {id(layer.moving_variance) for layer in model.layers if isinstance(layer, kinds)}
    for weight, value in zip(model.weights, model.get_weights(), strict=True):
        if len(value.shape) == 1 and value.dtype == np.float32:
            drawn = value + generator.uniform(-0.2, 0.2, value.shape)
            weight.assign((drawn + 3.0 * (id(weight) in variances)).astype(np.float32))


class _Builder:
    """Puts a graph together; constants are shared by content, so that a table that two layers use is there once."""

    def __init__(self, versions: object) -> None:
        self.graph_def = tf.compat.v1.GraphDef(versions=versions)
        self._constants: dict[tuple[object, ...], str] = {}

    def constant(self, name: str, value: np.ndarray, dtype: tf.DType) -> str:
        """Return the name of the constant `value`, rounded to `dtype`; a new one is called `name`."""
        value = value.astype(dtype.as_numpy_dtype)
        key = (dtype, value.shape, hashlib.sha256(value.tobytes()).digest())
        if key not in self._constants:
            node = self.graph_def.node.add(name=name, op="Const")
            node.attr["dtype"].type = dtype.as_datatype_enum
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype=dtype))
            self._constants[key] = name
        return self._constants[key]

    def add(self, node: NodeDef, inputs: Sequence[str]) -> None:
        """Add a node like `node`, bound to no device."""
        added = self.graph_def.node.add(name=node.name, op=node.op, input=inputs)
        for key, value in node.attr.items():
            added.attr[key].CopyFrom(value)


def _freeze(traced: ConcreteFunction, inputs: set[str]) -> GraphDef:
    """Return the graph of a traced function, with constants for all that does not depend on its inputs.

    Args:
        traced: The function; what it captures is constant.
        inputs: Names of its other inputs.
    """
    operations = _needed(traced)
    varying = _varying(operations, inputs)

    def is_constant(tensor: Tensor) -> bool:
        return tensor.op.name not in varying

    folds = find_folds(operations, is_constant, {tensor.name for tensor in traced.outputs})
    folded = {operation.name for fold in folds for operation in (fold.convolution, *fold.links)}
    kept = [op for op in operations if op.name in varying - folded and op.type != "Placeholder"]
    read = [tensor for op in kept for tensor in op.inputs if is_constant(tensor)]
    read += [tensor for fold in folds for tensor in fold.operands]
    values = _values(traced, [op for op in operations if op.name not in varying], read)

    graph = traced.graph.as_graph_def()
    nodes = {node.name: node for node in graph.node}
    builder = _Builder(graph.versions)
    for op in kept:
        sources = [
            builder.constant(f"{tensor.name.replace(':', '_')}_constant", values[tensor.name], tensor.dtype)
            if is_constant(tensor)
            else tensor.name
            for tensor in op.inputs
        ]
        builder.add(nodes[op.name], sources)
    for fold in folds:
        _add_fold(builder, fold, nodes[fold.convolution.name], values)
    return builder.graph_def


def _needed(traced: ConcreteFunction) -> list[Operation]:
    """Return the operations that the outputs depend on, each after those that it depends on."""
    needed = set()
    waiting = [tensor.op for tensor in traced.outputs]
    while waiting:
        operation = waiting.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            waiting.extend(tensor.op for tensor in operation.inputs)
    return [operation for operation in traced.graph.get_operations() if operation.name in needed]


def _varying(operations: Sequence[Operation], inputs: set[str]) -> set[str]:
    """Name the operations that depend on the inputs."""
    varying: set[str] = set()
    for operation in operations:
        if any(output.name in inputs for output in operation.outputs) or any(
            tensor.op.name in varying for tensor in operation.inputs
        ):
            varying.add(operation.name)
    return varying


def _values(traced: ConcreteFunction, operations: Sequence[Operation], tensors: Sequence[Tensor]) -> Values:
    """Compute tensors that depend on no input.

    Args:
        traced: The function that they belong to.
        operations: All that they depend on.
        tensors: May contain one several times.
    """
    names = list({tensor.name: None for tensor in tensors})
    needed = {operation.name for operation in operations}
    nodes = [node for node in traced.graph.as_graph_def().node if node.name in needed]
    for node in nodes:
        node.input[:] = [name for name in node.input if not name.startswith("^")]
    graph_def = tf.compat.v1.GraphDef(node=nodes)
    captured = len(traced.captured_inputs)
    placeholders = traced.inputs[len(traced.inputs) - captured :]

    @tf.function(autograph=False)
    def compute(*captures: Tensor) -> list[Tensor]:
        bound = zip(placeholders, captures, strict=True)
        replaced = {inside.name: outside for inside, outside in bound if inside.op.name in needed}
        return list(tf.graph_util.import_graph_def(graph_def, input_map=replaced, return_elements=names))

    return {name: value.numpy() for name, value in zip(names, compute(*traced.captured_inputs), strict=True)}


def _add_fold(builder: _Builder, fold: Fold, convolution: NodeDef, values: Values) -> None:
    """Add a convolution with what is folded into it, and a bias by the name of what it replaces."""
    kernel, bias = fold.kernel_and_bias(values)
    result = fold.convolution.outputs[0]
    source = fold.convolution.inputs[0].name
    builder.add(convolution, [source, builder.constant(f"{convolution.name}_kernel", kernel, result.dtype)])
    added = builder.graph_def.node.add(name=fold.links[-1].name, op="BiasAdd")
    added.input.extend([convolution.name, builder.constant(f"{convolution.name}_bias", bias, result.dtype)])
    added.attr["T"].type = result.dtype.as_datatype_enum
    added.attr["data_format"].s = b"NHWC"

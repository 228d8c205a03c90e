"""What follows a convolution and is linear in each channel, folded into its kernel and a bias.

`tensorflow.python.tools.optimize_for_inference_lib.fold_batch_norms` does not serve here: it needs the kernel as a
constant of the convolution's type, gives the bias the type of the moving averages, which `BiasAdd` refuses in half
precision, and knows neither a bias before the normalisation nor Keras 3's normalisation by a product and a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfbench.keras_versions.types import Operation, Tensor

Values = Mapping[str, np.ndarray]
"""Of tensors, by their names."""

CONVOLUTIONS = ("Conv2D", "DepthwiseConv2dNative")


@dataclass(frozen=True)
class Fold:
    """A convolution and the operations that go into it.

    Attributes:
        convolution: Its kernel does not depend on the network's inputs.
        links: What follows it, one after another; the last one's result becomes that of the bias.
    """

    convolution: Operation
    links: tuple[Operation, ...]

    @property
    def operands(self) -> list[Tensor]:
        """The kernel and the operands of the links, each before it is rounded to another type."""
        vectors = [unrounded(tensor) for link in self.links for tensor in link.inputs[1:]]
        return [unrounded(self.convolution.inputs[1]), *vectors]

    def kernel_and_bias(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Return both in float64.

        Args:
            values: Of all operands.
        """
        kernel = _wide(values, self.convolution.inputs[1])
        channels = int(self.convolution.outputs[0].shape[-1])
        scale, offset = np.ones(channels), np.zeros(channels)
        for link in self.links:
            factor, summand = _linear(link, values)
            scale, offset = scale * factor, offset * factor + summand
        # A depthwise kernel is (height, width, channels, multiplier): its last two axes are the channels of the result.
        depthwise = self.convolution.type == "DepthwiseConv2dNative"
        return kernel * (scale.reshape(kernel.shape[2:]) if depthwise else scale), offset


def find_folds(operations: Sequence[Operation], is_constant: Callable[[Tensor], bool], outputs: set[str]) -> list[Fold]:
    """Find all convolutions of a graph that something can be folded into.

    Args:
        operations: Of the graph.
        is_constant: Whether a tensor is the same for all inputs.
        outputs: Names of the tensors that the graph returns.
    """
    folds = []
    for operation in operations:
        if operation.type not in CONVOLUTIONS or not is_constant(operation.inputs[1]) or not _channels_last(operation):
            continue
        links: list[Operation] = []
        foldable = 0  # links up to the last one whose result is of the convolution's type
        result = operation.outputs[0]
        while (link := _only_consumer(result, outputs)) is not None and _is_linear(link, result, is_constant):
            links.append(link)
            result = link.outputs[0]
            if result.dtype == operation.outputs[0].dtype:
                foldable = len(links)
        if foldable:
            folds.append(Fold(operation, tuple(links[:foldable])))
    return folds


def unrounded(tensor: Tensor) -> Tensor:
    """Return what a tensor was before it was cast from one floating type to another."""
    while tensor.op.type in ("Cast", "Identity") and tensor.op.inputs[0].dtype.is_floating:
        tensor = tensor.op.inputs[0]
    return tensor


def _only_consumer(tensor: Tensor, outputs: set[str]) -> Operation | None:
    consumers = tensor.consumers()
    return consumers[0] if len(consumers) == 1 and tensor.name not in outputs else None


def _is_linear(operation: Operation, argument: Tensor, is_constant: Callable[[Tensor], bool]) -> bool:
    """Return whether an operation only multiplies `argument` by constants of each channel, or adds them to it."""
    if not operation.inputs or operation.inputs[0] is not argument or not all(map(is_constant, operation.inputs[1:])):
        return False
    channels = int(argument.shape[-1])
    if operation.type in ("Mul", "AddV2"):
        shape = operation.inputs[1].shape
        return bool(shape.is_fully_defined()) and list(shape[-1:]) == [channels] and math.prod(shape) == channels
    if operation.type == "FusedBatchNormV3":
        unused = not any(output.consumers() for output in operation.outputs[1:])
        return unused and not operation.get_attr("is_training") and _channels_last(operation)
    if operation.type == "Cast":
        return bool(operation.outputs[0].dtype.is_floating)
    return operation.type == "BiasAdd" and _channels_last(operation)


def _linear(operation: Operation, values: Values) -> tuple[np.ndarray | float, np.ndarray | float]:
    """Return the factor and the summand of an operation, each one for each channel, or 1 and 0."""
    vectors = [_wide(values, tensor).reshape(-1) for tensor in operation.inputs[1:]]
    match operation.type:
        case "FusedBatchNormV3":
            scale, offset, mean, variance = vectors
            factor = scale / np.sqrt(variance + operation.get_attr("epsilon"))
            return factor, offset - mean * factor
        case "Mul":
            return vectors[0], 0.0
        case "AddV2" | "BiasAdd":
            return 1.0, vectors[0]
        case _:  # a cast
            return 1.0, 0.0


def _wide(values: Values, tensor: Tensor) -> np.ndarray:
    return values[unrounded(tensor).name].astype(np.float64)


def _channels_last(operation: Operation) -> bool:
    return bool(operation.get_attr("data_format") == b"NHWC")

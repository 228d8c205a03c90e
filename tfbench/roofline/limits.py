"""Operations and bytes of a network, from the shapes of its layers, against the peak rates of a device.

FLOPs are the multiplications and additions of convolutions, dense layers and attention (1 multiply-add = 2), forward
and backward; the gradient with respect to the images is not computed and not counted. Bytes are those that a step reads
and writes in device memory; see `docs/method.md` for the rules and their sources.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tensorflow import keras

from results.schema import Case, Device, Mode, Precision
from tfbench.devices import first_device
from tfbench.flags import KnownPeaks
from tfbench.keras_versions import Layer, Model, Tensor
from tfbench.measuring.soft_warnings import UTILISATION_LIMIT
from tfbench.models import transformers
from tfbench.models.convolutional import FusedBatchNormalization
from tfbench.models.transformers import elements
from tfbench.roofline.peaks import PEAK_SECONDS, matrix_product, memory_add

BYTES_PER_ELEMENT = {Precision.FP32: 4, Precision.TF32: 4, Precision.FP16: 2, Precision.BF16: 2}


@dataclass(frozen=True, kw_only=True)
class Work:
    """Operations and memory traffic per sample of one step of training or inference.

    Attributes:
        flops: Forward pass, and backward in training.
        elements: Activations and their gradients read and written, without fusion.
        fused_elements: Likewise, with every possible fusion.
    """

    flops: float
    elements: float
    fused_elements: float


def work_per_sample(model: Model, mode: Mode = Mode.TRAIN, samples_per_example: float = 1.0) -> Work:
    """Count a network's work from the shapes of its layers.

    Args:
        model: Functional Keras model.
        mode: Training or inference.
        samples_per_example: Samples per image or sequence: 1, or its tokens if samples are tokens.
    """
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    consumers = Counter(id(tensor) for layer in layers for tensor in _inputs(layer))
    differentiated: set[int] = set()
    flops = unfused_elements = fused_elements = 0.0
    for layer in layers:
        wanted = any(id(tensor) in differentiated for tensor in _inputs(layer))
        if wanted or layer.trainable_weights:
            differentiated.add(id(layer.output))
        if mode is Mode.INFER:
            passes, (unfused, fused) = 1, _forward_traffic(layer)
        else:  # the gradients of its weights and, if wanted, of its input take as long as the forward pass each
            passes, (unfused, fused) = 3 if wanted else 2, _traffic(layer, wanted)
            branches = consumers[id(layer.output)]  # their gradients are summed: all of them are read and one written
            unfused += (branches + 1) * elements(layer.output) if branches > 1 else 0.0
        flops += passes * _forward_flops(layer)
        unfused_elements += unfused
        fused_elements += fused
    return Work(
        flops=flops / samples_per_example,
        elements=unfused_elements / samples_per_example,
        fused_elements=fused_elements / samples_per_example,
    )


_POOLS = (keras.layers.MaxPooling2D, keras.layers.AveragePooling2D)
_PRODUCTS = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D, transformers.Projection)
_NORMALISATIONS = (keras.layers.BatchNormalization, FusedBatchNormalization, transformers.LayerNormalization)
_ACTIVATIONS = (keras.layers.Activation, keras.layers.ReLU, transformers.Gelu)


def _forward_flops(layer: Layer) -> float:
    """Count 2 operations per weight and position at which it is applied; attention multiplies activations."""
    if isinstance(layer, keras.layers.Conv2D | keras.layers.DepthwiseConv2D | keras.layers.Dense):
        places = () if isinstance(layer, keras.layers.Dense) else layer.output.shape[1:3]
        kernel = layer.weights[0].shape  # the first variable; its name depends on Keras
        return 2.0 * math.prod(int(length) for length in (*kernel, *places))
    return layer.forward_flops if isinstance(layer, transformers.Part) else 0.0


def _traffic(layer: Layer, wanted: bool) -> tuple[float, float]:
    """Count the elements that a layer reads and writes in training, as a separate operation and with every fusion.

    If fused, a convolution also computes the statistics, and one pass normalises, adds and clips.

    Args:
        layer: Any layer of the networks here.
        wanted: Whether the gradient with respect to its input is computed.
    """
    into, out = sum(elements(tensor) for tensor in _inputs(layer)), elements(layer.output)
    if isinstance(layer, _PRODUCTS):
        # Forward, gradient of the weights, gradient of the input: each reads two tensors or one and writes one.
        moved = (into + out) * (3 if wanted else 2)
        linear = keras.activations.linear
        return moved + (5 * out if getattr(layer, "activation", linear) is not linear else 0), moved
    if isinstance(layer, _NORMALISATIONS):
        return 8 * out, 5 * out  # forward: x twice, y; backward: x and dy twice, dx; fused: x, y; x, dy, dx
    if isinstance(layer, _ACTIVATIONS):
        return 5 * out, 0.0  # forward: x, y; backward: y, dy, dx
    if isinstance(layer, keras.layers.Add):
        return into + out, 2 * out  # its gradient is the incoming one; fused: the other branch and its gradient
    if isinstance(layer, transformers.Positions | transformers.Segments):
        return into + out, 0.0
    if isinstance(layer, transformers.Attention):
        return _attention_elements(layer), 12 * out  # fused: q, k, v, y; q, k, v, y, dy, dq, dk, dv
    if isinstance(
        layer, transformers.TiedDecoder
    ):  # for many classes the loss counts: in float32, softmax and its gradient
        return 3 * (into + out) + 5 * out, 3 * (into + out)
    if isinstance(layer, transformers.TokenEmbedding):
        return 3 * out, 3 * out  # forward: rows, y; backward: dy
    if isinstance(layer, keras.layers.Reshape | keras.layers.Flatten):
        return 0.0, 0.0
    if isinstance(layer, _POOLS):
        return 2 * (into + out) + into, 2 * (into + out)  # forward: x, y; backward: x, dy, dx
    fused = 2 * out if isinstance(layer, keras.layers.Concatenate) else 0.0
    return (into + out) * (2 if wanted else 1), fused  # concatenation, padding, mean, dense


def _forward_traffic(layer: Layer) -> tuple[float, float]:
    """Count likewise in inference, where normalisation and activation are fused into the previous operation.

    Concatenation is free; an addition is fused, too, but has to read its other branch.
    """
    moved = sum(elements(tensor) for tensor in _inputs(layer)) + elements(layer.output)
    if isinstance(layer, keras.layers.Add):
        return moved, elements(layer.output)
    reads = (
        *_PRODUCTS,
        *_POOLS,
        keras.layers.Dense,
        transformers.Attention,
        transformers.TiedDecoder,
        transformers.TokenEmbedding,
    )
    return moved, moved if isinstance(layer, reads) else 0.0


def _attention_elements(layer: Layer) -> float:
    """Count attention as TensorFlow computes it: separate products, mask and softmax, and a transposition of heads."""
    out = elements(layer.output)
    scores: int = layer.heads * int(layer.output.shape[1]) ** 2
    moved = 2 * 3 * out + 2 * out  # queries, keys and values, and the result: read and written
    masked = 2 * scores * (layer.causal + (len(_inputs(layer)) > 1))
    forward = moved + (2 * out + scores) + masked + 2 * scores + (scores + 2 * out)
    # Four products, each of which reads or writes the scores once. Softmax: from weights and their gradient to scores'.
    total: float = forward + moved + 4 * (2 * out + scores) + 3 * scores
    return total


def _inputs(layer: Layer) -> list[Tensor]:
    return list(layer.input) if isinstance(layer.input, list | tuple) else [layer.input]


PEAK_TRIES = 3


def limit_fields(
    case: Case, model: Model, samples_per_step: int, rate: float, measure_peaks: bool, known: KnownPeaks | None = None
) -> dict[str, Any]:
    """Return the fields about the device's peak rates, which are measured on the first device unless known.

    A known peak that the network itself exceeded is measured again.

    Logical CPU devices share one CPU, so their common peak is that of one.

    Args:
        case: What was measured.
        model: Its network.
        samples_per_step: Over all replicas.
        rate: Samples per second.
        measure_peaks: If false, return only the network's work.
        known: Peak rates measured by an earlier process; None: they are measured.

    Returns:
        Fields of a `Measurement`; those that were not measured are absent.
    """
    work = work_per_sample(model, case.mode, samples_per_step / case.global_batch)
    element_bytes = BYTES_PER_ELEMENT[case.precision]
    traffic, fused = work.elements * element_bytes, work.fused_elements * element_bytes
    fields: dict[str, Any] = {
        "flops_per_sample": work.flops,
        "bytes_per_sample": traffic,
        "fused_bytes_per_sample": fused,
    }
    if not measure_peaks:
        return fields
    devices = case.replicas if case.device is Device.GPU else case.num_hosts
    device = first_device(case)
    needed, needed_bytes = rate * work.flops / devices / UTILISATION_LIMIT, rate * fused / devices
    flops, bandwidth = known or (0.0, 0.0)
    if flops >= needed and bandwidth >= needed_bytes:
        fields["peaks_reused"] = True
    else:
        flops = credible_peak(lambda: matrix_product(case.precision, device, PEAK_SECONDS).value, needed)
        bandwidth = credible_peak(lambda: memory_add(device, PEAK_SECONDS).value, needed_bytes)
    if peak := flops * devices:
        fields |= {"peak_flops_per_second": peak, "flops_utilisation": rate * work.flops / peak}
    if peak := bandwidth * devices:
        fields |= {"peak_bytes_per_second": peak, "bandwidth_utilisation": rate * traffic / peak}
        fields["bandwidth_bound_samples_per_second"] = peak / fused
    return fields


def credible_peak(measure: Callable[[], float | None], needed: float) -> float:
    """Return the best of up to `PEAK_TRIES` measurements of a peak; the first one suffices if it is plausible.

    A peak that the network itself exceeded was measured while another program used the device.

    Args:
        measure: Returns a measurement, or None on failure: then there is no other try.
        needed: Minimum plausible value: the rate of the network.
    """
    best, tries = measure() or 0.0, 1
    while 0.0 < best < needed and tries < PEAK_TRIES:
        best, tries = max(best, measure() or 0.0), tries + 1
    return best

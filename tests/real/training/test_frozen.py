"""Inference from a frozen graph: what its step consists of, and that it answers as the model does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from results.schema import XLA, BatchNorm, Mode, Precision, Status
from tests.real.training.small import CLASSES, small_case, small_network
from tests.real.training.test_inference import infer
from tests.real.training.test_networks import POLICIES
from tests.real.training.tiny import CLASSES as TINY_CLASSES
from tests.real.training.tiny import IMAGE_SIZE, TinyNetwork, tiny_case

pytestmark = pytest.mark.tensorflow

VARIANTS = [
    ("resnet50_v1.5", BatchNorm.FUSED),
    ("resnet50_v1.5", BatchNorm.KERAS),
    ("efficientnet_b0", BatchNorm.FUSED),  # depthwise convolutions
    ("bert_large", BatchNorm.NONE),
    ("gpt2_small", BatchNorm.NONE),
    ("vit_b16", BatchNorm.NONE),
]
"""Every operation that the fourteen networks have; the others are deeper, or slower to build."""


def step_of(case, network, size, classes, strategy):
    """Build a step; return it, its batch and the operations of its traced graph."""
    from tensorflow import keras

    from tfbench.inference.forward import Inference
    from tfbench.training.inputs import batch_source
    from tfbench.training.tasks import TASKS

    keras.mixed_precision.set_global_policy(POLICIES[case.precision])
    model = network.build(case.batch_norm, size, strategy)
    inference = Inference(case, model, strategy)
    batch = batch_source(case, size, classes, strategy, TASKS[network.task])()
    return inference, batch, inference._call.get_concrete_function(batch).graph.get_operations()


def casts_of_weights(operations):
    """Name the casts whose operand is a constant or a variable."""
    sources = ("Const", "ReadVariableOp")
    return [op.name for op in operations if op.type == "Cast" and op.inputs[0].op.type in sources]


def convolutions_then(kind, operations):
    """Name the convolutions whose result goes into an operation of a kind."""
    convolutions = [op for op in operations if op.type in ("Conv2D", "DepthwiseConv2dNative")]
    return [op.name for op in convolutions for next_op in op.outputs[0].consumers() if next_op.type == kind]


@pytest.mark.parametrize(("name", "batch_norm"), VARIANTS)
def test_a_frozen_step_reads_no_variable_and_answers_as_the_model(one_replica, name, batch_norm):
    case = small_case(name, mode=Mode.INFER, precision=Precision.BF16, num_gpus=1, batch_norm=batch_norm, frozen=True)
    network = small_network(name)
    inference, batch, operations = step_of(case, network, network.size(case), CLASSES, one_replica)
    kinds = Counter(op.type for op in operations)
    assert kinds["ReadVariableOp"] == kinds["FusedBatchNormV3"] == 0
    assert casts_of_weights(operations) == []
    for kind in ("Cast", "Mul", "AddV2"):  # what Keras 3's normalisation consists of
        assert convolutions_then(kind, operations) == []
    found = {check.name: check for check in inference.checks(batch)}
    assert found["frozen_equals_model"].passed, found["frozen_equals_model"]


def test_the_step_that_is_not_frozen_has_what_a_frozen_one_has_not(one_replica):
    case = tiny_case(mode=Mode.INFER, precision=Precision.FP16)
    _, _, operations = step_of(case, TinyNetwork(), IMAGE_SIZE, TINY_CLASSES, one_replica)
    assert casts_of_weights(operations) and convolutions_then("FusedBatchNormV3", operations)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
def test_a_kernel_is_folded_before_it_is_rounded(one_replica, precision):
    case = tiny_case(mode=Mode.INFER, precision=precision, frozen=True)
    inference, _, operations = step_of(case, TinyNetwork(), IMAGE_SIZE, TINY_CLASSES, one_replica)
    layers = inference.model.layers
    kernel = np.asarray(layers[1].get_weights()[0], np.float64)
    gamma, beta, mean, variance = (np.asarray(weight, np.float64) for weight in layers[2].get_weights())
    scale = gamma / np.sqrt(variance + 1e-3)
    dtype = np.float16 if precision is Precision.FP16 else np.float32
    (convolution,) = (op for op in operations if op.type == "Conv2D")
    (bias,) = convolution.outputs[0].consumers()
    np.testing.assert_array_equal(constant(convolution), (kernel * scale).astype(dtype))
    np.testing.assert_array_equal(constant(bias), (beta - mean * scale).astype(dtype))
    assert np.abs(np.concatenate([mean, beta, gamma - 1])).min() > 0 and variance.mean() > 3, (
        "moving averages at their initial 0 would not show a wrong fold"
    )


def constant(operation):
    import tensorflow as tf

    return tf.make_ndarray(operation.inputs[1].op.get_attr("value"))


@pytest.mark.parametrize("xla", list(XLA))
def test_two_replicas_answer_from_frozen_graphs_in_every_xla_mode(two_replicas, xla):
    findings = infer(tiny_case(mode=Mode.INFER, num_gpus=2, xla=xla, frozen=True), two_replicas)
    passed = {check.name for check in findings.checks if check.passed}
    assert passed == {
        "outputs_finite_at_first",
        "outputs_equal_one_device",
        "outputs_not_zero",
        "frozen_equals_model",
        "outputs_finite_before_timing",
        "outputs_finite_while_timing",
    }
    assert findings.measurement.latency.p50_seconds > 0


@pytest.mark.parametrize("forgotten", ["mean", "variance"])
def test_a_wrong_fold_leaves_no_number(one_replica, monkeypatch, forgotten):
    from tests.real.training.test_training import measure_tiny
    from tfbench.inference import folding
    from tfbench.outcomes.findings import Findings
    from tfbench.outcomes.outcome import CaseFailedError

    right = folding._linear

    def wrong(operation, values):
        factor, summand = right(operation, values)
        return (factor, 0.0) if forgotten == "mean" else (1.0, summand)

    monkeypatch.setattr(folding, "_linear", wrong)
    findings = Findings()
    with pytest.raises(CaseFailedError, match="frozen_equals_model") as caught:
        measure_tiny(tiny_case(mode=Mode.INFER, frozen=True), one_replica, findings, None)
    assert caught.value.status is Status.INVALID
    assert findings.measurement is None

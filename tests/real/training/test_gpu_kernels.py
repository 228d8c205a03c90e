"""Every operation of every network's step has a GPU kernel for its types, by the list of TensorFlow's CUDA build."""

from __future__ import annotations

import pytest

from results.schema import XLA, Case, Mode, Optimizer, Precision
from tests.real.training.small import small_network
from tests.support.gpu_kernels import gpu_kernels, trace, without_kernel
from tfbench.models import NETWORKS

pytestmark = pytest.mark.tensorflow

FORMS = {"fp32": {}, "fp16": {"precision": Precision.FP16}, "bf16": {"precision": Precision.BF16}}
"""Whose graphs differ in operations or types; tf32 has the graph of fp32."""

MORE = {
    "fp16-2": {"precision": Precision.FP16, "num_gpus": 2},
    "infer": {"precision": Precision.FP16, "mode": Mode.INFER},
    "xla": {"precision": Precision.FP16, "xla": XLA.REPLICA},
    "accumulate": {"precision": Precision.FP16, "accumulate": 2},
    "adamw": {"optimizer": Optimizer.ADAMW},
}
"""Of one network: these parts are not a network's own."""


def missing(case, strategy):
    """Name what has no kernel in a network of fewer and narrower layers: whether there is one depends on types alone."""
    traced, _ = trace(case, strategy, small_network(case.model))
    return sorted(set(without_kernel(traced)))


@pytest.mark.parametrize("model", NETWORKS)
def test_every_operation_of_a_step_has_a_gpu_kernel(model, one_replica):
    cases = {name: Case(model=model, batch_per_gpu=2, **changes) for name, changes in FORMS.items()}
    assert {name: missing(case, one_replica) for name, case in cases.items()} == {key: [] for key in FORMS}


@pytest.mark.parametrize("name", MORE)
def test_every_operation_of_the_other_forms_has_a_gpu_kernel(name, one_replica, two_replicas):
    case = Case(model="googlenet", batch_per_gpu=2, **MORE[name])
    assert missing(case, two_replicas if case.num_gpus == 2 else one_replica) == []


def test_an_operation_without_a_gpu_kernel_is_named(tensorflow):
    @tensorflow.function
    def planted(words, numbers):
        return tensorflow.strings.length(words), tensorflow.matmul(numbers, numbers)

    spec = tensorflow.TensorSpec
    traced = planted.get_concrete_function(spec([2], tensorflow.string), spec([2, 2], tensorflow.int32))
    assert {"MatMul(int32)"} <= set(without_kernel(traced))
    assert len(gpu_kernels()) > 700

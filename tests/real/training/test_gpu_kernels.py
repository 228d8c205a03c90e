"""Every operation of every network's step has a GPU kernel for its types, by the list of TensorFlow's CUDA build."""

import pytest

from results.schema import XLA, Case, Mode, Optimizer, Precision
from results.schema.networks import NETWORKS
from tests.real.training.small import small_network
from tests.real.training.test_networks import REPEATED
from tests.support.gpu_kernels import described, gpu_kernels, operations, trace, without_kernel

pytestmark = pytest.mark.tensorflow

TYPES = {Precision.FP16: "float16", Precision.BF16: "bfloat16", Precision.FP32: "float32"}
"""Of activations; tf32 has the graph of fp32."""

FORMS = ({"num_gpus": 2}, {"mode": Mode.INFER}, {"xla": XLA.REPLICA}, {"accumulate": 2}, {"optimizer": Optimizer.ADAMW})
"""Tried with one network: these parts are not a network's own."""


def traced_step(case, strategy):
    """Trace a network of fewer and narrower layers: whether there is a kernel depends on types alone."""
    return trace(case, strategy, small_network(case.model))[0]


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=[pytest.mark.rare] if name in REPEATED else []) for name in NETWORKS]
)
def test_every_operation_of_a_step_has_a_gpu_kernel_in_every_precision(model, one_replica):
    traced = traced_step(Case(model=model, batch_per_gpu=2, precision=Precision.FP16), one_replica)
    assert {t: without_kernel(operations(traced, t)) for t in TYPES.values()} == {t: [] for t in TYPES.values()}


@pytest.mark.parametrize("model", ["resnet50_v1.5", "bert_large"])
def test_with_its_type_replaced_fp16_has_the_operations_of_all_precisions(model, one_replica):
    steps = {kind: traced_step(Case(model=model, batch_per_gpu=2, precision=kind), one_replica) for kind in TYPES}
    for precision, kind in TYPES.items():
        of_fp16 = set(map(described, operations(steps[Precision.FP16], kind)))
        assert set(map(described, operations(steps[precision]))) <= of_fp16


@pytest.mark.parametrize("changes", FORMS, ids=str)
def test_every_operation_of_the_other_forms_has_a_gpu_kernel(changes, one_replica, two_replicas):
    case = Case(model="googlenet", batch_per_gpu=2, precision=Precision.FP16, **changes)
    traced = traced_step(case, two_replicas if case.num_gpus == 2 else one_replica)
    assert without_kernel([*operations(traced), *operations(traced, "float32")]) == []


def test_an_operation_without_a_gpu_kernel_is_named(tensorflow):
    @tensorflow.function
    def planted(words, numbers):
        return tensorflow.strings.length(words), tensorflow.matmul(numbers, numbers)

    spec = tensorflow.TensorSpec
    traced = planted.get_concrete_function(spec([2], tensorflow.string), spec([2, 2], tensorflow.int32))
    assert {"MatMul(int32)"} <= set(without_kernel(operations(traced)))
    assert len(gpu_kernels()) > 700

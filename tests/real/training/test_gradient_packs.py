import itertools

import numpy as np
import pytest

from results.schema import AllReduceDtype, Precision
from tests.real.training.test_training import build
from tests.real.training.tiny import tiny_case

pytestmark = pytest.mark.tensorflow

SHAPES = [(3, 3, 5), (5,), (4, 16), (), (1000,), (64, 3)]


@pytest.mark.parametrize("alone_bytes", [None, 700])
@pytest.mark.parametrize("pack_bytes", [0, 1, 300, 5000])
def test_gradients_come_back_as_they_went_in(tensorflow, pack_bytes, alone_bytes, step):
    gradients = [tensorflow.random.stateless_normal(shape, (1, len(shape))) for shape in SHAPES]
    packs = step.GradientPacks(SHAPES, pack_bytes, alone_bytes)
    buffers = packs.join(gradients)
    assert len(buffers) == len(packs)
    for ours, theirs in zip(packs.split(buffers), gradients, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("pack_bytes", "alone_bytes", "shapes"),
    [
        (0, None, [(84, 16)]),
        (1, None, SHAPES),
        (4 * 200, None, [(3 + 1 + 4 + 1, 16), (63 + 12, 16)]),
        (0, 4 * 192, [(3 + 1 + 4 + 1, 16), (1000,), (64, 3)]),
        (4 * 60, 4 * 192, [(3 + 1, 16), (4 + 1, 16), (1000,), (64, 3)]),
    ],
)
def test_buffers_fill_from_the_last_variable_and_leave_out_large(tensorflow, pack_bytes, alone_bytes, shapes, step):
    packs = step.GradientPacks(SHAPES, pack_bytes, alone_bytes)
    buffers = packs.join([tensorflow.zeros(shape) for shape in SHAPES])
    assert [tuple(buffer.shape) for buffer in buffers] == shapes


def traced(case, strategy, monkeypatch, pack_bytes):
    """Return the operations of one step whose packs are that small."""
    monkeypatch.setattr("tfbench.training.step.MEGABYTE", pack_bytes)
    training, next_batch = build(case, strategy)
    return training, training.traced(next_batch()).graph.get_operations()


def test_all_reduces_start_with_the_last_layers_and_keep_that_order(two_replicas, monkeypatch):
    case = tiny_case(num_gpus=2, all_reduce_pack_mb=1)
    training, operations = traced(case, two_replicas, monkeypatch, 1)
    sizes = [int(np.prod(variable.shape)) for variable in training.variables]
    for device in ("CPU:0", "CPU:1"):
        reduces = [op for op in operations if op.type == "CollectiveReduceV2" and op.device.endswith(device)]
        assert [op.inputs[0].shape.num_elements() for op in reduces] == sizes[::-1]
        for earlier, later in itertools.pairwise(reduces):
            assert earlier in later.control_inputs


@pytest.mark.parametrize(("pack_bytes", "packs"), [(10**6, 1), (1, 5)])
def test_loss_scaling_takes_one_check_and_one_product_per_buffer(one_replica, monkeypatch, pack_bytes, packs):
    case = tiny_case(precision=Precision.FP16, all_reduce_pack_mb=1)
    _, operations = traced(case, one_replica, monkeypatch, pack_bytes)
    kinds = [op.type for op in operations]
    assert kinds.count("L2Loss") == kinds.count("MulNoNan") == packs


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_one_replica_without_loss_scaling_copies_no_gradient(one_replica, monkeypatch, precision):
    training, operations = traced(tiny_case(precision=precision), one_replica, monkeypatch, 1)
    assert training._packs is None and training.loss_scale == 1.0
    assert not {"ConcatV2", "SplitV"} & {op.type for op in operations}


@pytest.mark.parametrize(
    ("precision", "dtype"), [(Precision.FP16, AllReduceDtype.FP16), (Precision.BF16, AllReduceDtype.BF16)]
)
def test_gradients_travel_in_the_type_of_the_setting(two_replicas, monkeypatch, precision, dtype):
    case = tiny_case(num_gpus=2, precision=precision, all_reduce_dtype=dtype)
    _, operations = traced(case, two_replicas, monkeypatch, 10**6)
    reduces = [op for op in operations if op.type == "CollectiveReduceV2"]
    assert {op.inputs[0].dtype.name for op in reduces} == {{"fp16": "float16", "bf16": "bfloat16"}[dtype]}

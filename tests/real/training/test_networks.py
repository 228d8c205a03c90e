"""Every network through the validity checks, with two replicas, in float32 and every kind of layer in bfloat16."""

import numpy as np
import pytest

from results.schema import XLA, Data, Mode, Optimizer, Precision
from results.schema.networks import NETWORKS
from tests.real.training.small import small_case, small_network
from tests.real.training.test_training import POLICIES
from tests.real.training.tiny import measure_repeat
from tfbench.models import build

pytestmark = pytest.mark.tensorflow

CHECKS = {"update_equals_one_device", "loss_equals_one_device", "replicas_equal", "loss_finite_while_timing"}


def measured(case, strategy):
    from tensorflow import keras

    keras.mixed_precision.set_global_policy(POLICIES[case.precision])
    return measure_repeat(case, strategy, small_network(case.model))


def passed(findings):
    return {check.name for check in findings.checks if check.passed}


REPEATED = (
    *("resnet50_v1.5", "resnet152", "resnet152_v1.5", "inception_v3", "inception_v4", "vgg16", "alexnet"),
    *("efficientnet_v2_s", "gpt2_small"),
)
"""Networks that repeat the layers of the others in other sizes."""

RARE = (
    *((name, {}) for name in REPEATED),
    ("efficientnet_b0", {}),
    *((name, {"precision": Precision.BF16}) for name in ("googlenet", "alexnet", "bert_large")),
    ("bert_large", {"optimizer": Optimizer.MOMENTUM}),
    ("bert_large", {"optimizer": Optimizer.ADAMW, "precision": Precision.FP16}),
    ("bert_large", {"data": Data.HOST}),
    ("gpt2_small", {"accumulate": 3, "xla": XLA.REPLICA}),
    *((name, {"accumulate": 3}) for name in ("vit_b16", "resnet50_v1.5")),
)

EVERY = (
    *((name, {}) for name in NETWORKS if name not in (*REPEATED, "efficientnet_b0")),
    ("efficientnet_b0", {"precision": Precision.BF16}),
    ("bert_large", {"optimizer": Optimizer.MOMENTUM, "precision": Precision.FP16}),
    ("bert_large", {"accumulate": 3}),
    ("bert_large", {"xla": XLA.REPLICA}),
    ("gpt2_small", {"data": Data.HOST, "sequence_length": 24}),
)


@pytest.mark.parametrize(
    ("name", "changes"),
    [*EVERY, *(pytest.param(*row, marks=[pytest.mark.rare]) for row in RARE)],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())) or "fp32",
)
def test_every_network_passes_the_validity_checks(two_replicas, name, changes):
    case = small_case(name, **changes)
    findings = measured(case, two_replicas)
    assert passed(findings) >= CHECKS
    measurement = findings.measurement
    assert measurement.flops_per_sample > 0 and measurement.bytes_per_sample > measurement.fused_bytes_per_sample > 0
    assert measurement.global_batch == 2 * 2 * case.accumulate
    assert case.data is not Data.HOST or measurement.host_bytes_per_second > 0
    if name == "gpt2_small":
        assert (measurement.unit, measurement.attention) == ("tokens", "matmul")
        assert measurement.samples == case.global_batch * measurement.sequence_length * measurement.num_steps


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == "efficientnet_b0" else [pytest.mark.rare]) for name in NETWORKS],
)
def test_every_network_answers_alike_on_every_replica(two_replicas, name):
    findings = measured(small_case(name, mode=Mode.INFER, precision=Precision.BF16), two_replicas)
    assert "outputs_equal_one_device" in passed(findings)
    measurement = findings.measurement
    assert measurement.latency.p50_seconds > 0
    assert measurement.bytes_per_sample > measurement.fused_bytes_per_sample > 0


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("vit_b16", Precision.FP32),
        pytest.param("gpt2_small", Precision.FP16, marks=[pytest.mark.rare]),
        *(pytest.param(name, Precision.FP32, marks=[pytest.mark.rare]) for name in ("bert_large", "gpt2_small")),
    ],
)
def test_accumulated_batches_give_the_update_of_one_large_batch(
    one_replica, name, precision, keras, inputs, step, tasks
):
    keras.mixed_precision.set_global_policy(POLICIES[precision])
    network = small_network(name)
    task, weights = tasks.TASKS[network.task], []
    for case in (
        small_case(name, num_gpus=1, batch_per_gpu=2, accumulate=3, precision=precision),
        small_case(name, num_gpus=1, batch_per_gpu=6, precision=precision),
    ):
        keras.utils.set_random_seed(7)
        model = build(network, case.batch_norm, case.size(network), one_replica)
        training = step.Training(case, model, one_replica, task=task, learning_rate=0.1)
        batch = inputs.synthetic_batch(case, case.size(network), network.classes, 0, task)
        before = [variable.numpy() for variable in training.variables]
        training.step(batch)
        weights.append([moment.numpy() for moment in training.updater.first_moments])
        assert any((old != new.numpy()).any() for old, new in zip(before, training.variables, strict=True))
    norm = np.sqrt(sum(np.square(whole).sum() for whole in weights[1]))
    difference = np.sqrt(sum(np.square(part - whole).sum() for part, whole in zip(*weights, strict=True)))
    assert difference / norm < (1e-5 if precision is Precision.FP32 else 2e-2)

"""Checks in fp16 at global batches of thousands: a gradient is then smaller than what fp16 can hold at a scale of 1."""

import math

import numpy as np
import pytest

from results.schema import Communication, Device, Precision, Status
from tests.real.training.test_training import build, not_reduced, summed
from tests.real.training.tiny import CLASSES, IMAGE_SIZE, measure_repeat, tiny_case
from tfbench.failures import CaseFailedError

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def mixed_float16(tensorflow, monkeypatch):
    # The loss is divided as that of a batch which is not there: it says nothing about the network.
    monkeypatch.setattr("tfbench.measuring.validity.UNTRAINED_LIMIT", math.inf)
    tensorflow.keras.mixed_precision.set_global_policy("mixed_float16")


def measured(case, strategy, global_batch, **faults):
    """Measure a case whose loss is divided by `global_batch`, as if its replicas had that many samples."""
    from tfbench.training.step import Training

    def divided(*arguments, **options):
        training = Training(*arguments, **options, **faults)
        training.global_batch = global_batch
        return training

    findings = measure_repeat(case, strategy, make_training=divided)
    return {check.name: check for check in findings.checks}


@pytest.mark.parametrize("global_batch", [2_048, 16_384])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_small_gradients_pass_the_validity_checks(two_replicas, mixed_float16, global_batch, accumulate):
    case = tiny_case(num_gpus=2, precision=Precision.FP16, accumulate=accumulate)
    checks = measured(case, two_replicas, global_batch)
    assert checks["update_equals_one_device"].passed
    assert checks["update_equals_one_device"].value < 0.02


@pytest.mark.parametrize("factor", [None, 2.0])
def test_a_broken_all_reduce_of_small_gradients_is_caught(two_replicas, mixed_float16, factor):
    case = tiny_case(num_gpus=2, precision=Precision.FP16)
    with pytest.raises(CaseFailedError, match="update_equals_one_device") as caught:
        measured(case, two_replicas, 16_384, all_reduce=summed(factor) if factor else not_reduced)
    assert caught.value.status is Status.INVALID


def test_the_reference_halves_its_scale_until_its_gradients_are_finite(one_replica, mixed_float16, validity):
    training, next_batch = build(tiny_case(precision=Precision.FP16), one_replica)
    shards = validity.replicas_of(one_replica, next_batch())
    wanted = validity.OneDeviceReference(training, shards).gradients
    training._loss_scale.assign(2.0**30)
    found = validity.OneDeviceReference(training, shards).gradients
    for ours, theirs in zip(found, wanted, strict=True):
        assert np.isfinite(ours).all()
        np.testing.assert_allclose(ours, theirs, rtol=0.02, atol=1e-4)


def test_the_reference_takes_all_shards_on_the_first_replicas_device(two_replicas, validity, inputs):
    batch = inputs.batch_source(tiny_case(num_gpus=2, accumulate=2), IMAGE_SIZE, CLASSES, two_replicas)()
    shards = validity.replicas_of(two_replicas, batch)
    assert shards[1][0].device.endswith("CPU:1")
    parts = list(validity._one_by_one(shards, 2))
    assert len(parts) == 4
    assert {tensor.device[-5:] for part in parts for tensor in part} == {"CPU:0"}


def test_a_cpu_case_hides_the_gpus(tensorflow, monkeypatch, devices):
    hidden = []
    monkeypatch.setattr(tensorflow.config, "set_logical_device_configuration", lambda *_: None)
    monkeypatch.setattr(tensorflow.config, "set_visible_devices", lambda *given: hidden.append(given))
    devices.create_strategy(tiny_case(device=Device.CPU))
    assert hidden == [([], "GPU")]


@pytest.mark.parametrize(
    ("device", "asked", "used"),
    [("gpu", "auto", "nccl"), ("gpu", "ring", "ring"), ("cpu", "auto", "auto"), ("cpu", "ring", "ring")],
)
def test_hosts_of_gpus_request_nccl_unless_set_otherwise(tensorflow, device, asked, used, devices):
    case = tiny_case(device=Device(device), num_hosts=2, communication=Communication(asked))
    assert devices.communication_of(case) == used

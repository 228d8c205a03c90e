"""What is set before a repeat starts, and which of it the record keeps."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from orchestrate.inventory.form import Settings
from results.schema import XLA, BatchNorm, Case, Device, Mode, Precision, Status
from tfbench.__main__ import _measured
from tfbench.flags import parse
from tfbench.outcomes.outcome import CaseFailedError
from tfbench.setup import gpu_settings

PERSISTENT, MODE, COUNT = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT"
ONEDNN, OVERRIDE = "TF_ENABLE_ONEDNN_OPTS", "NVIDIA_TF32_OVERRIDE"
OF_FP16 = {"precision": Precision.FP16}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"batch_norm": BatchNorm.FUSED}, {PERSISTENT, ONEDNN, MODE, COUNT, OVERRIDE}),
        ({"batch_norm": BatchNorm.FUSED, **OF_FP16}, {PERSISTENT, ONEDNN, MODE, COUNT}),
        ({"batch_norm": BatchNorm.NONE, **OF_FP16}, {MODE, COUNT}),
        ({"batch_norm": BatchNorm.KERAS}, set()),
        ({"batch_norm": BatchNorm.FUSED, "device": Device.CPU}, set()),
    ],
)
def test_a_gpu_gets_its_settings_and_the_stock_variant_none(changes, names):
    assert set(gpu_settings(Case(model="resnet50", **changes))) == names


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("changes", "set_to", "switch"),
    [
        ({}, "0", True),  # NVIDIA's libraries refuse: TensorFlow need not exclude what could use TF32
        ({}, "1", False),
        ({}, None, False),
        ({"xla": XLA.REPLICA}, "0", False),
        ({"mode": Mode.DEVICE}, "0", False),
        (OF_FP16, "0", False),
        ({"precision": Precision.TF32}, None, True),
    ],
)
def test_fp32_is_kept_by_the_libraries_or_by_tensorflow(monkeypatch, changes, set_to, switch):
    import tensorflow as tf

    from tfbench.environment import read_environment
    from tfbench.setup.devices import Threads, configure

    seen = []
    monkeypatch.setattr(tf.config.experimental, "enable_tensor_float_32_execution", seen.append)
    monkeypatch.setattr(tf.config.experimental, "tensor_float_32_execution_enabled", lambda: seen[-1])
    monkeypatch.setattr(tf.keras.mixed_precision, "set_global_policy", lambda _: None)
    monkeypatch.setattr(tf.config, "threading", SimpleNamespace(**dict.fromkeys(THREADS, lambda _: None)))
    monkeypatch.delenv(OVERRIDE, raising=False)
    if set_to is not None:
        monkeypatch.setenv(OVERRIDE, set_to)
    case, threads = Case(model="resnet50", **changes), Threads(intra_op=1, inter_op=1)
    configure(case, threads)
    assert seen == [switch]
    assert read_environment(case, threads).tf32_enabled is (case.precision is Precision.TF32)


THREADS = ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("before", "seen"), [({}, ("1", "gpu_private", "2")), ({PERSISTENT: "0", COUNT: "4"}, ("0", "gpu_private", "4"))]
)
def test_settings_precede_the_repeat_and_the_users_own_stay(monkeypatch, before, seen):
    during = {}

    def repeat(*_):
        during.update(os.environ)
        raise CaseFailedError(Status.NO_GPU, "this is the test's")

    monkeypatch.setattr("os.environ", {**os.environ, **before})
    monkeypatch.setattr("tfbench.repeat.run_repeat", repeat)
    request = parse(["--model=resnet50", "--device=gpu"])
    assert _measured(request, "2026-01-01T00:00:00Z", lambda outcome: None).status is Status.NO_GPU
    assert (during[PERSISTENT], during[MODE], during[COUNT]) == seen


SETTINGS = {"NCCL_SOCKET_IFNAME": "=eth0", "XLA_FLAGS": "--xla_gpu_autotune_level=4"}


@pytest.mark.tensorflow
def test_variables_that_change_a_figure_are_in_the_record(monkeypatch: pytest.MonkeyPatch):
    from tfbench.environment import read_environment
    from tfbench.setup.devices import Threads

    assert Settings.model_validate({"environment": SETTINGS}).environment == SETTINGS
    places = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE"), "1")
    for name, value in {**SETTINGS, **places}.items():
        monkeypatch.setenv(name, value)
    kept = read_environment(Case(model="resnet50"), Threads(intra_op=1, inter_op=1)).variables
    assert SETTINGS.items() <= kept.items() and not places.keys() & kept.keys()

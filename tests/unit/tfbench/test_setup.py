"""What is set before a repeat starts, and which of it the record keeps."""

import os
from unittest.mock import MagicMock

import pytest

from orchestrate.inventory.form import Settings
from results.schema import XLA, BatchNorm, Case, Device, Mode, Precision, Status
from tfbench.__main__ import _measured
from tfbench.failures import CaseFailedError
from tfbench.flags import parse
from tfbench.settings import gpu_settings

PERSISTENT, MODE, COUNT = "TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "TF_GPU_THREAD_MODE", "TF_GPU_THREAD_COUNT"
ONEDNN, OVERRIDE = "TF_ENABLE_ONEDNN_OPTS", "NVIDIA_TF32_OVERRIDE"
OF_FP16 = {"precision": Precision.FP16}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"batch_norm": BatchNorm.FUSED}, {PERSISTENT, ONEDNN, MODE, COUNT, OVERRIDE}),
        ({"batch_norm": BatchNorm.FUSED, **OF_FP16}, {PERSISTENT, ONEDNN, MODE, COUNT}),
        ({"batch_norm": BatchNorm.NONE, **OF_FP16}, {PERSISTENT, ONEDNN, MODE, COUNT}),
        ({"batch_norm": BatchNorm.KERAS}, set()),
        ({"batch_norm": BatchNorm.FUSED, "device": Device.CPU}, set()),
    ],
)
def test_a_gpu_gets_its_settings_and_the_stock_variant_none(changes, names):
    assert set(gpu_settings(Case(model="resnet50", **changes))) == names


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("changes", "override", "refused"),
    [
        ({}, "0", True),
        ({}, "", False),
        ({"xla": XLA.REPLICA}, "0", False),  # whose kernels do not obey
        ({"mode": Mode.DEVICE}, "0", False),  # which measures TF32, too
        (OF_FP16, "0", False),
    ],
)
def test_tensorflow_may_use_tf32_in_fp32_if_the_libraries_refuse_it(monkeypatch, changes, override, refused):
    from tfbench import devices

    monkeypatch.setenv(OVERRIDE, override)
    switched, fake = [], MagicMock()
    fake.config.experimental.enable_tensor_float_32_execution = switched.append
    monkeypatch.setattr(devices, "tf", fake)
    monkeypatch.setattr(devices, "keras", fake)
    devices.configure(Case(model="resnet50", **changes), devices.Threads(intra_op=1, inter_op=1))
    assert switched == [refused]


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
    from tfbench.devices import Threads
    from tfbench.environment import read_environment

    assert Settings.model_validate({"environment": SETTINGS}).environment == SETTINGS
    others = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "NCCL_VERSION"), "1")
    for name, value in {**SETTINGS, **others}.items():
        monkeypatch.setenv(name, value)
    kept = read_environment(Case(model="resnet50"), Threads(intra_op=1, inter_op=1)).variables
    assert SETTINGS.items() <= kept.items() and not others.keys() & kept.keys()

"""What is set before a repeat starts, and which of it the record keeps."""

import os
from dataclasses import replace

import pytest

from orchestrate.inventory.form import Settings
from results.schema import BatchNorm, Case, Device, Precision, Status
from tests.real.training.conftest import run_tfbench
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
        ({"batch_norm": BatchNorm.KERAS}, set()),
        ({"batch_norm": BatchNorm.FUSED, "device": Device.CPU}, set()),
    ],
)
def test_a_gpu_gets_its_settings_and_the_stock_variant_none(changes, names):
    assert set(gpu_settings(Case(model="resnet50", **changes))) == names


TF32 = """
import os, sys, tensorflow as tf
from results.schema import XLA, Case, Mode, Precision
from tfbench import devices
fp32, fp16 = {}, {"precision": Precision.FP16}
for changes, override in ((fp32, "0"), (fp32, ""), ({"xla": XLA.REPLICA}, "0"), ({"mode": Mode.DEVICE}, "0"), (fp16, "0")):
    os.environ["NVIDIA_TF32_OVERRIDE"] = override
    devices.configure(Case(model="resnet50", **changes), threads=1)
    print(tf.config.experimental.tensor_float_32_execution_enabled())
"""


@pytest.mark.tensorflow
def test_tensorflow_may_use_tf32_in_fp32_if_the_libraries_refuse_it():
    done = run_tfbench(code=TF32)
    assert done.stdout.split() == ["True", *["False"] * 4], "XLA's kernels do not obey; device cases measure TF32, too"


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
    from tfbench.devices import read_environment

    assert Settings.model_validate({"environment": SETTINGS}).environment == SETTINGS
    others = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "CUDA_CACHE_PATH", "CUDA_CACHE_MAXSIZE", "NCCL_VERSION"), "1")
    for name, value in {**SETTINGS, **others}.items():
        monkeypatch.setenv(name, value)
    kept = read_environment(Case(model="resnet50"), threads=1).variables
    assert SETTINGS.items() <= kept.items() and not others.keys() & kept.keys()


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("loaded", "driver", "compat", "cudnn"),
    [
        ({}, "535.183.01", None, "built for 9"),
        ({"libcuda": "570.172.08", "cudnn": "9.3.0"}, "535.183.01", "570.172.08", "9.3.0"),
        ({"libcuda": "535.183.01"}, "535.183.01", None, "built for 9"),
        ({"libcuda": "570.172.08"}, None, None, "built for 9"),
    ],
)
def test_loaded_libraries_precede_what_tensorflow_was_built_for(tensorflow, monkeypatch, loaded, driver, compat, cudnn):
    from tfbench import devices

    monkeypatch.setattr(
        tensorflow.sysconfig, "get_build_info", lambda: {"cuda_version": "12.5.1", "cudnn_version": "9"}
    )
    monkeypatch.setattr(devices, "loaded_versions", lambda: loaded)
    built = devices.read_environment(Case(model="resnet50", device=Device.CPU), threads=1)
    found = devices.with_loaded_libraries(replace(built, driver=driver))
    assert (found.driver, found.cuda_compat, found.cudnn, found.nccl) == (driver, compat, cudnn, None)

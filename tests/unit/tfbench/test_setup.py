"""What is set before a repeat starts, which CUDA libraries TensorFlow finds then, and what of both the record keeps."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrate.inventory.hosts import Settings
from results.schema import BatchNorm, Case, Device, Precision, Status
from tests.real.training.forks import run_repeat
from tests.support import write_program
from tfbench.__main__ import _measured
from tfbench.failures import CaseFailedError
from tfbench.flags import parse
from tfbench.machine import cuda_libraries
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
sys.exit()
"""


@pytest.mark.tensorflow
def test_tensorflow_may_use_tf32_in_fp32_if_the_libraries_refuse_it(tmp_path):
    done = run_repeat(tmp_path, planted=TF32)
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


def test_each_build_opens_its_own_libraries():
    opened = cuda_libraries.opened_libraries
    assert opened("2.21.0", None, None) == []
    assert "libcudnn.so.8" in opened("2.14.1", "11.8", "8")
    assert "libnccl.so.2" not in opened("2.17.1", "12.3", "8"), "linked into TensorFlow itself"
    names = opened("2.21.0", "12.5.1", "9")
    assert {"libcudnn.so.9", "libnccl.so.2", "libcusolver.so.11"} <= {*names}
    assert opened("2.22.0", "13.0.2", "9") == ["libcudnn.so.9", "libnccl.so.2"], "what has a version of its own"


def test_a_library_that_does_not_load_has_the_reason(tmp_path: Path):
    (tmp_path / "libcublas.so.99").write_text("no library")
    assert "libcublas.so.99: cannot open" in (cuda_libraries.load_by_name(["libcublas.so.99"])["libcublas.so.99"] or "")
    problem = cuda_libraries.load_by_name(["libcublas.so.99"], [tmp_path])["libcublas.so.99"] or ""
    assert str(tmp_path) in problem and "cannot open" not in problem


needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


def library(path: Path, source: str = "int nothing;") -> Path:
    """Compile a library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name.partition(".")[0] + ".c")
    file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, file], check=True)
    return path


@needs_compiler
@pytest.mark.slow
def test_what_was_preloaded_is_found_by_name(tmp_path: Path):
    folder = tmp_path / "nvidia" / "cusolver" / "lib"
    library(folder / "libcusolver.so.11")
    program = (
        "import sys; from pathlib import Path; from tfbench.machine.cuda_libraries import *\n"
        "before = load_by_name(['libcusolver.so.11'])\n"
        "print(preload([Path(sys.argv[1])]), load_by_name(['libcusolver.so.11']), before['libcusolver.so.11'] is None)"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['libcusolver.so.11'] {'libcusolver.so.11': None} False"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of NVIDIA's packages with a ptxas of 12.5, and another one of 12.2 in PATH."""
    for file, version in (("nvidia/cuda_nvcc/bin/ptxas", "12.5.82"), ("bin/ptxas", "12.2.140")):
        write_program(tmp_path / file, f"#!/bin/sh\necho 'Cuda compilation tools, release 12.0, V{version}'\n")
    (tmp_path / "nvidia/cublas/lib").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "version"),
    [("", "12.5.82"), ("--xla_dump_to=x", "12.5.82"), ("--xla_gpu_cuda_data_dir=/opt/other", "12.2.140")],
)
def test_xla_calls_the_packaged_ptxas_unless_the_user_chose(packages, monkeypatch, flags, version):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert cuda_libraries.ptxas_version() == "12.2.140", "XLA's own choice is PATH"
    cuda_libraries.use_packaged_ptxas([packages / "nvidia/cublas/lib"])
    assert cuda_libraries.ptxas_version() == version
    assert cuda_libraries.flags_of_the_user(os.environ["XLA_FLAGS"]) == ("" if "cuda_data_dir" in flags else flags)
    cuda_libraries.use_packaged_ptxas([packages / "nvidia/cublas/lib"])
    assert os.environ["XLA_FLAGS"].count("xla_gpu_cuda_data_dir") == 1


CUDNN = "int cudnnGetProperty(int kind, int *value) { *value = (int[]){9, 3, 0}[kind]; return 0; }"
CUBLAS = "int cublasGetProperty(int kind, int *value) { *value = (int[]){12, 5, 3}[kind]; return 0; }"
NONE = "int nothing;"
NCCL = "int ncclGetVersion(int *version) { *version = 22304; return 0; }"
LOAD_AND_ASK = """
import ctypes, json, sys
from tfbench.machine.cuda_libraries import loaded_versions
before = loaded_versions()
kept = [ctypes.CDLL(path) for path in sys.argv[1:]]
print(json.dumps([before, loaded_versions()]))
"""


@needs_compiler
@pytest.mark.parametrize(
    ("sources", "versions"),
    [
        (
            {
                "a folder/libcudnn.so.9": CUDNN,
                "libcublas.so.12": CUBLAS,
                "libnccl.so.2": NCCL,
                "libcuda.so.570.1": NONE,
            },
            {"cudnn": "9.3.0", "cublas": "12.5.3", "nccl": "2.23.4", "libcuda": "570.1"},
        ),
        ({"libcudnn_ops.so.9": CUDNN, "libcublasLt.so.12": CUBLAS, "libnccl.so.2": NONE, "libcuda.so.1.1": NONE}, {}),
    ],
)
@pytest.mark.slow
def test_a_loaded_library_reports_its_own_version(tmp_path, sources, versions):
    libraries = [library(tmp_path / name, source) for name, source in sources.items()]
    done = subprocess.run([sys.executable, "-c", LOAD_AND_ASK, *libraries], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [{}, versions]

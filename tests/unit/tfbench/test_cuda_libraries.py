"""TensorFlow's CUDA libraries are known by name, and found where it does not look itself."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import write_program
from tfbench.machine import cuda_libraries


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
NCCL = "int ncclGetVersion(int *version) { *version = 22304; return 0; }"
LOAD_AND_ASK = """
import ctypes, json, sys
from tfbench.machine.cuda_libraries import loaded_versions
before = loaded_versions()
kept = [ctypes.CDLL(path) for path in sys.argv[1:]]
print(json.dumps([before, loaded_versions()]))
"""


def versions_after_loading(*libraries: Path) -> dict[str, str]:
    """Return what a process reports once it has loaded libraries; before, it reports none."""
    done = subprocess.run([sys.executable, "-c", LOAD_AND_ASK, *libraries], capture_output=True, text=True, check=True)
    before, after = json.loads(done.stdout)
    assert before == {}
    return after


@needs_compiler
@pytest.mark.parametrize(
    ("libraries", "versions"),
    [
        (
            {"a folder/libcudnn.so.9": CUDNN, "libcublas.so.12": CUBLAS, "libnccl.so.2": NCCL},
            {"cudnn": "9.3.0", "cublas": "12.5.3", "nccl": "2.23.4"},
        ),
        ({"libcudnn_ops.so.9": CUDNN, "libcublasLt.so.12": CUBLAS, "libnccl.so.2": "int none;"}, {}),
        ({"libcuda.so.570.172.08": "int nothing;"}, {"libcuda": "570.172.08"}),
        ({"libcuda.so.1.1": "int nothing;"}, {}),
    ],
)
def test_a_loaded_library_reports_its_own_version(tmp_path, libraries, versions):
    assert versions_after_loading(*(library(tmp_path / name, source) for name, source in libraries.items())) == versions

"""TensorFlow's CUDA libraries are known by name, and found where it does not look itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tfbench.machine.cuda_libraries import (
    find_ptxas,
    flags_of_the_user,
    load_by_name,
    opened_libraries,
    preload,
    ptxas_version,
    use_packaged_ptxas,
)


def test_each_build_opens_its_own_libraries():
    assert opened_libraries("2.21.0", None, None) == []
    assert "libcudnn.so.8" in opened_libraries("2.14.1", "11.8", "8")
    assert "libnccl.so.2" not in opened_libraries("2.17.1", "12.3", "8"), "linked into TensorFlow itself"
    names = opened_libraries("2.21.0", "12.5.1", "9")
    assert names[-2:] == ["libcudnn.so.9", "libnccl.so.2"] and "libcusolver.so.11" in names


def test_without_nvidias_packages_nothing_is_loaded(tmp_path: Path):
    assert preload([tmp_path]) == []


def test_a_library_that_is_not_there_says_so():
    assert "libcublas.so.99" in (load_by_name(["libcublas.so.99"])["libcublas.so.99"] or "")


needs_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")


def library(path: Path, function: str) -> None:
    """Compile a library with one function."""
    path.parent.mkdir(parents=True, exist_ok=True)
    source = path.parent / f"{function}.c"
    source.write_text(f"int {function}(void) {{ return 11; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", path, source], check=True)


@needs_compiler
def test_what_was_preloaded_is_found_by_name(tmp_path: Path):
    folder = tmp_path / "nvidia" / "cusolver" / "lib"
    library(folder / "libcusolver.so.11", "here")
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
        path = tmp_path / file
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release 12.0, V{version}'\n")
        path.chmod(0o755)
    (tmp_path / "nvidia/cublas/lib").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(
    ("flags", "version"),
    [("", "12.5.82"), ("--xla_dump_to=x", "12.5.82"), ("--xla_gpu_cuda_data_dir=/opt/other", "12.2.140")],
)
def test_xla_calls_the_packaged_ptxas_unless_the_user_chose(packages, monkeypatch, flags, version):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert ptxas_version(find_ptxas()) == "12.2.140", "XLA's own choice is PATH"
    use_packaged_ptxas([packages / "nvidia/cublas/lib"])
    assert ptxas_version(find_ptxas()) == version
    assert flags_of_the_user(os.environ["XLA_FLAGS"]) == ("" if "cuda_data_dir" in flags else flags)
    use_packaged_ptxas([packages / "nvidia/cublas/lib"])
    assert os.environ["XLA_FLAGS"].count("xla_gpu_cuda_data_dir") == 1


def test_without_nvidias_packages_xla_is_left_alone(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    use_packaged_ptxas([])
    assert os.environ["XLA_FLAGS"] == "--xla_dump_to=x"

"""TensorFlow's CUDA libraries are known by name, and found where it does not look itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tfbench.machine.cuda_libraries import load_by_name, opened_libraries, preload, stand_ins


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


def test_outside_of_a_slim_image_no_library_is_a_stand_in():
    assert stand_ins() == []


@needs_compiler
def test_a_library_without_functions_is_a_stand_in_and_a_cause_says_so(tmp_path: Path):
    library(tmp_path / "libcusolver.so.11", "nothing_of_cusolver")
    library(tmp_path / "libcufft.so.11", "cufftCreate")
    program = (
        "from tfbench.machine.cuda_libraries import stand_ins; from tfbench.outcomes.outcome import outcome_of\n"
        "print(stand_ins()); print(outcome_of(RuntimeError('cuSolverDN call failed with status =7')))\n"
        "print(outcome_of(RuntimeError('something else')))"
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    names, call, other = done.stdout.splitlines()
    assert names == "['libcusolver.so.11']"
    assert "unsupported" in call and "Empty in this image: libcusolver.so.11;" in call and "SLIM=full" in call
    assert "error" in other and "SLIM" not in other

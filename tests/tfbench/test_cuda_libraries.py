"""TensorFlow's CUDA libraries are known by name, and found where it does not look itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tfbench.cuda_libraries import load_by_name, opened_libraries, preload


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


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_what_was_preloaded_is_found_by_name(tmp_path: Path):
    folder = tmp_path / "nvidia" / "cusolver" / "lib"
    folder.mkdir(parents=True)
    library = folder / "libcusolver.so.11"
    source = tmp_path / "empty.c"
    source.write_text("int here(void) { return 11; }\n")
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, source]
    subprocess.run(command, check=True)
    program = (
        "import sys; from pathlib import Path; from tfbench.cuda_libraries import *\n"
        "before = load_by_name(['libcusolver.so.11'])\n"
        "print(preload([Path(sys.argv[1])]), load_by_name(['libcusolver.so.11']), before['libcusolver.so.11'] is None)"
    )
    done = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['libcusolver.so.11'] {'libcusolver.so.11': None} False"

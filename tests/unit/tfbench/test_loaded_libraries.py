"""Versions come from the libraries that a process has loaded: small stand-ins, built here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.training.conftest import REPOSITORY
from tfbench.machine.cuda_libraries import LoadedVersions, loaded_versions

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")

SOURCE = Path(__file__).with_name("loaded_libraries.c")

LOAD_AND_ASK = """
import ctypes, dataclasses, json, sys
from tfbench.machine.cuda_libraries import loaded_versions
before = dataclasses.asdict(loaded_versions())
kept = [ctypes.CDLL(path) for path in sys.argv[1:]]
print(json.dumps([before, dataclasses.asdict(loaded_versions())]))
"""


def build(folder: Path, name: str, *macros: str) -> Path:
    """Build a library that reports what `macros` define; without any it is an empty stand-in."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", *(f"-D{macro}" for macro in macros)]
    subprocess.run([*command, "-o", folder / name, SOURCE], check=True)
    return folder / name


def ask(*libraries: Path) -> tuple[dict, dict]:
    """Return what a process reports before and after it loads libraries."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD_AND_ASK, *libraries], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    before, after = json.loads(done.stdout)
    return before, after


def test_each_loaded_library_reports_its_own_version_and_none_does_before(tmp_path):
    before, after = ask(
        build(tmp_path / "a folder", "libcudnn.so.9", "CUDNN=90300"),
        build(tmp_path, "libcublas.so.12", "CUBLAS=12,5,3"),
        build(tmp_path, "libnccl.so.2", "NCCL=22304"),
    )
    assert set(before.values()) == {None}
    assert after == {"libcuda": None, "cudnn": "9.3.0", "cublas": "12.5.3", "nccl": "2.23.4"}


def test_cudnn_8_counts_otherwise(tmp_path):
    _, after = ask(build(tmp_path, "libcudnn.so.8", "CUDNN=8907"))
    assert after == {"libcuda": None, "cudnn": "8.9.7", "cublas": None, "nccl": None}


def test_other_libraries_of_the_family_and_empty_stand_ins_report_nothing(tmp_path):
    _, after = ask(
        build(tmp_path, "libcudnn_ops.so.9", "CUDNN=90300"),
        build(tmp_path, "libcublasLt.so.12", "CUBLAS=12,5,3"),
        build(tmp_path, "libnccl.so.2"),
    )
    assert set(after.values()) == {None}


@pytest.mark.parametrize(
    ("file", "version"), [("libcuda.so.570.172.08", "570.172.08"), ("libcuda.so.1", None), ("libcuda.so.1.1", None)]
)
def test_the_cuda_driver_library_is_of_the_version_that_its_file_names(tmp_path, file, version):
    library = build(tmp_path, file)
    if file != "libcuda.so.1":
        (tmp_path / "libcuda.so.1").symlink_to(file)
    _, after = ask(library.with_name("libcuda.so.1"))
    assert after["libcuda"] == version


def test_a_library_that_was_not_loaded_is_not_loaded_to_ask_it(tmp_path):
    library = build(tmp_path, "libcudnn.so.9", "CUDNN=90300")
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 00:00 1    {library}\n7f01-7f02 rw-p 00000000 00:00 0\n")
    assert loaded_versions(maps) == LoadedVersions()
    assert str(library) not in Path("/proc/self/maps").read_text()

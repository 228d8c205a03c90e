"""What an image leaves out of its packages, and what it leaves as it came: containers/prune.py without an image."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PRUNE = Path(__file__).parents[2] / "containers" / "prune.py"

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("gcc", "strip"))), reason="needs a C compiler and binutils, as slim images do"
)


def layers(folder: Path, form: str) -> Path:
    """Prune a site of a few files; return where its layers are."""
    site, made = folder / "site", folder / "layers"
    made.mkdir(parents=True)
    for name in ("numpy/__init__.py", "nvidia/cuda_nvcc/bin/ptxas", "nvidia/cuda_nvcc/bin/nvcc", "tensorboard/x.py"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("x")
    source = folder / "source.c"
    source.write_text("static int hidden(void) { return 1; } int cufftCreate(void) { return hidden(); }")
    libraries = ("cufft/lib/libcufft.so.11", "cudnn/lib/libcudnn_adv.so.9", "cudnn/lib/libcudnn_cnn.so.9")
    for name in ("tensorflow/libtensorflow_cc.so.2", *(f"nvidia/{library}" for library in libraries)):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", site / name, source], check=True)
    subprocess.run([sys.executable, PRUNE, site, made, form], check=True)
    return made


def symbols(library: Path, *options: str) -> str:
    return subprocess.run(["nm", *options, library], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("form", ["full", "slim"])
@pytest.mark.slow
def test_libraries_are_as_they_came_in_the_full_form_only(tmp_path: Path, form: str):
    made = layers(tmp_path, form)
    tensorflow = made / "tensorflow/opt/site/tensorflow/libtensorflow_cc.so.2"
    cufft = made / "cuda/opt/site/nvidia/cufft/lib/libcufft.so.11"
    assert "cufftCreate" in symbols(tensorflow, "--dynamic"), "what the loader reads stays"
    assert ("hidden" in symbols(tensorflow)) == (form == "full")
    assert ("cufftCreate" in symbols(cufft, "--dynamic")) == (form == "full")
    cudnn = {path.name for path in (made / "cuda/opt/site/nvidia/cudnn/lib").iterdir()}
    assert cudnn == {"libcudnn_cnn.so.9"} | ({"libcudnn_adv.so.9"} if form == "full" else set())


def test_xlas_compilers_lie_where_every_tensorflow_looks_and_equal_packages_make_equal_layers(tmp_path: Path):
    made = layers(tmp_path, "full")
    link = made / "cuda/usr/local/cuda"
    assert link.readlink() == Path("/opt/site/nvidia/cuda_nvcc")
    assert [path.name for path in (made / "cuda/opt/site/nvidia/cuda_nvcc/bin").iterdir()] == ["ptxas"]
    assert {path.lstat().st_mtime for path in made.rglob("*")} == {0.0}


def test_without_cuda_nothing_is_linked(tmp_path: Path):
    site, made = tmp_path / "site", tmp_path / "layers"
    (site / "numpy").mkdir(parents=True)
    made.mkdir()
    subprocess.run([sys.executable, PRUNE, site, made, "full"], check=True)
    assert sorted(path.name for path in (made / "cuda").iterdir()) == ["opt"]

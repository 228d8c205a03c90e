"""NVIDIA's compatibility package in an image: its library is found before the driver's. Package and driver are stand-ins."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from orchestrate.errors import BuildFailed
from orchestrate.images.builds import build_variant
from orchestrate.inventory.variants import read_variants
from orchestrate.launchers.docker.sdk import DockerEngine
from orchestrate.launchers.docker.transfer import controller_address
from tests.support.engines.containers import exit_code, finished_container
from tests.support.engines.docker import Engines
from tests.support.engines.images import REPOSITORY

pytestmark = pytest.mark.docker

(VARIANT,) = [variant for variant in read_variants() if variant.compat is not None]
TAG = "compat-test:0.1.0-cuda12.5-compat"
BASE = "compat-test:0.1.0-cuda12.5"
PACKAGE = "compat-test:nvidia"
OF_DRIVER, OF_PACKAGE = "535.183.01", "570.172.08"

AN_IMAGE_OF_OURS = """
FROM {base}
COPY pynvml.py results tfbench /opt/tfbench/
COPY image.json /opt/tfbench/
ENV PYTHONPATH=/opt/tfbench LD_LIBRARY_PATH={path}
USER 10001:10001
WORKDIR /opt/tfbench
"""

ONE_OF_NVIDIAS = """
FROM {base}
COPY compat/ /usr/local/cuda-12.8/compat/
USER 10001:10001
"""

WHICH_LIBRARY = """
import ctypes, json, pynvml
from tfbench.machine.cuda_libraries import loaded_versions
version = ctypes.c_int()
ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
pynvml.nvmlInit()
print(json.dumps([version.value, loaded_versions().libcuda, pynvml.nvmlSystemGetDriverVersion()]))
"""


def library_path() -> str:
    """Return where an image of ours looks for libraries."""
    text = (REPOSITORY / "containers/Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    (path,) = re.findall(r"LD_LIBRARY_PATH=(\S+)", text)
    return str(path)


def library(folder: Path, name: str, driver: str, cuda: int) -> None:
    """Compile the stand-in as a library of a driver, with the link by which programs know it."""
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("gpu_driver.c")
    macros = [f"-DCUDA={cuda}", f'-DDRIVER="{driver}"']
    file = folder / f"{name}.{driver}"
    subprocess.run(["cc", "-shared", "-fPIC", *macros, f"-Wl,-soname,{name}.1", "-o", file, source], check=True)
    file.chmod(0o755)
    (folder / f"{name}.1").symlink_to(file.name)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the libraries of a driver's installation."""
    folder = tmp_path_factory.mktemp("driver")
    library(folder, "libcuda.so", OF_DRIVER, 12020)
    library(folder, "libnvidia-ml.so", OF_DRIVER, 12020)
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def stand_ins(engines: Engines, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build what the image is made of: one of ours, and one of NVIDIA's with the package."""
    ours, nvidias = tmp_path_factory.mktemp("ours"), tmp_path_factory.mktemp("nvidias")
    for name in ("tfbench", "results"):
        shutil.copytree(REPOSITORY / name, ours / name / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(pynvml.__file__, ours / "pynvml.py")
    image = {"variant": "cuda12.5", "version": "0.1.0", "python": "python3.11", "runner": "/opt/tfbench", "site": "/s"}
    (ours / "image.json").write_text(json.dumps(image) + "\n")
    (ours / "Dockerfile").write_text(AN_IMAGE_OF_OURS.format(base=base_image, path=library_path()))
    library(nvidias / "compat", "libcuda.so", OF_PACKAGE, 12080)
    (nvidias / "Dockerfile").write_text(ONE_OF_NVIDIAS.format(base=base_image))
    for folder, tag in ((ours, BASE), (nvidias, PACKAGE)):
        engines.first.client.images.build(path=str(folder), tag=tag, network_mode="host", rm=True)
    yield
    for tag in (TAG, BASE, PACKAGE):
        engines.first.client.images.remove(tag, force=True)


def build(engines: Engines, output: list[str], tag: str = TAG, **arguments: str) -> None:
    engine = DockerEngine(controller_address(engines.first.url))
    try:
        build_variant(engine, VARIANT, tag, arguments={"COMPAT": PACKAGE, **arguments}, on_line=output.append)
    finally:
        engine.close()


@pytest.fixture(scope="module")
def image(engines: Engines, stand_ins: None) -> str:
    build(engines, [])
    return TAG


def asked(engines: Engines, image: str, driver: Path) -> list[object]:
    """Return CUDA's version, that of libcuda's file and that of the driver, in a container with the driver's libraries.

    They are where GKE mounts them: only LD_LIBRARY_PATH leads there.
    """
    volumes = {str(driver): {"bind": "/usr/local/nvidia/lib64", "mode": "ro"}}
    with finished_container(
        engines.first.client, image, ["-c", WHICH_LIBRARY], entrypoint=["python3.11"], volumes=volumes
    ) as container:
        assert exit_code(container) == 0, container.logs().decode()
        found: list[object] = json.loads(container.logs(stderr=False))
        return found


def test_the_packages_library_is_found_before_the_drivers_and_both_versions_are_known(
    engines: Engines, image: str, driver: Path
):
    assert asked(engines, BASE, driver) == [12020, OF_DRIVER, OF_DRIVER]
    assert asked(engines, image, driver) == [12080, OF_PACKAGE, OF_DRIVER]


def test_it_is_one_layer_on_the_rows_image_and_says_what_it_is(engines: Engines, image: str):
    ours, base = (engines.first.client.images.get(name).attrs for name in (image, BASE))
    assert ours["RootFS"]["Layers"][:-1] == base["RootFS"]["Layers"]
    assert ours["Config"]["User"] == "10001:10001"
    assert ours["Config"]["Labels"]["tfbench.variant"] == "cuda12.5-compat"
    assert ours["Config"]["Labels"]["tfbench.compat"] == "12.8"
    with finished_container(engines.first.client, image, ["/opt/tfbench/image.json"], entrypoint=["cat"]) as container:
        described = json.loads(container.logs(stderr=False))
    assert (described["variant"], described["compat"]) == ("cuda12.5-compat", "/opt/cuda-compat")


def test_an_image_without_the_package_is_refused(engines: Engines, stand_ins: None):
    output: list[str] = []
    with pytest.raises(BuildFailed):
        build(engines, output, "compat-test:none-compat", BASE=BASE, COMPAT=BASE)
    assert any("this image has no compatibility package in /usr/local/cuda-12.8/compat" in line for line in output)


def test_without_the_rows_image_the_build_says_what_to_build_first(engines: Engines):
    with pytest.raises(BuildFailed) as refused:
        build(engines, [], "compat-missing:0.1.0-cuda12.5-compat")
    assert "does not have. Run images build cuda12.5 first" in str(refused.value)

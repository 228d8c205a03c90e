"""The runner on an image of somebody else's: a stand-in for NVIDIA's, with another Python and TensorFlow of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pynvml
import pytest

from orchestrate.errors import BuildFailed
from orchestrate.images.builds import build_variant
from orchestrate.inventory.variants import read_variants
from orchestrate.launchers.container import probe_container
from orchestrate.launchers.docker.sdk import DockerEngine
from orchestrate.launchers.docker.transfer import controller_address
from tests.support.engines.docker import Engines

IMAGE = "tfbench:on-base"
STAND_IN = """
FROM {base}
RUN mv /usr/bin/python3.11 /usr/bin/python3.12 && ln -sf python3.12 /usr/bin/python3 \\
 && cd /usr/lib/python3/dist-packages && for name in absl keras {modules}; do echo '__version__ = "0"' > $name.py; done \\
 && echo 'raise ImportError("a stand-in")' > numpy.py
COPY pynvml.py /usr/lib/python3/dist-packages/
ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]
"""


def build(engines: Engines, base_image: str, folder: Path, modules: str, output: list[str]) -> None:
    folder.mkdir()
    shutil.copy(pynvml.__file__, folder / "pynvml.py")
    (folder / "Dockerfile").write_text(STAND_IN.format(base=base_image, modules=modules))
    engines.first.client.images.build(path=str(folder), tag="stand-in-ngc:1", network_mode="host", rm=True)
    variant = next(row for row in read_variants() if row.base is not None)
    engine = DockerEngine(controller_address(engines.first.url))
    try:
        build_variant(engine, variant, IMAGE, arguments={"BASE": "stand-in-ngc:1"}, on_line=output.append)
    finally:
        engine.close()


@pytest.mark.docker
def test_the_runner_is_added_to_an_image_with_another_python(engines: Engines, base_image: str, tmp_path: Path):
    build(engines, base_image, tmp_path / "base", "tensorflow", [])
    engine = DockerEngine(controller_address(engines.first.url))
    spec = probe_container(IMAGE)
    try:
        document = engine.image_document(IMAGE)
        assert document["Config"]["Entrypoint"] == ["python3", "-m", "tfbench"]
        assert document["Config"]["User"] == "10001:10001"
        assert document["Config"]["Labels"]["tfbench.variant"] == "ngc25.02"
        engine.create(type(spec)(**{**vars(spec), "all_gpus": False}))
        engine.start(spec.name)
        engine.wait(spec.name, 60)
        assert json.loads(engine.output(spec.name, 100_000))["operating_system"].startswith("Debian")
    finally:
        engine.remove(spec.name)
        engine.close()
        engines.first.client.images.remove(IMAGE, force=True)


@pytest.mark.docker
def test_a_base_without_tensorflow_is_refused(engines: Engines, base_image: str, tmp_path: Path):
    output: list[str] = []
    with pytest.raises(BuildFailed):
        build(engines, base_image, tmp_path / "base", "", output)
    assert any("this base image lacks ['tensorflow']" in line for line in output)

"""What the driver compiles for a GPU is kept from one container of an image to the next.

No GPU is needed: a program in the driver's place writes to where the driver is reported to.
"""

import json

import pytest

from orchestrate.engines.docker.images import DockerEngine
from orchestrate.engines.invocation import CACHE_LABEL, CACHE_VARIABLES, ContainerSpec, cache_volume, unique_name
from tests.support.engines.docker import Engines
from tests.support.engines.images import PushedImage

pytestmark = pytest.mark.docker

WRITE = """
import json, os, pathlib
folder = pathlib.Path(os.environ["CUDA_CACHE_PATH"])
print(json.dumps([sorted(path.name for path in folder.iterdir()), os.getuid(), os.stat("/opt").st_uid]))
(folder / "kernel").write_text("compiled")
"""


def compile_once(engine: DockerEngine, image: str) -> object:
    """Run a container without rights that writes to its cache; return what it found there, and as whom."""
    spec = ContainerSpec(
        image=image,
        name=unique_name("cache"),
        entrypoint=("python3.11", "-c", WRITE),
        cache=cache_volume(image),
        environment=CACHE_VARIABLES,
    )
    engine.create(spec)
    try:
        engine.start(spec.name)
        engine.wait(spec.name, 60)
        assert engine.state(spec.name)["ExitCode"] == 0
        return json.loads(engine.output(spec.name, 1 << 20))
    finally:
        engine.remove(spec.name)


def test_a_cache_outlives_its_container(engines: Engines, cpu_image: PushedImage):
    client = engines.first.client
    image = client.images.get(cpu_image.reference).id
    try:
        with engines.first.controller_client() as engine:
            assert compile_once(engine, image) == [[], 10001, 0]
            assert compile_once(engine, image) == [["kernel"], 10001, 0]
    finally:
        for volume in client.volumes.list(filters={"label": CACHE_LABEL}):
            volume.remove()

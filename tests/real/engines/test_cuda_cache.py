"""What the driver compiles for a GPU is kept from one container of an image to the next, and goes when the image has gone.

No GPU is needed: a program in the driver's place writes to where the driver is reported to.
"""

from __future__ import annotations

import json

import pytest

from orchestrate.inventory.hosts import Host
from orchestrate.launchers.container import CACHE_LABEL, CACHE_VARIABLES, ContainerSpec, cache_volume, unique_name
from orchestrate.launchers.docker.images import DockerEngine, controller_address
from orchestrate.launchers.docker.launcher import ContainerLauncher
from orchestrate.launchers.pulls import PullLimits
from orchestrate.planning.plan import Job
from results.schema import Case, Origin
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


def test_a_cache_outlives_its_container_and_goes_with_its_image(engines: Engines, cpu_image: PushedImage):
    client = engines.first.client
    address = controller_address(engines.first.url)
    engine, image = DockerEngine(address), str(client.images.get(cpu_image.reference).id)
    launcher = ContainerLauncher(Host(fleet="f", name="h", docker=address), PullLimits())
    orphan = client.volumes.create("tfbench-cuda-cache-orphan", labels={CACHE_LABEL: f"sha256:{'0' * 64}"})
    stranger = client.volumes.create("not-ours")
    try:
        assert compile_once(engine, image) == [[], 10001, 0]
        assert compile_once(engine, image) == [["kernel"], 10001, 0]

        origin = Origin(run_id="r", fleet="f", host="h", launcher="docker", repeat=1, image=image, image_digest=image)
        launcher.prepare(Job(id="j", case=Case(model="resnet50"), origin=origin, gpus=(0,)), lambda done, total: None)
        left = {volume.name for volume in client.volumes.list()}
        assert orphan.name not in left
        assert {"not-ours", f"tfbench-cuda-cache-{image.removeprefix('sha256:')[:16]}"} <= left
    finally:
        launcher.close()
        engine.close()
        stranger.remove()
        for volume in client.volumes.list(filters={"label": CACHE_LABEL}):
            volume.remove()

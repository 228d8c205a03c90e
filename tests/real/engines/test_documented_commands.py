"""Every `docker run` line of the documentation works as it is written; and what the driver compiles for a GPU is kept.

No GPU is needed: Docker takes `--gpus` where it finds NVIDIA's hook, which runs before the benchmark does.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrate.engines.docker.engine import DockerEngine
from orchestrate.engines.invocation import CACHE_LABEL, CACHE_PATH, cache_mount, cache_volume, container
from results.schema.exit_codes import ExitCode
from tests.support import PROJECT, write_program
from tests.support.engines.docker import Engines
from tests.support.engines.images import PushedImage
from tests.support.engines.required import skip_without

pytestmark = pytest.mark.docker

OUR_RUN = re.compile(r"docker run [^`]*?(\btfbench:\S+)[^`\n]*")
NOT_READY = 4


def documented() -> list[tuple[str, str]]:
    """Return the `docker run` commands of all pages with our images, and these images, as they are written."""
    pages = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), *PROJECT.glob("containers/**/*.md")])
    text = "\n".join(re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8")) for page in pages)
    return [(found[0], found[1]) for found in OUR_RUN.finditer(text)]


@pytest.fixture(scope="module")
def gpu_engine(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start the first engine again with what makes it accept `--gpus`, and give its address."""
    skip_without("the docker command", lambda: None if shutil.which("docker") else "not installed")
    hook = write_program(tmp_path_factory.mktemp("hook") / "nvidia-container-runtime-hook", "#!/bin/sh\nexit 0\n")
    with pytest.MonkeyPatch.context() as patch:
        engines.first.stop()
        patch.setenv("PATH", f"{hook.parent}:{os.environ['PATH']}")
        engines.first.start()
        yield engines.first.url
        engines.first.stop()
    engines.first.start()


@pytest.mark.parametrize(("line", "image"), documented())
def test_a_documented_command_works_as_written(
    gpu_engine: str, cpu_image: PushedImage, tmp_path: Path, line: str, image: str
):
    done = subprocess.run(
        ["sh", "-c", line.replace(image, cpu_image.reference)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "DOCKER_HOST": gpu_engine, "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if "tfbench.doctor" in line:
        assert done.returncode == NOT_READY and "verdict: not ready" in done.stdout, done
    else:
        assert done.returncode == ExitCode.SOME_FAILED and "status       no_gpu" in done.stdout, done


WRITE = """
import json, os, pathlib
folder = pathlib.Path(os.environ["CUDA_CACHE_PATH"])
print(json.dumps([sorted(path.name for path in folder.iterdir()), os.getuid(), os.stat("/opt").st_uid]))
(folder / "kernel").write_text("compiled")
"""


def compile_once(engine: DockerEngine, image: str) -> object:
    """Run a container without rights that writes where the driver would; return what it found there, and as whom."""
    mounts = {"Mounts": [cache_mount(cache_volume(image) or "", image)]}
    program = ["python3.11", "-c", WRITE]
    made = container(image, mounts, Entrypoint=program, Env=[f"CUDA_CACHE_PATH={CACHE_PATH}"])
    return json.loads(engine.run("cache", made, 60))


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

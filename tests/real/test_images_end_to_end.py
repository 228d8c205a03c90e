"""`orchestrate images` on real engines, and hosts that reach no registry."""

import re
import secrets
import sys
import zipfile
from pathlib import Path

import pytest

from results.schema import Status
from results.schema.version import __version__
from tests.support.controller import Runs
from tests.support.engines.containers import output_of_python
from tests.support.engines.docker import Engines
from tests.support.engines.fake_image import build_fake
from tests.support.engines.images import PushedImage, pip_settings
from tests.support.engines.servers import Registry
from tests.support.wheel import build_wheel, copy_source, run_elsewhere

pytestmark = pytest.mark.docker

BUILD_SECONDS = 1200


@pytest.fixture
def runs(tmp_path: Path, engines: Engines) -> Runs:
    """Give the folder of a user whose own engine is the first one."""
    return Runs(tmp_path, DOCKER_HOST=engines.first.url)


def build_settings(base_image: str) -> list[str]:
    """Return the flags of a build on this machine."""
    return [f"--build-arg={name}={value}" for name, value in {"BASE": base_image, **pip_settings()}.items()]


def test_an_image_is_built_verified_and_pushed_by_one_command_each(
    engines: Engines, base_image: str, cpu_image: PushedImage, small_image: str, registry: Registry, runs: Runs
):
    mine = ("cpu", f"--registry={registry.address}/mine")
    built = runs.run("images", "build", *mine, *build_settings(base_image), expect=0, seconds=BUILD_SECONDS)
    name = f"{registry.address}/mine/tfbench:0.1.0-cpu"
    assert built.stdout.startswith(f"{name} sha256:") and "Step " in built.stderr

    verified = runs.run("images", "verify", *mine, expect=0, seconds=BUILD_SECONDS)
    assert "ok: trains two steps on the CPU" in verified.stdout and "uid 10001" in verified.stdout
    assert "FAILED" not in verified.stdout
    engines.first.client.images.get(name).tag("tfbench", "0.1.0-cuda12.5")
    verified = runs.run("images", "verify", "cuda12.5", expect=3)
    assert "FAILED: TensorFlow was built with this CUDA" in verified.stdout
    engines.first.client.images.remove("tfbench:0.1.0-cuda12.5")

    engines.first.client.images.get(small_image).tag(name)  # the engine takes 50 s to compress the other one
    assert runs.run("images", "push", *mine, expect=0).stdout.startswith(f"{name}@sha256:")
    engines.first.client.images.remove(name)


@pytest.mark.rare
def test_a_wheel_alone_builds_the_image_of_its_checkout(engines: Engines, base_image: str, cpu_image, tmp_path: Path):
    for name in ("source", "wheel"):
        (tmp_path / name).mkdir()
    wheel = build_wheel(copy_source(tmp_path / "source"), tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    command = [sys.executable, "-m", "orchestrate.cli", "images", "build", "cpu", "--registry=wheel"]
    command += [f"--engine={engines.first.url}", *build_settings(base_image)]
    built = run_elsewhere(command, tmp_path, PYTHONPATH=str(tmp_path / "site"))
    assert built.returncode == 0, built.stderr
    name = f"wheel/tfbench:{__version__}-cpu"
    assert built.stdout.startswith(f"{name} sha256:") and "building from unknown" in built.stderr
    runner = "import tfbench.repeat, results.schema.version as of_wheel; print(of_wheel.__version__)"
    assert output_of_python(engines.first.client, name, runner).strip() == __version__
    images = [engines.first.client.images.get(image) for image in (name, cpu_image.reference)]
    layers, ours = (image.attrs["RootFS"]["Layers"] for image in images)
    assert layers[:-1] == ours[:-1], "a wheel builds the packages of its checkout"
    engines.first.client.images.remove(name)


@pytest.fixture(scope="module")
def small_image(engines: Engines, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a small image whose benchmark is a fake: how images travel does not depend on their size."""
    return build_fake(engines.first, base_image, tmp_path_factory.mktemp("fake") / "base")


def test_a_host_without_a_registry_gets_the_image_from_this_engine(engines: Engines, small_image: str, runs: Runs):
    mine = "tfbench:0.1.0-cpu"
    engines.first.client.images.get(small_image).tag("tfbench", "0.1.0-cpu")
    for image in engines.second.client.images.list():
        engines.second.client.images.remove(image.id, force=True)  # what earlier tests have brought there
    fleet = {"image_source": "transfer", "environment": {"NCCL_DEBUG": "WARN"}}
    fleets = {"far": {**fleet, "hosts": {"second": {"docker": engines.second.url}}}}
    done = runs.measure(fleets)
    (record,) = runs.records().values()
    assert record.status is Status.OK and record.origin is not None
    assert record.origin.image_digest == engines.first.client.images.get(mine).id
    assert record.environment is not None
    assert record.environment.variables["NCCL_DEBUG"] == "WARN", "environment: of hosts.yml reaches the benchmark"
    assert f"far.second: pulling {mine}: " in done.stderr, "the probe needs it first"

    assert "pulling" not in runs.measure(fleets).stderr, "it is there: nothing is sent"
    engines.first.client.images.remove(mine)


def test_one_command_fills_the_registry_that_hosts_pull_from(engines: Engines, small_image: str, registry, runs: Runs):
    ours = f"{registry.address}/fleet-{secrets.token_hex(4)}/tfbench"  # no earlier session pushed there
    engines.first.client.images.get(small_image).tag(ours, f"{__version__}-cpu")
    fleets = {"far": {"hosts": {"second": {"docker": engines.second.url}}}}
    hosts = runs.hosts(fleets, registry=ours.rpartition("/")[0])
    runs.run("check", f"--hosts={hosts}", expect=4)
    pushed = runs.run("images", "push", f"--hosts={hosts}", expect=0)
    assert re.fullmatch(rf"{re.escape(ours)}:{__version__}-cpu@sha256:[0-9a-f]{{64}}\n", pushed.stdout)
    runs.run("check", f"--hosts={hosts}", expect=0)
    engines.first.client.images.remove(f"{ours}:{__version__}-cpu")

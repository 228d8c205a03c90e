"""`orchestrate images` on real engines, and hosts that reach no registry."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from results.runs.reading import from_json
from results.schema import Status
from results.schema.version import __version__
from tests.support.controller import Finished, Runs
from tests.support.engines.docker import DockerEngine, Engines
from tests.support.engines.fake_image import build_fake
from tests.support.engines.images import PushedImage, pip_settings
from tests.support.engines.servers import Registry
from tests.support.wheel import build_wheel, copy_source, without_checkout

pytestmark = pytest.mark.docker

SUITE = "repeats: 1\ncases: [{model: googlenet, batch_per_gpu: 2, image_size: 64, warmup_steps: 1, num_steps: 3, device: cpu}]\n"


def orchestrate(folder: Path, *arguments: str, engine: DockerEngine | None = None) -> Finished:
    return Runs(folder, **({"DOCKER_HOST": engine.url} if engine else {})).run(*arguments, seconds=1200)


def test_an_image_is_built_verified_and_pushed_by_one_command_each(
    engines: Engines, base_image: str, cpu_image: PushedImage, registry: Registry, tmp_path: Path
):
    settings = [f"--build-arg={name}={value}" for name, value in {"BASE": base_image, **pip_settings()}.items()]
    built = orchestrate(
        tmp_path, "images", "build", "cpu", f"--registry={registry.address}/mine", *settings, engine=engines.first
    )
    assert built.returncode == 0, built.stderr
    name = f"{registry.address}/mine/tfbench:0.1.0-cpu"
    assert built.stdout.startswith(f"{name} sha256:") and "Step " in built.stderr

    verified = orchestrate(
        tmp_path, "images", "verify", "cpu", f"--registry={registry.address}/mine", engine=engines.first
    )
    assert verified.returncode == 0, verified.stdout
    assert "ok: trains two steps on the CPU" in verified.stdout and "uid 10001" in verified.stdout
    assert "FAILED" not in verified.stdout

    pushed = orchestrate(tmp_path, "images", "push", "cpu", f"--registry={registry.address}/mine", engine=engines.first)
    assert pushed.returncode == 0 and pushed.stdout.startswith(f"{name}@sha256:")
    engines.first.client.images.remove(name)


def test_a_wheel_alone_builds_an_image_that_trains(
    engines: Engines, base_image: str, cpu_image: PushedImage, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("wheel-alone")
    wheel = build_wheel(copy_source(tmp_path_factory.mktemp("source")), tmp_path_factory.mktemp("wheel"))
    install = [
        sys.executable,
        *["-m", "pip", "install", "--quiet", "--no-deps"],
        f"--target={folder / 'site'}",
        str(wheel),
    ]
    subprocess.run(install, env=without_checkout(), cwd=folder, check=True, timeout=300)

    def tfbench(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrate.cli", *arguments, f"--engine={engines.first.url}"],
            cwd=folder,
            env={**without_checkout(), "PYTHONPATH": str(folder / "site")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )

    settings = [f"--build-arg={name}={value}" for name, value in {"BASE": base_image, **pip_settings()}.items()]
    built = tfbench("images", "build", "cpu", "--registry=wheel", *settings)
    assert built.returncode == 0, built.stderr
    name = f"wheel/tfbench:{__version__}-cpu"
    assert built.stdout.startswith(f"{name} sha256:") and "building from unknown" in built.stderr
    verified = tfbench("images", "verify", "cpu", "--registry=wheel")
    assert verified.returncode == 0, verified.stdout
    assert "ok: trains two steps on the CPU" in verified.stdout and "FAILED" not in verified.stdout
    layers, ours = (
        engines.first.client.images.get(image).attrs["RootFS"]["Layers"] for image in (name, cpu_image.reference)
    )
    assert layers[:-1] == ours[:-1], "a wheel builds the packages of its checkout"
    engines.first.client.images.remove(name)


def test_verify_finds_an_image_that_is_not_what_its_row_says(engines: Engines, cpu_image: PushedImage, tmp_path: Path):
    engines.first.client.images.get(cpu_image.reference).tag("tfbench", "0.1.0-cuda12.5")
    verified = orchestrate(tmp_path, "images", "verify", "cuda12.5", engine=engines.first)
    assert verified.returncode == 3
    assert "FAILED: TensorFlow was built with this CUDA" in verified.stdout
    engines.first.client.images.remove("tfbench:0.1.0-cuda12.5")


@pytest.fixture(scope="module")
def small_image(engines: Engines, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a small image whose benchmark is a fake: how images travel does not depend on their size."""
    return build_fake(engines.first, base_image, tmp_path_factory.mktemp("fake") / "base")


def test_a_host_without_a_registry_gets_the_image_from_this_engine(engines: Engines, small_image: str, tmp_path: Path):
    mine = "tfbench:0.1.0-cpu"
    engines.first.client.images.get(small_image).tag("tfbench", "0.1.0-cpu")
    for image in engines.second.client.images.list():
        engines.second.client.images.remove(image.id, force=True)  # what earlier tests have brought there
    (tmp_path / "my.yml").write_text(SUITE)
    hosts = tmp_path / "hosts.yml"
    fleet = {
        "image_source": "transfer",
        "environment": {"NCCL_DEBUG": "WARN"},
        "hosts": {"second": {"docker": engines.second.url}},
    }
    hosts.write_text(json.dumps({"version": 1, "defaults": {"suite": "my.yml"}, "fleets": {"far": fleet}}))
    done = orchestrate(tmp_path, "run", f"--hosts={hosts}", "--run-id=one", engine=engines.first)
    assert done.returncode == 0, done.stderr
    (record_path,) = (tmp_path / "runs" / "one" / "records").iterdir()
    record = from_json(record_path.read_bytes())
    assert record.status is Status.OK and record.origin is not None
    assert record.origin.image_digest == engines.first.client.images.get(mine).id
    assert record.environment is not None
    assert record.environment.variables["NCCL_DEBUG"] == "WARN", "environment: of hosts.yml reaches the benchmark"
    assert f"far.second: pulling {mine}: " in done.stderr, "the probe needs it first"

    again = orchestrate(tmp_path, "run", f"--hosts={hosts}", "--run-id=two", engine=engines.first)
    assert again.returncode == 0 and "pulling" not in again.stderr, "it is there: nothing is sent"
    engines.first.client.images.remove(mine)


def test_one_command_fills_the_registry_that_hosts_pull_from(
    engines: Engines, small_image: str, registry: Registry, tmp_path: Path
):
    ours = f"{registry.address}/fleet-{secrets.token_hex(4)}/tfbench"  # no earlier session pushed there
    engines.first.client.images.get(small_image).tag(ours, f"{__version__}-cpu")
    hosts = tmp_path / "hosts.yml"
    defaults = {"registry": ours.rpartition("/")[0], "device": "cpu"}
    fleet = {"hosts": {"second": {"docker": engines.second.url}}}
    hosts.write_text(json.dumps({"version": 1, "defaults": defaults, "fleets": {"far": fleet}}))
    before = orchestrate(tmp_path, "check", f"--hosts={hosts}")
    assert before.returncode == 4
    pushed = orchestrate(tmp_path, "images", "push", f"--hosts={hosts}", engine=engines.first)
    assert pushed.returncode == 0, pushed.stderr
    assert re.fullmatch(rf"{re.escape(ours)}:{__version__}-cpu@sha256:[0-9a-f]{{64}}\n", pushed.stdout)
    after = orchestrate(tmp_path, "check", f"--hosts={hosts}")
    assert after.returncode == 0, after.stdout + after.stderr
    engines.first.client.images.remove(f"{ours}:{__version__}-cpu")

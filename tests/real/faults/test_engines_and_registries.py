"""Disks that are full, registries that lie: the right word for it, and the other host finishes."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrate.launchers.pulls import ATTEMPTS
from results.schema import Status
from tests.real.faults.conftest import FakeImages
from tests.support.controller import Runs, counted, ours
from tests.support.engines.docker import Engines
from tests.support.engines.fragile import FragileEngine
from tests.support.engines.images import MANIFEST_TYPE, layer_sizes
from tests.support.engines.servers import Registry

pytestmark = pytest.mark.docker

DISK_BYTES = 160 << 20


@pytest.fixture(scope="module")
def fragile(engine_folder: Path) -> Iterator[FragileEngine]:
    """Start an engine whose disk may be filled."""
    engine = FragileEngine("fragile", engine_folder, DISK_BYTES)
    try:
        engine.start()
        yield engine
    finally:
        engine.close()


@pytest.fixture
def fragile_engine(fragile: FragileEngine) -> Iterator[FragileEngine]:
    """Give it in order."""
    fragile.start()
    yield fragile
    fragile.free_disk()
    fragile.start()
    for container in ours(fragile):
        container.remove(force=True, v=True)


def test_a_corrupt_layer_is_pull_failed_and_never_the_old_image(
    engines: Engines, registry: Registry, engine_folder: Path, fake_images: FakeImages, runs: Runs
):
    old = fake_images.push("moves", filler=os.urandom(100_000), does="work")
    engines.second.client.images.pull(old)
    new = fake_images.push("moves", filler=os.urandom(100_000), does="work")
    assert new == old
    layer = list(layer_sizes(new))[-1]
    blob = engine_folder / "registry/docker/registry/v2/blobs/sha256" / layer[7:9] / layer[7:] / "data"
    content = blob.read_bytes()
    assert hashlib.sha256(content).hexdigest() == layer[7:]
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hosts = {"corrupt": {"docker": engines.second.url}, "good": {"docker": engines.first.url}}
    try:
        done = runs.run("run", f"--hosts={runs.hosts({'all': {'hosts': hosts}}, image=new)}", "--display=plain")
    finally:
        blob.write_bytes(content)

    assert done.returncode == 3, done.stderr
    records = runs.by_host()
    assert records["good"].status is Status.OK
    assert records["corrupt"].status is Status.PULL_FAILED
    assert "verification failed" in (records["corrupt"].cause or "")
    reported = [event for event in runs.events("warning") if event["host"] == "all.corrupt"]
    assert len(reported) == ATTEMPTS - 1
    assert all("retrying the pull" in event["message"] for event in reported)
    assert "verification failed" in reported[0]["message"]
    assert counted(engines.second, "create", runs.path.name) == {}, "the old image was started"

    resumed = runs.run("resume", "--display=plain")
    assert resumed.returncode == 0, resumed.stderr
    assert digest_in_registry(new) == (runs.by_host()["corrupt"].origin or records["good"].origin).image_digest


def digest_in_registry(reference: str) -> str:
    registry, _, name = reference.partition("/")
    repository, _, tag = name.rpartition(":")
    request = urllib.request.Request(
        f"http://{registry}/v2/{repository}/manifests/{tag}", headers={"Accept": MANIFEST_TYPE}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.headers["Docker-Content-Digest"])


def test_a_disk_that_is_full_before_the_pull_is_named(
    engines: Engines, fragile_engine: FragileEngine, fake_images: FakeImages, runs: Runs
):
    image = fake_images.image(filler=os.urandom(16 << 20))
    fragile_engine.fill_disk(leave_bytes=8 << 20)
    hosts = {"full": {"docker": fragile_engine.url}, "good": {"docker": engines.first.url}}
    done = runs.run("run", f"--hosts={runs.hosts({'all': {'hosts': hosts}}, image=image)}", "--display=plain")
    assert done.returncode == 3, done.stderr
    records = runs.by_host()
    assert records["good"].status is Status.OK
    assert records["full"].status is Status.PULL_FAILED
    assert "no space left on device" in (records["full"].cause or "")


def test_a_disk_that_is_full_before_the_start_is_named(
    engines: Engines, fragile_engine: FragileEngine, fake_images: FakeImages, runs: Runs
):
    image = fake_images.image()
    fragile_engine.client.images.pull(image)
    fragile_engine.fill_disk()
    hosts = {"full": {"docker": fragile_engine.url}, "good": {"docker": engines.first.url}}
    done = runs.run("run", f"--hosts={runs.hosts({'all': {'hosts': hosts}}, image=image)}", "--display=plain")
    assert done.returncode == 3, done.stderr
    records = runs.by_host()
    assert records["good"].status is Status.OK
    assert records["full"].status is Status.ERROR
    assert "disk is full" in (records["full"].cause or "")
    fragile_engine.free_disk()
    assert ours(fragile_engine) == []


def test_a_disk_that_the_benchmark_fills_is_a_row_and_is_freed_again(
    engines: Engines, fragile_engine: FragileEngine, fake_images: FakeImages, runs: Runs
):
    image = fake_images.image("fill_disk")
    hosts = {"full": {"docker": fragile_engine.url}}
    done = runs.run("run", f"--hosts={runs.hosts({'all': {'hosts': hosts}}, image=image)}", "--display=plain")
    assert done.returncode == 3, done.stderr
    (record,) = runs.records().values()
    assert record.status is not Status.OK
    assert "No space left on device" in (record.cause or "")
    assert ours(fragile_engine) == []
    assert json.loads((runs.path / "plan.json").read_text())["run_id"] == runs.path.name
    after = runs.run("check", f"--hosts={runs.folder / 'hosts.yml'}")
    assert after.returncode == 0, after.stdout


def test_an_engine_without_gpus_is_named_and_nothing_of_the_probe_stays(
    engines: Engines, fake_images: FakeImages, runs: Runs
):
    fleet = {"hosts": {"one": {"docker": engines.first.url}}}
    checked = runs.run("check", f"--hosts={runs.hosts({'all': fleet}, image=fake_images.image(), device='auto')}")
    assert "its engine cannot give GPUs to containers" in checked.stdout, checked.stdout + checked.stderr
    assert engines.first.client.api.containers(all=True) == []

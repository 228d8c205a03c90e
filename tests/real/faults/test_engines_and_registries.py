"""Disks that are full, registries that lie: the right word for it, and the other host finishes."""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrate.engines.base import ATTEMPTS
from results.schema import Status
from tests.support.controller import Runs, counted, ours, remove_ours
from tests.support.engines.docker import Engines
from tests.support.engines.fragile import FragileEngine
from tests.support.engines.images import manifest_of

pytestmark = pytest.mark.docker

DISK_BYTES = 160 << 20


@pytest.fixture(scope="module")
def fragile(engine_folder: Path) -> Iterator[FragileEngine]:
    """Start an engine whose disk may be filled."""
    with FragileEngine("fragile", engine_folder, DISK_BYTES) as engine:
        yield engine


@pytest.fixture
def fragile_engine(fragile: FragileEngine) -> Iterator[FragileEngine]:
    """Give it in order."""
    fragile.start()
    yield fragile
    fragile.free_disk()
    fragile.start()
    remove_ours(fragile)


def test_a_corrupt_layer_is_pull_failed_and_never_the_old_image(engines, registry, engine_folder, fake_images, runs):
    old = fake_images.push("moves", filler=os.urandom(100_000), does="work")
    engines.second.client.images.pull(old)
    new = fake_images.push("moves", filler=os.urandom(100_000), does="work")
    assert new == old
    digest, manifest = manifest_of(new)
    layer = manifest["layers"][-1]["digest"]
    blob = engine_folder / "registry/docker/registry/v2/blobs/sha256" / layer[7:9] / layer[7:] / "data"
    content = blob.read_bytes()
    assert hashlib.sha256(content).hexdigest() == layer[7:]
    blob.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    hosts = {"corrupt": {"docker": engines.second.url}, "good": {"docker": engines.first.url}}
    try:
        runs.measure({"all": {"hosts": hosts}}, image=new, expect=3)
    finally:
        blob.write_bytes(content)

    records = runs.by_host()
    assert records["good"].status is Status.OK
    assert records["corrupt"].status is Status.PULL_FAILED
    assert "verification failed" in (records["corrupt"].cause or "")
    warnings = [event for event in runs.events("warning") if event["host"] == "all.corrupt"]
    reported = [event for event in warnings if not event["message"].startswith("other programs take")]
    assert len(reported) == ATTEMPTS - 1
    assert all("retrying the pull" in event["message"] for event in reported)
    assert "verification failed" in reported[0]["message"]
    assert counted(engines.second, "create", runs.path.name) == {}, "the old image was started"

    runs.resume()
    origin = runs.by_host()["corrupt"].origin
    assert origin is not None and origin.image_digest == digest


def test_a_disk_that_is_full_before_the_pull_is_named(engines: Engines, fragile_engine, fake_images, runs: Runs):
    fragile_engine.fill_disk(8 << 20)
    hosts = {"full": {"docker": fragile_engine.url}, "good": {"docker": engines.first.url}}
    runs.measure({"all": {"hosts": hosts}}, image=fake_images.image(filler=os.urandom(16 << 20)), expect=3)
    records = runs.by_host()
    assert (records["good"].status, records["full"].status) == (Status.OK, Status.PULL_FAILED)
    assert "no space left on device" in (records["full"].cause or "")
    fragile_engine.free_disk()
    assert ours(fragile_engine) == []


def test_a_disk_that_the_benchmark_fills_is_a_row_and_is_freed_again(engines, fragile_engine, fake_images, runs: Runs):
    fleets = {"all": {"hosts": {"full": {"docker": fragile_engine.url}}}}
    runs.measure(fleets, image=fake_images.image("fill_disk"), expect=3)
    (record,) = runs.records().values()
    assert record.status is Status.ERROR
    assert "exit code 1" in (record.cause or "") and "disk is full" in (record.cause or "")  # its log may be cut off
    assert ours(fragile_engine) == []
    assert json.loads((runs.path / "plan.json").read_text())["run_id"] == runs.path.name
    runs.run("check", f"--hosts={runs.folder / 'hosts.yml'}", expect=0)

"""The fake engine of the fleet simulation answers as a real Docker engine does."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from results.schema import Case, Device
from tests.benchmarks.fleet.bench_fleet import stand_in_engines
from tests.benchmarks.fleet.engine import DIGEST, socket_path
from tests.support.engines.docker import Engines


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Give a folder whose sockets have short names: a unix socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="tfb-fleet-"))
    yield folder
    shutil.rmtree(folder)


def life_of_a_container(client: docker.APIClient, image: str, command: list[str]) -> dict[str, Any]:
    """Do what a launcher does, and what it must be able to tell apart; return what came back, without values."""
    reported: dict[str, Any] = {"info": shape(client.info(), _INFO)}

    def refused(call: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(docker.errors.APIError) as caught:
            getattr(client, call)(*arguments, **options)
        reported[f"{call} refused"] = caught.value.status_code

    refused("inspect_image", "nothing:1")
    refused("inspect_container", "stranger")
    refused("start", "stranger")
    refused("remove_container", "stranger")
    refused("stop", "stranger")
    reported["image"] = shape(client.inspect_image(image), {"Id": str, "RepoDigests": list})
    options = {"name": "tfbench-conformance", "command": command, "labels": {"tfbench.run": "conformance"}}
    host_config = client.create_host_config(network_mode="none", read_only=True, init=True)
    created = client.create_container(image, host_config=host_config, **options)
    reported["created"] = shape(created, {"Id": str, "Warnings": list})
    refused("create_container", image, host_config=host_config, **options)
    refused("get_archive", "tfbench-conformance", "/nowhere/record.json")
    reported["before"] = shape(client.inspect_container(created["Id"]), _CONTAINER)
    client.start("tfbench-conformance")
    client.start("tfbench-conformance")  # 304: the SDK says nothing
    reported["while"] = client.inspect_container("tfbench-conformance")["State"]["Running"]
    refused("remove_container", "tfbench-conformance")
    lines = b"".join(client.logs("tfbench-conformance", stream=True, follow=True, timestamps=True)).splitlines()
    reported["stamp"] = {(len(line.split(b" ")[0]), line[10:11], line[29:30]) for line in lines}
    reported["after"] = client.inspect_container("tfbench-conformance")["State"]["Status"]
    listed = client.containers(all=True, filters={"label": "tfbench.run=conformance"})
    reported["list"] = [shape(container, {"Id": str, "Names": list, "Labels": dict}) for container in listed]
    reported["list others"] = client.containers(all=True, filters={"label": "tfbench.run=other"})
    reported["list running"] = client.containers(filters={"label": "tfbench.run=conformance"})
    client.stop("tfbench-conformance")
    client.remove_container("tfbench-conformance", v=True, force=True)
    reported["list after"] = client.containers(all=True, filters={"label": "tfbench.run=conformance"})
    return reported


def shape(document: dict[str, Any], wanted: dict[str, type]) -> dict[str, bool]:
    """Say which of the values that launchers read are there, with their type; `A.B` is B inside of A."""
    found = {}
    for path, kind in wanted.items():
        value: Any = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        found[path] = isinstance(value, kind)
    return found


_INFO = {
    "NCPU": int,
    "MemTotal": int,
    "KernelVersion": str,
    "OperatingSystem": str,
    "ServerVersion": str,
    "SystemTime": str,
    "Runtimes": dict,
    "DockerRootDir": str,
}
_CONTAINER = {
    "Id": str,
    "Name": str,
    "Config.Labels": dict,
    "Config.Tty": bool,
    "HostConfig.ReadonlyRootfs": bool,
    "State.Status": str,
    "State.Running": bool,
    "State.OOMKilled": bool,
    "State.ExitCode": int,
    "State.Error": str,
}


@pytest.mark.docker
def test_the_stand_in_answers_as_a_real_engine_does(engines: Engines, base_image: str, short_folder: Path):
    command = ["sh", "-c", "sleep 1; echo one; echo two"]
    with docker.APIClient(base_url=engines.first.url, version="1.41") as client:
        real = life_of_a_container(client, base_image, command)
    flags = [*Case(model="resnet50", device=Device.CPU).flags(), "--output=/out/record.json"]
    with (
        stand_in_engines(short_folder, 1, seconds=1.0),
        docker.APIClient(base_url=f"unix://{socket_path(short_folder, 0)}", version="1.41") as client,
    ):
        image = f"registry.example/you/tfbench@{DIGEST}"
        list(client.pull(image, stream=True, decode=True))
        simulated = life_of_a_container(client, image, flags)
    assert simulated == real

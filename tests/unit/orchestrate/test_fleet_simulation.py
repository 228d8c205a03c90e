"""A fleet of simulated engines behind real sockets: a small one of what `bench_fleet.py` runs with a thousand hosts."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import docker.errors
import pytest

from results.schema import Case, Device
from tests.benchmarks.fleet.__main__ import socket_path
from tests.benchmarks.fleet.bench_fleet import (
    find_faults,
    run_controller,
    stand_in_engines,
    write_hosts,
)
from tests.benchmarks.fleet.engine import DIGEST
from tests.support.engines.docker import Engines

HOSTS, REPEATS = 20, 3
FEW_FILES = ("sh", "-c", 'ulimit -Sn 100; exec "$@"', "sh", sys.executable)
"""Starts a controller that may open fewer files than its hosts take, unless it asks for more."""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Give a folder whose sockets have short names: a unix socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="tfb-fleet-"))
    yield folder
    shutil.rmtree(folder)


def test_twenty_engines_give_every_record_exactly_once_and_keep_nothing(short_folder: Path):
    hosts_file = write_hosts(short_folder, HOSTS, cases=1)
    output = short_folder / "output.txt"
    with stand_in_engines(short_folder, HOSTS, seconds=0.3):
        exit_code, cpu_seconds, peak_bytes, _ = run_controller(short_folder, hosts_file, output, FEW_FILES)
    assert exit_code == 0, output.read_text()
    assert find_faults(short_folder) == []
    (run,) = (short_folder / "runs").iterdir()
    assert len(list((run / "records").iterdir())) == HOSTS * REPEATS
    assert (run / "results.csv").read_text().count("\n") == HOSTS + 1
    assert cpu_seconds > 0 and peak_bytes > 0
    counts = json.loads((short_folder / "counts.json").read_text())["counts"]
    assert counts["POST images create"] == HOSTS, "an image is pulled once per host"
    assert counts["DELETE containers"] == HOSTS * REPEATS


def test_a_missing_record_and_a_container_that_is_started_twice_are_faults(short_folder: Path):
    hosts_file = write_hosts(short_folder, 1, cases=1)
    with stand_in_engines(short_folder, 1, seconds=0.05):
        run_controller(short_folder, hosts_file, short_folder / "output.txt")
    (run,) = (short_folder / "runs").iterdir()
    first, second, _ = sorted((run / "records").iterdir())
    first.unlink()
    counted = json.loads((short_folder / "counts.json").read_text())
    counted["counts"][f"started tfbench-{run.name}-{second.stem}"] = 2
    (short_folder / "counts.json").write_text(json.dumps(counted))
    assert find_faults(short_folder) == [
        "3 repeats were planned, 2 records are there",
        f"{second.stem}: its container was not created and started once",
    ]


def life_of_a_container(client: docker.APIClient, image: str, command: list[str]) -> dict[str, Any]:
    """Do what a launcher does, and what it must be able to tell apart; return what came back, without values."""
    told: dict[str, Any] = {"version": client._version >= "1.41", "info": shape(client.info(), _INFO)}

    def refused(call: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(docker.errors.APIError) as caught:
            getattr(client, call)(*arguments, **options)
        told[f"{call} refused"] = caught.value.status_code

    refused("inspect_image", "nothing:1")
    refused("inspect_container", "stranger")
    refused("start", "stranger")
    refused("remove_container", "stranger")
    refused("stop", "stranger")
    told["image"] = shape(client.inspect_image(image), {"Id": str, "RepoDigests": list})
    options = {"name": "tfbench-conformance", "command": command, "labels": {"tfbench.run": "conformance"}}
    host_config = client.create_host_config(network_mode="none", read_only=True, init=True)
    created = client.create_container(image, host_config=host_config, **options)
    told["created"] = shape(created, {"Id": str, "Warnings": list})
    refused("create_container", image, host_config=host_config, **options)
    refused("get_archive", "tfbench-conformance", "/nowhere/record.json")
    told["before"] = shape(client.inspect_container(created["Id"]), _CONTAINER)
    client.start("tfbench-conformance")
    client.start("tfbench-conformance")  # 304: the SDK says nothing
    told["while"] = client.inspect_container("tfbench-conformance")["State"]["Running"]
    refused("remove_container", "tfbench-conformance")
    lines = b"".join(client.logs("tfbench-conformance", stream=True, follow=True, timestamps=True)).splitlines()
    told["stamp"] = {(len(line.split(b" ")[0]), line[10:11], line[29:30]) for line in lines}
    told["wait"] = client.wait("tfbench-conformance")["StatusCode"]
    told["after"] = client.inspect_container("tfbench-conformance")["State"]["Status"]
    listed = client.containers(all=True, filters={"label": "tfbench.run=conformance"})
    told["list"] = [shape(container, {"Id": str, "Names": list, "Labels": dict}) for container in listed]
    told["list others"] = client.containers(all=True, filters={"label": "tfbench.run=other"})
    told["list running"] = client.containers(filters={"label": "tfbench.run=conformance"})
    client.stop("tfbench-conformance")
    client.remove_container("tfbench-conformance", v=True, force=True)
    told["list after"] = client.containers(all=True, filters={"label": "tfbench.run=conformance"})
    return told


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
    with docker.APIClient(base_url=engines.first.url, version="auto") as client:
        real = life_of_a_container(client, base_image, command)
    flags = [*Case(model="resnet50", device=Device.CPU).flags(), "--output=/out/record.json"]
    with (
        stand_in_engines(short_folder, 1, seconds=1.0),
        docker.APIClient(base_url=f"unix://{socket_path(short_folder, 0)}", version="auto") as client,
    ):
        image = f"registry.example/you/tfbench@{DIGEST}"
        list(client.pull(image, stream=True, decode=True))
        simulated = life_of_a_container(client, image, flags)
    assert simulated == real

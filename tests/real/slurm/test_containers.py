"""Containers on Slurm's nodes have the rights that the Docker launcher gives; one plan over three kinds of fleets."""

from __future__ import annotations

import csv
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.container import job_container
from orchestrate.launchers.docker.images import DockerEngine as OurEngine
from orchestrate.launchers.slurm.templates import docker_flags
from orchestrate.planning.plan import Job
from results.schema import Case, Data, Device, Origin, Status
from tests.real.faults.conftest import Standins
from tests.real.faults.controller import ours
from tests.real.slurm.conftest import MakeRuns, fleet, left_behind
from tests.support.engines.docker import Engines
from tests.support.engines.slurm import SlurmCluster

pytestmark = pytest.mark.docker

NOT_COMPARED = ("ConsoleSize", "RestartPolicy")
"""A terminal's size, which none of them has, and a policy whose absence has two names."""


def test_dockers_command_line_gives_the_same_rights_as_its_api(engines: Engines, base_image: str, tmp_path: Path):
    address = DockerAddress(scheme="unix", target=str(engines.first.socket))
    host = Host(fleet="f", name="h", docker=address, cpus=1.5, memory_gb=0.5, data_dir=str(tmp_path))
    case = Case(model="x", device=Device.CPU, data=Data.TFRECORD)
    origin = Origin(run_id="same-rights", fleet="f", host="h", launcher="slurm", repeat=1)
    spec = job_container(Job(id="f.h.x.r1", case=case, origin=origin), host, base_image)
    engine = OurEngine(host.docker) if host.docker else None
    assert engine is not None
    docker = shutil.which("docker")
    assert docker is not None, "Docker's command line comes with docker.io"
    try:
        engine.create(spec)
        command = [docker, "-H", engines.first.url, "create", *docker_flags(spec), "--name=by-command-line"]
        subprocess.run([*command, "--label=tfbench.job=f.h.x.r1", base_image, "true"], check=True, capture_output=True)
        by_api, by_command = (reported(engines, name) for name in (spec.name, "by-command-line"))
    finally:
        for container in [*ours(engines.first)]:
            container.remove(force=True, v=True)
        engine.close()
    assert by_command == by_api
    assert [mount["Source"] for mount in by_api["Mounts"]] == [str(tmp_path)]


def reported(engines: Engines, name: str) -> dict[str, Any]:
    """Return what an engine says of a container's rights; absent and empty mean the same."""
    document = engines.first.client.api.inspect_container(name)["HostConfig"]
    return {key: value for key, value in document.items() if value and key not in NOT_COMPARED}


@pytest.mark.tensorflow
def test_one_plan_over_docker_slurm_and_a_process_gives_one_table(
    slurm_cluster: SlurmCluster, make_runs: MakeRuns, engines: Engines, standins: Standins, tmp_path: Path
):
    runs = make_runs()
    runs.environment["DOCKER_HOST"] = engines.first.url
    image = standins.image()
    queue = fleet(slurm_cluster, tmp_path, container="docker")
    del queue["slurm"]["project"]
    fleets = {
        "docked": {"image": image, "hosts": {"second": {"docker": engines.second.url}}},
        "queued": {"image": image, **queue},
        "here": {"hosts": {"this-machine": {"process": True}}},
    }
    done = runs.run("run", f"--hosts={runs.hosts(fleets, 1)}", "--display=plain")
    assert done.returncode == 0, done.stderr
    assert {record.status for record in runs.records().values()} == {Status.OK}
    with (runs.path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["fleet"] for row in rows} == {"docked", "queued", "here"}
    assert {row["launcher"] for row in rows} == {"docker", "slurm", "process"}
    assert {row["host"] for row in rows} <= {"second", "this-machine", "n1", "n2"}
    assert sum(int(row["repeats"]) for row in rows) == 3
    digests = {row["fleet"]: row["image_digest"] for row in rows}
    assert digests["queued"] == digests["docked"], "the node tells what the tag meant there"
    assert ours(engines.first) == [] and left_behind(slurm_cluster) == []


def test_a_node_that_cannot_pull_an_image_says_so(
    slurm_cluster: SlurmCluster, make_runs: MakeRuns, engines: Engines, tmp_path: Path
):
    runs = make_runs()
    runs.environment["DOCKER_HOST"] = engines.first.url
    queue = fleet(slurm_cluster, tmp_path, container="docker")
    del queue["slurm"]["project"]
    hosts = runs.hosts({"queued": {"image": "127.0.0.1:1/nothing:here", **queue}}, 1)
    done = runs.run("run", f"--hosts={hosts}", "--display=plain")
    assert done.returncode == 3
    (record,) = runs.records().values()
    assert (record.status, record.origin and record.origin.host) in {
        (Status.PULL_FAILED, "n1"),
        (Status.PULL_FAILED, "n2"),
    }
    (log,) = (runs.path / "logs").iterdir()
    assert "connection refused" in log.read_text()

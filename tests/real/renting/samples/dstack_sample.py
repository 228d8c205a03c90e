"""Print what `dstack ps --json` prints, by dstack's own models: runs on RunPod, on AWS, on two nodes, and one that waits."""

from __future__ import annotations

import datetime
import uuid
from typing import Any

from dstack._internal.cli.models.runs import PsCommandOutput
from dstack._internal.core.models.configurations import TaskConfiguration
from dstack._internal.core.models.instances import Gpu, InstanceType, Resources
from dstack._internal.core.models.resources import ResourcesSpec
from dstack._internal.core.models.runs import (
    Job,
    JobProvisioningData,
    JobSpec,
    JobSubmission,
    Requirements,
    Run,
    RunSpec,
)

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


def identity(number: int) -> uuid.UUID:
    return uuid.UUID(int=number, version=4)


def job(number: int, status: str, provisioned: JobProvisioningData | None) -> Job:
    spec = JobSpec(
        job_num=number,
        job_name=f"job-{number}",
        commands=["sleep infinity"],
        env={},
        image_name="python:3.11",
        requirements=Requirements(resources=ResourcesSpec()),
    )
    submission = JobSubmission(
        id=identity(number),
        submission_num=0,
        submitted_at=NOW,
        last_processed_at=NOW,
        status=status,
        job_provisioning_data=provisioned,
    )
    return Job(job_spec=spec, job_submissions=[submission])


def provisioned(backend: str, gpu: str, gpus: int, price: float, **others: Any) -> JobProvisioningData:
    resources = Resources(
        cpus=8, memory_mib=32768, spot=others.pop("spot", False), gpus=[Gpu(name=gpu, memory_mib=16384)] * gpus
    )
    settings = {"hostname": "203.0.113.7", "region": "EU", "username": "root", "ssh_port": 22044, **others}
    return JobProvisioningData(
        backend=backend,
        instance_type=InstanceType(name="i", resources=resources),
        instance_id="i-1",
        price=price,
        dockerized=backend != "runpod",
        **settings,
    )


def run(number: int, name: str, status: str, jobs: list[Job]) -> Run:
    spec = RunSpec(
        run_name=name,
        configuration=TaskConfiguration(name=name, commands=["sleep infinity"], image="python:3.11"),
        ssh_key_pub="ssh-ed25519 AAAA",
    )
    return Run(
        id=identity(number),
        project_name="main",
        user="me",
        submitted_at=NOW,
        last_processed_at=NOW,
        status=status,
        run_spec=spec,
        jobs=jobs,
    )


on_aws = provisioned("aws", "A10G", 4, 5.672, hostname="198.51.100.4", username="ubuntu", ssh_port=22, spot=True)
runs = [
    run(1, "tfbench-a4000", "running", [job(0, "running", provisioned("runpod", "A4000", 1, 0.17))]),
    run(2, "tfbench-a10g", "running", [job(0, "running", on_aws), job(1, "running", on_aws)]),
    run(3, "tfbench-a5000", "provisioning", [job(0, "provisioning", None)]),
]
print(PsCommandOutput(project="main", runs=runs).model_dump_json(indent=1))  # noqa: T201

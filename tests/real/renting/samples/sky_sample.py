"""Print what `sky status --output json` prints, by SkyPilot's own model: pods, a virtual machine, one that has stopped."""

from __future__ import annotations

import json
from typing import Any

from sky.schemas.api.responses import StatusResponse
from sky.utils.status_lib import ClusterStatus


def cluster(name: str, status: ClusterStatus, cloud: str, gpu: str, resources: str, **others: Any) -> StatusResponse:
    return StatusResponse(
        name=name,
        launched_at=1763800000,
        status=status,
        autostop=60,
        to_down=True,
        cluster_hash=name,
        cluster_ever_up=True,
        user_hash="u",
        user_name="me",
        workspace="default",
        is_managed=False,
        cloud=cloud,
        accelerators=gpu,
        resources_str=resources,
        **{"nodes": 1, **others},
    )


clusters = [
    cluster(
        "tfbench-a4000", ClusterStatus.UP, "RunPod", "{'RTXA4000': 1}", "1x(gpus=RTXA4000:1, 1x_RTXA4000_SEC, ...)"
    ),
    cluster(
        "tfbench-a10g",
        ClusterStatus.UP,
        "AWS",
        "{'A10G': 4}",
        "2x[spot](gpus=A10G:4, g5.12xlarge, ...)",
        nodes=2,
    ),
    cluster(
        "tfbench-in-docker",
        ClusterStatus.UP,
        "GCP",
        "{'L4': 1}",
        "1x(gpus=L4:1, g2-standard-4, ...)",
        resources_str_full="1x(gpus=L4:1, cpus=4, mem=16, g2-standard-4, image_id=docker:python:3.11, disk=100)",
    ),
    cluster("tfbench-a5000", ClusterStatus.STOPPED, "RunPod", "{'RTXA5000': 1}", "1x(gpus=RTXA5000:1, ...)"),
]
print(json.dumps([item.model_dump(mode="json", exclude={"handle", "credentials"}) for item in clusters], indent=2))  # noqa: T201

"""Print what `vastai show instances --raw` prints, with the fields of Vast's own model."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from vastai.data.instance import Instance

RUNNING = {
    "machine_id": 11,
    "actual_status": "running",
    "cur_state": "running",
    "intended_status": "running",
    "image_uuid": "python:3.11",
    "image_runtype": "ssh_direc ssh_proxy",
    "num_gpus": 1,
    "gpu_arch": "nvidia",
    "driver_version": "550.127.05",
    "cuda_max_good": "12.4",
    "disk_space": 40.0,
    "start_date": 1763800000.0,
    "ssh_host": "ssh5.vast.ai",
    "extra_env": [],
}


def instance(number: int, **fields: Any) -> dict[str, Any]:
    known = Instance.from_dict({"id": number, **RUNNING, **fields})
    return {**dataclasses.asdict(known), **{key: fields[key] for key in ("is_bid", "ports") if key in fields}}


mapped = [{"HostIp": "0.0.0.0", "HostPort": "41022"}, {"HostIp": "::", "HostPort": "41022"}]
rows = [
    instance(
        27001,
        gpu_name="RTX A4000",
        dph_total=0.1712,
        ssh_port=27000,
        public_ipaddr="203.0.113.7",
        ports={"22/tcp": mapped},
    ),
    instance(27002, gpu_name="RTX A4000", dph_total=0.17, ssh_port=27002, label="second", is_bid=True),
    instance(
        27003, gpu_name="RTX A5000", num_gpus=2, dph_total=0.72, ssh_port=27003, image_runtype="jupyter_direc ssh_proxy"
    ),
    instance(27004, gpu_name="RTX 3090", dph_total=0.2, actual_status="loading", ssh_port=27004),
    instance(27005, gpu_name="RTX 3090", dph_total=0.2, ssh_host=None, image_runtype="args"),
]
print(json.dumps(rows, indent=1, sort_keys=True))  # noqa: T201

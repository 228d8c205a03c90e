"""Clusters of SkyPilot, from `sky status --output json`; the command also writes an ssh alias for every node."""

from __future__ import annotations

import ast
import re

from orchestrate.inventory.sources.machines import Described, Found, Machine, destination, read_json, validated

COMMAND = "sky status --output json"
UP = "UP"
CONTAINERS = frozenset({"RunPod", "Vast", "Kubernetes", "SSH", "Slurm"})
"""Infrastructures whose nodes are containers. Source: `sky/clouds`, `sky/provision` of SkyPilot 0.14."""

_DOCKER_IMAGE = re.compile(r"image_id=[^,)]*docker:")


class _Cluster(Described):
    name: str
    status: str
    nodes: int = 1
    cloud: str | None = None
    accelerators: str | None = None
    resources_str: str | None = None
    resources_str_full: str | None = None


def from_sky(path: str) -> Found:
    """Read clusters; SkyPilot prints neither addresses nor prices as JSON, but `ssh NAME` works for every node."""
    found = Found(notes=["The names of hosts are ssh aliases, which `sky status` writes and `sky down` removes."])
    for cluster in validated(list[_Cluster], read_json(path, COMMAND), path, COMMAND):
        if cluster.status != UP:
            found.left_out.append(f"{cluster.name}: its status is {cluster.status}, not {UP}")
            continue
        if destination(None, cluster.name) is None:
            found.left_out.append(f"{cluster.name}: not a valid ssh host name")
            continue
        names = [cluster.name, *(f"{cluster.name}-worker{number}" for number in range(1, cluster.nodes))]
        found.machines += [_machine(cluster, name) for name in names]
    return found


def _machine(cluster: _Cluster, name: str) -> Machine:
    gpu, gpus = _accelerators(cluster.accelerators)
    container = _is_container(cluster)
    notes = []
    if not container:
        notes.append(f"a virtual machine of {cluster.cloud}; if it has no Docker engine, write {{ssh: {name}}}")
    if "[spot]" in (cluster.resources_str or cluster.resources_str_full or ""):
        notes.append("a spot instance: it can be stopped at any time")
    return Machine(name=name, way="ssh" if container else "docker", target=name, gpu=gpu, gpus=gpus, notes=tuple(notes))


def _is_container(cluster: _Cluster) -> bool:
    return cluster.cloud in CONTAINERS or _DOCKER_IMAGE.search(cluster.resources_str_full or "") is not None


def _accelerators(text: str | None) -> tuple[str | None, int | None]:
    """Read `{'RTXA4000': 1}`, as Python prints a dictionary; anything else is not understood, and not guessed."""
    try:
        read = ast.literal_eval(text or "None")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None, None
    if not isinstance(read, dict) or len(read) != 1:
        return None, None
    ((name, count),) = read.items()
    whole = isinstance(count, int | float) and not isinstance(count, bool) and count >= 1
    return str(name), int(count) if whole else None

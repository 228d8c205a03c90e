"""Machines of services that rent them, from what their tools print as JSON: SkyPilot, dstack, Vast.ai and RunPod."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import AliasPath, BeforeValidator, Field

from orchestrate.errors import UserError
from orchestrate.inventory.sources.machines import (
    SSH_PORT,
    Described,
    Found,
    Machine,
    Price,
    destination,
    parsed,
    port_number,
    read_text,
    validated,
)
from orchestrate.text import plain_text

SPOT = "a spot instance: it can be stopped at any time"


class Rented(Described):
    """What a service rents out under one name."""

    @abstractmethod
    def machines(self) -> list[Machine] | str:
        """Return its machines, or why none can be reached."""


R = TypeVar("R", bound=Rented)


def _read(path: str, command: str, kind: type[list[R]], unwrap: Callable[[object], object], *notes: str) -> Found:
    """Read what a tool prints.

    Args:
        path: File, or `-`.
        command: What prints it, for messages.
        kind: What it lists.
        unwrap: Returns the list within the document.
        notes: What holds for the whole file.
    """
    found = Found(notes=list(notes))
    for entry in validated(kind, unwrap(parsed(read_text(path), path, command)), path, command):
        machines = entry.machines()
        if isinstance(machines, str):
            found.excluded.append(machines)
        else:
            found.machines += machines
    return found


# ---- SkyPilot: its command also writes an ssh alias for every node.

CONTAINERS = frozenset({"RunPod", "Vast", "Kubernetes", "SSH", "Slurm"})
"""Infrastructures whose nodes are containers. Source: `sky/clouds`, `sky/provision` of SkyPilot 0.14."""

_DOCKER_IMAGE = re.compile(r"image_id=[^,)]*docker:")


class _Cluster(Rented):
    name: str
    status: str
    nodes: int = 1
    cloud: str | None = None
    accelerators: str | None = None
    resources_str: str | None = None
    resources_str_full: str | None = None

    def machines(self) -> list[Machine] | str:
        if self.status != "UP":
            return f"{self.name}: its status is {self.status}, not UP"
        if destination(None, self.name) is None:
            return f"{self.name}: not a valid ssh host name"
        gpu, gpus = _accelerators(self.accelerators)
        container = self.cloud in CONTAINERS or _DOCKER_IMAGE.search(self.resources_str_full or "") is not None
        spot = [SPOT] if "[spot]" in (self.resources_str or self.resources_str_full or "") else []
        way: Literal["docker", "ssh"] = "ssh" if container else "docker"
        machines = []
        for name in (self.name, *(f"{self.name}-worker{number}" for number in range(1, self.nodes))):
            machine = f"a virtual machine of {self.cloud}; if it has no Docker engine, write {{ssh: {name}}}"
            notes = tuple(([] if container else [machine]) + spot)
            machines.append(Machine(name=name, way=way, target=name, gpu=gpu, gpus=gpus, notes=notes))
        return machines


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


def from_sky(path: str) -> Found:
    """Read clusters; SkyPilot prints neither addresses nor prices as JSON, but `ssh NAME` works for every node."""
    note = "The names of hosts are ssh aliases, which `sky status` writes and `sky down` removes."
    return _read(path, "sky status --output json", list[_Cluster], lambda document: document, note)


# ---- dstack: `ssh RUN` leads into the container of a run, whatever machine that is on.

DSTACK = "dstack ps --json"
_GIVEN = "job_provisioning_data"
_RESOURCES = (_GIVEN, "instance_type", "resources")


class _DstackGPU(Described):
    name: str


class _Submission(Described):
    status: str
    backend: str | None = Field(None, validation_alias=AliasPath(_GIVEN, "backend"))
    price: Price | None = Field(None, validation_alias=AliasPath(_GIVEN, "price"))
    gpus: tuple[_DstackGPU, ...] = Field((), validation_alias=AliasPath(*_RESOURCES, "gpus"))
    spot: bool = Field(False, validation_alias=AliasPath(*_RESOURCES, "spot"))


class _Job(Described):
    job_submissions: tuple[_Submission, ...] = ()


class _Run(Rented):
    status: str
    name: str | None = Field(validation_alias=AliasPath("run_spec", "run_name"))
    jobs: tuple[_Job, ...] = ()

    def machines(self) -> list[Machine] | str:
        name = self.name or ""
        last = self.jobs[0].job_submissions[-1] if self.jobs and self.jobs[0].job_submissions else None
        if self.status != "running" or last is None or last.status != "running" or last.backend is None:
            return f"{name}: its status is {self.status}, not running"
        if (target := destination(None, name)) is None:
            return f"{name}: not a valid ssh host name"
        kinds = {gpu.name for gpu in last.gpus}
        notes = [SPOT] if last.spot else []
        if len(self.jobs) > 1:
            notes.append(f"the first of {len(self.jobs)} jobs: dstack attaches to one job of a run at a time")
        gpu, count = kinds.pop() if len(kinds) == 1 else None, len(last.gpus) or None
        return [_container(name, target, None, gpu, count, last.price, notes)]


def from_dstack(path: str) -> Found:
    """Read runs."""

    def runs(document: object) -> object:
        if isinstance(document, dict) and "instances" in document:
            raise UserError(
                f"{path}: this is a fleet, and dstack does not report how to log in to its instances. Start a task on "
                f"it (see docs/rent.md), then: {DSTACK} | tfbench init --from dstack"
            )
        return document.get("runs", document) if isinstance(document, dict) else document

    notes = (
        "The names of hosts are ssh aliases, which exist while `dstack attach NAME` runs: start one for each host,",
        "in a terminal of its own, before `tfbench check`.",
    )
    return _read(path, DSTACK, list[_Run], runs, *notes)


# ---- Vast.ai: an instance is a container with root and an sshd.


class _Binding(Described):
    """Where a port of a container is reached."""

    HostPort: str


def _only_mapping(value: object) -> object:
    """Pass over what is no mapping: Vast's own model calls it a text."""
    return value if isinstance(value, dict) else None


class _Instance(Rented):
    """What is used of an instance; `ports` is missing until it runs."""

    id: str
    label: str | None = None
    actual_status: str | None = None
    gpu_name: str | None = None
    num_gpus: int | None = None
    dph_total: Price | None = None
    is_bid: bool | None = None
    image_runtype: str | None = None
    public_ipaddr: str | None = None
    ports: Annotated[dict[str, list[_Binding] | None] | None, BeforeValidator(_only_mapping)] = None
    ssh_host: str | None = None
    ssh_port: int | None = None

    def machines(self) -> list[Machine] | str:
        name = self.label or f"vast-{self.id}"
        if self.actual_status != "running":
            return f"{name} ({self.id}): its status is {self.actual_status}, not running"
        target, port = self._address()
        if target is None or port is None:
            return f"{name} ({self.id}): no ssh address. Start it with ssh (runtype ssh)"
        notes = ["interruptible: it can be stopped at any time by a higher bid"] if self.is_bid else []
        return [_container(name, target, port, self.gpu_name, self.num_gpus, self.dph_total, notes)]

    def _address(self) -> tuple[str | None, int | None]:
        """Return the direct address, else that of Vast's proxy; as `vastai ssh-url` does."""
        direct = (self.ports or {}).get("22/tcp")
        if direct and self.public_ipaddr:
            return destination("root", self.public_ipaddr.strip()), port_number(direct[0].HostPort)
        if self.ssh_host is None or self.ssh_port is None:
            return None, None
        behind_jupyter = "jupyter" in (self.image_runtype or "")
        return destination("root", self.ssh_host.strip()), port_number(self.ssh_port + behind_jupyter)


def from_vast(path: str) -> Found:
    """Read instances."""

    def instances(document: object) -> object:  # of one page (--limit), and of older versions, in a mapping
        return document.get("instances", document) if isinstance(document, dict) else document

    note = "Prices are those of Vast's dph_total: GPU and disk, without traffic."
    return _read(path, "vastai show instances --raw", list[_Instance], instances, note)


# ---- RunPod: a pod is a container with root, as its REST API describes it.

RUNPOD = 'curl -H "Authorization: Bearer $RUNPOD_API_KEY" "https://rest.runpod.io/v1/pods?includeMachine=true"'


class _PodGPU(Described):
    count: int | None = None
    displayName: str | None = None  # noqa: N815 (as RunPod writes it)


class _Pod(Rented):
    id: str
    name: str | None = None
    status: str | None = Field(None, validation_alias="desiredStatus")
    cost: Price | None = Field(None, validation_alias="costPerHr")
    adjusted: Price | None = Field(None, validation_alias="adjustedCostPerHr")
    gpu: _PodGPU = _PodGPU()
    gpu_type: str | None = Field(None, validation_alias=AliasPath("machine", "gpuTypeId"))
    interruptible: bool | None = None
    public_ip: str | None = Field(None, validation_alias="publicIp")
    mappings: dict[str, int] | None = Field(None, validation_alias="portMappings")

    def machines(self) -> list[Machine] | str:
        name = self.name or f"runpod-{self.id}"
        if self.status != "RUNNING":
            return f"{name} (pod {self.id}): its status is {self.status}, not RUNNING"
        port = port_number((self.mappings or {}).get(str(SSH_PORT)))
        target = destination("root", self.public_ip or "")
        if target is None or port is None:
            return (
                f"{name} (pod {self.id}): no public address for port 22. RunPod's proxy (ssh.runpod.io) does not "
                "pass on commands: use a template with 22/tcp, and a machine with a public IP address"
            )
        notes = ["interruptible: it can be stopped at any time"] if self.interruptible else []
        gpu, cost = self.gpu.displayName or self.gpu_type, self.cost if self.adjusted is None else self.adjusted
        return [_container(name, target, port, gpu, self.gpu.count, cost, notes)]


def from_runpod(path: str) -> Found:
    """Read pods."""

    def pods(document: object) -> object:
        if isinstance(document, dict) and ("errors" in document or "error" in document):
            errors = document.get("errors") or document.get("error")
            raise UserError(f"{path}: RunPod answered with an error: {plain_text(str(errors), 300)}")
        return [document] if isinstance(document, dict) else document

    return _read(path, RUNPOD, list[_Pod], pods)


def _container(
    name: str, target: str, port: int | None, gpu: str | None, gpus: int | None, usd: float | None, notes: list[str]
) -> Machine:
    return Machine(
        name=name, way="ssh", target=target, port=port, gpu=gpu, gpus=gpus, usd_per_hour=usd, notes=tuple(notes)
    )

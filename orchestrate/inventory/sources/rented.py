"""Machines of services that rent them, from what their tools print as JSON: SkyPilot, dstack, Vast.ai and RunPod."""

from __future__ import annotations

import ast
import ipaddress
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

from pydantic import AliasChoices, AliasPath, BaseModel, BeforeValidator, ConfigDict, Field

from orchestrate.errors import UserError
from orchestrate.inventory.sources.machines import (
    SSH_PORT,
    Found,
    Machine,
    Price,
    destination,
    port_number,
    read_json,
    validated,
)

SPOT = "a spot instance: it can be stopped at any time"


class Described(BaseModel):
    """Part of a tool's output; what we do not use, and what its next version adds, is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)


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
    for entry in validated(kind, unwrap(read_json(path, command)), path, command):
        machines = entry.machines()
        if isinstance(machines, str):
            found.left_out.append(machines)
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
        return [
            Machine(
                name=name,
                way="ssh",
                target=target,
                gpu=kinds.pop() if len(kinds) == 1 else None,
                gpus=len(last.gpus) or None,
                usd_per_hour=last.price,
                notes=tuple(notes),
            )
        ]


def from_dstack(path: str) -> Found:
    """Read runs."""

    def runs(document: object) -> object:
        if isinstance(document, dict) and "instances" in document:
            raise UserError(
                f"{path}: this is a fleet, and dstack does not report how to log in to its instances. Start a task on "
                f"it (see docs/rent.md), then: {DSTACK} | tfbench hosts --from dstack -"
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
        notes = ("interruptible: it can be stopped at any time by a higher bid",) if self.is_bid else ()
        return [_reached_as_root(name, target, port, self.gpu_name, self.num_gpus, self.dph_total, notes)]

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


# ---- RunPod: a pod is a container with root. REST API (versions 1 and 2), or GraphQL, which the Python package uses.

RUNPOD = 'curl -H "Authorization: Bearer $RUNPOD_API_KEY" "https://rest.runpod.io/v1/pods?includeMachine=true"'
_INSIDE = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))


class _Port(Described):
    """A port of a running pod: GraphQL and REST 2 name its parts differently."""

    ip: str | None = None
    private: int | None = Field(None, validation_alias=AliasChoices("privatePort", "private"))
    public: int | None = Field(None, validation_alias=AliasChoices("publicPort", "public"))
    is_public: bool | None = Field(None, validation_alias="isIpPublic")
    type: str | None = None

    def from_outside(self) -> bool:
        """Return whether it is reached from outside: GraphQL says so, of REST 2 the address does."""
        if self.is_public is not None:
            return self.is_public
        try:
            address = ipaddress.ip_address(self.ip or "")
        except ValueError:
            return True  # a name
        return not any(address in network for network in _INSIDE)


class _Runtime(Described):
    ports: list[_Port] | None = None


class _Pod(Rented):
    id: str
    name: str | None = None
    status: str | None = Field(None, validation_alias=AliasChoices("desiredStatus", "status"))
    cost: Price | None = Field(None, validation_alias=AliasChoices("adjustedCostPerHr", "costPerHr", "cost"))
    gpus: int | None = Field(None, validation_alias=AliasChoices(AliasPath("gpu", "count"), "gpuCount"))
    machine_gpu: str | None = Field(None, validation_alias=AliasPath("machine", "gpuDisplayName"))
    pod_gpu: str | None = Field(None, validation_alias=AliasPath("gpu", "displayName"))
    machine_gpu_id: str | None = Field(None, validation_alias=AliasPath("machine", "gpuTypeId"))
    pod_gpu_id: str | None = Field(None, validation_alias=AliasPath("gpu", "id"))
    gpu_id: str | None = Field(None, validation_alias="gpuId")
    interruptible: bool | None = None
    kind: str | None = Field(None, validation_alias="podType")
    public_ip: str | None = Field(None, validation_alias="publicIp")
    mappings: dict[str, int] | None = Field(None, validation_alias="portMappings")
    runtime: _Runtime | None = None

    def machines(self) -> list[Machine] | str:
        name = self.name or f"runpod-{self.id}"
        if (self.status or "").upper() != "RUNNING":
            return f"{name} (pod {self.id}): its status is {self.status}, not RUNNING"
        target, port = self._address()
        if target is None or port is None:
            return (
                f"{name} (pod {self.id}): no public address for port 22. RunPod's proxy (ssh.runpod.io) does not "
                "pass on commands: use a template with 22/tcp, and a machine with a public IP address"
            )
        spot = self.interruptible or self.kind == "INTERRUPTABLE"  # as the API spells it
        notes = ("interruptible: it can be stopped at any time",) if spot else ()
        gpu = self.machine_gpu or self.pod_gpu or self.machine_gpu_id or self.pod_gpu_id or self.gpu_id
        return [_reached_as_root(name, target, port, gpu, self.gpus, self.cost, notes)]

    def _address(self) -> tuple[str | None, int | None]:
        """Return where its port 22 is reached from outside."""
        mapped = (self.mappings or {}).get(str(SSH_PORT))
        if self.public_ip and mapped:
            return destination("root", self.public_ip), port_number(mapped)
        for port in (self.runtime.ports if self.runtime else None) or []:
            if port.private == SSH_PORT and port.type in (None, "tcp") and port.ip and port.from_outside():
                return destination("root", port.ip), port_number(port.public)
        return None, None


def from_runpod(path: str) -> Found:
    """Read pods, whichever API lists them."""

    def pods(document: object) -> object:
        if isinstance(document, dict) and document.get("errors"):
            raise UserError(f"{path}: RunPod answered with an error: {str(document['errors'])[:300]}")
        for key in ("data", "myself", "pods"):
            if isinstance(document, dict) and key in document:
                document = document[key]
        return [document] if isinstance(document, dict) else document

    return _read(path, RUNPOD, list[_Pod], pods)


def _reached_as_root(
    name: str, target: str, port: int, gpu: str | None, gpus: int | None, usd: float | None, notes: tuple[str, ...]
) -> Machine:
    return Machine(name=name, way="ssh", target=target, port=port, gpu=gpu, gpus=gpus, usd_per_hour=usd, notes=notes)

"""`tfbench init --from`: reads rented machines from the JSON output of SkyPilot, dstack, Vast.ai and RunPod."""

from __future__ import annotations

import ast
import re
from abc import abstractmethod
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrate.errors import UserError
from orchestrate.inventory.machine_list import Machine, destination, hosts_file, port_number, read_json_text
from orchestrate.text import plain_text

SPOT = "a spot instance: it can be stopped at any time"

MAX_REPORTED = 5
"""Maximum number of mistakes shown: all entries tend to have the same one."""

Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
"""US dollars per hour."""


class Described(BaseModel):
    """Part of a tool's output; unused and unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)


class Rented(Described):
    """An entry of a tool's list.

    Attributes:
        command: Command that prints the list.
        notes: Comments for the whole file.
    """

    command: ClassVar[str]
    notes: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def entries(document: Any) -> object:  # noqa: ANN401 (any JSON)
        """Return the list in the tool's output."""
        return document

    @abstractmethod
    def machines(self) -> list[Machine] | str:
        """Return its machines, or why it cannot be reached."""


# ---- SkyPilot, whose command also writes an ssh alias for every node.

CONTAINERS = frozenset({"RunPod", "Vast", "Kubernetes", "SSH", "Slurm"})
"""Infrastructures with containers as nodes. Source: `sky/clouds`, `sky/provision` of SkyPilot 0.14."""

_DOCKER_IMAGE = re.compile(r"image_id=[^,)]*docker:")


class _Cluster(Rented):
    """A cluster; SkyPilot's JSON has neither addresses nor prices, but `ssh NAME` works for every node."""

    command = "sky status --output json"
    notes = ("The names of hosts are ssh aliases, which `sky status` writes and `sky down` removes.",)

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
        kind: Literal["docker", "ssh"] = "ssh" if container else "docker"
        machines = []
        for name in (self.name, *(f"{self.name}-worker{number}" for number in range(1, self.nodes))):
            machine = f"a virtual machine of {self.cloud}; if it has no Docker engine, write {{ssh: {name}}}"
            notes = tuple(([] if container else [machine]) + spot)
            machines.append(Machine(name=name, kind=kind, target=name, gpu=gpu, gpus=gpus, notes=notes))
        return machines


def _accelerators(text: str | None) -> tuple[str | None, int | None]:
    """Parse the text of a Python dictionary, `{'RTXA4000': 1}`; ignore anything else."""
    try:
        read = ast.literal_eval(text or "None")
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None, None
    if not isinstance(read, dict) or len(read) != 1:
        return None, None
    ((name, count),) = read.items()
    whole = isinstance(count, int | float) and not isinstance(count, bool) and count >= 1
    return str(name), int(count) if whole else None


# ---- dstack, where `ssh RUN` logs in to the container of a run.

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
    command = "dstack ps --json"
    notes = (
        "The names of hosts are ssh aliases, which exist while `dstack attach NAME` runs: start one for each host,",
        "in a terminal of its own, before `tfbench check`.",
    )

    status: str
    name: str | None = Field(validation_alias=AliasPath("run_spec", "run_name"))
    jobs: tuple[_Job, ...] = ()

    @staticmethod
    def entries(document: Any) -> object:  # noqa: ANN401
        """See `Rented.entries`."""
        if isinstance(document, dict) and "instances" in document:
            raise UserError(
                "this is a fleet, and dstack does not report how to log in to its instances. Start a task on it (see "
                f"docs/rent.md), then: {_Run.command} | tfbench init --from dstack"
            )
        return document.get("runs", document) if isinstance(document, dict) else document

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
        return _container(name, target, None, gpu, count, last.price, notes)


# ---- Vast.ai, whose instances are containers with root and an sshd.


class _Binding(Described):
    """Published port of a container."""

    HostPort: str


def _only_mapping(value: object) -> object:
    """Ignore anything but a mapping: Vast's own model declares it as text."""
    return value if isinstance(value, dict) else None


class _Instance(Rented):
    """An instance; `ports` is missing until it runs."""

    command = "vastai show instances --raw"
    notes = ("Prices are those of Vast's dph_total: GPU and disk, without traffic.",)

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

    @staticmethod
    def entries(document: Any) -> object:  # noqa: ANN401
        """See `Rented.entries`; one page (`--limit`), and the output of older versions, is a mapping."""
        return document.get("instances", document) if isinstance(document, dict) else document

    def machines(self) -> list[Machine] | str:
        name = self.label or f"vast-{self.id}"
        if self.actual_status != "running":
            return f"{name} ({self.id}): its status is {self.actual_status}, not running"
        target, port = self._address()
        if target is None or port is None:
            return f"{name} ({self.id}): no ssh address. Start it with ssh (runtype ssh)"
        notes = ["interruptible: it can be stopped at any time by a higher bid"] if self.is_bid else []
        return _container(name, target, port, self.gpu_name, self.num_gpus, self.dph_total, notes)

    def _address(self) -> tuple[str | None, int | None]:
        """Return the direct address, else that of Vast's proxy, like `vastai ssh-url`."""
        direct = (self.ports or {}).get("22/tcp")
        if direct and self.public_ipaddr:
            return destination("root", self.public_ipaddr.strip()), port_number(direct[0].HostPort)
        if self.ssh_host is None or self.ssh_port is None:
            return None, None
        behind_jupyter = "jupyter" in (self.image_runtype or "")
        return destination("root", self.ssh_host.strip()), port_number(self.ssh_port + behind_jupyter)


# ---- RunPod, whose pods are containers with root; output of its REST API.


class _PodGPU(Described):
    count: int | None = None
    displayName: str | None = None  # noqa: N815 (as RunPod writes it)


class _Pod(Rented):
    command = 'curl -H "Authorization: Bearer $RUNPOD_API_KEY" "https://rest.runpod.io/v1/pods?includeMachine=true"'

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

    @staticmethod
    def entries(document: Any) -> object:  # noqa: ANN401
        """See `Rented.entries`."""
        if isinstance(document, dict) and (errors := document.get("errors") or document.get("error")):
            raise UserError(f"RunPod answered with an error: {plain_text(str(errors), 300)}")
        return [document] if isinstance(document, dict) else document

    def machines(self) -> list[Machine] | str:
        name = self.name or f"runpod-{self.id}"
        if self.status != "RUNNING":
            return f"{name} (pod {self.id}): its status is {self.status}, not RUNNING"
        port = port_number((self.mappings or {}).get("22"))
        target = destination("root", self.public_ip or "")
        if target is None or port is None:
            return (
                f"{name} (pod {self.id}): no public address for port 22. RunPod's proxy (ssh.runpod.io) does not "
                "pass on commands: use a template with 22/tcp, and a machine with a public IP address"
            )
        notes = ["interruptible: it can be stopped at any time"] if self.interruptible else []
        gpu, cost = self.gpu.displayName or self.gpu_type, self.cost if self.adjusted is None else self.adjusted
        return _container(name, target, port, gpu, self.gpu.count, cost, notes)


def _container(
    name: str, target: str, port: int | None, gpu: str | None, gpus: int | None, usd: float | None, notes: list[str]
) -> list[Machine]:
    return [
        Machine(
            name=name, kind="ssh", target=target, port=port, gpu=gpu, gpus=gpus, usd_per_hour=usd, notes=tuple(notes)
        )
    ]


SOURCES: dict[str, type[Rented]] = {"sky": _Cluster, "dstack": _Run, "vast": _Instance, "runpod": _Pod}
"""Kinds of entries by tool."""


def import_hosts(source: str, path: str) -> str:
    """Return a `hosts.yml` with the machines that a tool lists.

    Args:
        source: Name of the tool; see `SOURCES`.
        path: File with its output; `-`: standard input.

    Raises:
        UserError: The file cannot be read, is not the tool's output, or has no reachable machine.
    """
    kind = SOURCES[source]
    document = read_json_text(path, kind.command)
    machines: list[Machine] = []
    excluded: list[str] = []
    try:
        listed: list[Rented] = TypeAdapter(list[kind]).validate_python(kind.entries(document))  # type: ignore[valid-type]
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        lines = [f"  {'.'.join(map(str, item['loc'])) or 'all'}: {item['msg']}" for item in found[:MAX_REPORTED]]
        lines += [f"  and {len(found) - MAX_REPORTED} more"] if len(found) > MAX_REPORTED else []
        wrong = "\n".join(plain_text(line, 500) for line in lines)
        raise UserError(f"{path}: not the output of: {kind.command}\n{wrong}") from error
    for entry in listed:
        answer = entry.machines()
        if isinstance(answer, str):
            excluded.append(answer)
        else:
            machines += answer
    if not machines:
        reasons = "\n".join(f"  {reason}" for reason in excluded) or "  it is empty"
        raise UserError(f"{path}: no reachable machine:\n{reasons}")
    return hosts_file(machines, excluded, kind.notes, source)

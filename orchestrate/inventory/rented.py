"""`tfbench init --from`: writes rented machines as hosts.yml, from the JSON of SkyPilot, dstack, Vast.ai and RunPod."""

from __future__ import annotations

import ast
import json
import re
import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrate.errors import UserError
from orchestrate.text import plain_text
from results.reference.gpus import gpu_key

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


STDIN = "-"
MAX_PORT = 65_535

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A reachable rented machine.

    Attributes:
        name: Its name in the tool.
        kind: Key of `hosts.yml`: `docker` for a machine with an engine, `ssh` for one that is a container itself.
        target: An alias of the ssh configuration, or `user@host`.
        port: Of its sshd; None: from the ssh configuration.
        gpu: Name of its GPUs in the tool; None: not reported.
        gpus: Number of GPUs; None: not reported.
        usd_per_hour: Price of the whole machine; None: not reported.
        notes: Comments for the user.
    """

    name: str
    kind: Literal["docker", "ssh"]
    target: str
    port: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    usd_per_hour: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Return target and port in the format of `hosts.yml`."""
        return self.target if self.port is None else f"{self.target}:{self.port}"

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Return the price of one GPU."""
        if self.usd_per_hour is None:
            return None
        return round(self.usd_per_hour / max(1, self.gpus or 1), 4)


def destination(user: str | None, host: str) -> str | None:
    """Return an ssh destination; None: user or host is not a valid name."""
    if user is not None and not _PLAIN.fullmatch(user):
        return None
    if _IPV6.fullmatch(host):
        host = f"[{host}]"
    elif not _PLAIN.fullmatch(host):
        return None
    return host if user is None else f"{user}@{host}"


def port_number(value: object) -> int | None:
    """Parse a port number; None: not a port."""
    number = int(str(value)) if re.fullmatch(r"[0-9]{1,5}", str(value)) else 0
    return number if 0 < number <= MAX_PORT else None


def read_json_text(path: str, command: str) -> Any:  # noqa: ANN401 (any JSON)
    """Parse a file or standard input as JSON.

    Args:
        path: File, or `-`.
        command: The command that prints it, for messages.

    Raises:
        UserError: It cannot be read, or is not JSON.
    """
    try:
        with sys.stdin.buffer if path == STDIN else Path(path).expanduser().open("rb") as file:
            return json.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}. Expected the output of: {command}") from error


UNKNOWN_FLEET = "unknown-gpu"
MAX_NAME = 55
"""Maximum length of a name: `hosts.yml` allows 63 characters, and equal names get a number appended."""

MAX_COMMENT = 300

HEADER = """\
# Written by `tfbench init --from {source}`. Read the comments, then run: tfbench check
# All keys and their meanings: hosts.example.yml
"""


def hosts_file(found: Sequence[Machine], excluded: Sequence[str], notes: Sequence[str], source: str) -> str:
    """Return a `hosts.yml` with the given machines.

    A machine that is listed under two names is written once: simultaneous benchmarks disturb each other.

    Args:
        found: At least one machine.
        excluded: Why other machines cannot be reached.
        notes: Comments for the whole file.
        source: Name of the tool.
    """
    machines, twins = _single(found)
    lines = [*HEADER.format(source=source).splitlines(), *(f"# {_comment(note)}" for note in notes)]
    lines += ["version: 1", "", "defaults:", "  suite: standard", "  host_keys: accept-new"]
    if any(machine.kind == "docker" for machine in machines):
        lines.append(
            "  # registry: registry.example.org/bench   # where hosts with Docker pull images from: docs/images.md"
        )
    fleets: dict[str, list[Machine]] = {}
    for machine in machines:
        fleets.setdefault(fleet_name(machine.gpu), []).append(machine)
    lines += ["", "fleets:"]
    taken: set[str] = set()
    for fleet in sorted(fleets, key=lambda fleet: fleet == UNKNOWN_FLEET):
        lines += _fleet(fleet, fleets[fleet], taken)
    if left := [*excluded, *twins]:
        lines += ["", "# Excluded:", *(f"#   {_comment(reason)}" for reason in left)]
    return "\n".join(lines) + "\n"


def fleet_name(gpu: str | None) -> str:
    """Return a fleet's name from its GPU: `RTX A4000`, `RTX_A4000` and `NVIDIA RTX A4000` are `a4000`.

    Args:
        gpu: Name in the tool; None: unknown.
    """
    if gpu is None or not gpu.strip():
        return UNKNOWN_FLEET
    plain = (gpu_key(gpu) or gpu).lower().replace("nvidia", "").replace("geforce", "")
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return re.sub(r"^rtx-(?=a\d{4})", "", words)[:MAX_NAME] or UNKNOWN_FLEET


def _fleet(fleet: str, members: Sequence[Machine], taken: set[str]) -> list[str]:
    lines = [f"  {_key(fleet)}:"]
    if fleet == UNKNOWN_FLEET:
        lines.append("    # The source does not name the GPUs. `tfbench check` shows them: one fleet per kind of GPU.")
    prices = {machine.usd_per_gpu_hour for machine in members}
    (common,) = prices if len(prices) == 1 else (None,)
    if common is not None:
        lines.append(f"    usd_per_gpu_hour: {common:g}")
    elif prices == {None}:
        lines.append("    # usd_per_gpu_hour:   # the source has no price; add it to see costs")
    lines.append("    hosts:")
    for machine in members:
        entry = [f"{machine.kind}: {json.dumps(('ssh://' if machine.kind == 'docker' else '') + machine.address)}"]
        if common is None and machine.usd_per_gpu_hour is not None:
            entry.append(f"usd_per_gpu_hour: {machine.usd_per_gpu_hour:g}")
        count = "" if machine.gpus is None else f"{machine.gpus} × "
        gpu = "" if machine.gpu is None else f"   # {count}{_comment(machine.gpu)}"
        lines += [f"      # {_comment(note)}" for note in machine.notes]
        lines.append(f"      {_key(_unique(machine.name, taken))}: {{{', '.join(entry)}}}{gpu}")
    return lines


def _single(machines: Iterable[Machine]) -> tuple[list[Machine], list[str]]:
    """Return machines with distinct addresses, and why the others are excluded."""
    kept: dict[tuple[str, int | None], Machine] = {}
    twins = []
    for machine in machines:
        first = kept.setdefault((machine.target, machine.port), machine)
        if first is not machine:
            twins.append(f"{machine.name}: the same address as {first.name}")
    return list(kept.values()), twins


def _unique(name: str, taken: set[str]) -> str:
    """Return a unique name for `hosts.yml`, similar to the tool's, and add it to `taken`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:MAX_NAME] or "host"
    number, unique = 1, plain
    while unique in taken:
        number += 1
        unique = f"{plain}-{number}"
    taken.add(unique)
    return unique


def _key(name: str) -> str:
    """Format a key, quoted if YAML could read it as a number or a boolean."""
    is_word = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and name.lower() not in _NO_TEXTS
    return name if is_word else json.dumps(name)


_NO_TEXTS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _comment(text: str) -> str:
    return re.sub("[\ufffe\uffff]", "", plain_text(text, MAX_COMMENT))  # not allowed in YAML

"""Reads `hosts.yml`: machines, how to reach them, and what to measure on them.

Every key may be under `defaults`, a fleet or a host; the innermost one applies. The levels of a host are merged, and
checked as one `Entry`; `read_hosts` returns frozen `Host`s, so that no other code depends on the level of a key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
)

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import (
    AS_CONFIGURED,
    DockerAddress,
    HostKeys,
    SSHAddress,
    docker_address,
    ssh_address,
)
from orchestrate.inventory.queues import KubernetesQueue, Number, SlurmQueue, as_text
from orchestrate.inventory.variants import read_variants, unknown_variant
from orchestrate.suites import SUFFIXES
from orchestrate.text import plain_text
from orchestrate.yaml_files import Document, ExistingFile, Form, Path_, described, resolve_path
from results.schema import Device

RELEASED_IMAGES = Path(__file__).parent / "registry.txt"
"""The registry of this release's images, e.g. `ghcr.io/OWNER`. Only the release workflow writes this file into the
package: a default name under which nothing is published yet could be claimed by anyone."""

MOST = 1_000_000
"""Larger numbers are typos, and would lead to infinities or to plans that exceed the memory."""

AUTOMATIC = ("all", "auto")
"""Values of settings that leave the choice to tfbench."""


def _unless_automatic(value: object) -> object:
    return None if value in AUTOMATIC else value


def _once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _resolved_suite(name: str, info: ValidationInfo) -> str:
    """Resolve the path of a suite's file, relative to the hosts file."""
    return str(resolve_path(name, info.context or Path())) if Path(name).suffix in SUFFIXES else name


def _known_variant(name: str, info: ValidationInfo) -> str:
    """Check that a variant is a row of `containers/images.toml`."""
    if info.context is not None and name not in read_variants():
        raise ValueError(f"{unknown_variant(name)}. To use an image of your own, set image:")
    return name


def _no_file(name: str) -> str:
    """Refuse a variable whose value is a file: records with equal variables must mean equal conditions."""
    if name.endswith("_FILE"):
        raise ValueError(f"environment: {name} names a file, whose contents a record would not keep. Remove it")
    return name


_WORD = "[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*"
_REPOSITORY = rf"(?:{_WORD}|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?(?:/{_WORD})*"

GPUs = Annotated[tuple[Annotated[StrictInt, Field(ge=0, le=1000)], ...], Field(min_length=1), AfterValidator(_once)]
Price = Annotated[Number, Field(ge=0, le=MOST)]
AbsolutePath = Annotated[StrictStr, Field(pattern=r"^/[^:,\"\x00-\x1f]+$")]
HostAddress = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}$")]
Interpreter = Annotated[StrictStr, Field(pattern=r"^[/A-Za-z0-9][^\x00-\x1f]*$")]
Positive = Annotated[Number, Field(gt=0, le=MOST)]
Variants = Annotated[
    tuple[Annotated[StrictStr, AfterValidator(_known_variant)], ...],
    BeforeValidator(lambda value: () if value in AUTOMATIC else [value] if isinstance(value, str) else value),
    AfterValidator(_once),
]
Repository = Annotated[StrictStr, Field(pattern=f"^{_REPOSITORY}/?$")]
Reference = Annotated[
    StrictStr, Field(pattern=f"^{_REPOSITORY}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?$")
]
Variable = Annotated[StrictStr, Field(pattern="^(?:NCCL_[A-Z0-9_]{1,100}|XLA_FLAGS)$"), AfterValidator(_no_file)]
"""Those that records contain: `_VARIABLES` in tfbench/devices.py."""

Value = Annotated[StrictStr, BeforeValidator(as_text), Field(pattern="^[ -~]{0,500}$")]
"""A record keeps at most 500 characters."""

AcceptedKeys = Annotated[HostKeys, BeforeValidator(lambda text: {"policy": text} if isinstance(text, str) else text)]


class TLSFiles(Form):
    """Files for a `tcp://` engine with mutual TLS."""

    ca: ExistingFile
    cert: ExistingFile
    key: ExistingFile


class Settings(Form):
    """Keys of `hosts.yml` that a host keeps.

    Attributes:
        slurm: The queue that assigns machines; None: see `kubernetes`, or this is a machine.
        kubernetes: See `slurm`.
        python: Interpreter with TensorFlow on an `ssh` host; None: locked packages are installed.
        address: Address for the fleet's other hosts; None: that of its engine or sshd.
        gpus: GPU indices to use; None: all.
        device: What to train on; None: the GPU if there is one.
        variant: Image variants to measure with; empty: chosen by driver and GPU.
        image_source: `pull`, `local` or `transfer`; None: pull if a registry or an image is named, else local.
        cpus: CPUs that a benchmark may use; None: all.
        data_dir: Folder of TFRecords on the host, or None.
        environment: Variables for every benchmark by name, merged from all levels.
        host_keys: Host keys that ssh accepts, of the host or of a queue's login host.
        network: Network of containers in multi-host jobs: `bridge` or `host`.
        cluster_port: First port of multi-host jobs.
    """

    slurm: SlurmQueue | None = None
    kubernetes: KubernetesQueue | None = None
    python: Interpreter | None = described("the path of a Python with TensorFlow", "/opt/conda/bin/python")
    address: HostAddress | None = described("a name or address without a port", "10.0.0.11")
    suite: Annotated[StrictStr, AfterValidator(_resolved_suite)] | None = None
    repeats: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    gpus: Annotated[GPUs | None, BeforeValidator(_unless_automatic)] = described(
        "'all' or a list of GPU indices from 0", "[0, 1]"
    )
    device: Annotated[Device | None, BeforeValidator(_unless_automatic)] = described("'auto', 'gpu' or 'cpu'", "cpu")
    variant: Variants = described("the name of an image variant, or a list of them", "cuda12.5", default=())
    registry: Repository | None = described("an image registry and path, without a tag", "registry.example.org/bench")
    image: Reference | None = described("an image reference", "registry.example.org/bench/tfbench:mine")
    image_source: Literal["pull", "local", "transfer"] | None = None
    cpus: Positive | None = described("a number above 0", "2")
    memory_gb: Positive | None = described("a number above 0, in gigabytes (10⁹ bytes)", "16")
    usd_per_gpu_hour: Price | None = described("a price in US dollars, at least 0", "0.17")
    data_dir: AbsolutePath | None = described("the absolute path of a folder of TFRecords", "/data/imagenet")
    environment: Annotated[dict[Variable, Value], Field(max_length=100)] = described(
        "a mapping of NCCL_… and XLA_FLAGS, which records keep, to at most 500 ASCII characters",
        "{NCCL_DEBUG: INFO}",
        default={},
    )
    timeout_minutes: Positive = described("a number above 0, in minutes", "60", default=60.0)
    silence_minutes: Positive = described("a number above 0, in minutes", "15", default=15.0)
    host_keys: AcceptedKeys = described("'strict' or 'accept-new'", "strict", default=AS_CONFIGURED)
    network: Literal["bridge", "host"] = "bridge"
    cluster_port: Annotated[StrictInt, Field(ge=1024, le=60_000)] = 29_500


WAYS = ("docker", "ssh", "process", "slurm", "kubernetes")


class Entry(Settings):
    """The keys of a host in `hosts.yml`, with those of its fleet and of the defaults; exactly one of `WAYS`."""

    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("port", "user"), "Write it into the address: ssh: root@203.0.113.7:22044"),
        **dict.fromkeys(("identity_file", "key"), "Write `IdentityFile` into ~/.ssh/config"),
    }

    docker: Annotated[DockerAddress, PlainValidator(docker_address)] | None = None
    ssh: Annotated[SSHAddress, PlainValidator(ssh_address)] | None = None
    docker_socket: AbsolutePath | None = described(
        "the absolute path of the engine's socket", "/run/user/1000/docker.sock"
    )
    ssh_config: ExistingFile | None = None
    process: StrictBool | None = None
    tls: TLSFiles | None = None
    insecure: StrictBool | None = None

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`."""
        ways = [key for key in WAYS if getattr(self, key)]
        if len(ways) != 1:
            received = f"Received: {', '.join(ways) or 'none'}. Example: docker: ssh://bench@10.0.0.11"
            yield "", f"set exactly one of docker, ssh, process, or of a fleet slurm and kubernetes. {received}"
        if self.docker and self.docker.scheme == "tcp" and not self.tls and not self.insecure:
            text = "tcp:// without TLS gives anyone on the network control of the machine. "
            yield "docker", f"{text}Add tls: {{ca: …, cert: …, key: …}}, use ssh://, or set insecure: true"
        if self.kubernetes and not (self.image or self.registry):
            text = "registry is missing: nodes pull images from it. Example: registry: registry.example.org/bench"
            yield "kubernetes", text
        if self.slurm and self.slurm.container != "none" and not (self.image or self.variant):
            text = "the nodes' driver cannot be queried. Choose an image that suits it. Example: variant: cuda12.5"
            yield "slurm", text

    def ignored(self) -> Mapping[str, str]:
        """Return the keys without an effect on this host, and what to do about them if they are its own."""
        scheme = self.docker.scheme if self.docker else None
        over_ssh, queue = scheme == "ssh" or self.ssh is not None, self.slurm or self.kubernetes
        containers = bool(self.docker or self.kubernetes or (self.slurm and self.slurm.container != "none"))
        rules = (
            (scheme == "tcp", "tcp://", ("tls", "insecure")),
            (scheme == "ssh", "ssh://", ("docker_socket",)),
            (over_ssh, "ssh://", ("ssh_config",)),
            (over_ssh or queue is not None, "ssh://", ("host_keys",)),
            (self.ssh is not None, "ssh: hosts", ("python",)),
            (queue is None, "hosts", ("gpus",)),
            (self.docker is not None, "Docker engines", ("image_source",)),
            (self.docker is not None or queue is not None, "Docker engines", ("memory_gb",)),
            (self.docker is not None or self.ssh is not None, "Docker engines", ("address",)),
            (containers, "containers", ("registry", "image")),
            (containers or (self.ssh is not None and not self.python), "images, not python:", ("variant",)),
            (self.image is None, "settings without image:", ("registry", "variant")),
        )
        return dict(self.misplaced(rules))


FleetName = Annotated[StrictStr, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
"""Part of file and container names; without dots, so that `FLEET.HOST` is unique."""

HostName = Annotated[StrictStr, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Fleet(Form):
    """A group of machines that are meant to be equal: a list of hosts, or without them one host or queue."""

    model_config = ConfigDict(extra="allow")

    hosts: Annotated[dict[HostName, dict[str, Any]], Field(min_length=1)] | None = described(
        "a mapping of names (letters from A to Z, digits, '.', '_', '-', at most 63 in all) to hosts",
        "{node-a: {docker: 'ssh://node-a'}}",
    )


class HostsFile(Form):
    """The document `hosts.yml`."""

    version: Literal[1]
    defaults: dict[str, Any] = described("a mapping of settings", "{suite: quick}", default={})
    fleets: Annotated[dict[FleetName, Fleet], Field(min_length=1)] = Field(
        description="a mapping of names (letters from A to Z, digits, '_' and '-', at most 63 in all) to fleets",
        examples=["{here: {hosts: {this-machine: {process: true}}}}"],
    )


class HostPlace(NamedTuple):
    """Fleet and host of a repeat; either name may contain dots, so joining them would be ambiguous."""

    fleet: str
    host: str


class Host(Settings):
    """A machine with all its settings resolved, or a queue, which is one host of its fleet in a plan.

    Attributes:
        docker: Address of its Docker engine; None: without Docker. Without `ssh` and a queue, too, a subprocess of this
            Python.
        ssh: Address of a host without an engine, or None.
    """

    fleet: str
    name: str
    docker: DockerAddress | None = None
    ssh: SSHAddress | None = None

    @property
    def queue(self) -> SlurmQueue | KubernetesQueue | None:
        """Return the queue that assigns machines; None: this is a machine."""
        return self.slurm or self.kubernetes

    @property
    def cluster_address(self) -> str | None:
        """Return the address for the fleet's other hosts; None: unknown."""
        if self.address is not None:
            return self.address
        if self.docker is not None and self.docker.scheme == "tcp":
            return self.docker.target.rpartition(":")[0].strip("[]")
        return None if self.login is None else self.login.target.rpartition("@")[2]

    @property
    def login(self) -> SSHAddress | None:
        """Return the ssh destination of this host, or of its queue's login host; None: ssh is not used."""
        if self.slurm is not None:
            return self.slurm.login
        return self.docker if self.docker and self.docker.scheme == "ssh" else self.ssh

    def moved_to(self, now: Host) -> Host:
        """Return this host with the address of another description of it, unless that is of another kind of host."""
        if now.launcher != self.launcher:
            return self
        moved: dict[str, Any] = {name: getattr(now, name) for name in ("docker", "ssh", "host_keys", "address")}
        if self.slurm and now.slurm:
            moved["slurm"] = self.slurm.model_copy(update={"ssh": now.slurm.ssh, "ssh_config": now.slurm.ssh_config})
        return self.model_copy(update=moved)

    @property
    def is_remote(self) -> bool:
        """Return whether it is reached over a network."""
        return bool(self.login or self.kubernetes or (self.docker and self.docker.scheme == "tcp"))

    @property
    def place(self) -> HostPlace:
        """Return fleet and name, the host's identity within a run."""
        return HostPlace(self.fleet, self.name)

    @property
    def key(self) -> str:
        """Return the host's name in messages, events and files; it is never parsed."""
        return f"{self.fleet}.{self.name}"

    @property
    def pulls(self) -> bool:
        """Return whether images are pulled from a registry."""
        return self.image_source == "pull" or (self.image_source is None and bool(self.registry or self.image))

    @property
    def wants_gpus(self) -> bool:
        """Return whether GPUs of this host may be used."""
        return self.device is not Device.CPU

    @property
    def launcher(self) -> str:
        """Return the kind of launcher."""
        return next((way for way in WAYS if getattr(self, way, None)), "process")

    @property
    def slots(self) -> int:
        """Return the number of parallel repeats: 1 on a machine, where several would disturb each other."""
        return 1 if self.queue is None else self.queue.max_jobs


def host_from_plan(document: Any) -> Host:  # noqa: ANN401 (any JSON)
    """Parse a host of a plan, where until version 2 a queue was one level deeper."""
    if isinstance(document, dict):
        document |= document.pop("queue", None) or {}
    return Host.model_validate(document)


def read_hosts(path: Path, limit: Collection[str] | None = None) -> list[Host]:
    """Read a hosts file.

    Args:
        path: Of the file.
        limit: Names of fleets and hosts to use; None: all.

    Raises:
        DocumentError: All mistakes at once, in the order of their lines.
        UserError: No fleet or host has a name of `limit`.
    """
    document = Document(path)
    hosts = list(_hosts(document, document.validated(HostsFile)))
    seen: dict[SSHAddress | None, Host] = {}
    for host in hosts:
        if host.queue is None and (other := seen.setdefault(host.docker or host.ssh, host)) is not host:
            document.problem(
                ("fleets", host.fleet, "hosts", host.name),
                f"is the same machine as host {plain_text(other.name, 80)}. Two benchmarks at a time would disturb "
                "each other. List each machine once; to compare its GPUs, make two runs with different gpus:",
            )
    document.raise_problems()
    if not limit:
        return hosts
    names = {name for host in hosts for name in (host.fleet, host.name, host.key)}
    if unknown := [name for name in limit if name not in names]:
        known = ", ".join(sorted({host.fleet for host in hosts} | {host.name for host in hosts}))
        raise UserError(f"--limit: no fleet or host is named {', '.join(unknown)}. Names: {known}")
    wanted = set(limit)
    return [host for host in hosts if wanted & {host.fleet, host.name, host.key}]


Level = tuple[Path_, dict[str, Any]]
"""The path of a level of the file, and its keys."""


def _hosts(document: Document, checked: HostsFile) -> Iterator[Host]:
    """Yield the hosts of a file without mistakes; a queue is a host. Mistakes of others are added to the document."""
    for fleet_name, fleet in checked.fleets.items():
        path, shared = ("fleets", fleet_name), fleet.model_extra or {}
        levels: list[Level] = [(("defaults",), checked.defaults), (path, shared)]
        for name in fleet.hosts or [next((way for way in WAYS if way in shared), "host")]:
            own: list[Level] = [*levels, ((*path, "hosts", name), fleet.hosts[name])] if fleet.hosts else levels
            try:
                yield _host(document, fleet_name, name, own)
            except ValidationError as error:
                document.report(error, {key: place for place, level in own for key in level}, own[-1][0])


def _host(document: Document, fleet: str, name: str, levels: Sequence[Level]) -> Host:
    """Resolve the settings of a host: the innermost setting applies, and environments are merged.

    An image overrides the registry and variant of outer levels, and vice versa. Each fleet has its own file of host
    keys, which can be deleted together with its machines.

    Args:
        document: The hosts file; receives keys of the innermost level that would be ignored, as mistakes.
        fleet: Name of the host's fleet.
        name: Of the host.
        levels: Paths and keys of the levels, from the defaults to the host's own.

    Raises:
        ValidationError: The settings have mistakes.
    """
    merged: dict[str, Any] = {}
    for _, level in levels:
        if {"registry", "variant"} & level.keys():
            merged.pop("image", None)
        outer, inner = merged.get("environment"), level.get("environment")
        merged |= level
        if isinstance(outer, dict) and isinstance(inner, dict):
            merged["environment"] = outer | inner
    entry = Entry.model_validate(merged, context=document.folder)
    ignored = entry.ignored()
    path, own = levels[-1]
    for key in ignored.keys() & own.keys():
        document.problem((*path, key), ignored[key])
    entry = entry.model_copy(update=dict.fromkeys(ignored))
    kept = {key: getattr(entry, key) for key in entry.model_fields_set & Settings.model_fields.keys() - ignored.keys()}
    if entry.docker is not None:
        socket = entry.docker_socket or entry.docker.socket
        tls = (entry.tls.ca, entry.tls.cert, entry.tls.key) if entry.tls else None
        kept["docker"] = dataclasses.replace(entry.docker, socket=socket, ssh_config=entry.ssh_config, tls=tls)
        if not entry.image and entry.image_source in (None, "pull"):
            released = RELEASED_IMAGES.read_text(encoding="utf-8").strip() if RELEASED_IMAGES.is_file() else None
            kept.setdefault("registry", released)
    if entry.ssh is not None:
        kept["ssh"] = dataclasses.replace(entry.ssh, ssh_config=entry.ssh_config)
    known_hosts = str((document.folder / f"{Path(document.name).stem}.{fleet}.known_hosts").absolute())
    kept["host_keys"] = dataclasses.replace(kept.get("host_keys", AS_CONFIGURED), file=known_hosts)
    kept["environment"] = dict(sorted(entry.environment.items()))
    return Host(fleet=fleet, name=name, **kept)

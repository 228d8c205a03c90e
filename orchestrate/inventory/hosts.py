"""`hosts.yml`: which machines there are, how to reach them, what to measure on them.

Settings are under `defaults`, a fleet or a host; the innermost wins. `read_hosts` returns plain frozen
`Host`s in which everything is resolved, so that no later code depends on where a setting was written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from orchestrate.errors import DocumentError, UserError
from orchestrate.inventory.addresses import AS_CONFIGURED, DockerAddress, HostKeys, SSHAddress
from orchestrate.inventory.form import AUTO, HostEntry, HostsFile, Settings, given
from orchestrate.inventory.queues import Queue, SlurmQueue
from orchestrate.text import plain_text
from orchestrate.yaml_files import Document, Path_, read_document, validate_document
from results.schema import Device

RELEASED_IMAGES = Path(__file__).parent / "registry.txt"
"""Where the images of this release are, e.g. `ghcr.io/OWNER`. Only the release workflow writes it, into the package: a
default name under which nothing is published yet could be taken by anybody."""


class HostPlace(NamedTuple):
    """Where a repeat runs: either name may hold dots, so that only both together are unique."""

    fleet: str
    host: str


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with all its settings resolved; or a queue, which stands in a plan as one host of its fleet.

    Attributes:
        docker: None: a queue where there is one, else a subprocess of this Python.
        ssh: A host without an engine, reached by ssh; None: it is reached otherwise.
        python: On an `ssh` host, an interpreter that has TensorFlow; None: locked packages are installed.
        host_keys: Which host keys ssh accepts, of the host or of a queue's login host.
        queue: What gives the machines; None: this is one.
        gpus: GPU indices to use; None: all.
        variants: Image variants to measure with; empty: chosen by driver and GPU.
        image_source: `pull`, `local` or `transfer`; None: pull where a registry or an image is named, else local.
        device: What to train on; None: the GPU where there is one.
        cpus: CPUs that a benchmark may use; None: all.
        data_dir: Folder of TFRecords on the host; None: it has none.
        environment: Variables that every benchmark gets, by name; those of all levels, the innermost value of each.
        address: Where the fleet's other hosts reach it; None: where its engine or sshd is reached.
        network: `bridge` or `host`: of containers that train together with those of other hosts.
        cluster_port: First of the ports for that.
    """

    fleet: str
    name: str
    docker: DockerAddress | None = None
    ssh: SSHAddress | None = None
    python: str | None = None
    host_keys: HostKeys = AS_CONFIGURED
    queue: Queue | None = None
    suite: str | None = None
    repeats: int | None = None
    gpus: tuple[int, ...] | None = None
    device: Device | None = None
    variants: tuple[str, ...] = ()
    registry: str | None = None
    image: str | None = None
    image_source: str | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    usd_per_gpu_hour: float | None = None
    data_dir: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_minutes: float = 60.0
    silence_minutes: float = 15.0
    address: str | None = None
    network: str = "bridge"
    cluster_port: int = 29_500

    @property
    def cluster_address(self) -> str | None:
        """Where the fleet's other hosts reach this one; None: unknown."""
        if self.address is not None:
            return self.address
        if self.ssh is not None:
            return self.ssh.target.rpartition("@")[2]
        if self.docker is None or self.docker.scheme == "unix":
            return None
        where = self.docker.target.rpartition("@")[2]
        return where.rpartition(":")[0].strip("[]") if self.docker.scheme == "tcp" else where

    @property
    def login(self) -> SSHAddress | None:
        """Where ssh goes for this host, or for the login host of its queue; None: ssh is not used."""
        if isinstance(self.queue, SlurmQueue):
            return self.queue.login
        if self.docker is not None:
            return self.docker.login if self.docker.scheme == "ssh" else None
        return self.ssh

    @property
    def place(self) -> HostPlace:
        """Name the host within a run, for programs."""
        return HostPlace(self.fleet, self.name)

    @property
    def key(self) -> str:
        """Name the host in messages, events and files; nothing reads fleet and host back from it."""
        return f"{self.fleet}.{self.name}"

    @property
    def pulls(self) -> bool:
        """Return whether images come from a registry, rather than from what was built on the host."""
        if self.image_source is None:
            return self.registry is not None or self.image is not None
        return self.image_source == "pull"

    @property
    def wants_gpus(self) -> bool:
        """Return whether GPUs of this host matter."""
        return self.device is not Device.CPU

    @property
    def launcher(self) -> str:
        """Name what starts benchmarks here."""
        if self.queue is not None:
            return self.queue.kind
        if self.ssh is not None:
            return "ssh"
        return "process" if self.docker is None else "docker"

    @property
    def slots(self) -> int:
        """Return how many repeats are followed at a time: more than one would disturb each other on one machine."""
        return 1 if self.queue is None else self.queue.max_jobs


def read_hosts(path: Path, limit: Collection[str] | None = None) -> list[Host]:
    """Read a hosts file.

    Args:
        path: Of the file.
        limit: Names of fleets and hosts: only these; None: all.

    Raises:
        DocumentError: All mistakes at once, in the order of their lines.
        UserError: No fleet or host has a name of `limit`.
    """
    document = read_document(path)
    checked = validate_document(HostsFile, document)
    hosts = [] if checked is None else list(_resolve(document, path, checked))
    if document.problems:
        raise DocumentError(document.report())
    if not limit:
        return hosts
    names = {name for host in hosts for name in (host.fleet, host.name, host.key)}
    if unknown := [name for name in limit if name not in names]:
        known = ", ".join(sorted({host.fleet for host in hosts} | {host.name for host in hosts}))
        raise UserError(f"--limit: no fleet or host is named {', '.join(unknown)}. Names: {known}")
    wanted = set(limit)
    return [host for host in hosts if wanted & {host.fleet, host.name, host.key}]


def _resolve(document: Document, file: Path, checked: HostsFile) -> Iterator[Host]:
    """Resolve the settings of each host, level by level in one pass, and check what hosts mean together.

    Args:
        document: As parsed; takes the mistakes.
        file: Its path.
        checked: What is right of the document by itself: all further mistakes come at once with those.
    """
    seen: dict[object, Path_] = {}
    for fleet_name, fleet in checked.fleets.items():
        path, levels = ("fleets", fleet_name), [checked.defaults, fleet]
        if queue := fleet.slurm or fleet.kubernetes:
            place = (*path, queue.kind)
            if text := queue.lacks(given(checked.defaults) | given(fleet)):
                document.problem(place, text)
            _check_single(document, place, None, seen)
            own: dict[str, Any] = {"queue": queue, "gpus": None, "image_source": None}
            if isinstance(queue, SlurmQueue) and queue.container == "none":
                own |= {"registry": None, "image": None, "variants": ()}
            yield _host(file, fleet_name, queue.kind, levels, own)
        for name, entry in (fleet.hosts or {}).items():
            docker = _engine(entry)
            ssh = entry.ssh and dataclasses.replace(entry.ssh, ssh_config=entry.ssh_config)
            _check_single(document, (*path, "hosts", name), docker or ssh or "this machine", seen)
            own = {"docker": docker, "ssh": ssh, "python": entry.python, "address": entry.address}
            yield _host(file, fleet_name, name, [*levels, entry], own)


def _engine(entry: HostEntry) -> DockerAddress | None:
    """Return where a host's Docker engine is and how it is reached."""
    if entry.docker is None:
        return None
    return dataclasses.replace(
        entry.docker,
        socket=entry.docker_socket or entry.docker.socket,
        ssh_config=entry.ssh_config,
        tls=(entry.tls.ca, entry.tls.cert, entry.tls.key) if entry.tls else None,
    )


def _check_single(document: Document, path: tuple[str, ...], machine: object, seen: dict[object, Path_]) -> None:
    """Check that no machine and no joined name is listed twice: `a.b` + `c` and `a` + `b.c` give equal record names.

    Args:
        document: Takes the mistakes.
        path: Of the host, or of its fleet's queue.
        machine: What must be listed once; None: unknown.
        seen: Paths of the machines and joined names so far.
    """
    key = f"{path[1]}.{path[-1]}"
    if machine is not None and (other := seen.setdefault(machine, path)) != path:
        document.problem(
            path,
            f"is the same machine as host {plain_text(str(other[-1]), 80)}. Two benchmarks at a time would disturb "
            "each other. List each machine once; to compare its GPUs, make two runs with different gpus:",
        )
    if (other := seen.setdefault(key, path)) != path:
        document.problem(
            path,
            f"its name in records, {plain_text(key, 160)}, is also that of host {plain_text(str(other[-1]), 80)} of "
            f"fleet {plain_text(str(other[1]), 80)} (line {document.line(other)}). Rename one of them",
        )


def _host(file: Path, fleet: str, name: str, levels: Sequence[Settings], own: dict[str, Any]) -> Host:
    """Resolve the settings of a host: the innermost setting wins, and environments are merged.

    An image replaces registry and variant of outer levels, and either of these an image of an outer level. Each fleet
    has a file of host keys, so that it can go when the fleet's machines do.

    Args:
        file: The hosts file.
        fleet: Name of the host's fleet.
        name: Of the host.
        levels: From the defaults to the host's own.
        own: Fields that do not follow from the levels.
    """
    merged: dict[str, Any] = {}
    environment: dict[str, str] = {}
    for level in levels:
        said = {key: value for key, value in given(level).items() if key in Settings.model_fields}
        replaced = (
            {"registry", "variant"} if "image" in said else {"image"} if {"registry", "variant"} & said.keys() else ()
        )
        merged = {key: value for key, value in merged.items() if key not in replaced} | said
        environment |= {key: str(value) for key, value in (level.environment or {}).items()}
    if own.get("docker") is not None and "image" not in merged and merged.get("image_source", "pull") == "pull":
        merged.setdefault("registry", _released_images())
    gpus, device, variant = merged.pop("gpus", "all"), merged.pop("device", "auto"), merged.pop("variant", "auto")
    known_hosts = str((file.parent / f"{file.stem}.{fleet}.known_hosts").absolute())
    merged |= {
        "environment": dict(sorted(environment.items())),
        "gpus": None if gpus == "all" else tuple(gpus),
        "device": None if device == "auto" else Device(device),
        "variants": tuple(name for name in ([variant] if isinstance(variant, str) else variant) if name != AUTO),
        "host_keys": HostKeys(policy=merged.get("host_keys"), file=known_hosts),
    }
    return Host(fleet=fleet, name=name, **(merged | own))


def _released_images() -> str | None:
    return RELEASED_IMAGES.read_text(encoding="utf-8").strip() if RELEASED_IMAGES.is_file() else None

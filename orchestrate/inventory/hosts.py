"""Reads `hosts.yml`: machines, how to reach them, and what to measure on them.

Settings are under `defaults`, a fleet or a host; the innermost one applies. `read_hosts` returns frozen `Host`s with
all settings resolved, so that no other code depends on their level.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import AS_CONFIGURED, DockerAddress, HostKeys, SSHAddress
from orchestrate.inventory.form import AUTO, HostsFile, Settings, given
from orchestrate.inventory.queues import Queue, SlurmQueue
from orchestrate.text import plain_text
from orchestrate.yaml_files import Document, Path_, read_document
from results.schema import Device

RELEASED_IMAGES = Path(__file__).parent / "registry.txt"
"""The registry of this release's images, e.g. `ghcr.io/OWNER`. Only the release workflow writes this file into the
package: a default name under which nothing is published yet could be claimed by anyone."""


class HostPlace(NamedTuple):
    """Fleet and host of a repeat; either name may contain dots, so joining them would be ambiguous."""

    fleet: str
    host: str


@dataclass(frozen=True, kw_only=True)
class Host:
    """A machine with all its settings resolved, or a queue, which is one host of its fleet in a plan.

    Attributes:
        docker: Address of its Docker engine; None: without Docker. Without `ssh` and `queue`, too, a subprocess of this
            Python.
        ssh: Address of a host without an engine, or None.
        python: Interpreter with TensorFlow on an `ssh` host; None: locked packages are installed.
        host_keys: Host keys that ssh accepts, of the host or of a queue's login host.
        queue: The queue that assigns machines; None: this is a machine.
        gpus: GPU indices to use; None: all.
        variants: Image variants to measure with; empty: chosen by driver and GPU.
        image_source: `pull`, `local` or `transfer`; None: pull if a registry or an image is named, else local.
        device: What to train on; None: the GPU if there is one.
        cpus: CPUs that a benchmark may use; None: all.
        data_dir: Folder of TFRecords on the host, or None.
        environment: Variables for every benchmark by name, merged from all levels.
        address: Address for the fleet's other hosts; None: that of its engine or sshd.
        network: Network of containers in multi-host jobs: `bridge` or `host`.
        cluster_port: First port of multi-host jobs.
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
        """Return the address for the fleet's other hosts; None: unknown."""
        if self.address is not None:
            return self.address
        if self.docker is not None and self.docker.scheme == "tcp":
            return self.docker.target.rpartition(":")[0].strip("[]")
        return None if self.login is None else self.login.target.rpartition("@")[2]

    @property
    def login(self) -> SSHAddress | None:
        """Return the ssh destination of this host, or of its queue's login host; None: ssh is not used."""
        if isinstance(self.queue, SlurmQueue):
            return self.queue.login
        if self.docker is not None:
            return self.docker.login if self.docker.scheme == "ssh" else None
        return self.ssh

    def moved_to(self, now: Host) -> Host:
        """Return this host with the address of another description of it, unless that is of another kind of host."""
        if isinstance(self.queue, SlurmQueue) and isinstance(now.queue, SlurmQueue):
            queue = self.queue.model_copy(update={"ssh": now.queue.ssh, "ssh_config": now.queue.ssh_config})
            return dataclasses.replace(self, queue=queue, host_keys=now.host_keys)
        if now.launcher != self.launcher:
            return self
        moved = {"docker": now.docker, "ssh": now.ssh, "host_keys": now.host_keys, "address": now.address}
        return dataclasses.replace(self, **moved)  # type: ignore[arg-type]

    @property
    def is_remote(self) -> bool:
        """Return whether it is reached over a network."""
        over_tcp = self.docker is not None and self.docker.scheme == "tcp"
        return self.login is not None or over_tcp or self.launcher == "kubernetes"

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
        if self.image_source is None:
            return self.registry is not None or self.image is not None
        return self.image_source == "pull"

    @property
    def wants_gpus(self) -> bool:
        """Return whether GPUs of this host may be used."""
        return self.device is not Device.CPU

    @property
    def launcher(self) -> str:
        """Return the kind of launcher."""
        if self.queue is not None:
            return self.queue.kind
        if self.ssh is not None:
            return "ssh"
        return "process" if self.docker is None else "docker"

    @property
    def slots(self) -> int:
        """Return the number of parallel repeats: 1 on a machine, where several would disturb each other."""
        return 1 if self.queue is None else self.queue.max_jobs


def read_hosts(path: Path, limit: Collection[str] | None = None) -> list[Host]:
    """Read a hosts file.

    Args:
        path: Of the file.
        limit: Names of fleets and hosts to use; None: all.

    Raises:
        DocumentError: All mistakes at once, in the order of their lines.
        UserError: No fleet or host has a name of `limit`.
    """
    document = read_document(path)
    checked = document.validated(HostsFile)
    _check_together(document)
    document.raise_problems()
    assert checked is not None, "a file without mistakes"
    hosts = list(_hosts(path, checked))
    if not limit:
        return hosts
    names = {name for host in hosts for name in (host.fleet, host.name, host.key)}
    if unknown := [name for name in limit if name not in names]:
        known = ", ".join(sorted({host.fleet for host in hosts} | {host.name for host in hosts}))
        raise UserError(f"--limit: no fleet or host is named {', '.join(unknown)}. Names: {known}")
    wanted = set(limit)
    return [host for host in hosts if wanted & {host.fleet, host.name, host.key}]


def _check_together(document: Document) -> None:
    """Check rules about several levels or hosts, on the data as parsed, so that all mistakes are reported at once."""
    seen: dict[str, Path_] = {}
    file = _mapping(document.data)
    for fleet, settings in _mapping(file.get("fleets")).items():
        path, merged = ("fleets", fleet), _mapping(file.get("defaults")) | _mapping(settings)
        if "kubernetes" in merged and not {"image", "registry"} & merged.keys():
            text = "registry is missing: nodes pull images from it. Example: registry: registry.example.org/bench"
            document.problem((*path, "kubernetes"), text)
        in_container = "slurm" in merged and _mapping(merged["slurm"]).get("container") != "none"
        if in_container and "image" not in merged and merged.get("variant", AUTO) == AUTO:
            text = "the nodes' driver cannot be queried. Choose an image that suits it. Example: variant: cuda12.5"
            document.problem((*path, "slurm"), text)
        for name, host in _mapping(merged.get("hosts")).items():
            entry, place = _mapping(host), (*path, "hosts", name)
            keys = ("docker", "docker_socket", "tls", "ssh", "ssh_config")
            way = [str(entry[key]) for key in keys if key in entry]
            machine = " ".join(way) or ("this machine" if "process" in entry else str(place))
            if (other := seen.setdefault(machine, place)) != place:
                document.problem(
                    place,
                    f"is the same machine as host {plain_text(str(other[-1]), 80)}. Two benchmarks at a time would "
                    "disturb each other. List each machine once; to compare its GPUs, make two runs with different "
                    "gpus:",
                )


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _hosts(file: Path, checked: HostsFile) -> Iterator[Host]:
    """Yield the hosts of a file with their settings resolved; a queue is a host."""
    for fleet_name, fleet in checked.fleets.items():
        levels = [checked.defaults, fleet]
        if queue := fleet.slurm or fleet.kubernetes:
            own: dict[str, Any] = {"queue": queue, "gpus": None, "image_source": None}
            if isinstance(queue, SlurmQueue) and queue.container == "none":
                own |= {"registry": None, "image": None, "variants": ()}
            yield _host(file, fleet_name, queue.kind, levels, own)
        for name, entry in (fleet.hosts or {}).items():
            docker = entry.docker and dataclasses.replace(
                entry.docker,
                socket=entry.docker_socket or entry.docker.socket,
                ssh_config=entry.ssh_config,
                tls=(entry.tls.ca, entry.tls.cert, entry.tls.key) if entry.tls else None,
            )
            ssh = entry.ssh and dataclasses.replace(entry.ssh, ssh_config=entry.ssh_config)
            own = {"docker": docker, "ssh": ssh, "python": entry.python, "address": entry.address}
            yield _host(file, fleet_name, name, [*levels, entry], own)


def _host(file: Path, fleet: str, name: str, levels: Sequence[Settings], own: dict[str, Any]) -> Host:
    """Resolve the settings of a host: the innermost setting applies, and environments are merged.

    An image overrides the registry and variant of outer levels, and vice versa. Each fleet has its own file of host
    keys, which can be deleted together with its machines.

    Args:
        file: The hosts file.
        fleet: Name of the host's fleet.
        name: Of the host.
        levels: Settings from the defaults to the host's own.
        own: The other fields.
    """
    merged: dict[str, Any] = {}
    environment: dict[str, str] = {}
    for level in levels:
        here = {key: value for key, value in given(level).items() if key in Settings.model_fields}
        replaced = (
            {"registry", "variant"} if "image" in here else {"image"} if {"registry", "variant"} & here.keys() else ()
        )
        merged = {key: value for key, value in merged.items() if key not in replaced} | here
        environment |= {key: str(value) for key, value in (level.environment or {}).items()}
    if own.get("docker") is not None and "image" not in merged and merged.get("image_source", "pull") == "pull":
        merged.setdefault("registry", _released_images())
    gpus, device, variant = merged.pop("gpus", "all"), merged.pop("device", "auto"), merged.pop("variant", [AUTO])
    known_hosts = str((file.parent / f"{file.stem}.{fleet}.known_hosts").absolute())
    merged |= {
        "environment": dict(sorted(environment.items())),
        "gpus": None if gpus == "all" else tuple(dict.fromkeys(gpus)),
        "device": None if device == "auto" else Device(device),
        "variants": tuple(name for name in dict.fromkeys(variant) if name != AUTO),
        "host_keys": HostKeys(policy=merged.get("host_keys"), file=known_hosts),
    }
    return Host(fleet=fleet, name=name, **(merged | own))


def _released_images() -> str | None:
    return RELEASED_IMAGES.read_text(encoding="utf-8").strip() if RELEASED_IMAGES.is_file() else None

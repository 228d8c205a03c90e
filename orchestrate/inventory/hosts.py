"""`hosts.yml`: which machines there are, how to reach them, what to measure on them.

Settings stand under `defaults`, under a fleet or under a host; the innermost wins. `read_hosts` returns plain frozen
`Host`s in which everything is resolved, so that nothing later asks where a setting came from.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from orchestrate.errors import DocumentError, UserError
from orchestrate.inventory.addresses import (
    AS_CONFIGURED,
    DockerAddress,
    HostKeys,
    SSHAddress,
    docker_address,
    is_reached_one_way,
    ssh_address,
)
from orchestrate.inventory.form import Fleet, HostEntry, HostsFile, Settings, environment_problems, merge_environments
from orchestrate.inventory.queues import QUEUES, KubernetesQueue, Queue, SlurmQueue
from orchestrate.inventory.variants import read_variants, unknown_variant
from orchestrate.suites import read_suite, suite_source
from orchestrate.text import plain_text, shown
from orchestrate.yaml_files import Document, Path_, read_document, validate_document
from results.schema import Device

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Names of fleets and hosts: they become parts of file and container names."""


CHOSEN_FOR = {"auto": "run", "per-fleet": "fleet", "per-host": "host"}
"""Words for `variant` that name none, and for which hosts one image is then chosen."""


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
        image_for: A chosen image is the newest that suits all hosts of the `run`, of the `fleet`, or this `host` alone.
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
    docker: DockerAddress | None
    ssh: SSHAddress | None = None
    python: str | None = None
    host_keys: HostKeys = AS_CONFIGURED
    queue: Queue | None = None
    suite: str | None = None
    repeats: int | None = None
    gpus: tuple[int, ...] | None = None
    device: Device | None = None
    variants: tuple[str, ...] = ()
    image_for: str = "run"
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
        """Where the fleet's other hosts reach this one; None: nobody said."""
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
    def lanes(self) -> int:
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
    _check_variables(document, document.data, ())
    hosts = [] if checked is None else _resolve(document, path, checked)
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


def _resolve(document: Document, file: Path, checked: HostsFile) -> list[Host]:
    """Check what types cannot express, and resolve the settings of each host, level by level in one pass.

    Args:
        document: As parsed; takes the mistakes.
        file: Its path; paths in it are relative to its folder.
        checked: What is right of the document by its types: all further mistakes come at once with those.
    """
    hosts: list[Host] = []
    seen: dict[object, Path_] = {}
    folder = file.parent
    check_level = _LevelCheck(document, folder)
    check_level(("defaults",), checked.defaults)
    for fleet_name, fleet in checked.fleets.items():
        path, levels = ("fleets", fleet_name), [checked.defaults, fleet]
        _check_name(document, path, "fleet")
        check_level(path, fleet)
        if (queue := _check_queue(document, path, levels, folder)) is not None:
            _check_single(document, (*path, queue.kind), None, seen)
            hosts.append(_queue_host(file, fleet_name, queue, levels))
        for name, entry in (fleet.hosts or {}).items():
            place = (*path, "hosts", name)
            _check_name(document, place, "host")
            check_level(place, entry)
            _check_unused(document, place, entry)
            given = entry.model_dump(exclude_none=True)
            docker, ssh = None, None
            if is_reached_one_way(document, place, given):
                docker = docker_address(document, place, given, folder)
                ssh = ssh_address(document, place, given, folder)
            _check_single(document, place, "this machine" if entry.process else docker or ssh, seen)
            own = {"docker": docker, "ssh": ssh, "python": entry.python, "address": entry.address}
            hosts.append(_host(file, fleet_name, name, [*levels, entry], **own))
    return hosts


def _check_queue(
    document: Document, path: tuple[str, ...], levels: Sequence[Settings], folder: Path
) -> SlurmQueue | KubernetesQueue | None:
    """Return a fleet's queue, whose mistakes go to the document; None: the fleet has none, or not only one."""
    fleet = levels[-1]
    assert isinstance(fleet, Fleet), "the innermost level"
    name, kinds = plain_text(path[-1], 80), [kind for kind in ("hosts", *QUEUES) if getattr(fleet, kind) is not None]
    if len(kinds) != 1 and (kinds or document.is_whole(path)):
        known = " and ".join([", ".join(["hosts", *QUEUES][:-1]), list(QUEUES)[-1]])
        document.problem(
            path,
            f"fleet {name}: set exactly one of {known}. "
            f"Received: {', '.join(kinds) or 'none'}. Example: hosts: {{node-a: {{docker: 'ssh://node-a'}}}}",
        )
    queue = fleet.slurm or fleet.kubernetes
    if len(kinds) != 1 or queue is None:
        return None
    for key in ("gpus", "image_source"):
        if getattr(fleet, key) is not None:
            text = f"{key} is for hosts only: the queue chooses GPUs and nodes bring images. Remove it"
            document.problem((*path, key), f"fleet {name}: {text}")
    defaults, own = (level.model_dump(exclude_none=True) for level in levels)
    for where, text in queue.problems(defaults, own, folder):
        document.problem((*path, *where), f"fleet {name}: {text}")
    return queue


def _queue_host(file: Path, fleet_name: str, queue: Queue, levels: Sequence[Settings]) -> Host:
    """Resolve the settings of the host that stands for a fleet's queue."""
    own: dict[str, Any] = {"docker": None, "queue": queue.in_folder(file.parent), "gpus": None, "image_source": None}
    if isinstance(queue, SlurmQueue) and queue.container == "none":
        own |= {"registry": None, "image": None, "variants": ()}
    return _host(file, fleet_name, queue.kind, levels, **own)


def _check_single(document: Document, path: tuple[str, ...], machine: object, seen: dict[object, Path_]) -> None:
    """Check that no machine and no name stands twice; names meet in the names of records: `a.b` + `c`, `a` + `b.c`.

    Args:
        document: Takes the mistakes.
        path: Of the host, or of its fleet's queue.
        machine: What must stand once; None: nobody knows.
        seen: Paths of the machines and joined names so far.
    """
    name, key = plain_text(path[-1], 80), f"{path[1]}.{path[-1]}"
    if machine is not None and (other := seen.setdefault(machine, path)) != path:
        of_gpus = (
            ". To compare its GPUs, make two runs: gpus: [0] in one hosts file, gpus: [1] in another, then "
            "tfbench compare"
            if other[1] != path[1]
            else ""
        )
        document.problem(
            path,
            f"host {name}: is the same machine as host {plain_text(str(other[-1]), 80)}. Two benchmarks at a time "
            f"would disturb each other. List each machine once{of_gpus}",
        )
    if (other := seen.setdefault(key, path)) != path:
        document.problem(
            path,
            f"host {name}: its name in records, {plain_text(key, 160)}, is also that of host "
            f"{plain_text(str(other[-1]), 80)} of fleet {plain_text(str(other[1]), 80)} (line {document.line(other)}). "
            "Rename one of them",
        )


def _check_variables(document: Document, value: object, path: Path_) -> None:
    """Refuse `${NAME}`, which other tools' files expand."""
    if isinstance(value, str) and "${" in value:
        document.problem(path, f"variables are not expanded. Received: {shown(value)}. Write the value itself")
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        _check_variables(document, item, (*path, key))


class _LevelCheck:
    """Checks the settings of one level: defaults, a fleet or a host.

    Args:
        document: Takes the mistakes.
        folder: Paths are relative to it.
    """

    def __init__(self, document: Document, folder: Path) -> None:
        self._document = document
        self._folder = folder
        self._variants = [variant.name for variant in read_variants()]
        self._suites: dict[str, list[str]] = {}

    def __call__(self, path: tuple[str, ...], level: Settings) -> None:
        """Check one level."""
        if level.suite is not None:
            self._check_suite(path, level.suite)
        self._check_variant(path, level.variant)
        for name, problem in environment_problems(level.environment or {}):
            self._note(path, ("environment", name), f"environment: {plain_text(name, 80)} {problem}")
        for key in ("gpus", "variant"):
            self._check_repeated(path, key, getattr(level, key))
        for key in ("registry", "variant"):
            if getattr(level, key) is not None and level.image is not None:
                self._note(path, key, f"image replaces {key}. Remove one of them")

    def _check_suite(self, path: tuple[str, ...], suite: str) -> None:
        """Check that a suite exists, and if it is the user's own, that it has no mistakes."""
        if suite not in self._suites:
            self._suites[suite] = _suite_problems(suite_source(suite, self._folder))
        for problem in self._suites[suite]:
            self._document.problem((*path, "suite"), f"suite: {problem}")

    def _check_variant(self, path: tuple[str, ...], variant: str | list[str] | None) -> None:
        """Check that variants are rows of `containers/images.toml`."""
        names = variant if isinstance(variant, list) else [variant] if variant is not None else []
        for name in names:
            if name not in (*CHOSEN_FOR, *self._variants):
                what = unknown_variant(name, (*CHOSEN_FOR, *self._variants))
                self._note(path, "variant", f"{what}. To use an image of your own, set image:")
        for word in names if isinstance(variant, list) else ():
            if word in CHOSEN_FOR:
                text = f"{word} cannot be combined with other variants. Write variant: {word}, or remove it"
                self._note(path, "variant", text)

    def _check_repeated(self, path: tuple[str, ...], key: str, value: object) -> None:
        if isinstance(value, list) and any(value.count(item) > 1 for item in value):
            self._note(path, key, f"{key} lists a value twice. Received: {shown(value)}. List each once")

    def _note(self, path: tuple[str, ...], key: str | tuple[str, ...], text: str) -> None:
        where = {1: "defaults", 2: "fleet", 4: "host"}[len(path)]
        name = f" {plain_text(path[-1], 80)}" if len(path) > 1 else ""
        inner = key if isinstance(key, tuple) else (key,)
        self._document.problem((*path, *inner), f"{where}{name}: {text}")


def _suite_problems(source: str) -> list[str]:
    try:
        read_suite(source)
    except DocumentError as error:
        return error.problems
    except UserError as error:
        return [str(error)]
    return []


def _check_unused(document: Document, path: tuple[str, ...], host: HostEntry) -> None:
    """Refuse keys that would be ignored: the user meant something by them."""
    name, entry = plain_text(path[-1], 80), host.model_dump(exclude_none=True)
    bare, scheme = "ssh" in entry, entry.get("docker", "").partition(":")[0].lower()
    over_ssh = ("docker_socket", "ssh_config", "host_keys")
    for key, needed in (("tls", "tcp"), ("insecure", "tcp"), *((key, "ssh") for key in over_ssh)):
        if key in entry and scheme != needed and not (bare and key in over_ssh[1:]):
            document.problem((*path, key), f"host {name}: {key} is for {needed}:// only. Remove it")
    if "python" in entry and not bare:
        document.problem((*path, "python"), f"host {name}: python is for ssh: hosts only. Remove it")
    if "docker_via" in entry and scheme not in ("ssh", "unix"):
        document.problem((*path, "docker_via"), f"host {name}: docker_via is for ssh:// and unix:// only. Remove it")
    without_engine = ("registry", "image", "image_source", "memory_gb")
    if host.process or bare:
        for key in without_engine if bare else (*without_engine, "variant", "address"):
            if key in entry:
                document.problem((*path, key), f"host {name}: {key} is for Docker engines only. Remove it")
    if bare and "python" in entry and "variant" in entry:
        document.problem((*path, "variant"), f"host {name}: python replaces variant. Remove one of them")


def _host(file: Path, fleet: str, name: str, levels: Sequence[Settings], **own: Any) -> Host:  # noqa: ANN401
    """Resolve the settings of a host: the innermost level that says something wins.

    An image replaces registry and variant of outer levels, and either of these an image of an outer level. Each fleet
    has a file of host keys, so that it can go when the fleet's machines do.

    Args:
        file: The hosts file; paths in it are relative to its folder.
        fleet: Name of the host's fleet.
        name: Of the host.
        levels: From the defaults to the host's own.
        own: Fields that do not follow from the levels.
    """
    merged: dict[str, Any] = {}
    for level in levels:
        if level.image is not None:
            merged = {name: value for name, value in merged.items() if name not in ("registry", "variant")}
        elif level.registry is not None or level.variant is not None:
            merged.pop("image", None)
        for setting in Settings.model_fields:
            if (value := getattr(level, setting)) is not None:
                merged[setting] = value
    if "suite" in merged:
        merged["suite"] = suite_source(merged["suite"], file.parent)
    merged["environment"] = merge_environments(*(level.environment for level in levels))
    gpus, device, variant = merged.pop("gpus", "all"), merged.pop("device", "auto"), merged.pop("variant", "auto")
    merged["gpus"] = None if gpus == "all" else tuple(gpus)
    merged["device"] = None if device == "auto" else Device(device)
    merged["image_for"] = CHOSEN_FOR.get(variant, "run") if isinstance(variant, str) else "run"
    named = [variant] if isinstance(variant, str) else variant
    merged["variants"] = tuple(name for name in named if name not in CHOSEN_FOR)
    known_hosts = str((file.parent / f"{file.stem}.{fleet}.known_hosts").absolute())
    merged["host_keys"] = HostKeys(policy=merged.get("host_keys"), file=known_hosts)
    via, docker = merged.pop("docker_via", None), own["docker"]
    if docker is not None and docker.scheme != "tcp":
        own["docker"] = dataclasses.replace(docker, via=via)
    return Host(fleet=fleet, name=name, **(merged | own))


def _check_name(document: Document, path: tuple[str, ...], kind: str) -> None:
    if not NAME.fullmatch(path[-1]):
        document.problem(
            path,
            f"{kind} names are letters, digits, '.', '_' and '-', at most 63 of them. Received: {shown(path[-1])}",
        )

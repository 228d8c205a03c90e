"""The keys of `hosts.yml` and their values. Rules about several hosts are in `hosts.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
)

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import DockerAddress, SSHAddress, docker_address, ssh_address
from orchestrate.inventory.queues import KubernetesQueue, Number, SlurmQueue
from orchestrate.inventory.variants import read_variants, unknown_variant
from orchestrate.suites import read_suite, suite_source
from orchestrate.yaml_files import ExistingFile, Form, Listed, described

MOST = 1_000_000
"""Larger numbers are typos, and would lead to infinities or to plans that exceed the memory."""

_WORD = "[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*"
_REPOSITORY = rf"(?:{_WORD}|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?(?:/{_WORD})*"

GPUs = Annotated[list[Annotated[StrictInt, Field(ge=0, le=1000)]], Field(min_length=1)]
Price = Annotated[Number, Field(ge=0, le=MOST)]
DataFolder = Annotated[StrictStr, Field(pattern=r"^/[^:,\"\x00-\x1f]+$")]
SocketPath = Annotated[StrictStr, Field(pattern=r"^/[^:\x00-\x1f]+$")]
HostAddress = Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}$")]
Interpreter = Annotated[StrictStr, Field(pattern=r"^[/A-Za-z0-9][^\x00-\x1f]*$")]
Positive = Annotated[Number, Field(gt=0, le=MOST)]
Repository = Annotated[StrictStr, Field(pattern=f"^{_REPOSITORY}/?$")]
Reference = Annotated[
    StrictStr, Field(pattern=f"^{_REPOSITORY}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?$")
]


def _known_suite(name: str, info: ValidationInfo) -> str:
    """Check that a suite exists and that a user's own has no mistakes; return its name or path."""
    source = suite_source(name, info.context or Path())
    try:
        read_suite(source)
    except UserError as error:
        raise ValueError("\n".join(f"suite: {line}" for line in str(error).splitlines())) from error
    return source


AUTO = "auto"
"""Value of `variant` for a choice by driver and GPU."""


def _known_variant(name: str) -> str:
    """Check that a variant is a row of `containers/images.toml`."""
    known = [AUTO, *(variant.name for variant in read_variants())]
    if name not in known:
        raise ValueError(f"{unknown_variant(name, known)}. To use an image of your own, set image:")
    return name


def _no_file(name: str) -> str:
    """Refuse a variable whose value is a file: records with equal variables must mean equal conditions."""
    if name.endswith("_FILE"):
        raise ValueError(f"environment: {name} names a file, whose contents a record would not keep. Remove it")
    return name


Variable = Annotated[StrictStr, Field(pattern="^(?:NCCL_[A-Z0-9_]{1,100}|XLA_FLAGS)$"), AfterValidator(_no_file)]
"""Those that records contain: `_VARIABLES` in tfbench/devices.py."""

Value = Annotated[StrictStr, Field(pattern="^[ -~]{0,500}$")] | StrictInt
"""A record keeps at most 500 characters."""


def given(form: BaseModel) -> dict[str, Any]:
    """Return the keys that are set."""
    return {name: value for name, value in form if value is not None}


def _one_of(form: BaseModel, keys: Sequence[str], example: str) -> Iterator[tuple[str, str]]:
    """Require that exactly one of some keys is set."""
    found = [key for key in keys if getattr(form, key)]
    if len(found) != 1:
        known, received = f"{', '.join(keys[:-1])} and {keys[-1]}", ", ".join(found) or "none"
        yield "", f"set exactly one of {known}. Received: {received}. Example: {example}"


class Settings(Form):
    """Settings allowed at every level; None: not set at this level."""

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`."""
        yield from self.misplaced(((self.image is None, "settings without image:", ("registry", "variant")),))

    suite: Annotated[StrictStr, AfterValidator(_known_suite)] | None = None
    repeats: Annotated[StrictInt, Field(ge=1, le=1000)] | None = None
    gpus: Literal["all"] | GPUs | None = described("'all' or a list of GPU indices from 0", "[0, 1]")
    device: Literal["auto", "gpu", "cpu"] | None = None
    variant: Listed[Annotated[StrictStr, AfterValidator(_known_variant)]] | None = None
    registry: Repository | None = described("an image registry and path, without a tag", "registry.example.org/bench")
    image: Reference | None = described("an image reference", "registry.example.org/bench/tfbench:mine")
    image_source: Literal["pull", "local", "transfer"] | None = None
    cpus: Positive | None = described("a number above 0", "2")
    memory_gb: Positive | None = described("a number above 0, in gigabytes (10⁹ bytes)", "16")
    usd_per_gpu_hour: Price | None = described("a price in US dollars, at least 0", "0.17")
    data_dir: DataFolder | None = described("the absolute path of a folder of TFRecords", "/data/imagenet")
    environment: Annotated[dict[Variable, Value], Field(max_length=100)] | None = described(
        "a mapping of NCCL_… and XLA_FLAGS, which records keep, to at most 500 ASCII characters", "{NCCL_DEBUG: INFO}"
    )
    timeout_minutes: Positive | None = described("a number above 0, in minutes", "60")
    silence_minutes: Positive | None = described("a number above 0, in minutes", "15")
    host_keys: Literal["strict", "accept-new"] | None = None
    network: Literal["bridge", "host"] | None = None
    cluster_port: Annotated[StrictInt, Field(ge=1024, le=60_000)] | None = None


FleetName = Annotated[StrictStr, Field(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$")]
"""Part of file and container names; without dots, so that `FLEET.HOST` is unique."""

HostName = Annotated[StrictStr, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class TLSFiles(Form):
    """Files for a `tcp://` engine with mutual TLS."""

    ca: ExistingFile
    cert: ExistingFile
    key: ExistingFile


class HostEntry(Settings):
    """A machine: exactly one of `docker`, `ssh` and `process`."""

    instead: ClassVar[Mapping[str, str]] = {
        "": 'Write {ssh: root@203.0.113.7:22044}, or {docker: "ssh://root@203.0.113.7"} for a Docker engine',
        **dict.fromkeys(("port", "user"), "Write it into the address: ssh: root@203.0.113.7:22044"),
        **dict.fromkeys(("identity_file", "key"), "Write `IdentityFile` into ~/.ssh/config"),
    }

    docker: Annotated[DockerAddress, PlainValidator(docker_address)] | None = None
    docker_socket: SocketPath | None = described(
        "the absolute path of the engine's socket", "/run/user/1000/docker.sock"
    )
    ssh_config: ExistingFile | None = None
    address: HostAddress | None = described("a name or address without a port", "10.0.0.11")
    ssh: Annotated[SSHAddress, PlainValidator(ssh_address)] | None = None
    python: Interpreter | None = described("the path of a Python with TensorFlow", "/opt/conda/bin/python")
    process: StrictBool | None = None
    tls: TLSFiles | None = None
    insecure: StrictBool | None = None

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`; includes keys that would be ignored."""
        yield from super().mistakes()
        yield from _one_of(self, ("docker", "ssh", "process"), "docker: ssh://bench@10.0.0.11")
        scheme = self.docker.scheme if self.docker else None
        bare, engine = self.ssh is not None, not (self.ssh or self.process)
        yield from self.misplaced(
            (
                (scheme == "tcp", "tcp://", ("tls", "insecure")),
                (scheme == "ssh", "ssh://", ("docker_socket",)),
                (scheme == "ssh" or bare, "ssh://", ("ssh_config", "host_keys")),
                (bare, "ssh: hosts", ("python",)),
                (engine, "Docker engines", ("registry", "image", "image_source", "memory_gb")),
                (engine or bare, "Docker engines", ("address",)),
                (engine or (bare and not self.python), "images, not python:", ("variant",)),
            )
        )
        if scheme == "tcp" and not self.tls and not self.insecure:
            text = "tcp:// without TLS gives anyone on the network control of the machine. "
            yield "docker", f"{text}Add tls: {{ca: …, cert: …, key: …}}, use ssh://, or set insecure: true"


class Fleet(Settings):
    """A group of machines that are meant to be equal: a list of hosts, or a queue."""

    hosts: Annotated[dict[HostName, HostEntry], Field(min_length=1)] | None = described(
        "a mapping of names (letters from A to Z, digits, '.', '_', '-', at most 63 in all) to hosts",
        "{node-a: {docker: 'ssh://node-a'}}",
    )
    slurm: SlurmQueue | None = None
    kubernetes: KubernetesQueue | None = None

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`."""
        yield from super().mistakes()
        yield from _one_of(self, ("hosts", "slurm", "kubernetes"), "hosts: {node-a: {docker: 'ssh://node-a'}}")
        bare = self.slurm is not None and self.slurm.container == "none"
        containers = (not bare, "containers", ("registry", "variant", "image"))
        yield from self.misplaced(((bool(self.hosts), "hosts", ("gpus", "image_source")), containers))


class HostsFile(Form):
    """The document `hosts.yml`."""

    version: Literal[1]
    defaults: Settings = Settings()
    fleets: Annotated[dict[FleetName, Fleet], Field(min_length=1)] = Field(
        description="a mapping of names (letters from A to Z, digits, '_' and '-', at most 63 in all) to fleets",
        examples=["{here: {hosts: {this-machine: {process: true}}}}"],
    )


def shown_environment(environment: Mapping[str, str]) -> str:
    """Format variables as `NAME=value NAME=value`."""
    return " ".join(f"{name}={value}" for name, value in environment.items())

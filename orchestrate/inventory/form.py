"""The keys of `hosts.yml` and their values. Rules about several hosts are in `hosts.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    PlainValidator,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationInfo,
)

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import DockerAddress, SSHAddress, docker_address, ssh_address
from orchestrate.inventory.queues import QUEUES, KubernetesQueue, SlurmQueue
from orchestrate.inventory.variants import read_variants, unknown_variant
from orchestrate.suites import read_suite, suite_source
from orchestrate.text import plain_text, shown
from orchestrate.yaml_files import ExistingFile, Form, described

MOST = 1_000_000
"""Larger numbers are typos, and would lead to infinities or to plans that exceed the memory."""

_WORD = "[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*"
_REPOSITORY = rf"(?:{_WORD}|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?(?:/{_WORD})*"

Number = StrictInt | StrictFloat
Count = Annotated[StrictInt, Field(ge=1, le=1000)]
Positive = Annotated[Number, Field(gt=0, le=MOST)]
Repository = Annotated[StrictStr, Field(pattern=f"^{_REPOSITORY}/?$")]
Reference = Annotated[
    StrictStr, Field(pattern=f"^{_REPOSITORY}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?$")
]


_IN_A_SUITE = "It belongs in a suite: suite: my.yml"
_KEY_FILES = frozenset({"identity_file", "identityfile", "identity", "key", "key_file", "ssh_key", "private_key"})


T = TypeVar("T")


def _each_once(value: T, info: ValidationInfo) -> T:
    if isinstance(value, list) and any(value.count(item) > 1 for item in value):
        raise ValueError(f"{info.field_name} lists a value twice. Received: {shown(value)}. List each once")
    return value


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


@cache
def _variant_names() -> tuple[str, ...]:
    return (AUTO, *(variant.name for variant in read_variants()))


def _known_variants(value: str | list[str]) -> str | list[str]:
    """Check that variants are rows of `containers/images.toml`."""
    names = [value] if isinstance(value, str) else value
    problems = [
        f"{unknown_variant(name, _variant_names())}. To use an image of your own, set image:"
        for name in names
        if name not in _variant_names()
    ]
    if isinstance(value, list) and AUTO in value:
        problems.append("auto cannot be combined with other variants. Write variant: auto, or remove it")
    if problems:
        raise ValueError("\n".join(problems))
    return value


# ---- environment: variables for every benchmark of a host. Only those that records contain (`_VARIABLES` in
# tfbench/devices.py) are allowed, and none whose value is a file: records with equal variables must have been
# measured under equal conditions.

MAX_VALUE_LENGTH = 500
"""Maximum length of a value in a record."""


def _kept_variable(name: str) -> str:
    """Raise for variables that cannot be set."""
    if not re.fullmatch(r"NCCL_[A-Z0-9_]{1,100}|XLA_FLAGS", name):
        why = "cannot be set here: only NCCL_… and XLA_FLAGS can, because a record keeps them; gpus: selects GPUs"
    elif name.endswith("_FILE"):
        why = "names a file, whose contents a record would not keep"
    else:
        return name
    raise ValueError(f"environment: {plain_text(name, 80)} {why}. Remove it")


def _kept_value(value: str) -> str:
    if re.fullmatch(rf"[ -~]{{0,{MAX_VALUE_LENGTH}}}", value):
        return value
    what = f"environment: a value must be at most {MAX_VALUE_LENGTH} printable ASCII characters"
    raise ValueError(f"{what}. Received: {shown(value)}. Example: NCCL_DEBUG: INFO")


Variable = Annotated[StrictStr, AfterValidator(_kept_variable)]
Value = Annotated[StrictStr, AfterValidator(_kept_value)] | StrictInt


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
        for key in ("registry", "variant"):
            if self.image is not None and getattr(self, key) is not None:
                yield key, f"image replaces {key}. Remove one of them"

    instead: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("model", "precision", "num_gpus", "cases"), _IN_A_SUITE),
        **dict.fromkeys(("batch", "batch_size", "batch_per_gpu"), f"{_IN_A_SUITE}. There: batch_per_gpu"),
        **dict.fromkeys(("price", "cost", "usd", "usd_per_hour"), "Write the price of one GPU: usd_per_gpu_hour"),
    }

    suite: Annotated[StrictStr, AfterValidator(_known_suite)] | None = described(
        "the name of a suite or the path of a suite file", "standard"
    )
    repeats: Count | None = described("a whole number of at least 1", "3")
    gpus: Annotated[
        Literal["all"] | Annotated[list[Annotated[StrictInt, Field(ge=0, le=1000)]], Field(min_length=1)] | None,
        AfterValidator(_each_once),
    ] = described("'all' or a list of GPU indices from 0", "[0, 1]")
    device: Literal["auto", "gpu", "cpu"] | None = described(
        "auto, gpu or cpu (auto: gpu where the host has one)", "auto"
    )
    variant: (
        Annotated[
            StrictStr | Annotated[list[StrictStr], Field(min_length=1)],
            AfterValidator(_known_variants),
            AfterValidator(_each_once),
        ]
        | None
    ) = described(
        "'auto' (one for the whole run), an image variant of containers/images.toml, or a list of them",
        "cuda12.5",
    )
    registry: Repository | None = described("an image registry and path, without a tag", "registry.example.org/bench")
    image: Reference | None = described(
        "an image reference, instead of registry and variant", "registry.example.org/bench/tfbench:mine"
    )
    image_source: Literal["pull", "local", "transfer"] | None = described(
        "pull (from the registry), local (built on the host) or transfer (from this machine's engine)", "pull"
    )
    cpus: Positive | None = described("a number above 0: CPUs that a benchmark may use", "2")
    memory_gb: Positive | None = described("a number above 0, in gigabytes (10⁹ bytes)", "16")
    usd_per_gpu_hour: Annotated[Number, Field(ge=0, le=MOST)] | None = described(
        "a price in US dollars, at least 0", "0.17"
    )
    data_dir: Annotated[StrictStr, Field(pattern=r"^/[^:,\"\x00-\x1f]+$")] | None = described(
        "the absolute path of a folder of TFRecords on the host or on Slurm's nodes, for data: tfrecord",
        "/data/imagenet",
    )
    environment: Annotated[dict[Variable, Value], Field(max_length=100)] | None = described(
        "a mapping of environment variables to strings or whole numbers", "{NCCL_DEBUG: INFO}"
    )
    timeout_minutes: Positive | None = described("a number above 0: maximum duration of a repeat, in minutes", "60")
    silence_minutes: Positive | None = described(
        "a number above 0: minutes without output after which a repeat is ended", "15"
    )

    host_keys: Literal["strict", "accept-new"] | None = described(
        "strict (only host keys in the fleet's file) or accept-new (new hosts are added to it), for ssh", "accept-new"
    )

    network: Literal["bridge", "host"] | None = described(
        "bridge (only the required ports) or host, for cases with several hosts", "bridge"
    )
    cluster_port: Annotated[StrictInt, Field(ge=1024, le=60_000)] | None = described(
        "a port from 1024 to 60000: the first one that hosts use to train together", "29500"
    )


def _name(text: str) -> str:
    """Check the name of a fleet or host, which becomes part of file and container names."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", text):
        what = "a name is letters from A to Z, digits, '.', '_' and '-', at most 63 of them"
        raise ValueError(f"{what}. Received: {shown(text)}")
    return text


Name = Annotated[str, AfterValidator(_name)]


class TLSFiles(Form):
    """Files for a `tcp://` engine with mutual TLS."""

    ca: ExistingFile = Field(description="the path of a PEM file", examples=["ca.pem"])
    cert: ExistingFile = Field(description="the path of a PEM file", examples=["cert.pem"])
    key: ExistingFile = Field(description="the path of a PEM file", examples=["key.pem"])


class HostEntry(Settings):
    """A machine: exactly one of `docker`, `ssh` and `process`."""

    example = ' Write {ssh: ADDRESS}, or {docker: "ssh://ADDRESS"} for a Docker engine'

    @classmethod
    def remedy(cls, key: str, data: Any) -> str | None:  # noqa: ANN401 (anything)
        """See `Form.remedy`; ssh settings belong in the address or in ssh's configuration."""
        if isinstance(data, str) and re.fullmatch(r"[!-~]{1,200}", data):
            return f' Write {{docker: "{data}"}}' if "://" in data else f" Write {{ssh: {data}}}"
        if not isinstance(data, Mapping) or key not in ("port", "user", "username", *_KEY_FILES):
            return super().remedy(key, data)
        way = "docker" if data.get("docker") else "ssh"
        scheme, separator, rest = str(data.get(way) or "10.0.0.1").rpartition("//")
        user, _, host = rest.rpartition("@")
        if key in _KEY_FILES:
            text = f"`Host {host}`, and below it `IdentityFile {data[key]}`"
            return f"Write it into ~/.ssh/config: the line {plain_text(text, 200)}"
        user = data.get("user") or data.get("username") or user
        address = (
            f"{scheme}{separator}{user}{'@' if user else ''}{host}{':' if 'port' in data else ''}{data.get('port', '')}"
        )
        return f"Write it into the address: {way}: {plain_text(address, 200)}"

    docker: Annotated[DockerAddress, PlainValidator(docker_address)] | None = described(
        "the address of a Docker engine: unix:///…, ssh://user@host:port or tcp://host:port"
    )
    docker_socket: Annotated[StrictStr, Field(pattern=r"^/[^:\x00-\x1f]+$")] | None = described(
        "the absolute path of the engine's socket on the host, for ssh://", "/run/user/1000/docker.sock"
    )
    ssh_config: ExistingFile | None = described(
        "the path of an ssh configuration file, instead of ~/.ssh/config", "ssh_config"
    )
    address: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}$")] | None = described(
        "the name or address at which the fleet's other hosts reach this one, without a port", "10.0.0.11"
    )
    ssh: Annotated[SSHAddress, PlainValidator(ssh_address)] | None = described(
        "an ssh destination without a Docker engine: user@host:port, or an alias of the ssh configuration"
    )
    python: Annotated[StrictStr, Field(pattern=r"^[/A-Za-z0-9][^\x00-\x1f]*$")] | None = described(
        "the path of a Python with TensorFlow on an ssh: host, instead of locked packages", "/opt/conda/bin/python"
    )
    process: StrictBool | None = described("true: a subprocess of this Python, without Docker", "true")
    tls: TLSFiles | None = described(
        "a mapping of ca, cert and key to files", "{ca: ca.pem, cert: cert.pem, key: key.pem}"
    )

    insecure: StrictBool | None = described("true: allow tcp:// without TLS; every table then has a warning", "true")

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`; includes keys that would be ignored."""
        yield from super().mistakes()
        example = "docker: ssh://bench@10.0.0.11, or ssh: root@203.0.113.7:22044"
        yield from _one_of(self, ("docker", "ssh", "process"), example)
        scheme = self.docker.scheme if self.docker else None
        bare, engine = self.ssh is not None, not (self.ssh or self.process)
        for fits, what, *keys in (
            (scheme == "tcp", "tcp://", "tls", "insecure"),
            (scheme == "ssh", "ssh://", "docker_socket"),
            (scheme == "ssh" or bare, "ssh://", "ssh_config", "host_keys"),
            (bare, "ssh: hosts", "python"),
            (engine, "Docker engines", "registry", "image", "image_source", "memory_gb"),
            (engine or bare, "Docker engines", "variant", "address"),
        ):
            yield from (
                (key, f"{key} is for {what} only. Remove it") for key in keys if key in given(self) and not fits
            )
        if bare and self.python and self.variant:
            yield "variant", "python replaces variant. Remove one of them"
        if scheme == "tcp" and not self.tls and not self.insecure:
            text = "tcp:// without TLS gives anyone on the network control of the machine. "
            yield "docker", f"{text}Add tls: {{ca: …, cert: …, key: …}}, use ssh://, or set insecure: true"
        if self.tls and self.insecure:
            yield "insecure", "insecure: true and tls are mutually exclusive. Remove one of them"
        if self.docker and self.docker_socket and self.docker.socket != DockerAddress.socket:
            yield "docker_socket", f"docker already contains a socket: {self.docker.socket}. Remove one of them"


class Fleet(Settings):
    """A group of machines that are meant to be equal: a list of hosts, or a queue."""

    hosts: Annotated[dict[Name, HostEntry], Field(min_length=1)] | None = described(
        "a mapping of names to hosts", "{node-a: {docker: 'ssh://node-a'}}"
    )
    slurm: SlurmQueue | None = described(
        "a mapping that describes a Slurm cluster",
        "{partition: gpu, gres: 'gpu:a5000:4', container: apptainer, shared_folder: /home/bench}",
    )
    kubernetes: KubernetesQueue | None = described(
        "a mapping that describes a namespace of a Kubernetes cluster",
        "{context: my-cluster, node_selector: {nvidia.com/gpu.product: NVIDIA-L4}}",
    )

    def mistakes(self) -> Iterator[tuple[str, str]]:
        """See `Form.mistakes`."""
        yield from super().mistakes()
        yield from _one_of(self, ("hosts", *QUEUES), "hosts: {node-a: {docker: 'ssh://node-a'}}")
        bare = self.slurm is not None and self.slurm.container == "none"
        for key in given(self):
            if not self.hosts and key in ("gpus", "image_source"):
                yield key, f"{key} is for hosts only: the queue chooses GPUs and nodes pull images. Remove it"
            elif bare and key in ("registry", "variant", "image"):
                yield key, f"{key} is for containers only. Remove it, or name a container"


class HostsFile(Form):
    """The document `hosts.yml`."""

    version: Annotated[StrictInt, Field(ge=1, lt=2)] = Field(
        description="1, the version of this file's format", examples=["1"]
    )
    defaults: Settings = described("a mapping of settings", "{suite: standard}", default=Settings())
    fleets: Annotated[dict[Name, Fleet], Field(min_length=1)] = Field(
        description="a mapping of names to fleets",
        examples=["{here: {hosts: {this-machine: {process: true}}}}"],
    )


def shown_environment(environment: Mapping[str, str]) -> str:
    """Format variables as `NAME=value NAME=value`."""
    return " ".join(f"{name}={value}" for name, value in environment.items())

"""The form of `hosts.yml`: its keys and their types. What types cannot express is checked in `hosts.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from orchestrate.inventory.queues import KubernetesQueue, SlurmQueue
from orchestrate.text import plain_text, shown
from orchestrate.yaml_files import Form

MOST = 1_000_000
"""Larger numbers are slips, and would end as infinities or as plans that no memory holds."""

_WORD = "[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*"
_REPOSITORY = rf"(?:{_WORD}|\[[0-9A-Fa-f:]+\])(?::[0-9]{{1,5}})?(?:/{_WORD})*"

Number = StrictInt | StrictFloat
Count = Annotated[StrictInt, Field(ge=1, le=1000)]
Positive = Annotated[Number, Field(gt=0, le=MOST)]
Repository = Annotated[StrictStr, Field(pattern=f"^{_REPOSITORY}/?$")]
Reference = Annotated[
    StrictStr, Field(pattern=f"^{_REPOSITORY}(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?$")
]


_SUITE_KEYS = frozenset({"batch", "batch_size", "batch_per_gpu", "model", "precision", "num_gpus", "cases"})
_PRICE_KEYS = frozenset({"price", "cost", "usd", "usd_per_hour"})
_KEY_FILES = frozenset({"identity_file", "identityfile", "identity", "key", "key_file", "ssh_key", "private_key"})
_USERS = frozenset({"user", "username"})


def _not_a_count(value: object) -> object:
    """Refuse a number, which could be meant as an index or as a count."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    first = f"; for the first {value}: gpus: {list(range(value))}" if 1 < value <= 16 else ""
    index = f" For GPU {value} alone: gpus: [{value}]{first}" if value >= 0 else ""
    raise ValueError(f"gpus must be 'all' or a list of GPU indices from 0. Received: {value}.{index}")


class Settings(Form):
    """What may stand at every level; None: not said at this level."""

    @classmethod
    def instead(cls, key: str, entry: dict[str, Any]) -> str | None:
        """Point to the file of what is measured, and to the unit of prices."""
        if key in _SUITE_KEYS:
            return f"It belongs in a suite: suite: my.yml. There: {'batch_per_gpu' if 'batch' in key else key}"
        return "Write the price of one GPU: usd_per_gpu_hour" if key in _PRICE_KEYS else None

    suite: StrictStr | None = Field(
        None, description="the name of a suite or the path of a suite file", examples=["standard"]
    )
    repeats: Count | None = Field(None, description="a whole number of at least 1", examples=["3"])
    gpus: Annotated[
        Literal["all"] | Annotated[list[Annotated[StrictInt, Field(ge=0, le=1000)]], Field(min_length=1)] | None,
        BeforeValidator(_not_a_count),
    ] = Field(None, description="'all' or a list of integers", examples=["[0, 1]"])
    device: Literal["auto", "gpu", "cpu"] | None = Field(
        None, description="auto, gpu or cpu (auto: gpu where the host has one)", examples=["auto"]
    )
    variant: StrictStr | Annotated[list[StrictStr], Field(min_length=1)] | None = Field(
        None,
        description="'auto' (one for the whole run), 'per-fleet', 'per-host', an image variant of "
        "containers/images.toml, or a list of them",
        examples=["cuda12.5"],
    )
    registry: Repository | None = Field(
        None, description="an image registry and path, without a tag", examples=["ghcr.io/you"]
    )
    image: Reference | None = Field(
        None,
        description="an image reference, instead of registry and variant",
        examples=["ghcr.io/you/tfbench:mine"],
    )
    image_source: Literal["pull", "local", "transfer"] | None = Field(
        None,
        description="pull (from the registry), local (built on the host) or transfer (from this machine's engine)",
        examples=["pull"],
    )
    cpus: Positive | None = Field(None, description="a number above 0: CPUs that a benchmark may use", examples=["2"])
    memory_gb: Positive | None = Field(None, description="a number above 0, in gigabytes (10⁹ bytes)", examples=["16"])
    usd_per_gpu_hour: Annotated[Number, Field(ge=0, le=MOST)] | None = Field(
        None, description="a price in US dollars, at least 0", examples=["0.17"]
    )
    data_dir: Annotated[StrictStr, Field(pattern=r"^/[^:,\"\x00-\x1f]+$")] | None = Field(
        None,
        description="the absolute path of a folder of TFRecords on the host or on Slurm's nodes, for data: tfrecord",
        examples=["/data/imagenet"],
    )
    environment: Annotated[dict[StrictStr, StrictStr | StrictInt], Field(max_length=100)] | None = Field(
        None,
        description="a mapping of environment variables to strings or whole numbers",
        examples=["{NCCL_DEBUG: INFO}"],
    )
    timeout_minutes: Positive | None = Field(
        None, description="a number above 0: maximum duration of a repeat, in minutes", examples=["60"]
    )
    silence_minutes: Positive | None = Field(
        None, description="a number above 0: minutes without output after which a repeat is ended", examples=["15"]
    )

    host_keys: Literal["strict", "accept-new"] | None = Field(
        None,
        description="strict (only host keys in the fleet's file) or accept-new (new hosts are added to it), for ssh",
        examples=["accept-new"],
    )
    docker_via: Literal["sudo"] | None = Field(
        None,
        description="sudo: reach the engine by `sudo docker`, for users who are not in the group docker",
        examples=["sudo"],
    )

    network: Literal["bridge", "host"] | None = Field(
        None,
        description="bridge (only the required ports) or host, for cases with several hosts",
        examples=["bridge"],
    )
    cluster_port: Annotated[StrictInt, Field(ge=1024, le=60_000)] | None = Field(
        None,
        description="a port from 1024 to 60000: the first one that hosts use to train together",
        examples=["29500"],
    )


class TLSFiles(Form):
    """Files for a `tcp://` engine: mutual TLS, both sides verified."""

    ca: StrictStr = Field(description="the path of a PEM file", examples=["ca.pem"])
    cert: StrictStr = Field(description="the path of a PEM file", examples=["cert.pem"])
    key: StrictStr = Field(description="the path of a PEM file", examples=["key.pem"])


class HostEntry(Settings):
    """A machine: exactly one of `docker`, `ssh` and `process`."""

    @model_validator(mode="before")
    @classmethod
    def _is_no_address(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        way = "docker" if "://" in value else "ssh"
        text = plain_text(value, 200)
        quoted = f'"{text}"' if way == "docker" else text
        write = "" if not text or " " in text else f" Write: {{{way}: {quoted}}}"
        raise ValueError(f"a host must be a mapping. Received: {shown(value)}.{write}")

    @classmethod
    def instead(cls, key: str, entry: dict[str, Any]) -> str | None:
        """Write what ssh needs to know into the address, or into ssh's own configuration."""
        way = "docker" if entry.get("docker") is not None else "ssh"
        scheme, separator, rest = str(entry.get(way) or "10.0.0.1").rpartition("//")
        user, _, rest = rest.rpartition("@")
        host, _, port = rest.partition(":") if not rest.startswith("[") else (rest, "", "")
        user, port = str(entry.get("user", entry.get("username", user))), str(entry.get("port", port))
        address = f"{scheme}{separator}{user}{'@' if user else ''}{host}{':' if port else ''}{port}"
        if key in ("port", *_USERS):
            return f"Write it into the address: {way}: {plain_text(address, 200)}"
        if key in _KEY_FILES:
            where, file = plain_text(host, 100), plain_text(entry[key], 200)
            return f"Write it into ~/.ssh/config: the line `Host {where}`, and below it `IdentityFile {file}`"
        return super().instead(key, entry)

    docker: StrictStr | None = Field(
        None,
        description="the address of a Docker engine: unix:///…, ssh://user@host:port or tcp://host:port",
        examples=["ssh://bench@10.0.0.11"],
    )
    docker_socket: Annotated[StrictStr, Field(pattern=r"^/[^:\x00-\x1f]+$")] | None = Field(
        None,
        description="the absolute path of the engine's socket on the host, for ssh://",
        examples=["/run/user/1000/docker.sock"],
    )
    ssh_config: StrictStr | None = Field(
        None,
        description="the path of an ssh configuration file, instead of ~/.ssh/config",
        examples=["ssh_config"],
    )
    address: Annotated[StrictStr, Field(pattern=r"^[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}$")] | None = Field(
        None,
        description="the name or address at which the fleet's other hosts reach this one, without a port",
        examples=["10.0.0.11"],
    )
    ssh: StrictStr | None = Field(
        None,
        description="an ssh destination without a Docker engine: user@host:port, or an alias of the ssh configuration",
        examples=["root@203.0.113.7:22044"],
    )
    python: Annotated[StrictStr, Field(pattern=r"^[/A-Za-z0-9][^\x00-\x1f]*$")] | None = Field(
        None,
        description="the path of a Python with TensorFlow on an ssh: host, instead of locked packages",
        examples=["/opt/conda/bin/python"],
    )
    process: StrictBool | None = Field(
        None, description="true: a subprocess of this Python, without Docker", examples=["true"]
    )
    tls: TLSFiles | None = Field(
        None,
        description="a mapping of ca, cert and key to files",
        examples=["{ca: ca.pem, cert: cert.pem, key: key.pem}"],
    )

    insecure: StrictBool | None = Field(
        None, description="true: allow tcp:// without TLS; every table then has a warning", examples=["true"]
    )


class Fleet(Settings):
    """A group of machines that are meant to be equal: named one by one, or given by a queue."""

    hosts: Annotated[dict[str, HostEntry], Field(min_length=1)] | None = Field(
        None, description="a mapping of names to hosts", examples=["{node-a: {docker: 'ssh://node-a'}}"]
    )
    slurm: SlurmQueue | None = Field(
        None,
        description="a mapping that describes a Slurm cluster",
        examples=["{partition: gpu, gres: 'gpu:a5000:4', container: docker, shared_folder: /home/bench}"],
    )
    kubernetes: KubernetesQueue | None = Field(
        None,
        description="a mapping that describes a namespace of a Kubernetes cluster",
        examples=["{context: my-cluster, node_selector: {nvidia.com/gpu.product: NVIDIA-L4}}"],
    )


class HostsFile(Form):
    """The whole of `hosts.yml`."""

    version: Annotated[StrictInt, Field(ge=1, lt=2)] = Field(
        description="1, the version of this file's format", examples=["1"]
    )
    defaults: Settings = Field(Settings(), description="a mapping of settings", examples=["{suite: standard}"])
    fleets: Annotated[dict[str, Fleet], Field(min_length=1)] = Field(
        description="a mapping of names to fleets",
        examples=["{here: {hosts: {this-machine: {process: true}}}}"],
    )


# ---- environment: variables that every benchmark of a host gets. Only those can be given that a record
# keeps as part of what was measured (`_VARIABLES` in tfbench/environment.py), and none that says more than its value:
# two records with the same variables were measured alike.

ALLOWED = "NCCL_… and XLA_FLAGS"

MAX_VALUE_LENGTH = 500
"""Of what a record keeps of a value."""

_NAME = re.compile(r"NCCL_[A-Z0-9_]{1,100}|XLA_FLAGS")
_VALUE = re.compile(rf"[ -~]{{0,{MAX_VALUE_LENGTH}}}")

_INSTEAD = {
    "CUDA_VISIBLE_DEVICES": "use gpus:",
    "NVIDIA_VISIBLE_DEVICES": "use gpus:",
    "TF_CONFIG": "put the hosts into one fleet and set num_hosts in a suite",
    "TF_XLA_FLAGS": "use xla: in a suite",
    "NVIDIA_TF32_OVERRIDE": "use precision: tf32 or fp32 in a suite",
    "NCCL_CONF_FILE": "list its variables here",
}


def environment_problems(given: Mapping[Any, object]) -> list[tuple[str, str]]:
    """Check the variables of one level; what types alone can refuse is not judged again.

    Args:
        given: As it stands in the document.

    Returns:
        Name and mistake, with a remedy.
    """
    problems = []
    for name, value in given.items():
        if not isinstance(name, str):
            continue
        if why := _refusal(name):
            problems.append((name, why))
        elif isinstance(value, str) and not _VALUE.fullmatch(value):
            what = f"must be at most {MAX_VALUE_LENGTH} printable ASCII characters"
            problems.append((name, f"{what}. Received: {shown(value)}. Example: NCCL_DEBUG: INFO"))
    return problems


def _refusal(name: str) -> str | None:
    """Say why a variable cannot be given; None: it can."""
    if name in _INSTEAD:
        return f"cannot be set here: {_INSTEAD[name]} instead. Remove it"
    if not _NAME.fullmatch(name):
        return f"cannot be set here: only {ALLOWED} can, because a record keeps them. Remove it"
    if name.endswith("_FILE"):
        return "names a file, whose contents a record would not keep. Remove it"
    return None


def merge_environments(*levels: Mapping[str, str | int] | None) -> dict[str, str]:
    """Join the variables of all levels, sorted by name; the innermost value of each wins."""
    merged = {name: str(value) for level in levels for name, value in (level or {}).items()}
    return dict(sorted(merged.items()))


def shown_environment(environment: Mapping[str, str]) -> str:
    """Write variables as `NAME=value NAME=value`."""
    return " ".join(f"{name}={value}" for name, value in environment.items())

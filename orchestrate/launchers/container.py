"""What a benchmark's container is allowed and given: described here, carried out by the engine."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Image
from orchestrate.planning.plan import Job
from results.schema import Data, Device

RUN_LABEL = "tfbench.run"
JOB_LABEL = "tfbench.job"
RECORD_PATH = "/out/record.json"
DATA_PATH = "/data"

CDI_GPU = "nvidia.com/gpu"
"""Vendor and class of NVIDIA's devices in the Container Device Interface; a device is `nvidia.com/gpu=NAME`."""

NO_GPU = "-1"
"""Of CUDA_VISIBLE_DEVICES: hides all GPUs, as an empty text does; unlike that it cannot be taken for unset.
Source: CUDA programming guide, CUDA_VISIBLE_DEVICES; `cuda_diagnostics.cc` of TensorFlow's XLA names both."""

PROBE_ENTRYPOINT = ("python3.11", "-m", "tfbench.probe")
"""Of an image of ours that reports on its host: see `tfbench/probe.py`."""

CACHE_LABEL = "tfbench.cuda-cache"
"""Of volumes; its value is the image, as it was started."""

CACHE_PATH = "/cuda-cache"
MAX_CACHE_BYTES = 2 << 30
"""Of what the driver has compiled: TensorFlow's kernels for one architecture exceed the driver's own limit of 256 MiB.
Source: TensorFlow's installation guide, which names this value for `CUDA_CACHE_MAXSIZE`."""

CACHE_VARIABLES = {"CUDA_CACHE_PATH": CACHE_PATH, "CUDA_CACHE_MAXSIZE": str(MAX_CACHE_BYTES)}
"""Of a container that has a volume for it."""

GIBIBYTE = 1 << 30
SHM_BYTES = GIBIBYTE  # NCCL's rings live there; the engine's 64 MiB is too little
TMP_BYTES = 4 * GIBIBYTE
MAX_FILE_BYTES = 256 << 20  # a benchmark writes a small record: nothing it writes may fill the host's disk
MEMORY_LOCK = "memlock"
"""Name of the limit of locked memory."""

MAX_PROCESSES = 32_768  # threads count too, and TensorFlow and NCCL start hundreds of them for each GPU


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container without rights: read-only root, no capabilities, no new privileges; no network unless it has peers.

    Attributes:
        gpus: UUIDs or indices of the GPUs that it sees.
        all_gpus: It sees all GPUs, whatever `gpus` is.
        cdi: `gpus` are names of CDI devices, e.g. `nvidia.com/gpu=0`; else the NVIDIA runtime is requested.
        data_dir: Folder of the machine that it may read at `DATA_PATH`; None: it sees none.
        cache: Volume at `CACHE_PATH`, which outlives it and belongs to its image; None: it keeps nothing.
        cpus: CPUs that it may use; None: all.
        memory_bytes: None: all.
        limits: Resource limits by name; -1: none.
        network: `none`; `bridge`: its own, reached through `ports` only; `host`: the machine's.
        ports: TCP ports of the machine that lead to the same ports of a container on the bridge.
    """

    image: str
    name: str
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    all_gpus: bool = False
    cdi: bool = False
    data_dir: str | None = None
    cache: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    limits: Mapping[str, int] = field(default_factory=lambda: {"fsize": MAX_FILE_BYTES})
    network: str = "none"
    ports: tuple[int, ...] = ()


def container_document(spec: ContainerSpec) -> dict[str, Any]:
    """Translate it for the engine: the body of `ContainerCreate` in its API."""
    settings = {
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={TMP_BYTES},mode=1777"},
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "NetworkMode": spec.network,
        "PortBindings": {f"{port}/tcp": [{"HostPort": str(port)}] for port in spec.ports} or None,
        "Init": True,
        "ShmSize": SHM_BYTES,
        "PidsLimit": MAX_PROCESSES,
        "Ulimits": [{"Name": name, "Soft": value, "Hard": value} for name, value in spec.limits.items()],
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}},
        "NanoCpus": None if spec.cpus is None else int(spec.cpus * 1e9),
        "Memory": spec.memory_bytes,
        "MemorySwap": spec.memory_bytes,
        "DeviceRequests": _device_requests(spec),
        "Mounts": _mounts(spec),
    }
    document: dict[str, Any] = {
        "Image": spec.image,
        "Cmd": list(spec.command),
        "Entrypoint": None if spec.entrypoint is None else list(spec.entrypoint),
        "Env": [f"{name}={value}" for name, value in spec.environment.items()],
        "Labels": dict(spec.labels),
        "NetworkDisabled": spec.network == "none",
        "ExposedPorts": {f"{port}/tcp": {} for port in spec.ports} or None,
        "AttachStdout": True,
        "AttachStderr": True,
        "HostConfig": {key: value for key, value in settings.items() if value is not None},
    }
    return {key: value for key, value in document.items() if value is not None}


def _mounts(spec: ContainerSpec) -> list[dict[str, Any]] | None:
    """Request a read-only bind mount, which unlike the older `Binds` fails without its folder, and a named volume."""
    mounts: list[dict[str, Any]] = []
    if spec.data_dir is not None:
        mounts.append({"Type": "bind", "Source": spec.data_dir, "Target": DATA_PATH, "ReadOnly": True})
    if spec.cache is not None:
        labels = {CACHE_LABEL: spec.image}
        mounts.append(
            {"Type": "volume", "Source": spec.cache, "Target": CACHE_PATH, "VolumeOptions": {"Labels": labels}}
        )
    return mounts or None


def _device_requests(spec: ContainerSpec) -> list[dict[str, Any]]:
    capabilities = [["gpu", "compute", "utility"]]
    if spec.cdi:
        return [{"Driver": "cdi", "DeviceIDs": list(spec.gpus)}] if spec.gpus else []
    if spec.all_gpus:
        return [{"Count": -1, "Capabilities": capabilities}]
    return [{"DeviceIDs": list(spec.gpus), "Capabilities": capabilities}] if spec.gpus else []


def container_name(job: Job) -> str:
    """Name a job's container: the name is the lock that keeps two controllers from starting a repeat twice."""
    return f"tfbench-{job.origin.run_id}-{job.id}"


def job_container(
    job: Job,
    host: Host,
    image: str,
    cdi_devices: frozenset[str] | None = None,
    *,
    lifts_memory_lock: bool = True,
    keeps_cache: bool = False,
) -> ContainerSpec:
    """Describe the container of a repeat.

    Args:
        job: The repeat.
        host: Settings of the host: limits and deadline.
        image: What to start, by digest.
        cdi_devices: What the engine lists, where GPUs are requested by CDI; empty: it lists nothing. None: not by CDI.
        lifts_memory_lock: Whether the engine may lift the limit of locked memory; one without privileges may not.
        keeps_cache: Whether what the driver compiles is kept for the next container of the image.
    """
    limits = {"fsize": MAX_FILE_BYTES}
    if job.gpus and lifts_memory_lock:  # NCCL pins memory
        limits[MEMORY_LOCK] = -1
    cache = cache_volume(image) if job.gpus and keeps_cache else None
    member = job.member
    return ContainerSpec(
        image=image,
        name=container_name(job),
        command=(
            *job.case.flags(),
            *host_flags(job, DATA_PATH),
            f"--output={RECORD_PATH}",
            f"--max_seconds={host.timeout_minutes * 60:g}",
        ),
        environment={
            "PYTHONUNBUFFERED": "1",
            **host.environment,
            **(member.environment if member else {}),
            **(CACHE_VARIABLES if cache else {}),
        },
        labels={
            RUN_LABEL: job.origin.run_id,
            JOB_LABEL: job.id,
            "tfbench.case": job.case.name,
            "tfbench.repeat": str(job.origin.repeat),
        },
        gpus=job.gpu_uuids or tuple(map(str, job.gpus)) if cdi_devices is None else _cdi_names(job, cdi_devices),
        cdi=cdi_devices is not None,
        data_dir=host.data_dir if job.case.data is Data.TFRECORD else None,
        cache=cache,
        cpus=host.cpus,
        memory_bytes=None if host.memory_gb is None else int(host.memory_gb * 1e9),
        limits=limits,
        network=member.network if member else "none",
        ports=member.ports if member and member.network == "bridge" else (),
    )


def cache_volume(image: str) -> str | None:
    """Name the volume in which the driver keeps what it compiles, from one container of an image to the next.

    The digest in its name means that no image writes what another one runs; one that is known by a tag alone has none.
    """
    _, known, digest = image.rpartition("sha256:")
    return f"tfbench-cuda-cache-{digest[:16]}" if known else None


def _cdi_names(job: Job, devices: frozenset[str]) -> tuple[str, ...]:
    """Name a job's GPUs as the engine offers them: by UUID where it does, else by index, which a MIG slice has not."""
    names = [f"{CDI_GPU}={uuid}" for uuid in job.gpu_uuids or ()]
    slices = any(uuid.startswith("MIG-") for uuid in job.gpu_uuids or ())
    by_uuid = names and (slices or devices.issuperset(names))
    return tuple(names if by_uuid else [f"{CDI_GPU}={index}" for index in job.gpus])


def job_variables(job: Job, host: Host) -> dict[str, str]:
    """Return the variables of a benchmark outside of containers: those of the host, its peers, and the GPUs it sees.

    A CPU case sees no GPU, so that nothing of it can run on one.
    """
    variables = {**host.environment, **(job.member.environment if job.member else {})}
    if job.case.device is Device.CPU:
        variables["CUDA_VISIBLE_DEVICES"] = NO_GPU
    elif gpus := job.gpu_uuids or tuple(map(str, job.gpus)):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return variables


def host_flags(job: Job, path: str | None) -> list[str]:
    """Name what a repeat needs of its host: where its files are, and the limits of the device that are known.

    Args:
        job: The repeat.
        path: Of the data set, as the benchmark sees it.
    """
    data = [f"--data_dir={path}"] if job.case.data is Data.TFRECORD else []
    if job.known_peaks is None:
        return data
    return [*data, f"--known_peaks={','.join(f'{figure:.6g}' for figure in job.known_peaks)}"]


def probe_container(image: str, *, cdi: bool = False) -> ContainerSpec:
    """Describe a container that sees all GPUs and reports on them."""
    return ContainerSpec(
        image=image,
        name=unique_name("probe"),
        entrypoint=PROBE_ENTRYPOINT,
        all_gpus=True,
        gpus=(f"{CDI_GPU}=all",) if cdi else (),
        cdi=cdi,
    )


def unique_name(purpose: str) -> str:
    """Name a container that belongs to no run."""
    return f"tfbench-{purpose}-{secrets.token_hex(6)}"


def repository(reference: str) -> str:
    """Drop tag and digest of an image reference."""
    name = reference.partition("@")[0]
    head, colon, tail = name.rpartition(":")
    return head if colon and "/" not in tail else name


def with_named_digest(image: Image) -> Image:
    """Take the digest out of a reference that names one; the first node of a queue resolves a tag."""
    digest = image.reference.partition("@")[2]
    return replace(image, digest=digest) if digest else image


def registry_of(reference: str) -> str:
    """Return the registry of an image reference, e.g. `ghcr.io`."""
    first, slash, _ = reference.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"

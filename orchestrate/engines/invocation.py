"""How a benchmark is started on any engine: its name, flags and variables, and the isolation of its container."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrate.inventory.hosts import Host
from orchestrate.planning.plan import Job
from results.schema import Data, Device

RUN_LABEL = "tfbench.run"
JOB_LABEL = "tfbench.job"
RECORD_FOLDER = "/out"
RECORD_PATH = f"{RECORD_FOLDER}/record.json"
DATA_PATH = "/data"

CDI_GPU = "nvidia.com/gpu"
"""Vendor and class of NVIDIA's devices in the Container Device Interface, in which a device is
`nvidia.com/gpu=NAME`."""

ALL_GPUS = ("all",)
NO_GPU = "-1"
"""Value of CUDA_VISIBLE_DEVICES that hides all GPUs and, unlike an empty one, cannot be mistaken for unset.
Source: CUDA programming guide, CUDA_VISIBLE_DEVICES; `cuda_diagnostics.cc` of TensorFlow's XLA names both."""

PROBE_ENTRYPOINT = ("python3.11", "-m", "tfbench.probe")
"""Command of an image that reports facts about its host; see `tfbench/probe.py`."""

CACHE_LABEL = "tfbench.cuda-cache"
"""Label of cache volumes, with the image as its value."""

CACHE_PATH = "/cuda-cache"
MAX_CACHE_BYTES = 2 << 30
"""Size limit of the driver's compilation cache: TensorFlow's kernels for one architecture exceed its default of 256
MiB.
Source: TensorFlow's installation guide, which names this value for `CUDA_CACHE_MAXSIZE`."""

CACHE_VARIABLES = {"CUDA_CACHE_PATH": CACHE_PATH, "CUDA_CACHE_MAXSIZE": str(MAX_CACHE_BYTES)}
"""Variables of a container with a cache volume."""

GIBIBYTE = 1 << 30
SHM_BYTES = GIBIBYTE  # for NCCL's rings; the engine's default of 64 MiB is too small
TMP_BYTES = 4 * GIBIBYTE
MAX_FILE_BYTES = 256 << 20  # a benchmark writes only a small record and must not fill the host's disk
MEMORY_LOCK = "memlock"
"""Name of the limit on locked memory."""

MAX_PROCESSES = 32_768  # includes threads, of which TensorFlow and NCCL start hundreds per GPU


@dataclass(frozen=True, kw_only=True)
class ContainerSpec:
    """A container with read-only root, no capabilities, no new privileges, and no network unless it has peers.

    Attributes:
        gpus: GPUs that it sees: UUIDs or indices for the NVIDIA runtime, or names of CDI devices, e.g.
            `nvidia.com/gpu=0`; `ALL_GPUS`: all that the runtime has.
        data_dir: Folder of the machine that is mounted read-only at `DATA_PATH`, or None.
        cache: Volume at `CACHE_PATH`, which belongs to its image and persists, or None.
        cpus: CPUs that it may use; None: all.
        memory_bytes: Memory limit; None: no limit.
        limits: Resource limits by name; -1: unlimited.
        network: `none`; `bridge`: its own, reachable only through `ports`; `host`: the machine's.
        ports: TCP ports of the machine that are forwarded to the same ports of a container on the bridge.
    """

    image: str
    name: str
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    data_dir: str | None = None
    cache: str | None = None
    cpus: float | None = None
    memory_bytes: int | None = None
    limits: Mapping[str, int] = field(default_factory=lambda: {"fsize": MAX_FILE_BYTES})
    network: str = "none"
    ports: tuple[int, ...] = ()


def container_document(spec: ContainerSpec) -> dict[str, Any]:
    """Return the body of `ContainerCreate` in the engine's API."""
    settings = {
        "ReadonlyRootfs": True,
        "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={TMP_BYTES},mode=1777"},
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges=true"],
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
        "DeviceRequests": _device_requests(spec.gpus),
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
    """Return a read-only bind mount, which unlike `Binds` fails if the folder is missing, and a named volume."""
    mounts: list[dict[str, Any]] = []
    if spec.data_dir is not None:
        mounts.append({"Type": "bind", "Source": spec.data_dir, "Target": DATA_PATH, "ReadOnly": True})
    if spec.cache is not None:
        labels = {CACHE_LABEL: spec.image}
        mounts.append(
            {"Type": "volume", "Source": spec.cache, "Target": CACHE_PATH, "VolumeOptions": {"Labels": labels}}
        )
    return mounts or None


def _device_requests(gpus: tuple[str, ...]) -> list[dict[str, Any]]:
    if not gpus:
        return []
    if gpus[0].startswith(f"{CDI_GPU}="):
        return [{"Driver": "cdi", "DeviceIDs": list(gpus)}]
    chosen = {"Count": -1} if gpus == ALL_GPUS else {"DeviceIDs": list(gpus)}
    return [{**chosen, "Capabilities": [["gpu", "compute", "utility"]]}]


def container_name(job: Job) -> str:
    """Return the name of a job's container, which is also the lock against starting a repeat twice."""
    return f"tfbench-{job.origin.run_id}-{job.id}"


def job_labels(job: Job) -> dict[str, str]:
    """Return the labels of a job's container, by which `running` and people find it."""
    return {
        RUN_LABEL: job.origin.run_id,
        JOB_LABEL: job.id,
        "tfbench.case": job.case.name,
        "tfbench.repeat": str(job.origin.repeat),
    }


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
        host: Settings of the host, including limits.
        image: Image to start, by digest.
        cdi_devices: CDI devices that the engine lists, perhaps none; None: GPUs are not requested by CDI.
        lifts_memory_lock: Whether the engine may lift the limit on locked memory, which needs privileges.
        keeps_cache: Whether code compiled by the driver is kept for later containers of the image.
    """
    limits = {"fsize": MAX_FILE_BYTES}
    if len(job.gpus) * job.case.num_hosts > 1 and lifts_memory_lock:  # NCCL locks memory
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
        labels=job_labels(job),
        gpus=job.gpu_uuids or tuple(map(str, job.gpus)) if cdi_devices is None else _cdi_names(job, cdi_devices),
        data_dir=host.data_dir if job.case.data is Data.TFRECORD else None,
        cache=cache,
        cpus=host.cpus,
        memory_bytes=None if host.memory_gb is None else int(host.memory_gb * 1e9),
        limits=limits,
        network=member.network if member else "none",
        ports=member.ports if member and member.network == "bridge" else (),
    )


def cache_volume(image: str) -> str | None:
    """Return the name of the volume for code compiled by the driver, shared by the containers of an image.

    Its name contains the image's digest, so that no image runs code written by another; an image known only by its tag
    has no volume.
    """
    _, known, digest = image.rpartition("sha256:")
    return f"tfbench-cuda-cache-{digest[:16]}" if known else None


def _cdi_names(job: Job, devices: frozenset[str]) -> tuple[str, ...]:
    """Return the CDI names of a job's GPUs: by UUID if the engine lists those, else by index, which MIG slices lack."""
    names = [f"{CDI_GPU}={uuid}" for uuid in job.gpu_uuids or ()]
    slices = any(uuid.startswith("MIG-") for uuid in job.gpu_uuids or ())
    by_uuid = names and (slices or devices.issuperset(names))
    return tuple(names if by_uuid else [f"{CDI_GPU}={index}" for index in job.gpus])


def job_variables(job: Job, host: Host) -> dict[str, str]:
    """Return the variables of a benchmark outside containers: the host's, its peers, and its visible GPUs.

    A CPU case sees no GPU, so that no part of it can run on one.
    """
    variables = {**host.environment, **(job.member.environment if job.member else {})}
    if job.case.device is Device.CPU:
        variables["CUDA_VISIBLE_DEVICES"] = NO_GPU
    elif gpus := job.gpu_uuids or tuple(map(str, job.gpus)):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return variables


def host_flags(job: Job, path: str | None) -> list[str]:
    """Return the flags of a repeat that depend on its host: the data set's path and known peak rates.

    Args:
        job: The repeat.
        path: Path of the data set for the benchmark.
    """
    data = [f"--data_dir={path}"] if job.case.data is Data.TFRECORD else []
    if job.known_peaks is None:
        return data
    return [*data, f"--known_peaks={','.join(f'{figure:.6g}' for figure in job.known_peaks)}"]


def probe_container(image: str, *, cdi: bool = False) -> ContainerSpec:
    """Describe a container that probes all GPUs."""
    return ContainerSpec(
        image=image,
        name=unique_name("probe"),
        entrypoint=PROBE_ENTRYPOINT,
        gpus=(f"{CDI_GPU}=all",) if cdi else ALL_GPUS,
    )


def unique_name(purpose: str) -> str:
    """Return a name for a container outside any run."""
    return f"tfbench-{purpose}-{secrets.token_hex(6)}"

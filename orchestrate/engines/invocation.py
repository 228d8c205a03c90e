"""How a benchmark is started on any engine: its name, flags and variables, and the isolation of its container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrate.inventory.hosts import Host
from orchestrate.planning.plan import Job
from results.schema import Data, Device

RUN_LABEL = "tfbench.run"
JOB_LABEL = "tfbench.job"
RECORD_PATH = "/out/record.json"
DATA_PATH = "/data"

CDI_GPU = "nvidia.com/gpu"
"""Vendor and class of NVIDIA's devices in the Container Device Interface, in which a device is
`nvidia.com/gpu=NAME`."""

ALL_GPUS = ("all",)
NO_GPU = "-1"
"""Value of CUDA_VISIBLE_DEVICES that hides all GPUs and, unlike an empty one, cannot be mistaken for unset.
Source: CUDA programming guide, CUDA_VISIBLE_DEVICES; `cuda_diagnostics.cc` of TensorFlow's XLA names both."""

PROBE_ENTRYPOINT = ["python3.11", "-m", "tfbench.probe"]
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
FILE_LIMIT = {"Name": "fsize", "Soft": MAX_FILE_BYTES, "Hard": MAX_FILE_BYTES}
UNLIMITED_MEMORY_LOCK = {"Name": "memlock", "Soft": -1, "Hard": -1}
MAX_PROCESSES = 32_768  # includes threads, of which TensorFlow and NCCL start hundreds per GPU

ISOLATION = {
    "ReadonlyRootfs": True,
    "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={TMP_BYTES},mode=1777"},
    "CapDrop": ["ALL"],
    "SecurityOpt": ["no-new-privileges=true"],
    "NetworkMode": "none",
    "Init": True,
    "ShmSize": SHM_BYTES,
    "PidsLimit": MAX_PROCESSES,
    "Ulimits": [FILE_LIMIT],
    "LogConfig": {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}},
}
"""Settings of every container: read-only root, no capabilities, no new privileges, and no network."""


def container(image: str, settings: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Describe an isolated container: the body of `ContainerCreate` in the engine's API.

    Args:
        image: Its image.
        settings: Fields of `HostConfig` in addition to `ISOLATION`, or instead of it.
        fields: Fields beside `HostConfig`.
    """
    chosen = {**ISOLATION, **(settings or {})}
    disabled = chosen["NetworkMode"] == "none"
    usual = {"Image": image, "NetworkDisabled": disabled, "AttachStdout": True, "AttachStderr": True}
    return {**usual, "HostConfig": chosen, **fields}


def gpu_request(names: Sequence[str], *, cdi: bool) -> list[dict[str, Any]]:
    """Return the request for GPUs by UUIDs or indices, or for `ALL_GPUS`: by CDI, or to NVIDIA's runtime or toolkit."""
    if not names:
        return []
    if cdi:
        return [{"Driver": "cdi", "DeviceIDs": [f"{CDI_GPU}={name}" for name in names]}]
    chosen = {"Count": -1} if names == ALL_GPUS else {"DeviceIDs": list(names)}
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
    job: Job, host: Host, image: str, devices: frozenset[str] | None = None, *, lifts_memory_lock: bool = True
) -> dict[str, Any]:
    """Describe the container of a repeat, as `container` does.

    Args:
        job: The repeat.
        host: Settings of the host, including limits.
        image: Image to start, by digest.
        devices: CDI devices that the engine lists, perhaps none; None: GPUs are not requested by CDI.
        lifts_memory_lock: Whether the engine may lift the limit on locked memory, which needs privileges.
    """
    member, cache = job.member, cache_volume(image) if job.gpus else None
    memory = int((host.memory_gb or 0) * 1e9)  # 0: unlimited
    ports = [f"{port}/tcp" for port in member.ports] if member and member.network == "bridge" else []
    locks_memory = len(job.gpus) * job.case.num_hosts > 1 and lifts_memory_lock  # as NCCL does
    names = job.gpu_uuids
    # CDI names slices of GPUs by UUID only, and other GPUs by index if the engine does not list their UUIDs.
    is_slice = any(name.startswith("MIG-") for name in names)
    if devices is not None and not is_slice and not devices.issuperset(f"{CDI_GPU}={name}" for name in names):
        names = ()
    mounts: list[dict[str, Any]] = []
    if folder := mounted_folder(job, host):  # unlike `Binds`, this fails if the folder is missing
        mounts.append({"Type": "bind", "Source": folder, "Target": DATA_PATH, "ReadOnly": True})
    if cache is not None:
        mounts.append(cache_mount(cache, image))
    variables = {**job_variables(job, host), **(CACHE_VARIABLES if cache else {})}
    return container(
        image,
        {
            "NetworkMode": member.network if member else "none",
            "PortBindings": {port: [{"HostPort": port.removesuffix("/tcp")}] for port in ports},
            "NanoCpus": int((host.cpus or 0) * 1e9),
            "Memory": memory,
            "MemorySwap": memory,
            "DeviceRequests": gpu_request(names or [*map(str, job.gpus)], cdi=devices is not None),
            "Mounts": mounts,
            "Ulimits": [FILE_LIMIT, *([UNLIMITED_MEMORY_LOCK] if locks_memory else [])],
        },
        Cmd=container_flags(job, host),
        Env=[f"{name}={value}" for name, value in variables.items()],
        Labels=job_labels(job),
        ExposedPorts={port: {} for port in ports},
    )


def max_seconds(job: Job, host: Host) -> float:
    """Return the time limit of a repeat."""
    return job.max_seconds or host.timeout_minutes * 60


def benchmark_flags(job: Job, host: Host, path: str | None, seconds: float | None = None) -> list[str]:
    """Return the flags of a benchmark, except where it writes its record.

    Args:
        job: The repeat.
        host: Settings of its host.
        path: Path of the data set for the benchmark.
        seconds: Its time limit; None: `max_seconds`.
    """
    flags = job.case.flags()
    if job.case.data is Data.TFRECORD:
        flags.append(f"--data_dir={path}")
    if job.known_peaks is not None:
        flags.append(f"--known_peaks={','.join(f'{figure:.6g}' for figure in job.known_peaks)}")
    return [*flags, f"--max_seconds={seconds or max_seconds(job, host):g}"]


def container_flags(job: Job, host: Host) -> list[str]:
    """Return the flags of a benchmark in a container, which prints its record at the end of its log."""
    return [*benchmark_flags(job, host, DATA_PATH), f"--output={RECORD_PATH}", "--print_record"]


def mounted_folder(job: Job, host: Host) -> str | None:
    """Return the host's folder that a repeat's container mounts read-only at `DATA_PATH`, or None."""
    return host.data_dir if job.case.data is Data.TFRECORD else None


def cache_volume(image: str) -> str | None:
    """Return the name of the volume for code compiled by the driver, shared by the containers of an image.

    Its name contains the image's digest, so that no image runs code written by another; an image known only by its tag
    has no volume.
    """
    _, known, digest = image.rpartition("sha256:")
    return f"tfbench-cuda-cache-{digest[:16]}" if known else None


def cache_mount(volume: str, image: str) -> dict[str, Any]:
    """Return the mount of an image's volume at `CACHE_PATH`; it persists."""
    options = {"Labels": {CACHE_LABEL: image}}
    return {"Type": "volume", "Source": volume, "Target": CACHE_PATH, "VolumeOptions": options}


def job_variables(job: Job, host: Host) -> dict[str, str]:
    """Return the variables of a benchmark: the host's, and those of its peers."""
    return {"PYTHONUNBUFFERED": "1", **host.environment, **(job.member.environment if job.member else {})}


def process_variables(job: Job, host: Host) -> dict[str, str]:
    """Return the variables of a benchmark outside containers, which also choose its visible GPUs.

    A CPU case sees no GPU, so that no part of it can run on one.
    """
    variables = job_variables(job, host)
    if job.case.device is Device.CPU:
        variables["CUDA_VISIBLE_DEVICES"] = NO_GPU
    elif gpus := job.gpu_uuids or tuple(map(str, job.gpus)):
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return variables


def probe_container(image: str, *, cdi: bool = False) -> dict[str, Any]:
    """Describe a container that probes all GPUs."""
    return container(image, {"DeviceRequests": gpu_request(ALL_GPUS, cdi=cdi)}, Entrypoint=PROBE_ENTRYPOINT)

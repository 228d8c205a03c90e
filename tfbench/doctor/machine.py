"""Facts about the host that can limit a benchmark: CPUs, limits, shared memory, PCIe, disk."""

from __future__ import annotations

import os
import re
import resource
import shutil
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tfbench.machine.cpu_use import CPU_USE_SECONDS, other_cpu_share, read_cpu_use
from tfbench.machine.host import cpu_limit, memory_limit_bytes, read_text

NVIDIA_VENDOR = "0x10de"
DISPLAY_CLASS = "0x03"
"""First byte of the PCI class of display and 3D controllers."""

WATCHED = (
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
    "TF_XLA_FLAGS",
    "XLA_FLAGS",
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
)
"""Environment variables that change which devices a benchmark sees, or its speed."""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The machine, as seen from its container; None: unknown.

    Attributes:
        cpu_limit: CPUs that this process may use; may be fractional.
        load: Load average of the last minute, of the whole machine.
        other_cpu_share: Share of the CPUs that other programs used for half a second.
        governors: Number of CPUs by frequency governor; empty if the kernel offers no choice.
        memory_available_bytes: The kernel's estimate of available memory.
        shm_bytes: Size of /dev/shm.
        memlock_bytes: Memory that this process may lock; None: unlimited.
        container: Whether this process runs in a container.
        kernel_driver: Version line of NVIDIA's kernel module; None: not loaded, or hidden.
        pci_gpus: PCI ids of NVIDIA's GPUs on the bus, with or without a driver.
        disk_free_bytes: Of the file system for temporary files.
        variables: Those of `WATCHED` that are set.
    """

    cpu_count: int = 1
    cpu_limit: float = 1.0
    load: float | None = None
    other_cpu_share: float | None = None
    governors: dict[str, int] = field(default_factory=dict)
    memory_bytes: int | None = None
    memory_available_bytes: int | None = None
    shm_bytes: int | None = None
    memlock_bytes: int | None = None
    container: bool = False
    kernel_driver: str | None = None
    pci_gpus: list[str] = field(default_factory=list)
    disk_free_bytes: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


def read_machine(root: Path = Path("/")) -> MachineFacts:
    """Read the facts of this machine.

    Args:
        root: Parent of `proc`, `sys` and `dev`.
    """
    before = read_cpu_use(root)
    time.sleep(CPU_USE_SECONDS)
    memlock, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return MachineFacts(
        cpu_count=os.cpu_count() or 1,
        cpu_limit=cpu_limit(root),
        load=_load(root),
        other_cpu_share=other_cpu_share(before, read_cpu_use(root), cpu_limit(root)),
        governors=_governors(root),
        memory_bytes=memory_limit_bytes(root),
        memory_available_bytes=_memory_available(root),
        shm_bytes=_size(root / "dev/shm"),
        memlock_bytes=None if memlock == resource.RLIM_INFINITY else memlock,
        container=_in_container(root),
        kernel_driver=_first_line(root / "proc/driver/nvidia/version"),
        pci_gpus=_pci_gpus(root),
        disk_free_bytes=shutil.disk_usage(tempfile.gettempdir()).free,
        variables={name: os.environ[name][:500] for name in WATCHED if name in os.environ},
    )


def _first_line(path: Path) -> str | None:
    return next(iter(read_text(path).splitlines()), None)


def _load(root: Path) -> float | None:
    text = read_text(root / "proc/loadavg").split()
    return float(text[0]) if text else None


def _governors(root: Path) -> dict[str, int]:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return dict(Counter(text for file in files if (text := read_text(file).strip())))


def _memory_available(root: Path) -> int | None:
    found = re.search(r"^MemAvailable: *(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _size(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _in_container(root: Path) -> bool:
    marks = ("docker", "containerd", "kubepods", "libpod", "lxc")
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    return any(mark in read_text(root / "proc/1/cgroup") for mark in marks) or "APPTAINER_CONTAINER" in os.environ


def _pci_gpus(root: Path) -> list[str]:
    """Return the ids of NVIDIA's GPUs on the PCI bus; in a container, including those it was not given."""
    return sorted(
        device.name.upper()
        for device in (root / "sys/bus/pci/devices").glob("*")
        if read_text(device / "vendor").strip() == NVIDIA_VENDOR
        and read_text(device / "class").startswith(DISPLAY_CLASS)
    )

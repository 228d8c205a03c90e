"""Judges the machine around the GPUs: CPUs, memory, limits, IOMMU, disk, and variables that change what is measured."""

from __future__ import annotations

from collections.abc import Iterator

from tfbench.doctor.facts import Facts
from tfbench.doctor.findings import Finding, Level
from tfbench.doctor.machine import MachineFacts

MIN_SHM_BYTES = 1 << 30
"""Source: NCCL User Guide, "Troubleshooting", "Shared memory": --shm-size=1g."""

MIN_CPUS_PER_GPU = 2.0
"""One thread launches a GPU's kernels, one more prepares and moves its input."""

MAX_LOAD_SHARE = 0.25
MIN_DISK_BYTES = 2_000_000_000
MIN_MEMORY_BYTES = 4_000_000_000
"""TensorFlow with CUDA's libraries takes 2 to 4 GB of the host's memory in each process."""

MIN_OPEN_FILES = 1024

VARIABLES = {
    "CUDA_LAUNCH_BLOCKING": (("", "0"), "each kernel must end before the next is launched"),
    "NVIDIA_TF32_OVERRIDE": (("",), "it overrides the precision that a case asks for"),
    "NCCL_P2P_DISABLE": (("", "0"), "NCCL copies through the host's memory"),
    "NCCL_SHM_DISABLE": (("", "0"), "NCCL uses sockets between GPUs without P2P"),
    "XLA_FLAGS": (("",), "it changes what XLA compiles, so numbers are not comparable with others"),
    "TF_XLA_FLAGS": (("",), "it may switch XLA on, whatever --xla says"),
}
"""By variable: values that do no harm, and what any other does."""


def check_machine(facts: Facts) -> list[Finding]:
    """Judge the machine, for as many GPUs as it has."""
    machine = facts.machine
    gpus = sum(gpu.problem is None for gpu in facts.driver.gpus) if facts.device == "gpu" else 0
    found = [*_cpus(machine, gpus), *_memory(machine), *_limits(machine, gpus), *_variables(machine)]
    if gpus:
        found += _cache(machine)
    if gpus > 1:
        found += _iommu(facts)
    return found


def _cpus(machine: MachineFacts, gpus: int) -> Iterator[Finding]:
    slow = machine.governors.get("powersave", 0)
    if slow:
        yield Finding(
            level=Level.DOUBT,
            code="governor",
            subject="CPU",
            seen=f"{slow} of {machine.cpu_count} CPUs use the powersave governor",
            why="kernels are launched, and inputs prepared, at a low clock",
            fix="sudo cpupower frequency-set -g performance",
            gpu_only=False,
        )
    if gpus and machine.cpu_limit < MIN_CPUS_PER_GPU * gpus:
        yield Finding(
            level=Level.DOUBT,
            code="few_cpus",
            subject="CPU",
            seen=f"{machine.cpu_limit:g} CPUs for {gpus} GPU{'s' if gpus > 1 else ''}",
            why="GPUs wait for kernels to be launched and for input",
            fix=f"give the container or job {MIN_CPUS_PER_GPU * gpus:g} CPUs (docker run --cpus, cpus: in hosts.yml)",
        )
    if machine.load is not None and machine.load > max(1.0, MAX_LOAD_SHARE * machine.cpu_count):
        yield Finding(
            level=Level.DOUBT,
            code="load",
            subject="CPU",
            seen=f"{machine.load:.1f} processes ran or waited in the last minute, on {machine.cpu_count} CPUs",
            why="other work takes CPU time from the benchmark",
            fix="top shows them; wait, or end them",
            gpu_only=False,
        )


def _memory(machine: MachineFacts) -> Iterator[Finding]:
    free = machine.memory_available_bytes
    limit = machine.memory_bytes
    least = min((value for value in (free, limit) if value is not None), default=None)
    if least is not None and least < MIN_MEMORY_BYTES:
        yield Finding(
            level=Level.DOUBT,
            code="little_memory",
            subject="memory",
            seen=f"{least / 1e9:.1f} GB of the host's memory are free",
            why="the kernel may kill a benchmark, or swap",
            fix="end other processes, or raise the container's limit (docker run --memory)",
            gpu_only=False,
        )
    if machine.disk_free_bytes is not None and machine.disk_free_bytes < MIN_DISK_BYTES:
        yield Finding(
            level=Level.DOUBT,
            code="disk_full",
            subject="disk",
            seen=f"{machine.disk_free_bytes / 1e9:.1f} GB are free for temporary files",
            why="records, logs and compiled kernels may be lost",
            fix="df -h; docker system prune",
            gpu_only=False,
        )


def _limits(machine: MachineFacts, gpus: int) -> Iterator[Finding]:
    if gpus > 1 and machine.shm_bytes is not None and machine.shm_bytes < MIN_SHM_BYTES:
        yield Finding(
            level=Level.DOUBT,
            code="little_shm",
            subject="/dev/shm",
            seen=f"/dev/shm has {machine.shm_bytes / 1e6:.0f} MB",
            why="NCCL keeps buffers there for GPUs without P2P, and fails where they do not fit",
            fix="docker run --shm-size=1g" if machine.container else "sudo mount -o remount,size=1g /dev/shm",
        )
    if gpus > 1 and machine.container and machine.memlock_bytes is not None:
        yield Finding(
            level=Level.DOUBT,
            code="memlock",
            subject="limits",
            seen=f"{machine.memlock_bytes / 1e6:.1f} MB of memory may be locked",
            why="NCCL locks its buffers for GPUs and network cards, and fails where it cannot",
            fix="docker run --ulimit memlock=-1",
        )
    if machine.open_files is not None and machine.open_files < MIN_OPEN_FILES:
        yield Finding(
            level=Level.DOUBT,
            code="open_files",
            subject="limits",
            seen=f"{machine.open_files} files may be open",
            why="data sets, and NCCL on many GPUs, open more",
            fix="ulimit -n 65536 (docker run --ulimit nofile=65536)",
            gpu_only=False,
        )


def _cache(machine: MachineFacts) -> Iterator[Finding]:
    if machine.cache_problem is not None:
        yield Finding(
            level=Level.NOTE,
            code="cuda_cache",
            subject="CUDA cache",
            seen=f"{machine.cache_path} {machine.cache_problem}",
            why="kernels that the driver compiles from PTX are compiled again in every process or container",
            fix="CUDA_CACHE_PATH=/a/folder/on/disk, for a container a volume",
        )


def _iommu(facts: Facts) -> Iterator[Finding]:
    kind = facts.machine.iommu
    linked = all(gpu.nvlinks_up for gpu in facts.driver.gpus if gpu.problem is None)
    if kind is not None and kind.startswith("DMA") and not linked:
        yield Finding(
            level=Level.DOUBT,
            code="iommu",
            subject="IOMMU",
            seen=f"the IOMMU translates the GPUs' transfers ({kind})",
            why="PCIe traffic between GPUs goes through the CPU's root port, and P2P may be slow or hang",
            fix="kernel parameter iommu=pt, or switch it off in the BIOS together with ACS",
        )


def _variables(machine: MachineFacts) -> Iterator[Finding]:
    for name, (harmless, why) in VARIABLES.items():
        value = machine.variables.get(name)
        if value is not None and value not in harmless:
            yield Finding(
                level=Level.DOUBT,
                code="variable",
                subject=name,
                seen=f"{name}={value}",
                why=why,
                fix=f"unset {name}",
            )
    chosen = machine.variables.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        yield Finding(
            level=Level.NOTE,
            code="variable",
            subject="CUDA_VISIBLE_DEVICES",
            seen=f"CUDA_VISIBLE_DEVICES={chosen}",
            why="TensorFlow sees these GPUs only",
        )

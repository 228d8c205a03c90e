"""Problems and warnings of a host, each with its remedy."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.facts import Facts
from results.reference import GIBI
from results.reference.networks import PEAK_VARIATION, fitting_batch, training_bytes
from results.schema import Case, Device
from results.schema.health import MAX_IDLE_UTILISATION, GPUFacts, Moment, grouped_warnings

PCI_DEVICES = Path("/proc/bus/pci/devices")
"""A line for each device, with vendor and model after the first tabulator."""

MIN_DISK_BYTES = 15_000_000_000
"""An image with CUDA libraries takes 5 GB unpacked and 3 GB while it is pulled."""


def state_words(state: GPUFacts) -> str:
    """Describe the state of a GPU, e.g. `busy, 87% used, 12.3 GB taken, 3 processes, 71 °C`."""
    celsius = state.temperature_celsius
    return state.use + ("" if celsius is None else f", {celsius:.0f} °C")


def has_nvidia_card(devices: Path = PCI_DEVICES) -> bool:
    """Return whether this machine has an NVIDIA card, with or without a working driver."""
    with contextlib.suppress(OSError):
        return "\t10de" in devices.read_text()
    return False


def cpu_refusal(host: Host, facts: Facts) -> str | None:
    """Return why the CPU of a host without a GPU is not measured, or None."""
    if facts.gpus or host.device is not None or host.usd_per_gpu_hour is None:
        return None
    return "it has a price, so its CPU is not measured instead. To measure it, set device: cpu"


def problem_of(host: Host, facts: Facts) -> str | None:
    """Return why nothing can be measured on a host, or None."""
    return facts.problem or (_missing_gpus(host, facts) if cpu_refusal(host, facts) else None)


def _missing_gpus(host: Host, facts: Facts) -> str | None:
    """Return why no GPU was found on a host that should have some, or None."""
    if facts.gpus or not host.wants_gpus or host.queue is not None:
        return None
    refusal = cpu_refusal(host, facts)
    if host.launcher == "process" and host.device is None and not refusal and not has_nvidia_card():
        return None
    remedy = "no GPU was found. Run nvidia-smi there"
    if host.docker is not None and facts.gpu_runtime is None:
        remedy = "its engine cannot give GPUs to containers. Install the NVIDIA container toolkit there"
    elif host.docker is not None:
        remedy = f"its engine gives GPUs ({facts.gpu_runtime}), but {remedy}"
    if host.device is Device.GPU:
        return remedy
    if refusal:
        return f"{remedy}; {refusal}"
    return f"{remedy}. Without a GPU, the CPU is measured. To do that on purpose, set device: cpu"


def memory_notes(host: Host, facts: Facts, cases: Iterable[Case]) -> list[str]:
    """Return notes on the cases that exceed a GPU's memory, each with a batch that fits."""
    memory, notes = facts.gpu_memory_bytes(host.gpus) or math.inf, []
    for case in cases:
        needed, fitting = training_bytes(case), fitting_batch(case, memory)
        if case.device is not Device.CPU and needed is not None and fitting != case.batch_per_gpu:
            notes.append(
                f"{case.model} {case.precision} with batch {case.batch_per_gpu} needs about "
                f"{PEAK_VARIATION * needed / GIBI:.1f} GiB per GPU and will run out of memory ({memory / GIBI:.0f} "
                f"GiB). Use batch_per_gpu: {fitting}"
            )
    return list(dict.fromkeys(notes))


def same_machines(probed: Mapping[HostPlace, Facts | str]) -> list[list[HostPlace]]:
    """Return the hosts that are one machine, by its boot id or the UUID of a GPU; hosts alone are left out."""
    groups: list[tuple[set[str], list[HostPlace]]] = []
    for place, facts in probed.items():
        if isinstance(facts, str):
            continue
        marks = {gpu.uuid for gpu in facts.gpus if gpu.uuid} | ({facts.boot_id} if facts.boot_id else set())
        joined = [group for group in groups if group[0] & marks]
        groups = [group for group in groups if not group[0] & marks]
        places = [earlier for _, members in joined for earlier in members]
        groups.append((marks.union(*(known for known, _ in joined)), [*places, place]))
    return [places for _, places in groups if len(places) > 1]


def same_machine_notes(probed: Mapping[HostPlace, Facts | str], only: HostPlace | None = None) -> list[str]:
    """Return notes on hosts that are one machine; `only`: those on this host."""
    return [
        f"{', '.join('.'.join(place) for place in places)} are one machine: a run measures them one after another"
        for places in same_machines(probed)
        if only is None or only in places
    ]


def host_warnings(host: Host, facts: Facts, mates: Iterable[Facts] = ()) -> Iterator[str]:
    """Yield warnings about a host; errors of an image are in the image.

    Args:
        host: Settings of the host.
        facts: Facts of the host.
        mates: Facts of the hosts of its fleet, which should be equal.
    """
    if host.docker is not None and host.docker.scheme == "tcp" and host.docker.tls is None:
        yield "reached by tcp:// without TLS: anyone on that network controls the machine. Use tls: or ssh://"
    disk = facts.disk_free_bytes if host.docker is not None else None
    if disk is not None and disk < MIN_DISK_BYTES:
        yield f"only {disk / 1e9:.0f} GB of disk space is free. Remove old images: docker image prune"
    if (share := facts.other_cpu_share or 0.0) > MAX_IDLE_UTILISATION:
        load = "" if facts.load is None else f" (load {facts.load:.0f})"
        yield (
            f"other programs take {share:.0%} of its CPU time{load}, and a benchmark shares the CPUs with them. End "
            "them (top shows them), or wait"
        )
    most = max((len(mate.gpus) for mate in mates), default=0)
    if host.gpus is None and host.wants_gpus and len(facts.gpus) < most:
        yield (
            f"{len(facts.gpus)} of {most} GPUs found (other hosts of the fleet have {most}): one may have fallen off "
            "the bus. See nvidia-smi and sudo dmesg | grep -i xid there"
        )
    if (missing_gpus := _missing_gpus(host, facts)) is not None:
        yield missing_gpus
    used = [state for state in facts.gpu_states if host.gpus is None or state.index in host.gpus]
    for named, warning in grouped_warnings(used, Moment.IDLE):
        yield f"{named}: {warning.seen}: {warning.why}. To fix it: {warning.fix}"
    for problem in facts.gpu_problems:
        yield f"{problem}. Run python -m tfbench.doctor there: it shows why, and how to fix it"
    present = [gpu.index for gpu in facts.gpus]
    if missing := [index for index in host.gpus or () if index not in present]:
        yield f"gpus: names {missing}, but this host has only {present}"
    if len({gpu.name for gpu in facts.gpus}) > 1 and host.gpus is None:
        yield "its GPUs differ: the slowest one limits all. Select equal ones with gpus:"

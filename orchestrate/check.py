"""What is wrong, or only doubtful, about a host, each with its remedy."""

from __future__ import annotations

from orchestrate.facts import Facts
from orchestrate.hosts import Host
from results.schema import Device

MAX_CLOCK_SKEW_SECONDS = 5.0
MIN_DISK_BYTES = 15_000_000_000
"""An image with CUDA libraries takes 5 GB unpacked and 3 GB while it is pulled."""


def doubts(host: Host, facts: Facts) -> list[str]:
    """Name what a user should know before trusting or paying for this host; what stops it is an image's problem.

    Args:
        host: Settings of the host.
        facts: As it told them.
    """
    found = []
    if host.docker is not None and host.docker.scheme == "tcp" and host.docker.tls is None:
        found.append("reached by tcp:// without TLS: anyone on that network owns the machine. Use tls: or ssh://")
    if host.docker is not None and facts.gpu_runtime is None and host.device is Device.GPU:
        found.append("its engine cannot give GPUs to containers. Install the NVIDIA container toolkit there")
    if facts.gpu_runtime is not None and not facts.gpus and host.wants_gpus:
        found.append("its engine has an NVIDIA runtime, but no GPU was seen. Try nvidia-smi there")
    skew = facts.clock_skew_seconds
    if skew is not None and abs(skew) > MAX_CLOCK_SKEW_SECONDS:
        found.append(f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} ours. Let it follow NTP")
    if facts.disk_free_bytes is not None and facts.disk_free_bytes < MIN_DISK_BYTES:
        found.append(
            f"only {facts.disk_free_bytes / 1e9:.0f} GB of disk are free. Remove old images: docker image prune"
        )
    missing = [index for index in host.gpus or () if index not in {gpu.index for gpu in facts.gpus}]
    if missing:
        found.append(f"gpus: names {missing}, which it has not. It has {[gpu.index for gpu in facts.gpus]}")
    if len({gpu.name for gpu in facts.gpus}) > 1 and host.gpus is None:
        found.append("its GPUs differ: the slowest sets the pace of all. Name equal ones by gpus:")
    return found

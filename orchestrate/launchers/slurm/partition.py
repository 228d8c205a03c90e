"""What a partition offers, in Slurm's own words: no node is asked, because each would have to be waited for."""

from __future__ import annotations

import re
from collections import Counter

from orchestrate.errors import LaunchFailed, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.slurm.answers import Answer
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.images import named_images
from orchestrate.text import plain_text
from results.schema import GPU, Status

MEBIBYTE = 1 << 20
_GRES = re.compile(r"gpu(?::([A-Za-z0-9_.-]+))?:([0-9]{1,4})")


def facts_of(host: Host, queue: SlurmQueue, answer: Answer) -> Facts:
    """Turn the output of `sinfo` into facts; the smallest value of all nodes counts.

    Raises:
        HostError: Nothing can be measured there, with what to change.
    """
    if answer.values("missing"):
        raise Unreachable("Slurm was not found: sbatch is not in PATH. Name the login host with ssh:")
    if answer.values("folder"):
        raise LaunchFailed(f"shared_folder {queue.shared_folder} does not exist or is not writable. Create it")
    known = sorted(set(answer.values("partition")))
    if queue.partition is not None and queue.partition not in known:
        names = plain_text(", ".join(known), 200) or "none"
        raise LaunchFailed(f"Slurm has no partition {queue.partition}. Partitions: {names}", Status.UNSUPPORTED)
    reported = [parts for value in answer.values("node") if len(parts := value.split("|", 4)) == 5]
    nodes = list({parts[0]: parts for parts in reported}.values())  # a node stands in each of its partitions
    fitting = [parts for parts in nodes if _offers(parts[4], queue)]
    if not fitting:
        offered = plain_text(", ".join(sorted({parts[4] for parts in nodes})), 200) or "none"
        wanted = f"gres {queue.gres}" if queue.gres else f"gpus_per_node {queue.gpus_per_node}"
        raise LaunchFailed(f"no node offers {wanted}. Nodes offer: {offered}", Status.NO_GPU)
    version = plain_text(next(iter(answer.values("version")), "slurm"), 50)
    cpus, memory = (min((_number(parts[place]) for parts in fitting), default=0) for place in (1, 2))
    kinds = Counter(parts[3].rstrip("*~#!%$@^-") for parts in fitting)
    return Facts(
        cpu=f"{len(fitting)} nodes ({', '.join(f'{count} {plain_text(kind, 20)}' for kind, count in kinds.items())})",
        cpu_count=cpus or None,
        cpu_limit=host.cpus or float(cpus) or None,
        memory_bytes=memory * MEBIBYTE or None,
        engine=version,
        gpus=tuple(GPU(index=index, name=queue.gpu_type or "gpu") for index in range(queue.gpu_count)),
        images=tuple(map(_with_digest, named_images(host))),
    )


def _offers(gres: str, queue: SlurmQueue) -> bool:
    """Return whether a node's GPUs suffice for the largest job."""
    counts = [int(count) for kind, count in _GRES.findall(gres) if queue.gpu_type in ("", kind)]
    return sum(counts) >= queue.gpu_count


def _with_digest(image: Image) -> Image:
    """Take the digest from a reference that names one; else only the node knows it."""
    digest = image.reference.partition("@")[2]
    return image if not digest else Image(**{**vars(image), "digest": digest})


def _number(text: str) -> int:
    """Read `8` or `8+`, as sinfo says of nodes that differ."""
    digits = text.rstrip("+")
    return int(digits) if digits.isdigit() and len(digits) < 12 else 0

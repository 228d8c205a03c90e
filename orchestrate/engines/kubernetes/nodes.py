"""Facts about nodes, from the labels of NVIDIA's GPU feature discovery.

Source: k8s-device-plugin, docs/gpu-feature-discovery, from 0.15.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from orchestrate.engines.kubernetes.api import Node, condition, quantity
from orchestrate.errors import LaunchFailed
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.inventory.variants import parse_version
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import ARCHITECTURE
from orchestrate.text import plain_text, whole_number
from results.schema import GPU, Status

MEBIBYTE = 1 << 20
MAX_GPUS = 64
NO_GPU = GPU(index=0, name="no GPU")


class NoNode(LaunchFailed):
    """No node can run repeats now; an autoscaler may start one."""


def fleet_facts(nodes: Sequence[Node], queue: KubernetesQueue, *, wants_gpus: bool) -> Facts:
    """Return what all usable nodes of a fleet offer: those with GPUs, unless no GPUs are wanted or stated.

    Taints are left to the cluster, which reports why it starts no pod.

    Raises:
        NoNode: No node is usable now.
        LaunchFailed: The nodes differ, or their GPUs are shared.
    """
    usable = [node for node in nodes if not node.unschedulable and condition(node.conditions, "Ready", "True")]
    with_gpus = [node for node in usable if _gpu_count(node, queue)]
    if wants_gpus and (with_gpus or queue.gpus_per_node):
        usable = with_gpus
    if not usable:
        chosen = ", ".join(f"{key}={value}" for key, value in queue.node_selector.items()) or "any label"
        raise NoNode(
            f"no node can run repeats: {len(nodes)} have {chosen}, but they are not ready, cordoned or without GPUs. "
            "Check node_selector in hosts.yml. If nodes are started on demand, set gpus_per_node: and variant: there",
            Status.UNREACHABLE,
        )
    kinds = Counter(_gpus(node, queue) if wants_gpus else (NO_GPU, 0) for node in usable)
    if len({gpu for gpu, _ in kinds}) > 1:
        seen = "; ".join(f"{n} with {count} {gpu.name}" for (gpu, count), n in kinds.most_common())
        label = max(kinds, key=lambda kind: kind[1])[0].name.replace(" ", "-")
        raise LaunchFailed(
            f"the nodes of the fleet differ: {seen}. Choose one kind in hosts.yml, "
            f"e.g. node_selector: {{nvidia.com/gpu.product: {label}}}",
            Status.UNSUPPORTED,
        )
    gpu, count = min(kinds, key=lambda kind: kind[1])
    info = usable[0].info
    architectures = {node.labels.get("kubernetes.io/arch", ARCHITECTURE) for node in usable} - {ARCHITECTURE}
    drivers = [node.labels.get("nvidia.com/cuda.driver-version.full", "") for node in usable]
    drivers = sorted(filter(re.compile(r"\d{1,5}(\.\d{1,5}){0,3}").fullmatch, drivers), key=parse_version)
    return Facts(
        cpu_count=_least(usable, "cpu"),
        memory_bytes=_least(usable, "memory"),
        engine=plain_text(f"kubernetes {info.get('kubeletVersion')}, {info.get('containerRuntimeVersion')}", 100),
        driver=drivers[0] if drivers and count else None,
        gpus=_times(gpu, min(count, MAX_GPUS)),
        gpu_runtime="device plugin" if count else None,
        architecture=min(architectures, default=ARCHITECTURE),
    )


def _times(gpu: GPU, count: int) -> tuple[GPU, ...]:
    return tuple(replace(gpu, index=index) for index in range(count))


def stated_facts(queue: KubernetesQueue, *, wants_gpus: bool) -> Facts:
    """Return the facts in `hosts.yml`, for nodes that do not exist yet or may not be listed."""
    count = queue.gpu_count if wants_gpus else 0
    return Facts(gpus=_times(GPU(index=0, name="GPU"), count), engine="kubernetes")


def _gpu_count(node: Node, queue: KubernetesQueue) -> int:
    return quantity(node.allocatable.get(queue.gpu_resource)) or 0


def _gpus(node: Node, queue: KubernetesQueue) -> tuple[GPU, int]:
    """Return the GPU of a node, and how many of them pods can have."""
    labels, count = node.labels, _gpu_count(node, queue)
    if not count:
        return NO_GPU, 0
    product = plain_text(labels.get("nvidia.com/gpu.product", "GPU"), 100)
    strategy, whole = labels.get("nvidia.com/gpu.sharing-strategy", "none"), _number(labels.get("nvidia.com/gpu.count"))
    # Time-slicing may be set up without the labels, but not without more GPUs than there are.
    surplus = 0 < whole < count and labels.get("nvidia.com/mig.strategy", "none") == "none"
    marked = product.endswith("-SHARED") or queue.gpu_resource.endswith(".shared")
    if surplus or marked or strategy != "none" or _number(labels.get("nvidia.com/gpu.replicas")) > 1:
        raise LaunchFailed(
            f"the GPUs of the nodes are shared ({product}: {count} are offered, {whole or 'fewer'} there, strategy "
            f"{plain_text(strategy, 30)}): another pod on the same GPU would disturb the measurement. Choose nodes "
            "without time-slicing, by node_selector in hosts.yml",
            Status.UNSUPPORTED,
        )
    major, minor = labels.get("nvidia.com/gpu.compute.major", ""), labels.get("nvidia.com/gpu.compute.minor", "0")
    capability = f"{major}.{minor}" if major.isdigit() and minor.isdigit() else None
    memory = _number(labels.get("nvidia.com/gpu.memory")) * MEBIBYTE or None
    return GPU(index=0, name=product.replace("-", " "), compute_capability=capability, memory_bytes=memory), count


def _least(nodes: Sequence[Node], resource: str) -> int | None:
    amounts = (quantity(node.allocatable.get(resource)) for node in nodes)
    return min((amount for amount in amounts if amount is not None), default=None)


def _number(text: str | None) -> int:
    return (whole_number(text[:10]) if text else None) or 0

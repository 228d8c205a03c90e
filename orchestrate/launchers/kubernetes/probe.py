"""A short Job that asks the driver of a node, for clusters whose nodes carry no labels about it (GKE, EKS, AKS)."""

from __future__ import annotations

import dataclasses
import time

from orchestrate.errors import HostError, LaunchFailed
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.launchers.base import Ending
from orchestrate.launchers.container import JOB_LABEL, PROBE_ENTRYPOINT, unique_name
from orchestrate.launchers.kubernetes.api import Cluster
from orchestrate.launchers.kubernetes.manifests import (
    APP,
    APP_LABEL,
    QUEUE_LABEL,
    STAYS,
    Manifest,
    restricted_container,
    restricted_pod,
)
from orchestrate.launchers.kubernetes.pods import State, Waiting, name_of, read_state, without_pod
from orchestrate.planning.facts import Facts, facts_from_probe
from orchestrate.planning.images import probe_reference
from orchestrate.text import plain_text
from results.schema import Status

PROBE_SECONDS = 300.0
"""Until the probe must have ended: a pull of the smallest image, on nodes that are there already."""

LOOK_SECONDS = 1.0
KEPT_SECONDS = 600
"""So long the cluster keeps a probe whose controller died."""


def ask_driver(cluster: Cluster, host: Host, queue: KubernetesQueue, facts: Facts) -> Facts:
    """Return facts with the driver and the GPUs as the driver reports them, from a Job that gets one GPU.

    Args:
        cluster: Where it runs.
        host: Names the registry.
        queue: Where it runs.
        facts: What the nodes report: how many GPUs each has.

    Raises:
        LaunchFailed: The Job could not run, or saw no GPU.
    """
    name = unique_name("probe")
    cluster.create_job(_manifest(name, probe_reference(host), queue))
    try:
        reported = facts_from_probe(_run(cluster, name))
        if not reported.gpus or not reported.driver:
            raise LaunchFailed("it got a GPU but found no driver", Status.NO_GPU)
    except (HostError, ValueError) as error:
        why = error.cause if isinstance(error, HostError) else plain_text(str(error), 300)
        status = error.status if isinstance(error, HostError) else Status.UNSUPPORTED
        raise LaunchFailed(
            "the nodes do not report their driver and compute capability, and the Job that asks for them failed: "
            f"{why}. Install NVIDIA's GPU feature discovery, or name variant: in hosts.yml",
            status,
        ) from error
    finally:
        cluster.delete_job(name)
    (gpu, *_) = reported.gpus
    gpus = tuple(dataclasses.replace(gpu, index=index, uuid=None) for index in range(len(facts.gpus)))
    return dataclasses.replace(facts, driver=reported.driver, gpus=gpus, cpu=reported.cpu)


def _run(cluster: Cluster, name: str) -> bytes:
    """Return what the probe printed last, when it has ended."""
    deadline = time.monotonic() + PROBE_SECONDS
    state: State = Waiting("")
    while time.monotonic() < deadline:
        found = cluster.pods(f"{JOB_LABEL}={name}").items
        state = read_state(found[0]) if found else without_pod(cluster.warnings(name))
        if isinstance(state, Ending):
            if state.failure is not None:
                raise LaunchFailed(state.failure[1], state.failure[0])
            output = cluster.output(name_of(found[0])).strip().rpartition(b"\n")[2]  # before it, libraries may speak
            if state.exit_code != 0:
                raise LaunchFailed(f"exit code {state.exit_code}: {plain_text(output.decode(errors='replace'), 300)}")
            return output
        if isinstance(state, Waiting) and state.failure is not None and not state.passing:
            raise LaunchFailed(state.failure[1], state.failure[0])
        time.sleep(LOOK_SECONDS)
    doing = state.reason if isinstance(state, Waiting) else "still running"
    raise LaunchFailed(f"it did not end within {PROBE_SECONDS:.0f} s: {doing}", Status.UNREACHABLE)


def _manifest(name: str, image: str, queue: KubernetesQueue) -> Manifest:
    labels = {APP_LABEL: APP, JOB_LABEL: name}
    gpu = {queue.gpu_resource: "1"}
    container = {
        **restricted_container(image),
        "command": list(PROBE_ENTRYPOINT),
        "resources": {"limits": gpu, "requests": gpu},
    }
    pod = restricted_pod(container, queue, with_gpus=True, seconds=int(PROBE_SECONDS))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, **({QUEUE_LABEL: queue.queue} if queue.queue else {})}},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(PROBE_SECONDS),
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {"metadata": {"labels": labels, "annotations": STAYS}, "spec": pod},
        },
    }

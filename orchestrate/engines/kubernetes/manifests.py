"""The Job of each repeat: `job.yml`, filled in with its names, limits, image and flags."""

from __future__ import annotations

import copy
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orchestrate.engines.base import GRACE_SECONDS
from orchestrate.engines.invocation import (
    DATA_PATH,
    GIBIBYTE,
    JOB_LABEL,
    MAX_FILE_BYTES,
    RUN_LABEL,
    SHM_BYTES,
    TMP_BYTES,
    container_flags,
    container_name,
    job_labels,
    job_variables,
    max_seconds,
)
from orchestrate.errors import LaunchFailed
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue, Toleration
from orchestrate.planning.images import pinned
from orchestrate.planning.plan import Job
from orchestrate.project import command_line
from results.schema import Data, Device

Manifest = dict[str, Any]

USER = 10001
"""The user of the images; numeric, so that the kubelet can verify that it is not root."""

GPU_TAINT = Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
"""Toleration of the usual taint of GPU nodes, which only some clusters add themselves.
Source: GKE, "Run GPUs in Standard node pools"; Kubernetes, admission plugin ExtendedResourceToleration."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
APP_LABEL, APP = "app.kubernetes.io/name", "tfbench"
_OTHER_REPEATS = {"labelSelector": {"matchLabels": {APP_LABEL: APP}}, "topologyKey": "kubernetes.io/hostname"}
ANTI_AFFINITY = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_OTHER_REPEATS]}}
"""Keeps repeats on separate nodes, because they would disturb each other."""

PULL_SECONDS = 3600
"""Longest pull of an image; included in the pod's time limit, which starts before the pull."""

LOG_BYTES = GIBIBYTE
MAX_NAME = 52
"""Kubernetes adds up to 11 characters to a Job's name for its pods' names and labels, which may have 63."""


@cache
def _template() -> Manifest:
    manifest: Manifest = YAML(typ="safe", pure=True).load(Path(__file__).with_name("job.yml"))
    return manifest


def run_selector(run_id: str) -> str:
    """Return the label selector for the objects of a run."""
    return f"{RUN_LABEL}={_label_value(run_id)}"


def object_name(job: Job) -> str:
    """Return the name of a repeat's Job, which is also the lock against starting a repeat twice."""
    digest = hashlib.sha256(container_name(job).encode()).hexdigest()[:10]
    words = re.sub(r"[^a-z0-9]+", "-", f"tfbench-{job.id}".lower())[: MAX_NAME - len(digest) - 1]
    return f"{words.strip('-')}-{digest}"


def job_manifest(job: Job, host: Host, queue: KubernetesQueue, digest: str | None = None) -> Manifest:
    """Describe the Job of a repeat.

    Args:
        job: The repeat.
        host: Settings of the fleet, including limits.
        queue: Settings of the cluster.
        digest: Digest of the image's tag, if the plan has none; None: unknown.
    """
    labels = {APP_LABEL: APP, RUN_LABEL: _label_value(job.origin.run_id), JOB_LABEL: object_name(job)}
    annotations = job_labels(job)
    manifest = copy.deepcopy(_template())
    queued = {QUEUE_LABEL: queue.queue} if queue.queue else {}
    manifest["metadata"] = {"name": object_name(job), "labels": {**labels, **queued}, "annotations": annotations}
    template = manifest["spec"]["template"]
    template["metadata"] = {"labels": labels, "annotations": {**template["metadata"]["annotations"], **annotations}}
    _fill_pod(template["spec"], job, host, queue)
    _fill_container(template["spec"]["containers"][0], job, host, queue, digest)
    # The pod's own limit keeps its log; the Job's deletes it.
    manifest["spec"]["activeDeadlineSeconds"] = (
        int(queue.pending_minutes * 60) + template["spec"]["activeDeadlineSeconds"]
    )
    return manifest


def _fill_pod(pod: Manifest, job: Job, host: Host, queue: KubernetesQueue) -> None:
    """Set where a pod may run and for how long, and the sizes of its volumes."""
    # Longer than the benchmark's own limit, at which it records the cause.
    end_seconds = GRACE_SECONDS + pod["terminationGracePeriodSeconds"]
    pod["activeDeadlineSeconds"] = int(PULL_SECONDS + max_seconds(job, host) + end_seconds)
    if queue.security == "standard":  # OpenShift rejects pods that set a user, and assigns each namespace its own
        pod["securityContext"] |= {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    for volume, size in zip(pod["volumes"], (MAX_FILE_BYTES, TMP_BYTES, SHM_BYTES), strict=True):
        volume["emptyDir"]["sizeLimit"] = str(size)
    if queue.data_claim is not None and job.case.data is Data.TFRECORD:
        claim = {"claimName": queue.data_claim, "readOnly": True}
        pod["volumes"].append({"name": "data", "persistentVolumeClaim": claim})
        pod["containers"][0]["volumeMounts"].append({"name": "data", "mountPath": DATA_PATH, "readOnly": True})
    wants_more = job.case.device is Device.GPU and GPU_TAINT not in queue.tolerations
    accepted = [*queue.tolerations, *([GPU_TAINT] if wants_more else [])]
    optional = {
        "nodeSelector": dict(queue.node_selector),
        "tolerations": [item.model_dump(exclude_none=True) for item in accepted],
        "imagePullSecrets": [{"name": name} for name in queue.image_pull_secrets],
        "serviceAccountName": queue.service_account,
        "runtimeClassName": queue.runtime_class,
        "affinity": ANTI_AFFINITY if queue.exclusive else None,
    }
    pod |= {key: value for key, value in optional.items() if value}


def _fill_container(container: Manifest, job: Job, host: Host, queue: KubernetesQueue, digest: str | None) -> None:
    """Set a container's image, flags, variables and limits."""
    if not job.origin.image:
        see = command_line("orchestrate", "check")
        raise LaunchFailed(f"no image fits the nodes, or none could be chosen. See: {see}")
    image = pinned(job.origin.image, job.origin.image_digest or digest)
    limits = {"ephemeral-storage": str(TMP_BYTES + MAX_FILE_BYTES + LOG_BYTES)}
    requests = {"ephemeral-storage": str(GIBIBYTE)}
    if host.cpus is not None:
        limits["cpu"] = requests["cpu"] = f"{int(host.cpus * 1000)}m"
    if host.memory_gb is not None:
        limits["memory"] = requests["memory"] = str(int(host.memory_gb * 1e9))
    if job.case.device is Device.GPU:
        limits[queue.gpu_resource] = requests[queue.gpu_resource] = str(job.case.num_gpus)
    # Each `$` is doubled: otherwise Kubernetes would expand `$(NAME)`.
    variables = {key: text.replace("$", "$$") for key, text in job_variables(job, host).items()}
    container |= {
        "image": image,
        "imagePullPolicy": "IfNotPresent" if "@" in image else "Always",
        "args": container_flags(job, host),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"limits": limits, "requests": requests},
    }


def _label_value(text: str) -> str:
    """Return a text as a label's value; an invalid one is shortened and gets a digest."""
    if re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", text):
        return text
    words = re.sub(r"[^A-Za-z0-9]+", "-", text)[:40].strip("-")
    return f"{words or 'run'}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

"""Kubernetes manifests: the Job of each repeat.

A pod has the same restrictions as a container on a Docker engine (`engines/invocation.py`): a fixed unprivileged user,
a read-only root, no capabilities, no new privileges, no token, and limited storage.
"""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any

from ruamel.yaml import YAML

from orchestrate.engines.base import GRACE_SECONDS
from orchestrate.engines.invocation import (
    DATA_PATH,
    GIBIBYTE,
    JOB_LABEL,
    MAX_FILE_BYTES,
    RECORD_PATH,
    RUN_LABEL,
    SHM_BYTES,
    TMP_BYTES,
    container_name,
    host_flags,
)
from orchestrate.errors import LaunchFailed
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue, Toleration
from orchestrate.planning.images import pinned
from orchestrate.planning.plan import Job
from results.program import command_line
from results.schema import Data, Device

Manifest = dict[str, Any]

CONTAINER = "benchmark"
USER = 10001
"""The user of the images; numeric, so that the kubelet can verify that it is not root."""

GPU_TAINT = Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
"""Toleration of the usual taint of GPU nodes, which only some clusters add themselves.
Source: GKE, "Run GPUs in Standard node pools"; Kubernetes, admission plugin ExtendedResourceToleration."""

NO_EVICTION = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations that keep autoscalers from evicting a pod: an evicted repeat is lost."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
APP_LABEL, APP = "app.kubernetes.io/name", "tfbench"
ANTI_AFFINITY: Manifest = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {APP_LABEL: APP}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
"""Keeps repeats on separate nodes, because they would disturb each other."""

PULL_SECONDS = 3600
"""Longest pull of an image; included in the pod's time limit, which starts before the pull."""

STOP_SECONDS = 30
"""Time after SIGTERM for a benchmark to write and print its record."""

TTL_SECONDS = 7 * 24 * 3600
"""How long the cluster keeps an ended Job for a controller to collect its record."""

LOG_BYTES = GIBIBYTE
MAX_NAME = 52
"""Kubernetes adds up to 11 characters to a Job's name for its pods' names and labels, which may have 63."""


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
    seconds, labels = _seconds(job, host), _labels(job)
    queued = {QUEUE_LABEL: queue.queue} if queue.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": object_name(job), "labels": {**labels, **queued}, "annotations": _annotations(job)},
        "spec": {
            "backoffLimit": 0,  # a failed repeat is a result and is not retried
            "activeDeadlineSeconds": int(queue.pending_minutes * 60) + seconds,
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "template": {
                "metadata": {"labels": labels, "annotations": {**_annotations(job), **NO_EVICTION}},
                "spec": _pod(job, host, queue, digest, seconds),
            },
        },
    }


def to_yaml(document: Manifest) -> str:
    """Return a manifest as YAML for `kubectl apply`."""
    yaml, text = YAML(typ="safe", pure=True), io.StringIO()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 10_000
    yaml.explicit_start = True
    yaml.dump(document, text)
    return text.getvalue()


def belongs_to(item: Manifest, job: Job) -> bool:
    """Return whether an object was created for a repeat."""
    annotations = (item.get("metadata") or {}).get("annotations") or {}
    return annotations.get(JOB_LABEL) == job.id and annotations.get(RUN_LABEL) == job.origin.run_id


def _pod(job: Job, host: Host, queue: KubernetesQueue, digest: str | None, seconds: int) -> Manifest:
    """Describe a pod that satisfies the Pod Security level `restricted`; empty fields are omitted."""
    claim = {"persistentVolumeClaim": {"claimName": queue.data_claim, "readOnly": True}}
    optional: dict[str, Any] = {
        "nodeSelector": dict(queue.node_selector),
        "tolerations": [item.model_dump(exclude_none=True) for item in tolerations(queue, _has_gpus(job))],
        "imagePullSecrets": [{"name": name} for name in queue.image_pull_secrets],
        "serviceAccountName": queue.service_account,
        "runtimeClassName": queue.runtime_class,
        "affinity": ANTI_AFFINITY if queue.exclusive else None,
    }
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": seconds,  # the pod's own limit keeps its log; the Job's deletes it
        "terminationGracePeriodSeconds": STOP_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, **_user(queue), "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(job, host, queue, digest)],
        "volumes": [
            {"name": "record", "emptyDir": {"sizeLimit": str(MAX_FILE_BYTES)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": str(TMP_BYTES)}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(SHM_BYTES)}},
            *([{"name": "data", **claim}] if _reads_claim(job, queue) else []),
        ],
        **{key: value for key, value in optional.items() if value},
    }


def tolerations(queue: KubernetesQueue, with_gpus: bool) -> list[Toleration]:
    """Return the tolerations of `hosts.yml`, plus that for GPU nodes if repeats need GPUs."""
    own = list(queue.tolerations)
    return own if not with_gpus or GPU_TAINT in own else [*own, GPU_TAINT]


def _user(queue: KubernetesQueue) -> dict[str, int]:
    """Return the user of a pod; OpenShift rejects pods that set one, and assigns each namespace its own.

    Any user works: a benchmark writes only to empty volumes, which the user owns, and the image is world-readable.
    """
    return {} if queue.security == "openshift" else {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}


def _has_gpus(job: Job) -> bool:
    return job.case.device is Device.GPU


def _reads_claim(job: Job, queue: KubernetesQueue) -> bool:
    return queue.data_claim is not None and job.case.data is Data.TFRECORD


def _container(job: Job, host: Host, queue: KubernetesQueue, digest: str | None) -> Manifest:
    """Describe a container that can write only to its empty volumes, with no privileges beyond those of training."""
    image = _image(job, digest)
    limit = f"--max_seconds={job.max_seconds or host.timeout_minutes * 60:g}"
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent" if "@" in image else "Always",
        "args": [*job.case.flags(), *host_flags(job, DATA_PATH), f"--output={RECORD_PATH}", limit, "--print_record"],
        "env": [{"name": "PYTHONUNBUFFERED", "value": "1"}, *_host_environment(host)],
        "resources": _resources(job, host, queue),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "record", "mountPath": str(RECORD_PATH.rpartition("/")[0])},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            *([{"name": "data", "mountPath": DATA_PATH, "readOnly": True}] if _reads_claim(job, queue) else []),
        ],
    }


def _image(job: Job, digest: str | None) -> str:
    """Return the reference of the image to start, by digest if known, because tags move."""
    if not job.origin.image:
        see = command_line("orchestrate", "check")
        raise LaunchFailed(f"no image fits the nodes, or none could be chosen. See: {see}")
    return pinned(job.origin.image, job.origin.image_digest or digest)


def _resources(job: Job, host: Host, queue: KubernetesQueue) -> Manifest:
    limits: dict[str, str] = {"ephemeral-storage": str(TMP_BYTES + MAX_FILE_BYTES + LOG_BYTES)}
    requests = {"ephemeral-storage": str(GIBIBYTE)}
    if host.cpus is not None:
        limits["cpu"] = requests["cpu"] = f"{int(host.cpus * 1000)}m"
    if host.memory_gb is not None:
        limits["memory"] = requests["memory"] = str(int(host.memory_gb * 1e9))
    if _has_gpus(job):
        limits[queue.gpu_resource] = requests[queue.gpu_resource] = str(job.case.num_gpus)
    return {"limits": limits, "requests": requests}


def _host_environment(host: Host) -> list[Manifest]:
    """Return the variables of `hosts.yml`, each `$` doubled: otherwise Kubernetes would expand `$(NAME)`."""
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in host.environment.items()]


def _seconds(job: Job, host: Host) -> int:
    """Return the time limit of a pod, longer than the benchmark's own, at which it records the cause."""
    return int(PULL_SECONDS + (job.max_seconds or host.timeout_minutes * 60) + GRACE_SECONDS + STOP_SECONDS)


def _labels(job: Job) -> dict[str, str]:
    return {APP_LABEL: APP, RUN_LABEL: _label_value(job.origin.run_id), JOB_LABEL: object_name(job)}


def _annotations(job: Job) -> dict[str, str]:
    """Return values that may exceed a label's 63 characters."""
    return {
        RUN_LABEL: job.origin.run_id,
        JOB_LABEL: job.id,
        "tfbench.case": job.case.name,
        "tfbench.repeat": str(job.origin.repeat),
    }


def _label_value(text: str) -> str:
    """Return a text as a label's value; an invalid one is shortened and gets a digest."""
    if re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", text):
        return text
    words = re.sub(r"[^A-Za-z0-9]+", "-", text)[:40].strip("-")
    return f"{words or 'run'}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

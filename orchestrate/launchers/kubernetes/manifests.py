"""What is handed to the cluster: a Job for each repeat, as plain data in the API's own words.

A pod is allowed no more than a container on a Docker engine (`launchers/container.py`): a fixed unprivileged user, a
read-only root, no capabilities, no new privileges, no token. What it writes is bounded.
"""

from __future__ import annotations

import hashlib
import io
import re
from typing import Any

from ruamel.yaml import YAML

from orchestrate.errors import LaunchFailed
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue, Toleration
from orchestrate.launchers.base import GRACE_SECONDS
from orchestrate.launchers.container import (
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
    repository,
)
from orchestrate.planning.plan import Job
from results.program import command_line
from results.schema import Data, Device

Manifest = dict[str, Any]

CONTAINER = "benchmark"
USER = 10001
"""That of the images; a number, because the kubelet must see that it is not root."""

GPU_TAINT = Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")
"""How GKE, and by convention others, taint nodes with GPUs; only some clusters add this toleration themselves.
Source: GKE, "Run GPUs in Standard node pools"; Kubernetes, admission plugin ExtendedResourceToleration."""

STAYS = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
"""Annotations of pods that autoscalers leave alone: a repeat that moves to another node is lost."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
APP_LABEL, APP = "app.kubernetes.io/name", "tfbench"
APART: Manifest = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {APP_LABEL: APP}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}
"""Repeats that share a node disturb each other."""

PULL_SECONDS = 3600
"""Longest that a node may take to bring the image; the limit of a pod counts from before that."""

STOP_SECONDS = 30
"""A benchmark has this long after SIGTERM to write and print its record."""

KEPT_SECONDS = 7 * 24 * 3600
"""So long a Job that has ended waits for a controller to collect it; then the cluster removes it."""

LOG_BYTES = GIBIBYTE
MAX_NAME = 52
"""A Job's name goes into its pods' names and labels, with up to 11 characters more: 63 in all."""


def run_selector(run_id: str) -> str:
    """Return the selector of all that belongs to a run."""
    return f"{RUN_LABEL}={_label_value(run_id)}"


def object_name(job: Job) -> str:
    """Name a repeat's Job: the name is the lock that keeps two controllers from starting a repeat twice."""
    digest = hashlib.sha256(container_name(job).encode()).hexdigest()[:10]
    words = re.sub(r"[^a-z0-9]+", "-", f"tfbench-{job.id}".lower())[: MAX_NAME - len(digest) - 1]
    return f"{words.strip('-')}-{digest}"


def job_manifest(job: Job, host: Host, queue: KubernetesQueue, digest: str | None = None) -> Manifest:
    """Describe the Job of a repeat.

    Args:
        job: The repeat.
        host: Settings: image, limits.
        queue: Where it runs.
        digest: What the image's tag means, where it is known; None: as in the plan.
    """
    seconds, labels = _seconds(job, host), _labels(job)
    queued = {QUEUE_LABEL: queue.queue} if queue.queue else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": object_name(job), "labels": {**labels, **queued}, "annotations": _annotations(job)},
        "spec": {
            "backoffLimit": 0,  # a repeat is a fresh process, once: what failed is a result
            "activeDeadlineSeconds": int(queue.pending_minutes * 60) + seconds,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "template": {
                "metadata": {"labels": labels, "annotations": {**_annotations(job), **STAYS}},
                "spec": _pod(job, host, queue, digest, seconds),
            },
        },
    }


def to_yaml(document: Manifest) -> str:
    """Write a manifest as `kubectl apply` takes it."""
    yaml, text = YAML(typ="safe", pure=True), io.StringIO()
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 10_000
    yaml.explicit_start = True
    yaml.dump(document, text)
    return text.getvalue()


def belongs_to(item: Manifest, job: Job) -> bool:
    """Return whether an object was made for a repeat."""
    annotations = (item.get("metadata") or {}).get("annotations") or {}
    return annotations.get(JOB_LABEL) == job.id and annotations.get(RUN_LABEL) == job.origin.run_id


def _pod(job: Job, host: Host, queue: KubernetesQueue, digest: str | None, seconds: int) -> Manifest:
    """Describe a pod as the Pod Security level `restricted` demands; empty parts are excluded."""
    claim = {"persistentVolumeClaim": {"claimName": queue.data_claim, "readOnly": True}}
    optional: dict[str, Any] = {
        "nodeSelector": dict(queue.node_selector),
        "tolerations": [item.model_dump(exclude_none=True) for item in tolerations(queue, _has_gpus(job))],
        "imagePullSecrets": [{"name": name} for name in queue.image_pull_secrets],
        "serviceAccountName": queue.service_account,
        "runtimeClassName": queue.runtime_class,
        "affinity": APART if queue.exclusive else None,
    }
    return {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": seconds,  # a pod that ends by its own limit keeps its log; one of its Job's does not
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
    """Return the taints that repeats tolerate: those of `hosts.yml`, and that of GPU nodes if they need GPUs."""
    own = list(queue.tolerations)
    return own if not with_gpus or GPU_TAINT in own else [*own, GPU_TAINT]


def _user(queue: KubernetesQueue) -> dict[str, int]:
    """Return the user of a pod; OpenShift refuses pods that name one, and assigns each namespace its own.

    A benchmark writes only to empty volumes, which that user owns; everyone may read the image's files.
    """
    return {} if queue.security == "openshift" else {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}


def _has_gpus(job: Job) -> bool:
    return job.case.device is Device.GPU


def _reads_claim(job: Job, queue: KubernetesQueue) -> bool:
    return queue.data_claim is not None and job.case.data is Data.TFRECORD


def _container(job: Job, host: Host, queue: KubernetesQueue, digest: str | None) -> Manifest:
    """Describe a container that writes to its empty volumes only, and may do nothing that training does not need."""
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
    """Name the image to start: by digest if there is one, because tags move."""
    reference, known = job.origin.image, job.origin.image_digest or digest
    if not reference:
        see = command_line("orchestrate", "check")
        raise LaunchFailed(f"no image fits the nodes, or none could be chosen. See: {see}")
    return f"{repository(reference)}@{known}" if known else reference


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
    """Give the variables of `hosts.yml`; Kubernetes would expand `$(NAME)` in a value unless each `$` is doubled."""
    return [{"name": name, "value": value.replace("$", "$$")} for name, value in host.environment.items()]


def _seconds(job: Job, host: Host) -> int:
    """Return the limit of a pod: the benchmark ends itself first, and writes why."""
    return int(PULL_SECONDS + (job.max_seconds or host.timeout_minutes * 60) + GRACE_SECONDS + STOP_SECONDS)


def _labels(job: Job) -> dict[str, str]:
    return {APP_LABEL: APP, RUN_LABEL: _label_value(job.origin.run_id), JOB_LABEL: object_name(job)}


def _annotations(job: Job) -> dict[str, str]:
    """Return what labels cannot hold: they have 63 characters."""
    return {
        RUN_LABEL: job.origin.run_id,
        JOB_LABEL: job.id,
        "tfbench.case": job.case.name,
        "tfbench.repeat": str(job.origin.repeat),
    }


def _label_value(text: str) -> str:
    """Return a text as a label's value; one that labels cannot hold keeps its beginning, and a digest."""
    if re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", text):
        return text
    words = re.sub(r"[^A-Za-z0-9]+", "-", text)[:40].strip("-")
    return f"{words or 'run'}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"

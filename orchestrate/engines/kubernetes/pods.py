"""The state of a repeat (waiting, running or ended, and why), read from its Job and pod."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass

from orchestrate.engines.base import Ending
from orchestrate.engines.bounded import malformed_as_error
from orchestrate.engines.kubernetes.api import Explained, KubernetesCluster, KubernetesJob, Pod, condition
from orchestrate.text import plain_text
from results.schema import Status

_NOT_PULLED, _NOT_STARTED = "the image could not be pulled", "it could not be started"
PERMANENT_REASONS = {
    **dict.fromkeys(("InvalidImageName", "ErrImageNeverPull"), (Status.PULL_FAILED, _NOT_PULLED)),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"), (Status.ERROR, _NOT_STARTED)
    ),
}
"""Status and cause for each reason for waiting that does not resolve itself."""

PULL_TROUBLE = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
"""Reasons for waiting that may be transient: the kubelet retries at growing intervals."""

_PERMANENT = re.compile(
    r"not found|unknown|unauthorized|denied|forbidden|authentication required|does not exist|invalid reference", re.I
)
_NOT_ADMITTED = re.compile(
    r"violates PodSecurity|unable to validate against any security context constraint|"
    r"PodSecurityPolicy: unable to admit"
)
"""Messages with which Kubernetes, OpenShift and Kubernetes before 1.25 reject pods for their privileges."""

_ADMISSION_REMEDY = "On OpenShift, and where the namespace assigns users, set security: openshift in hosts.yml"
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
"""In the id of a started image: `docker-pullable://REPOSITORY@sha256:…`, or without the scheme."""


@dataclass(frozen=True)
class Waiting:
    """A repeat that has not started.

    Attributes:
        reason: In the cluster's words.
        failure: Status and cause if it cannot start; None: it may still start.
        transient: Whether the failure may resolve itself.
        scheduled: Whether it has a node.
    """

    reason: str
    failure: tuple[Status, str] | None = None
    transient: bool = False
    scheduled: bool = False


@dataclass(frozen=True)
class Running:
    """A repeat that runs."""

    node: str | None


State = Waiting | Running | Ending


def read_state(pod: Pod, *, deleted: bool = False) -> State:
    """Describe the state of a pod.

    Args:
        pod: As last reported by the API server.
        deleted: Whether it has been deleted since.
    """
    container = pod.container
    if pod.phase in ("Succeeded", "Failed") or deleted or container.terminated is not None:
        return _ending(pod, deleted=deleted)
    return _waiting(pod) if container.running is None else Running(pod.node)


def without_pod(job: KubernetesJob, warning: str | None) -> State:
    """Describe the state of a Job without a pod: it waits for quota or in a queue, or has failed.

    Args:
        job: As last reported by the API server.
        warning: The cluster's latest warning about the Job, or None.
    """
    if (failed := condition(job.conditions, "Failed", "True")) is not None:
        status = Status.TIMEOUT if failed.reason == "DeadlineExceeded" else Status.LOST
        return Ending(exit_code=None, failure=(status, f"the cluster gave up on its Job: {failed.text}"))
    if job.suspended:
        return Waiting("suspended: it waits in its queue")
    if warning is None:
        return Waiting("waiting for a pod")
    text = f"the cluster does not create a pod: {warning}"
    if _NOT_ADMITTED.search(text):
        return Waiting(warning, (Status.UNSUPPORTED, f"{text}. {_ADMISSION_REMEDY}"))
    return Waiting(warning, (Status.UNREACHABLE, text), transient=True)


def _where(pod: Pod) -> str:
    return f" on node {pod.node}" if pod.node else ""


def _waiting(pod: Pod) -> Waiting:
    waiting = pod.container.waiting or Explained()
    text, where = waiting.text, _where(pod)
    if (permanent := PERMANENT_REASONS.get(waiting.reason)) is not None:
        status, what = permanent
        return Waiting(text, (status, f"{what}{where}: {text}"), scheduled=True)
    if waiting.reason in PULL_TROUBLE:
        failure = (Status.PULL_FAILED, f"{_NOT_PULLED}{where}: {text}")
        return Waiting(text, failure, transient=not _PERMANENT.search(waiting.message), scheduled=True)
    if (unscheduled := condition(pod.conditions, "PodScheduled", "False")) is not None:
        failure = (Status.UNREACHABLE, f"not scheduled on any node: {unscheduled.text}")
        return Waiting(unscheduled.text, failure, transient=True)
    return Waiting(text or ("starting" if pod.node else "waiting for a node"), scheduled=pod.node is not None)


def _ending(pod: Pod, *, deleted: bool) -> Ending:
    """Return how a repeat ended."""
    terminated, digest = pod.container.terminated, _DIGEST.search(pod.container.image)
    return Ending(
        exit_code=terminated.exit_code if terminated else None,
        out_of_memory=terminated is not None and terminated.reason == "OOMKilled",
        detail=terminated.text if terminated else "",
        failure=_failure(pod, deleted=deleted),
        node=pod.node,
        image_digest=digest[1] if digest else None,
    )


def _failure(pod: Pod, *, deleted: bool) -> tuple[Status, str] | None:
    """Return why the cluster ended a repeat; None: it ended by itself."""
    where, terminated = _where(pod), pod.container.terminated
    if pod.reason == "DeadlineExceeded":
        return Status.TIMEOUT, f"ended by the cluster at its time limit{where} ({pod.text})"
    if pod.reason == "Evicted" and re.search(r"exceeds the (total )?limit", pod.message):
        return Status.ERROR, f"it exceeded a storage limit{where}: {pod.text}"
    disruption = condition(pod.conditions, "DisruptionTarget", "True")
    if disruption is not None or pod.reason:  # preempted, drained, evicted, rejected by its node, node lost, …
        text = f"{disruption.reason}: {disruption.message or pod.text}" if disruption else pod.text
        return Status.LOST, plain_text(f"ended by the cluster{where}: {text}", 400)
    if deleted and terminated is None:
        why = "it was preempted or drained, its node was lost, or somebody deleted it"
        return Status.LOST, f"its pod was deleted{where}: {why}"
    if terminated is not None and terminated.reason in ("StartError", "ContainerCannotRun"):
        return Status.ERROR, f"{_NOT_STARTED}{where}: {plain_text(terminated.message, 300)}"
    return None


# -- the Jobs and pods of a run ------------------------------------------------------------------------------------


class RunView:
    """The Jobs and pods of a run as of the last poll, which takes two or three requests for any number of repeats.

    Args:
        cluster: The cluster to poll.
        selector: The label selector of the run's objects.
    """

    def __init__(self, cluster: KubernetesCluster, selector: str) -> None:
        self._cluster = cluster
        self._selector = selector
        self._lock = threading.Lock()
        self._jobs: dict[str, KubernetesJob] = {}
        self._pods: dict[str, dict[str, Pod]] = {}
        self._warnings: dict[str, str] = {}
        self._present: set[str] = set()
        self._forgotten: set[str] = set()

    @malformed_as_error("the cluster")
    def poll(self) -> None:
        """Query Jobs and pods, and warnings about Jobs without a pod in two successive polls.

        Raises:
            HostError: The server does not answer.
        """
        jobs = {job.name: job for job in self._cluster.jobs(self._selector)}
        pods = self._cluster.pods(self._selector)
        without = jobs.keys() - {pod.job_name for pod in pods}
        warnings = self._cluster.job_warnings() if without & self._jobs.keys() - self._pods.keys() else {}
        with self._lock:
            self._jobs, self._warnings, self._present = jobs, warnings, {pod.uid for pod in pods}
            for pod in pods:
                if pod.uid not in self._forgotten:
                    self._pods.setdefault(pod.job_name, {})[pod.uid] = pod

    def state(self, name: str) -> State | None:
        """Return the state of a Job's repeat; None: neither the Job nor a pod of it exists."""
        pod, job = self.pod_of(name), self._jobs.get(name)
        if pod is not None:
            return read_state(pod, deleted=pod.uid not in self._present)
        return None if job is None else without_pod(job, self._warnings.get(name))

    def pod_of(self, name: str) -> Pod | None:
        """Return the first pod of a Job as last reported, or None.

        A deleted one explains the end of its repeat; the replacement of a lost pod would be another measurement.
        """
        with self._lock:
            return min(self._pods.get(name, {}).values(), key=lambda pod: pod.created, default=None)

    def forget(self, name: str) -> None:
        """Ignore the pods of a removed Job, which the server lists until they have ended."""
        with self._lock:
            self._forgotten.update(self._pods.pop(name, ()))

"""The state of a repeat (waiting, running or ended, and why), read from its Job and pod."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any

from orchestrate.engines.base import Ending
from orchestrate.engines.bounded import malformed_as_error
from orchestrate.engines.invocation import JOB_LABEL
from orchestrate.engines.kubernetes.api import KubernetesCluster
from orchestrate.engines.kubernetes.manifests import CONTAINER
from orchestrate.text import plain_text
from results.schema import Status

Pod = dict[str, Any]

PERMANENT_REASONS = {
    "InvalidImageName": Status.PULL_FAILED,
    "ErrImageNeverPull": Status.PULL_FAILED,
    "CreateContainerConfigError": Status.ERROR,
    "CreateContainerError": Status.ERROR,
    "RunContainerError": Status.ERROR,
}
"""Reasons for waiting that do not resolve themselves."""

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
    status, phase = _map(pod.get("status")), _map(pod.get("status")).get("phase")
    container = _container(status)
    state = _map(container.get("state"))
    if phase in ("Succeeded", "Failed") or deleted or "terminated" in state:
        return _ending(pod, status, container, deleted=deleted)
    if "running" in state:
        return Running(node_of(pod))
    return _waiting(pod, status, _map(state.get("waiting")))


def without_pod(job: dict[str, Any], warning: str | None) -> State:
    """Describe the state of a Job without a pod: it waits for quota or in a queue, or has failed.

    Args:
        job: As last reported by the API server.
        warning: The cluster's latest warning about the Job, or None.
    """
    if failed := _condition(_map(job.get("status")), "Failed", "True"):
        text = plain_text(f"{failed.get('reason')}: {failed.get('message')}", 300)
        status = Status.TIMEOUT if failed.get("reason") == "DeadlineExceeded" else Status.LOST
        return Ending(exit_code=None, failure=(status, f"the cluster gave up on its Job: {text}"))
    if _map(job.get("spec")).get("suspend"):
        return Waiting("suspended: it waits in its queue")
    if warning is None:
        return Waiting("waiting for a pod")
    text = f"the cluster does not create a pod: {warning}"
    if _NOT_ADMITTED.search(text):
        return Waiting(warning, (Status.UNSUPPORTED, f"{text}. {_ADMISSION_REMEDY}"))
    return Waiting(warning, (Status.UNREACHABLE, text), transient=True)


def node_of(pod: Pod) -> str | None:
    """Return the node that a pod is assigned to, or None."""
    name = _map(pod.get("spec")).get("nodeName")
    return plain_text(name, 253) if isinstance(name, str) and name else None


def name_of(item: Pod) -> str:
    """Return an object's name."""
    return str(_map(item.get("metadata")).get("name") or "")


def _waiting(pod: Pod, status: dict[str, Any], waiting: dict[str, Any]) -> Waiting:
    reason, message = str(waiting.get("reason") or ""), plain_text(str(waiting.get("message") or ""), 300)
    text = f"{reason}: {message}" if message else reason
    node = node_of(pod)
    where = f" on node {node}" if node else ""
    if (outcome := PERMANENT_REASONS.get(reason)) is not None:
        what = "the image could not be pulled" if outcome is Status.PULL_FAILED else "it could not be started"
        return Waiting(text, (outcome, f"{what}{where}: {text}"), scheduled=True)
    if reason in PULL_TROUBLE:
        failure = (Status.PULL_FAILED, f"the image could not be pulled{where}: {text}")
        return Waiting(text, failure, transient=not _PERMANENT.search(message), scheduled=True)
    unscheduled = _condition(status, "PodScheduled", "False")
    if unscheduled:
        text = plain_text(f"{unscheduled.get('reason')}: {unscheduled.get('message')}", 400)
        return Waiting(text, (Status.UNREACHABLE, f"not scheduled on any node: {text}"), transient=True)
    return Waiting(text or ("starting" if node else "waiting for a node"), scheduled=node is not None)


def _ending(pod: Pod, status: dict[str, Any], container: dict[str, Any], *, deleted: bool) -> Ending:
    """Return how a repeat ended."""
    terminated = _map(_map(container.get("state")).get("terminated"))
    code = terminated.get("exitCode")
    reason = str(terminated.get("reason") or "")
    detail = plain_text(f"{reason}: {terminated.get('message')}" if terminated.get("message") else reason, 300)
    return Ending(
        exit_code=code if isinstance(code, int) and not isinstance(code, bool) else None,
        out_of_memory=reason == "OOMKilled",
        detail=detail,
        failure=_failure(pod, status, terminated, deleted=deleted),
        node=node_of(pod),
        image_digest=_digest(container),
    )


def _failure(
    pod: Pod, status: dict[str, Any], terminated: dict[str, Any], *, deleted: bool
) -> tuple[Status, str] | None:
    """Return why the cluster ended a repeat; None: it ended by itself."""
    reason, message = str(status.get("reason") or ""), plain_text(str(status.get("message") or ""), 300)
    text = f"{reason}: {message}" if message else reason
    where = f" on node {node_of(pod)}" if node_of(pod) else ""
    if reason == "DeadlineExceeded":
        return Status.TIMEOUT, f"ended by the cluster at its time limit{where} ({text})"
    if reason == "Evicted" and re.search(r"exceeds the (total )?limit", message):
        return Status.ERROR, f"it exceeded a storage limit{where}: {text}"
    disruption = _condition(status, "DisruptionTarget", "True")
    if disruption:
        text = f"{disruption.get('reason')}: {disruption.get('message') or text}"
    if disruption or reason:  # preempted, drained, evicted, rejected by its node, node lost or shut down, …
        return Status.LOST, plain_text(f"ended by the cluster{where}: {text}", 400)
    if deleted and not terminated:
        return (
            Status.LOST,
            f"its pod was deleted{where}: it was preempted or drained, its node was lost, or somebody deleted it",
        )
    if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
        return Status.ERROR, f"it could not be started{where}: {plain_text(str(terminated.get('message')), 300)}"
    return None


def _digest(container: dict[str, Any]) -> str | None:
    """Return the digest of the started image, from `docker-pullable://REPOSITORY@sha256:…` or without the scheme."""
    match = re.search(r"@(sha256:[0-9a-f]{64})$", str(container.get("imageID") or ""))
    return match[1] if match else None


def _container(status: dict[str, Any]) -> dict[str, Any]:
    statuses = status.get("containerStatuses")
    items = [item for item in statuses if isinstance(item, dict)] if isinstance(statuses, list) else []
    return next((item for item in items if item.get("name") == CONTAINER), {})


def _condition(status: dict[str, Any], kind: str, value: str) -> dict[str, Any]:
    """Return a condition that has a value, or an empty mapping."""
    conditions = status.get("conditions")
    items = [item for item in conditions if isinstance(item, dict)] if isinstance(conditions, list) else []
    return next((item for item in items if item.get("type") == kind and item.get("status") == value), {})


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# -- the Jobs and pods of a run ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SeenPod:
    """A pod as last reported; a deleted one is kept to explain the end of its repeat."""

    pod: Pod
    deleted: bool = False


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
        self._jobs: dict[str, dict[str, Any]] = {}
        self._pods: dict[str, dict[str, SeenPod]] = {}
        self._warnings: dict[str, str] = {}
        self._forgotten: set[str] = set()

    @malformed_as_error("the cluster")
    def poll(self) -> None:
        """Query Jobs and pods, and warnings about Jobs without a pod in two successive polls.

        Raises:
            HostError: The server does not answer.
        """
        jobs = {name_of(job): job for job in self._cluster.jobs(self._selector)}
        pods = self._cluster.pods(self._selector)
        without = jobs.keys() - set(map(_job_of, pods))
        warnings = self._cluster.job_warnings() if without & self._jobs.keys() - self._pods.keys() else {}
        present = set(map(_uid, pods))
        with self._lock:
            self._jobs, self._warnings = jobs, warnings
            for known in self._pods.values():
                known |= {uid: SeenPod(seen.pod, deleted=True) for uid, seen in known.items() if uid not in present}
            for pod in pods:
                if _uid(pod) not in self._forgotten:
                    self._pods.setdefault(_job_of(pod), {})[_uid(pod)] = SeenPod(pod)

    @malformed_as_error("the cluster")
    def state(self, name: str) -> State | None:
        """Return the state of a Job's repeat; None: neither the Job nor a pod of it exists."""
        seen, job = self.pod_of(name), self._jobs.get(name)
        if seen is not None:
            return read_state(seen.pod, deleted=seen.deleted)
        return None if job is None else without_pod(job, self._warnings.get(name))

    def pod_of(self, name: str) -> SeenPod | None:
        """Return the first pod of a Job, or None; the replacement of a lost pod would be another measurement."""
        with self._lock:
            found = list(self._pods.get(name, {}).values())
        return min(found, key=lambda seen: str(_map(seen.pod.get("metadata")).get("creationTimestamp")), default=None)

    def forget(self, name: str) -> None:
        """Ignore the pods of a removed Job, which the server lists until they have ended."""
        with self._lock:
            self._forgotten.update(self._pods.pop(name, ()))


def _uid(pod: Pod) -> str:
    return str(_map(pod.get("metadata")).get("uid"))


def _job_of(pod: Pod) -> str:
    """Return the name of a pod's Job."""
    return str(_map(_map(pod.get("metadata")).get("labels")).get(JOB_LABEL))

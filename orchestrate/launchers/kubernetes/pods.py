"""What the state of a pod means for its repeat: it waits, it runs, or it has ended, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.launchers.base import Ending
from orchestrate.launchers.kubernetes.manifests import CONTAINER, INDEX_ANNOTATION
from orchestrate.text import plain_text
from results.schema import Status

Pod = dict[str, Any]

SIGKILLED = 137

AT_ONCE = {
    "InvalidImageName": Status.PULL_FAILED,
    "ErrImageNeverPull": Status.PULL_FAILED,
    "CreateContainerConfigError": Status.ERROR,
    "CreateContainerError": Status.ERROR,
    "RunContainerError": Status.ERROR,
}
"""Reasons to wait that waiting does not mend."""

PULL_TROUBLE = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"})
"""Reasons to wait that may pass: the kubelet tries again, at longer and longer intervals."""

_FOR_GOOD = re.compile(
    r"not found|unknown|unauthorized|denied|forbidden|authentication required|does not exist|invalid reference", re.I
)
_NOT_ADMITTED = re.compile(
    r"violates PodSecurity|unable to validate against any security context constraint|"
    r"PodSecurityPolicy: unable to admit"
)
"""How Kubernetes, OpenShift and Kubernetes before 1.25 refuse pods for what they may do: waiting does not mend it."""

_ADMISSION_REMEDY = "On OpenShift, and where the namespace assigns users, set security: openshift in hosts.yml"
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted by a pod of higher priority",
    "PreemptionByKubeScheduler": "preempted by a pod of higher priority",
    "DeletionByTaintManager": "its node was lost or tainted",
    "EvictionByEvictionAPI": "evicted, e.g. because its node was drained",
    "DeletionByPodGC": "its node is gone",
    "TerminationByKubelet": "ended by its node, which ran short of resources or shut down",
}
_REFUSED_BY_NODE = re.compile(
    r"^(Out[oO]f.*|UnexpectedAdmissionError|NodeAffinity|NodePorts|Unexpected.*|Admission.*)$"
)


@dataclass(frozen=True)
class Waiting:
    """It has not begun.

    Attributes:
        reason: In the cluster's words.
        failure: Status and cause, when waiting is in vain; None: it may still begin.
        passing: The failure is only one when it lasts.
        scheduled: It has a node.
    """

    reason: str
    failure: tuple[Status, str] | None = None
    passing: bool = False
    scheduled: bool = False


@dataclass(frozen=True)
class Running:
    """It runs."""

    node: str | None


State = Waiting | Running | Ending


def read_state(pod: Pod, *, deleted: bool = False) -> State:
    """Describe the state of a pod.

    Args:
        pod: As the API server reported it last.
        deleted: It is gone since.
    """
    status, phase = _map(pod.get("status")), _map(pod.get("status")).get("phase")
    container = _container(status)
    state = _map(container.get("state"))
    if phase in ("Succeeded", "Failed") or deleted or "terminated" in state:
        return _ending(pod, status, container, deleted=deleted)
    if "running" in state:
        return Running(node_of(pod))
    return _waiting(pod, status, _map(state.get("waiting")))


def without_pod(complaints: Sequence[str]) -> Waiting:
    """Describe the state of a Job without a pod.

    Args:
        complaints: What the cluster reports of the Job, the latest last.
    """
    if not complaints:
        return Waiting("waiting for a pod")
    said = f"the cluster does not create a pod: {complaints[-1]}"
    if _NOT_ADMITTED.search(said):
        return Waiting(complaints[-1], (Status.UNSUPPORTED, f"{said}. {_ADMISSION_REMEDY}"))
    return Waiting(complaints[-1], (Status.UNREACHABLE, said), passing=True)


def node_of(pod: Pod) -> str | None:
    """Return the node that a pod was given to; None: none yet."""
    name = _map(pod.get("spec")).get("nodeName")
    return plain_text(name, 253) if isinstance(name, str) and name else None


def name_of(item: Pod) -> str:
    """Return an object's name."""
    return str(_map(item.get("metadata")).get("name") or "")


def rank_of(pod: Pod) -> int:
    """Return which rank of its Job a pod is; 0 if there is only one."""
    text = str(_map(_map(pod.get("metadata")).get("annotations")).get(INDEX_ANNOTATION) or "0")
    return int(text) if text.isascii() and text.isdigit() else 0


def _waiting(pod: Pod, status: dict[str, Any], waiting: dict[str, Any]) -> Waiting:
    reason, message = str(waiting.get("reason") or ""), plain_text(str(waiting.get("message") or ""), 300)
    said = f"{reason}: {message}" if message else reason
    node = node_of(pod)
    where = f" on node {node}" if node else ""
    if reason in AT_ONCE:
        what = "the image could not be pulled" if AT_ONCE[reason] is Status.PULL_FAILED else "it could not be started"
        return Waiting(said, (AT_ONCE[reason], f"{what}{where}: {said}"), scheduled=True)
    if reason in PULL_TROUBLE:
        failure = (Status.PULL_FAILED, f"the image could not be pulled{where}: {said}")
        return Waiting(said, failure, passing=not _FOR_GOOD.search(message), scheduled=True)
    unscheduled = _condition(status, "PodScheduled", "False")
    if unscheduled:
        said = plain_text(f"{unscheduled.get('reason')}: {unscheduled.get('message')}", 400)
        return Waiting(said, (Status.UNREACHABLE, f"not scheduled on any node: {said}"), passing=True)
    return Waiting(said or ("starting" if node else "waiting for a node"), scheduled=node is not None)


def _ending(pod: Pod, status: dict[str, Any], container: dict[str, Any], *, deleted: bool) -> Ending:
    """Return how it ended, from the strongest evidence to the weakest."""
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
    """Return what the cluster did to it; None: it ended by itself."""
    reason, message = str(status.get("reason") or ""), plain_text(str(status.get("message") or ""), 300)
    said = f"{reason}: {message}" if message else reason
    where = f" on node {node_of(pod)}" if node_of(pod) else ""
    if reason == "DeadlineExceeded":
        return Status.TIMEOUT, f"ended by the cluster at its time limit{where} ({said})"
    if reason == "Evicted" and re.search(r"exceeds the (total )?limit", message):
        return Status.ERROR, f"it exceeded a storage limit{where}: {said}"
    disruption = _condition(status, "DisruptionTarget", "True")
    if disruption:
        why = str(disruption.get("reason") or "")
        what = _DISRUPTIONS.get(why, "ended by the cluster")
        return Status.LOST, plain_text(f"{what}{where}: {why}: {disruption.get('message') or said}", 400)
    if reason in ("Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"):
        return Status.LOST, f"ended by the cluster{where}: {said}"
    if _REFUSED_BY_NODE.match(reason):
        return Status.LOST, f"refused by its node{where}: {said}"
    if deleted and not terminated:
        return (
            Status.LOST,
            f"its pod was deleted{where}: it was preempted or drained, its node was lost, or somebody deleted it",
        )
    if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
        return Status.ERROR, f"it could not be started{where}: {plain_text(str(terminated.get('message')), 300)}"
    return None


def _digest(container: dict[str, Any]) -> str | None:
    """Return the image that was started, by the node: `docker-pullable://REPOSITORY@sha256:…` or without the scheme."""
    match = re.search(r"@(sha256:[0-9a-f]{64})$", str(container.get("imageID") or ""))
    return match[1] if match else None


def _container(status: dict[str, Any]) -> dict[str, Any]:
    statuses = status.get("containerStatuses")
    items = [item for item in statuses if isinstance(item, dict)] if isinstance(statuses, list) else []
    return next((item for item in items if item.get("name") == CONTAINER), {})


def _condition(status: dict[str, Any], kind: str, value: str) -> dict[str, Any]:
    """Return a condition that has a value; an empty mapping when it has not."""
    conditions = status.get("conditions")
    items = [item for item in conditions if isinstance(item, dict)] if isinstance(conditions, list) else []
    return next((item for item in items if item.get("type") == kind and item.get("status") == value), {})


def _map(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""Pods: what the state of one means for its repeat (it waits, runs or has ended, and why), and those of a run.

A run's pods are listed once, then kept up to date by one watch for all worker slots.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrate.errors import HostError
from orchestrate.launchers.base import Ending
from orchestrate.launchers.container import JOB_LABEL
from orchestrate.launchers.kubernetes.api import MAX_ANSWER_BYTES, Change, Gone, KubernetesCluster
from orchestrate.launchers.kubernetes.manifests import CONTAINER, INDEX_ANNOTATION
from orchestrate.launchers.limits import understood, within
from orchestrate.text import plain_text, whole_number
from results.schema import Status

Pod = dict[str, Any]

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
    return whole_number(text) or 0


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


# -- the pods of a run -------------------------------------------------------------------------------------------

LOOK_SECONDS = 60.0
"""Longest duration of a look: the server ends a watch after `WATCH_SECONDS`."""

PAUSE_SECONDS = 1.0
"""From a look that failed, or a watch that ended at once, to the next."""


@dataclass(frozen=True)
class SeenPod:
    """A pod as it was seen last; what is deleted stays known, because its end explains why."""

    pod: Pod
    deleted: bool = False


class PodView:
    """The pods of a run.

    Args:
        cluster: Where they are.
        selector: What they have in common.
    """

    def __init__(self, cluster: KubernetesCluster, selector: str) -> None:
        self._cluster = cluster
        self._selector = selector
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, SeenPod]] = {}  # by Job: every slot asks for its own after every change
        self._forgotten: set[str] = set()
        self._version: str | None = None
        self._began = 0.0
        self._changes: Iterator[list[Change]] | None = None

    @understood("the cluster")
    def look(self) -> Collection[str] | None:
        """Wait for the next change, at most as long as a watch lasts; the first look is a list.

        Returns:
            The names of the Jobs whose pods changed; None: those of any may have.

        Raises:
            HostError: The server does not answer now.
        """
        try:
            if self._version is None:
                self._list()
                return None
            if self._changes is None:
                self._changes, self._began = self._cluster.watch_pods(self._selector, self._version), time.monotonic()
            with within(LOOK_SECONDS, MAX_ANSWER_BYTES):
                changes = next(self._changes, None)
        except Gone:
            self._version = self._changes = None
            time.sleep(PAUSE_SECONDS)
            return ()
        except HostError:
            self._changes = None
            time.sleep(PAUSE_SECONDS)
            raise
        if changes is None:
            self._changes = None
            if time.monotonic() - self._began < PAUSE_SECONDS:
                time.sleep(PAUSE_SECONDS)  # something on the way ends watches at once
            return ()
        return {name for change in changes if (name := self._take(change)) is not None}

    def of_job(self, name: str) -> SeenPod | None:
        """Return the first pod of the first rank of a Job; None: it has none yet.

        A pod that replaces one that was lost is another measurement: it is not ours.
        """
        return next(iter(self.all_of_job(name)), None)

    def has_news(self, name: str, seen: SeenPod | None) -> bool:
        """Return whether a Job's pod is not any more as it was seen."""
        return self.of_job(name) is not seen

    def all_of_job(self, name: str) -> list[SeenPod]:
        """Return all pods of a Job, by rank."""
        with self._lock:
            found = list(self._pods.get(name, {}).values())
        return sorted(found, key=lambda seen: (rank_of(seen.pod), _stamp(seen.pod)))

    def ask(self, name: str) -> SeenPod | None:
        """Request the pods of a Job now: news of a Job may come before those of its pods.

        Raises:
            HostError: The server does not answer.
        """
        listing = self._cluster.pods(f"{self._selector},{JOB_LABEL}={name}")
        with self._lock:
            for pod in listing.items:
                if _uid(pod) not in self._forgotten:
                    self._pods.setdefault(_job(pod), {}).setdefault(_uid(pod), SeenPod(pod))
        return self.of_job(name)

    def forget(self, name: str) -> None:
        """Forget the pods of a Job; what is still heard of them, mostly that they are gone, is dropped."""
        with self._lock:
            self._forgotten.update(self._pods.pop(name, ()))

    def close(self) -> None:
        """End the watch; nobody may look any more."""
        changes, self._changes = self._changes, None
        if isinstance(changes, Generator):
            changes.close()  # else its connection would stay open until it is collected as garbage

    def _list(self) -> None:
        listing = self._cluster.pods(self._selector)
        present = {_uid(pod) for pod in listing.items}
        with self._lock:
            for pods in self._pods.values():
                pods |= {uid: SeenPod(seen.pod, deleted=True) for uid, seen in pods.items() if uid not in present}
            for pod in listing.items:
                if _uid(pod) not in self._forgotten:
                    self._pods.setdefault(_job(pod), {})[_uid(pod)] = SeenPod(pod)
        self._version = listing.version

    def _take(self, change: Change) -> str | None:
        """Return the Job whose pod changed; None: none that is followed."""
        version = (change.item.get("metadata") or {}).get("resourceVersion")
        if version:
            self._version = str(version)
        if change.kind not in ("ADDED", "MODIFIED", "DELETED"):
            return None
        name, uid = _job(change.item), _uid(change.item)
        with self._lock:
            if uid in self._forgotten:
                return None
            self._pods.setdefault(name, {})[uid] = SeenPod(change.item, deleted=change.kind == "DELETED")
        return name


def _uid(pod: Pod) -> str:
    return str((pod.get("metadata") or {}).get("uid"))


def _stamp(pod: Pod) -> str:
    return str((pod.get("metadata") or {}).get("creationTimestamp"))


def _job(pod: Pod) -> str:
    """Return the name of the Job that a pod is of."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return str(labels.get(JOB_LABEL))

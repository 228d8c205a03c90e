"""The state of a repeat (waiting, running or ended, and why), read from its Job and pod."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrate.engines.base import Ending
from orchestrate.engines.kubernetes.api import KubernetesJob, Pod, condition
from orchestrate.text import plain_text
from results.schema import Status

_NOT_PULLED, _NOT_STARTED = "the image could not be pulled", "it could not be started"
_PULL = (Status.PULL_FAILED, _NOT_PULLED)
REASONS = {
    **dict.fromkeys(("InvalidImageName", "ErrImageNeverPull"), (*_PULL, False)),
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError"), (*_PULL, True)),
    **dict.fromkeys(
        ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"), (Status.ERROR, _NOT_STARTED, False)
    ),
}
"""Status and cause for each reason for waiting that is a failure, and whether the kubelet's retries may resolve it."""

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
    ended = pod.terminated
    if pod.phase in ("Succeeded", "Failed") or deleted or ended is not None:
        digest = _DIGEST.search(pod.image)
        return Ending(
            exit_code=ended.exit_code if ended else None,
            out_of_memory=ended is not None and ended.reason == "OOMKilled",
            detail=ended.text if ended else "",
            failure=_failure(pod, deleted=deleted),
            node=pod.node,
            image_digest=digest[1] if digest else None,
        )
    if pod.running is not None:
        return Running(pod.node)
    text = pod.waiting.text
    if (known := REASONS.get(pod.waiting.reason)) is not None:
        status, what, may_pass = known
        may_pass = may_pass and not _PERMANENT.search(pod.waiting.message)
        return Waiting(text, (status, f"{what}{_where(pod)}: {text}"), transient=may_pass, scheduled=True)
    if (unscheduled := condition(pod.conditions, "PodScheduled", "False")) is not None:
        failure = (Status.UNREACHABLE, f"not scheduled on any node: {unscheduled.text}")
        return Waiting(unscheduled.text, failure, transient=True)
    return Waiting(text or ("starting" if pod.node else "waiting for a node"), scheduled=pod.node is not None)


def without_pod(job: KubernetesJob, warning: str | None) -> State:
    """Describe the state of a Job without a pod: it waits for quota or in a queue, or has failed.

    Args:
        job: As last reported by the API server.
        warning: The cluster's latest warning about the Job, or None.
    """
    if (failed := condition(job.conditions, "Failed", "True")) is not None:
        status = Status.TIMEOUT if failed.reason == "DeadlineExceeded" else Status.LOST
        return Ending(exit_code=None, failure=(status, f"the cluster gave up on its Job: {failed.text}"))
    if job.suspended or warning is None:
        return Waiting("suspended: it waits in its queue" if job.suspended else "waiting for a pod")
    text = f"the cluster does not create a pod: {warning}"
    if _NOT_ADMITTED.search(text):
        return Waiting(warning, (Status.UNSUPPORTED, f"{text}. {_ADMISSION_REMEDY}"))
    return Waiting(warning, (Status.UNREACHABLE, text), transient=True)


def _where(pod: Pod) -> str:
    return f" on node {pod.node}" if pod.node else ""


def _failure(pod: Pod, *, deleted: bool) -> tuple[Status, str] | None:
    """Return why the cluster ended a repeat; None: it ended by itself."""
    where, ended, why = _where(pod), pod.terminated, pod.why
    if why.reason == "DeadlineExceeded":
        return Status.TIMEOUT, f"ended by the cluster at its time limit{where} ({why.text})"
    if why.reason == "Evicted" and re.search(r"exceeds the (total )?limit", why.message):
        return Status.ERROR, f"it exceeded a storage limit{where}: {why.text}"
    disruption = condition(pod.conditions, "DisruptionTarget", "True")
    if disruption is not None or why.reason:  # preempted, drained, evicted, rejected by its node, node lost, …
        text = f"{disruption.reason}: {disruption.message or why.text}" if disruption else why.text
        return Status.LOST, plain_text(f"ended by the cluster{where}: {text}", 400)
    if deleted and ended is None:
        return Status.LOST, f"its pod was deleted{where}: it was preempted or drained, or its node was lost"
    if ended is not None and ended.reason in ("StartError", "ContainerCannotRun"):
        return Status.ERROR, f"{_NOT_STARTED}{where}: {plain_text(ended.message, 300)}"
    return None

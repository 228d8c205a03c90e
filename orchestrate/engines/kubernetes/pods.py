"""The state of a repeat (waiting, running or ended, and why), read from its Job and pod."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrate.engines.base import FINAL_PULL_ERRORS, Ending, Turn
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

_NOT_ADMITTED = re.compile(
    r"violates PodSecurity|unable to validate against any security context constraint|"
    r"PodSecurityPolicy: unable to admit"
)
"""Messages with which Kubernetes, OpenShift and Kubernetes before 1.25 reject pods for their privileges."""

_ADMISSION_REMEDY = "On OpenShift, and where the namespace assigns users, set security: openshift in hosts.yml"
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")
"""In the id of a started image: `docker-pullable://REPOSITORY@sha256:…`, or without the scheme."""


@dataclass(frozen=True, kw_only=True)
class Stuck(Turn):
    """The state of a repeat that cannot start at the moment.

    Attributes:
        failure: Status and cause.
        transient: Whether the failure may resolve itself.
    """

    waiting: bool = True
    failure: tuple[Status, str]
    transient: bool = True


def read_state(pod: Pod, *, deleted: bool = False) -> Turn | Ending:
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
    if pod.running is None and (known := REASONS.get(pod.waiting.reason)) is not None:
        status, what, may_pass = known
        may_pass = may_pass and not FINAL_PULL_ERRORS.search(pod.waiting.message)
        failure = status, f"{what}{_where(pod)}: {pod.waiting.text}"
        return Stuck(node=pod.node, failure=failure, transient=may_pass)
    if pod.running is None and (unscheduled := condition(pod.conditions, "PodScheduled", "False")) is not None:
        return Stuck(failure=(Status.UNREACHABLE, f"not scheduled on any node: {unscheduled.text}"))
    return Turn(waiting=pod.running is None, node=pod.node)


def without_pod(job: KubernetesJob, warning: str | None) -> Turn | Ending:
    """Describe the state of a Job without a pod: it waits for quota or in a queue, or has failed.

    Args:
        job: As last reported by the API server.
        warning: The cluster's latest warning about the Job, or None.
    """
    if (failed := condition(job.conditions, "Failed", "True")) is not None:
        status = Status.TIMEOUT if failed.reason == "DeadlineExceeded" else Status.LOST
        return Ending(exit_code=None, failure=(status, f"the cluster gave up on its Job: {failed.text}"))
    if job.suspended or warning is None:
        return Turn(waiting=True)
    text = f"the cluster does not create a pod: {warning}"
    if _NOT_ADMITTED.search(text):
        return Stuck(failure=(Status.UNSUPPORTED, f"{text}. {_ADMISSION_REMEDY}"), transient=False)
    return Stuck(failure=(Status.UNREACHABLE, text))


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

"""Pods that break one rule each of the Pod Security level `restricted`."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable

from tests.support.engines.kubernetes.control_plane import ControlPlane


def pod_that(change: Callable[[dict, dict], None]) -> dict:
    """Describe a pod that is restricted but for a change of its description and its container's context."""
    context = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    container = {"name": "x", "image": "x", "securityContext": context}
    spec = {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, "containers": [container]}
    change(spec, context)
    return {"metadata": {"name": "offender"}, "spec": spec}


OFFENCES = {
    "nothing": lambda spec, context: None,
    "root": lambda spec, context: context.update(runAsNonRoot=False, runAsUser=0),
    "new privileges": lambda spec, context: context.update(allowPrivilegeEscalation=True),
    "a capability": lambda spec, context: context["capabilities"].update(add=["SYS_ADMIN"]),
    "a folder of the node": lambda spec, context: spec.update(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
    "the node's network": lambda spec, context: spec.update(hostNetwork=True),
    "no filter of system calls": lambda spec, context: spec.update(
        securityContext={"seccompProfile": {"type": "Unconfined"}}
    ),
}


def is_admitted(cluster: ControlPlane, pod: dict) -> bool:
    """Return whether the cluster would create a pod."""
    try:
        cluster.ask("POST", "/api/v1/namespaces/bench/pods?dryRun=All", pod)
    except urllib.error.HTTPError as error:
        assert error.code == 403, error.read()
        return False
    return True

"""Behaviour of Jobs on the fake cluster: scheduler, Job controller and kubelet."""

import time
from collections.abc import Callable
from typing import Any

from results.schema import Case, Status
from results.schema.progress import record_lines, state_line
from results.schema.record_json import to_json
from tests.real.faults.benchmark import case_from_flags, failed_record, good_record
from tests.support.engines.kubernetes.fake_server import FakeServer, Object

DIGEST = "sha256:" + "5" * 64
Play = Callable[[FakeServer, Object], None]


def make_pod(server: FakeServer, job: Object, node: str | None = "node-1") -> Object:
    """Create a Job's pod, scheduled to a node or not."""
    template, name = job["spec"]["template"], job["metadata"]["name"]
    metadata = {
        "name": f"{name}-x",
        "labels": {**template["metadata"]["labels"], "job-name": name},
        "ownerReferences": [{"uid": job["metadata"]["uid"]}],
        "annotations": template["metadata"]["annotations"],
    }
    spec = {**template["spec"], **({"nodeName": node} if node else {})}
    return server.put("pods", {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}})


def case_of(job: Object) -> Case:
    """Return the case of a Job."""
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    named = (argument.removeprefix("--").partition("=") for argument in arguments)
    return case_from_flags({name: value for name, _, value in named})


def set_status(server: FakeServer, pod: Object, phase: str, state: dict[str, Any] | None = None, **status: Any) -> None:
    """Change the status of a pod."""
    containers = [{"name": "benchmark", "state": state or {}, "imageID": f"docker-pullable://x@{DIGEST}"}]
    with server.changed:
        pod["status"] = {"phase": phase, "containerStatuses": containers, **status}
        server.put("pods", pod)


def run(server: FakeServer, pod: Object, *lines: str) -> None:
    """Run a pod, with output."""
    set_status(server, pod, "Running", {"running": {"startedAt": "2026-11-21T10:00:00Z"}})
    for line in (state_line("timing"), *lines):
        server.log(pod["metadata"]["name"], line)


def end(server: FakeServer, pod: Object, code: int = 0, why: str = "", **status: Any) -> None:
    """End a pod's container, and with it its Job."""
    terminated = {"exitCode": code, "reason": why or ("Completed" if code == 0 else "Error")}
    set_status(server, pod, "Failed" if code else "Succeeded", {"terminated": terminated}, **status)
    _finish_job(server, pod, "Failed" if code else "Complete")


def _finish_job(server: FakeServer, pod: Object, kind: str) -> None:
    job = server.get("jobs", pod["metadata"]["labels"]["job-name"])
    if job is not None:
        job["status"] = {"conditions": [{"type": kind, "status": "True", "reason": "BackoffLimitExceeded"}]}
        server.put("jobs", job)


def lines_of(job: Object, status: Status | None = None, cause: str = "") -> list[str]:
    """Return the lines in which a benchmark prints its record."""
    case = case_of(job)
    record = good_record(case) if status is None else failed_record(case, status, cause)
    return list(record_lines(to_json(record).encode()))


def work(server: FakeServer, job: Object) -> None:
    """Measure, print the record, and succeed."""
    pod = make_pod(server, job)
    run(server, pod, *lines_of(job))
    time.sleep(0.05)
    end(server, pod)


def hang(server: FakeServer, job: Object) -> None:
    """Run until the Job is deleted, then print that it was stopped."""
    pod = make_pod(server, job)
    run(server, pod)
    while not server.closed.is_set():
        with server.changed:
            if job["metadata"].get("deletionTimestamp"):
                break
            server.changed.wait(0.2)
    for line in lines_of(job, Status.STOPPED, "stopped by SIGTERM"):
        server.log(pod["metadata"]["name"], line)
    end(server, pod, 3)


def wait_for_a_node(server: FakeServer, job: Object) -> None:
    """Never find a node."""
    pod = make_pod(server, job, node=None)
    message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    set_status(server, pod, "Pending", None, conditions=[condition])


def waits_because(reason: str, message: str) -> Play:
    """Wait on a node forever, with a reason."""

    def play(server: FakeServer, job: Object) -> None:
        set_status(server, make_pod(server, job), "Pending", {"waiting": {"reason": reason, "message": message}})

    return play


def ends_with(code: int, why: str = "", **status: Any) -> Play:
    """Run, then end with a code and a reason."""

    def play(server: FakeServer, job: Object) -> None:
        pod = make_pod(server, job)
        run(server, pod)
        end(server, pod, code, why, **status)

    return play


def disrupted(reason: str) -> Play:
    """Run, then be deleted by the cluster."""

    def play(server: FakeServer, job: Object) -> None:
        pod = make_pod(server, job)
        run(server, pod)
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "by the test"}
        time.sleep(0.3)
        looks = len(server.requests) + 4
        set_status(server, pod, "Failed", {"terminated": {"exitCode": 143}}, conditions=[condition])
        while len(server.requests) < looks and not server.closed.wait(0.05):
            """Keep the ended pod for a while."""
        server.drop("pods", pod["metadata"]["name"])
        _finish_job(server, pod, "Failed")

    return play


def loses_the_end_of_its_log(server: FakeServer, job: Object) -> None:
    """Print half of the record, and succeed."""
    pod = make_pod(server, job)
    run(server, pod, lines_of(job)[0][:-40])
    end(server, pod)


def gets_no_pod_because(message: str) -> Play:
    """Never be allowed to create a pod."""

    def play(server: FakeServer, job: Object) -> None:
        name = job["metadata"]["name"]
        event = {"type": "Warning", "reason": "FailedCreate", "message": message}
        event |= {"involvedObject": {"kind": "Job", "name": name}, "lastTimestamp": "2026-11-21T10:00:00Z"}
        server.put("events", {"metadata": {"name": f"{name}.1"}, **event})

    return play

"""Runs on a fake cluster: every repeat exactly one record, whatever the cluster does."""

import threading
import time
from collections import Counter

import pytest

from orchestrate.engines.kubernetes import launcher as launchers
from orchestrate.engines.kubernetes.manifests import object_name
from orchestrate.errors import HostError
from orchestrate.events import RunOutcome
from orchestrate.running.run import stop_run
from results.schema import Status
from studies.bench_queues import kind_of
from tests.support.engines.kubernetes import plays
from tests.support.engines.kubernetes.fake_server import Answer
from tests.support.engines.processes import wait_until
from tests.support.patience import patience, slowness
from tests.unit.kubernetes.conftest import node

pytestmark = pytest.mark.slow  # starts programs and waits for them


def wait_until_empty(one):
    wait_until(lambda: not one.server.all("jobs"), "the Jobs to go")


def test_a_tag_is_started_by_digest_as_soon_as_a_node_has_told_it(bench):
    images = []

    def play(server, job):
        images.append(job["spec"]["template"]["spec"]["containers"][0]["image"])
        plays.work(server, job)

    one = bench(play)
    one.measure(max_jobs=1)
    assert images == ["127.0.0.1:5000/tfbench:mine"] + [f"127.0.0.1:5000/tfbench@{plays.DIGEST}"] * 2
    assert {record.origin.image_digest for record in one.records()} == {plays.DIGEST}
    log = one.run_folder.log_path(one.planned.jobs[0].id).read_text()
    assert "tfbench: state timing" in log and "tfbench: record" not in log


TOO_LONG = {"reason": "DeadlineExceeded", "message": "Pod was active too long"}
TOO_LARGE = {"reason": "Evicted", "message": 'Usage of EmptyDir volume "tmp" exceeds the limit "4Gi".'}
NOT_ADMITTED = (
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
    "unable to validate against any security context constraint: [.spec.securityContext.fsGroup",
)
FAILURES = [
    (plays.ends_with(137, "OOMKilled"), Status.OOM, "memory"),
    (plays.ends_with(143, "Error", **TOO_LONG), Status.TIMEOUT, "time limit on node node-1 (DeadlineExceeded"),
    (plays.ends_with(137, "Error", reason="Evicted", message="low on resource: memory."), Status.LOST, "low on reso"),
    (plays.ends_with(137, **TOO_LARGE), Status.ERROR, "exceeded a storage limit"),
    *(
        (plays.disrupted(reason), Status.LOST, f"on node node-1: {reason}: by the test")
        for reason in ("PreemptionByScheduler", "DeletionByTaintManager")
    ),
    *(
        (plays.waits_because(reason, said), status, said)
        for reason, said, status in (
            ("ErrImagePull", "manifest for x not found: manifest unknown", Status.PULL_FAILED),
            ("CreateContainerConfigError", "container has runAsNonRoot", Status.ERROR),
        )
    ),
    *((plays.gets_no_pod_because(said), Status.UNSUPPORTED, said) for said in NOT_ADMITTED),
    (plays.gets_no_pod_because(NOT_ADMITTED[0]), Status.UNSUPPORTED, "set security: openshift in hosts.yml"),
    (plays.loses_the_end_of_its_log, Status.BAD_RESULT, "incomplete"),
    (lambda server, job: server.drop("jobs", job["metadata"]["name"]), Status.LOST, "its Job is gone: somebody"),
]


@pytest.mark.parametrize(("play", "status", "cause"), FAILURES)
def test_a_failure_is_a_record_with_its_cause(bench, play, status, cause):
    one = bench(play)
    record = one.only_record()
    assert (record.status, cause in record.cause) == (status, True), record.cause
    wait_until_empty(one)


@pytest.mark.parametrize(
    ("play", "status", "cause"),
    [
        (plays.wait_for_a_node, Status.UNREACHABLE, "3 Insufficient nvidia.com/gpu"),
        (plays.gets_no_pod_because("exceeded quota: gpus"), Status.UNREACHABLE, "exceeded quota: gpus"),
        (plays.waits_because("ImagePullBackOff", "Back-off: i/o timeout"), Status.PULL_FAILED, "i/o timeout"),
    ],
)
def test_what_may_pass_is_waited_for_and_then_a_failure(bench, monkeypatch, play, status, cause):
    one = bench(play)
    monkeypatch.setattr(launchers, "PULL_PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(launchers, "MINUTE_SECONDS", 0.6)
    record = one.only_record(pending_minutes=1)
    assert record.status is status and cause in record.cause
    assert one.states[:2] == ["launching", "queued"]


def test_a_node_taken_by_our_own_long_repeat_is_not_missing(bench, monkeypatch):
    only_node = threading.Lock()

    def play(server, job):
        plays.wait_for_a_node(server, job)
        with only_node:
            pod = server.get("pods", f"{job['metadata']['name']}-x")
            pod["spec"]["nodeName"] = "node-1"
            plays.run(server, pod)
            for line in (*["one more line"] * 50, *plays.lines_of(job)):
                server.log(pod["metadata"]["name"], line)
                time.sleep(0.05 * slowness())
            plays.end(server, pod)

    monkeypatch.setattr(launchers, "MINUTE_SECONDS", 1.5 * slowness())
    assert bench(play).measure(2, pending_minutes=1) == RunOutcome(ok=2, failed=0, missing=0)


def test_a_repeat_costs_three_requests_and_looks_do_not_grow_with_repeats(bench, monkeypatch):
    monkeypatch.setattr(launchers, "POLL_SECONDS", 1.0)
    at_a_time = []

    def play(server, job):
        at_a_time.append(sum("deletionTimestamp" not in item["metadata"] for item in server.all("jobs")))
        plays.work(server, job)

    one = bench(play)
    began = time.monotonic()
    assert one.measure(12, max_jobs=4) == RunOutcome(ok=12, failed=0, missing=0)
    assert max(at_a_time) == 4, "no more Jobs exist than there are slots"
    looks = time.monotonic() - began + 2
    asked = Counter(map(kind_of, one.server.requests))
    assert (asked["create"], asked["delete"]) == (12, 12) and 12 <= asked["log"] <= 24
    assert asked["read"] <= 3 * looks, "Jobs, pods and at most warnings"


@pytest.mark.parametrize(
    ("play", "state", "asked", "records"),
    [
        (plays.hang, "on node-1", 2, [(Status.STOPPED, "stopped by the user")]),  # with its last words
        (plays.wait_for_a_node, "queued", 1, []),
    ],
    ids=["what runs is ended", "what waits is taken back"],
)
def test_a_run_that_is_stopped_leaves_nothing_in_the_cluster(bench, play, state, asked, records):
    one = bench(play)
    thread = threading.Thread(target=one.measure, kwargs={"repeats": 2, "max_jobs": 1})
    thread.start()
    wait_until(lambda: state in one.states, "a start")
    for _ in range(asked):
        one.stop.ask()
    thread.join(patience())
    assert [(record.status, record.cause) for record in one.records()] == records
    wait_until_empty(one)


def test_a_job_of_the_same_name_that_is_not_ours_is_left_alone(bench):
    one = bench(plays.hang)
    (job,) = one.plan(one.host(), repeats=1).jobs
    launcher = one.make(one.host())
    launcher.start(job)
    one.server.get("jobs", object_name(job))["metadata"]["annotations"]["tfbench.job"] = "somebody-elses"
    with pytest.raises(HostError, match="does not belong to this run"):
        launcher.start(job)
    assert not one.asked("DELETE", "")


def test_stop_removes_only_its_own_run(bench):
    one = bench(plays.hang)
    ours, theirs = (one.plan(one.host(), run_id=run_id) for run_id in ("run1", "run2"))
    for job in (*ours.jobs, *theirs.jobs):
        one.make(one.host()).start(job)
    assert stop_run(ours, one.make) == (3, [])
    wait_until(lambda: len(one.server.all("jobs")) == 3, "the Jobs of one run to go")
    assert {item["metadata"]["labels"]["tfbench.run"] for item in one.server.all("jobs")} == {"run2"}


def test_resume_waits_until_the_earlier_job_of_a_repeat_is_gone(bench):
    kinds = [plays.disrupted("PreemptionByScheduler"), plays.work]
    one = bench(lambda server, job: kinds.pop(0)(server, job))
    assert one.measure(1) == RunOutcome(ok=0, failed=1, missing=0)
    assert one.run(one.planned) == RunOutcome(ok=1, failed=0, missing=0)


BUSY = [Answer(code, "TooManyRequests", "slow down") for code in (503, 429, 429)]


@pytest.mark.parametrize(
    ("cut", "errors"),
    [
        *((cut, [ConnectionResetError()] * 6) for cut in ("GET /pods?", "GET /jobs?", "STREAM /log", "GET /log")),
        *(("POST /jobs", errors) for errors in ([ConnectionResetError()] * 6, BUSY)),
    ],
)
def test_cut_connections_and_a_busy_server_lose_nothing(bench, cut, errors):
    one = bench()
    method, part = cut.split()
    left, asked_before = [*errors], []

    def fault(asked, path):
        if asked == method and part in path and left and asked_before:  # a first request is not repeated
            raise left.pop()
        asked_before.append(path)

    plan = one.plan(one.host(), repeats=4)
    one.server.faults = fault
    assert one.run(plan) == RunOutcome(ok=4, failed=0, missing=0)
    assert not left or method == "STREAM"


def test_missing_rights_name_what_is_missing(bench):
    one = bench()

    def fault(method, path):
        if method == "POST":
            raise Answer(403, "Forbidden", 'jobs.batch is forbidden: User "me" cannot create resource "jobs"')

    one.server.faults = fault
    record = one.only_record()
    assert record.status is Status.UNREACHABLE
    assert 'User "me" cannot create resource "jobs"' in record.cause and "containers/kubernetes/" in record.cause
    one.kubeconfig.write_text(one.kubeconfig.read_text().replace("secret", "expired"))
    with pytest.raises(HostError, match="rejected the credentials"):
        one.make(one.host()).probe()


def test_a_case_of_several_hosts_is_unsupported_and_creates_nothing(bench):
    one = bench()
    one.server.put("nodes", node("node-2"))
    record = one.only_record(num_hosts=2)
    assert record.status is Status.UNSUPPORTED and "Use a fleet of hosts, or Slurm" in record.cause
    assert not one.asked("POST", "")

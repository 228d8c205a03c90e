"""Runs on a fake cluster: every repeat exactly one record, whatever the cluster does."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections import Counter

import pytest

from orchestrate.errors import CancelledInQueue, HostError
from orchestrate.events import JobState
from orchestrate.launchers.kubernetes import launcher as launchers
from orchestrate.launchers.kubernetes.manifests import object_name
from orchestrate.running.run import RunOutcome, stop_run
from results.schema import Status
from tests.benchmarks.bench_queues import kind_of
from tests.real.faults.controller import wait_until
from tests.support.engines.kubernetes import plays
from tests.support.engines.kubernetes.standin import Answer
from tests.unit.kubernetes.conftest import node

pytestmark = pytest.mark.slow  # starts programs and waits for them


def test_every_repeat_gets_one_record_and_nothing_stays_in_the_cluster(bench):
    one = bench()
    plan = one.plan(one.host())
    assert one.run(plan) == RunOutcome(ok=3, failed=0, missing=0)
    assert {record.origin.host for record in one.records(plan)} == {"node-1"}
    assert {record.origin.launcher for record in one.records(plan)} == {"kubernetes"}
    wait_until(lambda: not one.server.all("jobs"), "the Jobs to go")
    assert len(one.asked("POST", "/jobs")) == 3
    log = one.run_folder.log_path(plan.jobs[0].id).read_text()
    assert "tfbench: state timing" in log and "tfbench: record" not in log


def test_no_more_jobs_exist_than_there_are_slots(bench):
    at_a_time = []

    def play(server, job):
        at_a_time.append(sum("deletionTimestamp" not in item["metadata"] for item in server.all("jobs")))
        plays.work(server, job)

    one = bench(play)
    plan = one.plan(one.host(max_jobs=2), repeats=8)
    assert one.run(plan) == RunOutcome(ok=8, failed=0, missing=0)
    assert max(at_a_time) == 2


def test_a_tag_is_started_by_digest_as_soon_as_a_node_has_told_it(bench):
    one = bench()
    images = []
    one.server.play = lambda server, job: (
        images.append(job["spec"]["template"]["spec"]["containers"][0]["image"]),
        plays.work(server, job),
    )
    plan = one.plan(one.host(max_jobs=1), repeats=3)
    one.run(plan)
    assert images == ["127.0.0.1:5000/tfbench:mine"] + [f"127.0.0.1:5000/tfbench@{plays.DIGEST}"] * 2
    assert {record.origin.image_digest for record in one.records(plan)} == {plays.DIGEST}


FAILURES = [
    (plays.ends_with(137, "OOMKilled"), Status.OOM, "memory"),
    (
        plays.ends_with(143, "Error", reason="DeadlineExceeded", message="Pod was active too long"),
        *(Status.TIMEOUT, "time limit on node node-1 (DeadlineExceeded"),
    ),
    (plays.ends_with(137, "Error", reason="Evicted", message="low on resource: memory."), Status.LOST, "low on reso"),
    (
        plays.ends_with(137, reason="Evicted", message='Usage of EmptyDir volume "tmp" exceeds the limit "4Gi".'),
        *(Status.ERROR, "exceeded a storage limit"),
    ),
    *(
        (plays.disrupted(reason), Status.LOST, f"on node node-1: {reason}: by the test")
        for reason in ("PreemptionByScheduler", "DeletionByTaintManager")
    ),
    (plays.ends_with(1, reason="OutOfnvidia.com/gpu", message="none left"), Status.LOST, "node-1: OutOfnvidia.com/gpu"),
    (plays.ends_with(41), Status.ERROR, "exit code 41"),
    *(
        (plays.waits_because(reason, said), status, said)
        for reason, said, status in (
            ("InvalidImageName", "couldn't parse image reference", Status.PULL_FAILED),
            ("ErrImagePull", "manifest for x not found: manifest unknown", Status.PULL_FAILED),
            ("CreateContainerConfigError", "container has runAsNonRoot", Status.ERROR),
        )
    ),
    (plays.loses_the_end_of_its_log, Status.BAD_RESULT, "incomplete"),
]


def only_record(bench, plan):
    """Run a plan of one repeat and return its record."""
    assert bench.run(plan).missing == 0
    (record,) = bench.records(plan)
    return record


@pytest.mark.parametrize(("play", "status", "cause"), FAILURES)
def test_a_failure_is_a_record_with_its_cause(bench, play, status, cause):
    one = bench(play)
    record = only_record(one, one.plan(one.host(), repeats=1))
    assert (record.status, cause in record.cause) == (status, True), record.cause
    wait_until(lambda: not one.server.all("jobs"), "the Job to go")


@pytest.mark.parametrize(
    "said",
    [
        'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
        'pods "x" is forbidden: unable to validate against any security context constraint: [.spec.securityContext.fsGroup',
        'pods "x" is forbidden: PodSecurityPolicy: unable to admit pod: [spec.containers[0].securityContext.runAsUser',
    ],
)
def test_a_pod_that_is_not_admitted_ends_its_repeat_at_once(bench, said):
    one = bench(plays.gets_no_pod_because(said))
    record = only_record(one, one.plan(one.host(), repeats=1))
    assert record.status is Status.UNSUPPORTED
    assert said in record.cause and "set security: openshift in hosts.yml" in record.cause


def test_a_repeat_costs_three_requests_and_looks_do_not_grow_with_repeats(bench, monkeypatch):
    monkeypatch.setattr(launchers, "POLL_SECONDS", 1.0)
    one = bench()
    plan = one.plan(one.host(max_jobs=4), repeats=12)
    before = len(one.server.requests)
    began = time.monotonic()
    assert one.run(plan) == RunOutcome(ok=12, failed=0, missing=0)
    looks = time.monotonic() - began + 2
    asked = Counter(kind_of(line) for line in one.server.requests[before:])
    assert (asked["create"], asked["delete"]) == (12, 12) and 12 <= asked["log"] <= 24
    assert asked["read"] <= 3 * looks, "Jobs, pods and at most warnings"


@pytest.mark.parametrize(
    ("play", "status", "cause"),
    [
        (plays.wait_for_a_node, Status.UNREACHABLE, "3 Insufficient nvidia.com/gpu"),
        (plays.gets_no_pod, Status.UNREACHABLE, "exceeded quota: gpus"),
        (plays.waits_because("ImagePullBackOff", "Back-off: i/o timeout"), Status.PULL_FAILED, "i/o timeout"),
    ],
)
def test_what_may_pass_is_waited_for_and_then_a_failure(bench, monkeypatch, play, status, cause):
    one = bench(play)
    monkeypatch.setattr(launchers, "PULL_PATIENCE_SECONDS", 0.6)
    monkeypatch.setattr(launchers, "MINUTE_SECONDS", 0.6)
    record = only_record(one, one.plan(one.host(pending_minutes=1), repeats=1))
    assert record.status is status and cause in record.cause
    assert [event.state for event in one.events if isinstance(event, JobState)][:2] == ["launching", "queued"]


def test_a_job_that_somebody_deleted_is_lost(bench):
    one = bench(lambda server, job: server.drop("jobs", job["metadata"]["name"]))
    record = only_record(one, one.plan(one.host(), repeats=1))
    assert (record.status, record.cause) == (Status.LOST, "its Job is gone: somebody deleted it")


def test_a_record_is_kept_whatever_happens_to_its_pod_afterwards(bench):
    def play(server, job):
        pod = plays.make_pod(server, job)
        plays.run(server, pod, *plays.lines_of(job))
        time.sleep(0.3)
        server.drop_log(pod["metadata"]["name"])
        plays.end(server, pod)

    one = bench(play)
    plan = one.plan(one.host(), repeats=1)
    assert one.run(plan) == RunOutcome(ok=1, failed=0, missing=0)


@contextlib.contextmanager
def running(one, plan):
    """Run a plan beside the test, which ends it."""
    thread = threading.Thread(target=one.run, args=(plan,))
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()
    wait_until(lambda: not one.server.all("jobs"), "the Jobs to go")


def test_a_run_stopped_at_once_ends_what_runs_and_keeps_its_last_words(bench):
    one = bench(plays.hang)
    plan = one.plan(one.host(max_jobs=1), repeats=2)
    with running(one, plan):
        wait_until(lambda: "on node-1" in [item.state for item in one.events if isinstance(item, JobState)], "a start")
        one.stop.ask()
        one.stop.ask()
    (record,) = one.records(plan)
    assert (record.status, record.cause) == (Status.STOPPED, "stopped by the user")


def test_what_waits_is_taken_back_when_a_run_is_stopped_and_has_no_record(bench):
    one = bench(plays.wait_for_a_node)
    plan = one.plan(one.host(), repeats=3)
    with running(one, plan):
        wait_until(lambda: len(one.server.all("pods")) == 2, "two pods")
        one.stop.ask()
    assert one.records(plan) == []


def test_a_job_that_is_created_while_the_run_stops_is_taken_back_too(bench):
    one = bench(plays.wait_for_a_node)
    (job,) = one.plan(one.host(), repeats=1).jobs
    launcher = one.make(one.host())
    launcher.submit([job])
    launcher.start(job)
    launcher.cancel_waiting([job])
    with pytest.raises(CancelledInQueue):
        launcher.follow(job, lambda line: None)
    wait_until(lambda: not one.server.all("jobs"), "the Job to go")


def test_a_restarted_controller_reattaches_and_starts_nothing_twice(bench):
    go = threading.Event()

    def play(server, job):
        pod = plays.make_pod(server, job)
        plays.run(server, pod)
        go.wait(30)
        for line in plays.lines_of(job):
            server.log(pod["metadata"]["name"], line)
        plays.end(server, pod)

    one = bench(play)
    host = one.host()
    plan = one.plan(host, repeats=2)
    first = one.make(host)
    assert [first.start(job) for job in plan.jobs] == [False, False]
    first.close()  # the controller dies: nothing of it is left
    go.set()
    assert one.run(plan) == RunOutcome(ok=2, failed=0, missing=0)
    assert [event.state for event in one.events if isinstance(event, JobState)].count("reattached") == 2
    created = one.asked("POST", "/jobs")
    assert len(created) == 4 and len(set(map(object_name, plan.jobs))) == 2


def test_a_job_of_the_same_name_that_is_not_ours_is_left_alone(bench):
    one = bench(plays.hang)
    host = one.host()
    plan = one.plan(host, repeats=1)
    (job,) = plan.jobs
    launcher = one.make(host)
    launcher.start(job)
    other = dataclasses.replace(job, id="somebody-elses")
    one.server.get("jobs", object_name(job))["metadata"]["annotations"]["tfbench.job"] = other.id
    with pytest.raises(HostError, match="does not belong to this run"):
        launcher.start(job)
    assert not one.asked("DELETE", "")


def test_stop_removes_only_its_own_run(bench):
    one = bench(plays.hang)
    host = one.host()
    ours, theirs = one.plan(host, repeats=3), one.plan(host, repeats=3, run_id="run2")
    launcher = one.make(host)
    for job in (*ours.jobs, *theirs.jobs):
        launcher.start(job)
    assert sorted(launcher.running("run1")) == sorted(job.id for job in ours.jobs)
    assert stop_run(ours, one.make, one.bus) == (3, [])
    wait_until(lambda: len(one.server.all("jobs")) == 3, "the Jobs of one run to go")
    assert {item["metadata"]["labels"]["tfbench.run"] for item in one.server.all("jobs")} == {"run2"}


def test_resume_waits_until_the_earlier_job_of_a_repeat_is_gone(bench):
    tried = []

    def play(server, job):
        tried.append(job)
        (plays.disrupted("PreemptionByScheduler") if len(tried) == 1 else plays.work)(server, job)

    one = bench(play)
    plan = one.plan(one.host(), repeats=1)
    assert one.run(plan) == RunOutcome(ok=0, failed=1, missing=0)
    assert one.run(plan) == RunOutcome(ok=1, failed=0, missing=0)
    assert len(tried) == 2


@pytest.mark.parametrize("cut", ["GET /pods?", "GET /jobs?", "STREAM /log", "POST /jobs", "GET /log"])
def test_cut_connections_lose_nothing(bench, cut):
    one = bench()
    plan = one.plan(one.host(), repeats=4)
    method, part = cut.split()
    left, asked_before = [6], []

    def fault(asked, path):
        if asked == method and part in path and left[0] and asked_before:  # a first request is not repeated
            left[0] -= 1
            raise ConnectionResetError
        asked_before.append(path)

    one.server.faults = fault
    assert one.run(plan) == RunOutcome(ok=4, failed=0, missing=0)
    assert left == [0] or method == "STREAM"


def test_an_answer_of_a_busy_server_is_asked_for_again(bench):
    one = bench()
    plan = one.plan(one.host(), repeats=2)
    left = [3]

    def fault(method, path):
        if method == "POST" and left[0]:
            left[0] -= 1
            raise Answer(429 if left[0] else 503, "TooManyRequests", "slow down")

    one.server.faults = fault
    assert one.run(plan) == RunOutcome(ok=2, failed=0, missing=0)


def test_missing_rights_name_what_is_missing(bench):
    one = bench()

    def fault(method, path):
        if method == "POST":
            raise Answer(403, "Forbidden", 'jobs.batch is forbidden: User "me" cannot create resource "jobs"')

    one.server.faults = fault
    record = only_record(one, one.plan(one.host(), repeats=1))
    assert record.status is Status.UNREACHABLE
    assert 'User "me" cannot create resource "jobs"' in record.cause and "containers/kubernetes/" in record.cause


def test_wrong_credentials_say_so(bench, tmp_path):
    one = bench()
    one.kubeconfig.write_text(one.kubeconfig.read_text().replace("secret", "expired"))
    with pytest.raises(HostError, match="rejected the credentials"):
        one.make(one.host()).probe()


def test_a_case_of_several_hosts_is_unsupported_and_creates_nothing(bench):
    one = bench()
    one.server.put("nodes", node("node-2"))
    record = only_record(one, one.plan(one.host(), repeats=1, num_hosts=[2]))
    assert record.status is Status.UNSUPPORTED and "Use a fleet of hosts, or Slurm" in record.cause
    assert not one.asked("POST", "")

"""Runs on a real control plane and a real kubelet: `make test-kubernetes`, minutes, the first time ten of them."""

import json
import os
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrate.engines.kubernetes.manifests import job_manifest
from orchestrate.inventory.hosts import read_hosts
from orchestrate.planning.codec import plan_from_json
from results.schema import Status
from tests.conftest import CACHE
from tests.support.controller import Runs
from tests.support.engines.docker import Engines
from tests.support.engines.kubernetes.cluster import OPENSHIFT, OPENSHIFT_USERS, RESTRICTED, RealCluster
from tests.support.engines.processes import wait_until

pytestmark = pytest.mark.skipif(
    os.environ.get("TFBENCH_TEST_KUBERNETES") != "1", reason="opt-in: make test-kubernetes builds Kubernetes first"
)
REMOVAL_SECONDS = 150
"""Until a deleted Job that ran has gone: its pod may take 30 s to end, and this kubelet (1.20) lets a deleted pod go only
when its dead containers are removed. It removes them at once or, when it missed that moment, in a round that it makes
every minute: a pod whose containers had ended after 12 s was seen to stay for 67."""

BUILD = Path(__file__).parents[2] / "support" / "engines" / "kubernetes" / "build.sh"


@pytest.fixture(scope="module")
def cluster(engines: Engines, engine_folder: Path) -> Iterator[RealCluster]:
    """Start a cluster of one node, on the first Docker engine."""
    built = Path(os.environ.get("TFBENCH_KUBERNETES") or CACHE.parent / "kubernetes")
    subprocess.run(["bash", str(BUILD), str(built)], check=True)
    folder = engine_folder / "kubernetes"
    folder.mkdir()
    with RealCluster(built / "bin", folder, engines.first) as made:
        yield made


def fleets(cluster: RealCluster, image: str, **settings: object) -> dict:
    queue = {"kubeconfig": str(cluster.kubeconfig), "max_jobs": 2}
    return {"cloud": {"image": image, "device": "cpu", "kubernetes": queue, **settings}}


def jobs(cluster: RealCluster) -> list[dict]:
    return cluster.ask("GET", "/apis/batch/v1/namespaces/bench/jobs")["items"]


def running(cluster: RealCluster) -> list[dict]:
    pods = cluster.ask("GET", "/api/v1/namespaces/bench/pods")["items"]
    return [pod for pod in pods if pod["status"]["phase"] == "Running"]


def test_a_run_ends_with_its_records_and_nothing_stays(cluster, fake_images, runs: Runs):
    runs.measure(fleets(cluster, fake_images.image("work")), repeats=2)
    records = runs.records().values()
    assert [record.status for record in records] == [Status.OK] * 2
    assert {record.origin.host for record in records} == {"node-1"}
    assert all(record.origin.image_digest.startswith("sha256:") for record in records)
    wait_until(lambda: not jobs(cluster), "the Jobs to go", REMOVAL_SECONDS)


@pytest.mark.parametrize(
    ("does", "status", "cause"), [("exit_code", Status.ERROR, "exit code 41"), ("hang", Status.TIMEOUT, "")]
)
def test_a_failure_is_a_record(cluster, fake_images, runs: Runs, does, status, cause):
    runs.measure(fleets(cluster, fake_images.image(does), timeout_minutes=0.1), expect=3)
    (record,) = runs.records().values()
    assert record.status is status and cause in record.cause, record.cause


def test_an_image_that_is_not_there_says_so(cluster, fake_images, runs: Runs):
    missing = fake_images.image("work").rpartition(":")[0] + ":missing"
    runs.measure(fleets(cluster, missing), expect=3)
    (record,) = runs.records().values()
    assert record.status is Status.PULL_FAILED, record.cause


def test_a_killed_controller_is_followed_by_one_that_reattaches(cluster, fake_images, runs: Runs):
    with runs.begin(fleets(cluster, fake_images.image("work", seconds=20))) as controller:
        wait_until(lambda: running(cluster), "a pod to run")
        controller.kill()
    runs.resume()
    assert runs.states().count("reattached") == 1
    assert [record.status for record in runs.records().values()] == [Status.OK]


def test_stop_ends_what_a_killed_controller_left(cluster, fake_images, runs: Runs):
    with runs.begin(fleets(cluster, fake_images.image("hang"))) as controller:
        wait_until(lambda: running(cluster), "a pod to run")
        controller.kill()
    runs.run("stop", str(runs.path), expect=0)
    wait_until(lambda: not jobs(cluster), "the Job to go", REMOVAL_SECONDS)


def is_admitted(cluster: RealCluster, **context: object) -> bool:
    """Return whether the cluster would create a pod that is restricted but for parts of its container's context."""
    usual = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    container = {"name": "x", "image": "x", "securityContext": {**usual, **context}}
    spec = {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, "containers": [container]}
    try:
        path = "/api/v1/namespaces/bench/pods?dryRun=All"
        cluster.ask("POST", path, {"metadata": {"name": "offender"}, "spec": spec})
    except urllib.error.HTTPError as error:
        assert error.code == 403, error.read()
        return False
    return True


def test_a_restricted_cluster_takes_our_pods_and_refuses_others(cluster, fake_images, runs: Runs):
    assert is_admitted(cluster) and not is_admitted(cluster, runAsNonRoot=False, runAsUser=0)
    assert not is_admitted(cluster, capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]})
    with runs.begin(fleets(cluster, fake_images.image("work", seconds=5))) as controller:
        (pod,) = wait_until(lambda: running(cluster), "a pod to run")
        assert controller.wait(180) == 0, runs.stderr[-2000:]
    (record,) = runs.records().values()
    assert record.status is Status.OK
    assert pod["metadata"]["annotations"]["kubernetes.io/psp"] == "restricted"
    (job,) = plan_from_json((runs.path / "plan.json").read_bytes()).jobs
    (host,) = read_hosts(runs.folder / "hosts.yml")
    sent = job_manifest(job, host, host.queue)["spec"]["template"]["spec"]
    assert pod["spec"]["securityContext"] == sent["securityContext"], "admission added nothing"
    assert pod["spec"]["containers"][0]["securityContext"] == sent["containers"][0]["securityContext"]


def test_openshift_gives_pods_a_user_of_its_own_and_their_records_come(cluster, fake_images, runs: Runs, tmp_path):
    cluster.admit_only("openshift", OPENSHIFT)
    try:
        refused = Runs(tmp_path / "refused")
        refused.folder.mkdir()
        refused.measure(fleets(cluster, fake_images.image("work")), expect=3)
        (record,) = refused.records().values()
        assert record.status is Status.UNSUPPORTED and "security: openshift" in record.cause, record.cause

        queue = {"kubeconfig": str(cluster.kubeconfig), "max_jobs": 2, "security": "openshift"}
        with runs.begin(fleets(cluster, fake_images.image("work", seconds=5), kubernetes=queue)) as controller:
            (pod,) = wait_until(lambda: running(cluster), "a pod to run")
            assert controller.wait(180) == 0, runs.stderr[-2000:]
    finally:
        cluster.admit_only("restricted", RESTRICTED)
    (record,) = runs.records().values()
    assert record.status is Status.OK
    (container,) = pod["spec"]["containers"]
    assert container["securityContext"]["runAsUser"] == OPENSHIFT_USERS["min"]
    assert "runAsGroup" not in {**pod["spec"]["securityContext"], **container["securityContext"]}, "the group is root's"


def offer_gpus(cluster: RealCluster, count: int) -> None:
    """Have the node offer GPUs, as one does that an autoscaler has started; 0: as before."""
    amounts = {"nvidia.com/gpu": str(count) if count else None}
    cluster.ask("PATCH", "/api/v1/nodes/node-1/status", {"status": {"capacity": amounts, "allocatable": amounts}})


def gpus_of(cluster: RealCluster) -> int:
    """Return how many GPUs the node offers."""
    return int(cluster.ask("GET", "/api/v1/nodes/node-1")["status"]["allocatable"].get("nvidia.com/gpu", 0))


def pods(cluster: RealCluster) -> str:
    """Return what the cluster reports of all pods."""
    return json.dumps(cluster.ask("GET", "/api/v1/namespaces/bench/pods"))


def test_a_pool_without_a_node_is_planned_and_its_repeats_wait_for_one(cluster, fake_images, runs: Runs):
    queue = {"kubeconfig": str(cluster.kubeconfig), "max_jobs": 2, "gpus_per_node": 1}
    pool = fleets(cluster, fake_images.image("work"), device="gpu", kubernetes=queue)
    before = gpus_of(cluster)
    offer_gpus(cluster, 0)
    wait_until(lambda: not gpus_of(cluster), "the node to have no GPU", 30)
    try:
        with runs.begin(pool, repeats=2, case={"device": "gpu"}) as controller:
            wait_until(lambda: "Insufficient nvidia.com/gpu" in pods(cluster), "a pod that waits for a node", 30)
            assert not running(cluster)
            offer_gpus(cluster, 1)
            assert controller.wait(180) == 0, runs.stderr[-2000:]
    finally:
        offer_gpus(cluster, before)
    records = list(runs.records().values())
    assert [record.status for record in records] == [Status.OK] * 2
    assert {record.origin.host for record in records} == {"node-1"}

"""Runs on a real control plane and a real kubelet: `make test-kubernetes`, minutes, the first time ten of them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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
"""Until a deleted Job has gone: its pod may take 30 s to end, and this kubelet (1.20) a minute to remove its containers."""

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
    ("does", "status", "cause"),
    [("exit_code", Status.ERROR, "exit code 41"), ("hang", Status.TIMEOUT, ""), ("", Status.PULL_FAILED, "")],
)
def test_a_failure_is_a_record(cluster, fake_images, runs: Runs, does, status, cause):
    image = fake_images.image(does) if does else fake_images.image().rpartition(":")[0] + ":missing"
    runs.measure(fleets(cluster, image, timeout_minutes=0.1), expect=3)
    (record,) = runs.records().values()
    assert record.status is status and cause in record.cause, record.cause


def test_a_killed_controller_is_followed_by_one_that_reattaches(cluster, fake_images, runs: Runs):
    with runs.begin(fleets(cluster, fake_images.image("work", seconds=20))) as controller:
        wait_until(lambda: running(cluster), "a pod to run")
        controller.kill()
    runs.resume()
    assert runs.states().count("reattached") == 1
    assert [record.status for record in runs.records().values()] == [Status.OK]


def test_a_restricted_cluster_takes_our_pods(cluster, fake_images, runs: Runs):
    with runs.begin(fleets(cluster, fake_images.image("work", seconds=5))) as controller:
        (pod,) = wait_until(lambda: running(cluster), "a pod to run")
        assert controller.wait(180) == 0, runs.stderr[-2000:]
    (record,) = runs.records().values()
    assert record.status is Status.OK
    assert pod["metadata"]["annotations"]["kubernetes.io/psp"] == "restricted"


def test_openshift_gives_pods_a_user_of_its_own_and_their_records_come(cluster, fake_images, runs: Runs):
    cluster.admit_only("openshift", OPENSHIFT)
    try:
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

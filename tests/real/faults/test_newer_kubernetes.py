"""Runs on the real control plane of a newer Kubernetes, whose programs a folder holds: TFBENCH_CONTROL_PLANE=FOLDER.

No distribution packages them; a release of Kubernetes has them in its archive `kubernetes-server`, and etcd its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from results.schema import Status
from tests.real.faults.controller import Runs, wait_until
from tests.real.faults.restricted import OFFENCES, is_admitted, pod_that
from tests.support.engines.kubernetes.control_plane import NAMESPACE, ControlPlane
from tests.support.engines.kubernetes.hollow import HollowNodes

FOLDER = os.environ.get("TFBENCH_CONTROL_PLANE")
pytestmark = pytest.mark.skipif(not FOLDER, reason="opt-in: TFBENCH_CONTROL_PLANE is not set")

IMAGE = "registry.invalid/tfbench@sha256:" + "a" * 64
"""Nodes run the benchmark of this folder in its place."""


@pytest.fixture(scope="module")
def plane(engine_folder: Path) -> Iterator[ControlPlane]:
    """Start a control plane with two nodes, whose namespace takes only pods of the level `restricted`."""
    folder = engine_folder / "newer"
    (folder / "nodes").mkdir(parents=True)
    controllers = "job-controller,garbage-collector-controller,ttl-after-finished-controller"
    made = ControlPlane(
        Path(str(FOLDER)),
        folder,
        api=("--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",),
        manager=(f"--controllers={controllers}",),
    )
    nodes = HollowNodes(made, folder / "nodes", ("node-1", "node-2"))
    try:
        made.start()
        levels = {"pod-security.kubernetes.io/enforce": "restricted", "pod-security.kubernetes.io/warn": "restricted"}
        made.ask("PATCH", f"/api/v1/namespaces/{NAMESPACE}", {"metadata": {"labels": levels}})
        nodes.start()
        yield made
    finally:
        nodes.stop()
        made.stop()


def fleet(plane: ControlPlane, **queue: object) -> dict:
    settings = {"kubeconfig": str(plane.kubeconfig), "max_jobs": 2, **queue}
    return {"cloud": {"image": IMAGE, "device": "cpu", "kubernetes": settings}}


def everything(plane: ControlPlane) -> list[dict]:
    paths = (
        "/apis/batch/v1/namespaces/bench/jobs",
        "/api/v1/namespaces/bench/services",
        "/api/v1/namespaces/bench/pods",
    )
    return [item for path in paths for item in plane.ask("GET", path)["items"]]


@pytest.mark.parametrize("security", ["standard", "openshift"])
def test_a_restricted_namespace_takes_our_pods_and_refuses_others(plane, runs_of_plane: Runs, security):
    admitted = {name for name, change in OFFENCES.items() if is_admitted(plane, pod_that(change))}
    assert admitted == {"nothing"}
    hosts = runs_of_plane.hosts(fleet(plane, security=security))
    done = runs_of_plane.run("run", "--hosts", str(hosts))
    assert done.returncode == 0, done.stderr
    (record,) = runs_of_plane.records().values()
    assert (record.status, record.origin.host in ("node-1", "node-2")) == (Status.OK, True)
    wait_until(lambda: not everything(plane), "all to go", 60)


def test_two_nodes_train_one_case_together(plane, runs_of_plane: Runs):
    hosts = runs_of_plane.hosts(fleet(plane))
    suite = runs_of_plane.folder / "one.yml"
    document = json.loads(suite.read_text())
    case = {**document["cases"][0], "num_hosts": 2, "communication": "ring"}
    suite.write_text(json.dumps({**document, "cases": [case]}))
    done = runs_of_plane.run("run", "--hosts", str(hosts))
    assert done.returncode == 0, done.stderr
    (record,) = runs_of_plane.records().values()
    assert record.status is Status.OK and record.validity is not None and record.measurement is not None
    checks = {check.name: check for check in record.validity.checks}
    assert checks["ranks_equal"].passed and checks["update_equals_one_device"].passed
    assert [rank.rank for rank in record.measurement.ranks] == [0, 1]
    wait_until(lambda: not everything(plane), "all to go", 60)


@pytest.fixture
def runs_of_plane(tmp_path: Path) -> Runs:
    """Give a user's folder."""
    return Runs(tmp_path)

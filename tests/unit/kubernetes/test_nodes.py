"""From the labels of nodes to the facts of a fleet, and to its image."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from orchestrate.errors import HostError
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.launchers.kubernetes import api
from orchestrate.launchers.kubernetes import nodes as probe
from orchestrate.launchers.kubernetes.nodes import fleet_facts
from results.schema import Status
from tests.real.faults.controller import wait_until
from tests.support.engines.kubernetes import plays
from tests.support.engines.kubernetes.standin import Answer
from tests.unit.kubernetes.conftest import node

GPU_TAINT = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
TAINT = [{"key": "pool", "value": "bench", "effect": "NoSchedule"}]


def facts(*nodes, gpus=True, **queue):
    return fleet_facts(nodes, KubernetesQueue(**queue), wants_gpus=gpus)


def test_labels_tell_gpus_driver_and_memory():
    reported = facts(node(), node("node-2"))
    assert [gpu.index for gpu in reported.gpus] == [0, 1, 2, 3]
    assert (reported.gpus[0].name, reported.gpus[0].compute_capability) == ("NVIDIA RTX A4000", "8.6")
    assert reported.gpus[0].memory_bytes == 16376 << 20
    assert (reported.driver, reported.cpu_count, reported.memory_bytes) == ("550.127.05", 7, 64 << 30)


def test_the_oldest_driver_and_the_fewest_gpus_count():
    older = node("node-2", gpus=2, **{"nvidia.com/cuda.driver-version.full": "535.183.01"})
    reported = facts(node(), older)
    assert (reported.driver, len(reported.gpus)) == ("535.183.01", 2)


def test_driver_labels_of_before_2024_are_understood():
    old = node()
    del old["metadata"]["labels"]["nvidia.com/cuda.driver-version.full"]
    for part, value in (("major", "535"), ("minor", "104"), ("rev", "05")):
        old["metadata"]["labels"][f"nvidia.com/cuda.driver.{part}"] = value
    assert facts(old).driver == "535.104.05"


@pytest.mark.parametrize(
    ("nodes", "status", "said"),
    [
        ([], Status.UNREACHABLE, "no node can run repeats"),
        ([node(taints=TAINT)], Status.UNREACHABLE, "tainted"),
        (
            [node(), node("b", **{"nvidia.com/gpu.product": "NVIDIA-L4"})],
            Status.UNSUPPORTED,
            "the nodes of the fleet differ",
        ),
        ([node(**{"nvidia.com/gpu.replicas": "4"})], Status.UNSUPPORTED, "shared 4 times"),
        ([node(**{"nvidia.com/gpu.product": "NVIDIA-A10-SHARED"})], Status.UNSUPPORTED, "shared"),
    ],
)
def test_nodes_that_cannot_be_measured_say_why(nodes, status, said):
    with pytest.raises(HostError, match=said) as caught:
        facts(*nodes)
    assert caught.value.status is status


def test_cordoned_and_unready_nodes_do_not_count():
    cordoned, unready = node("b", gpus=1), node("c", gpus=1)
    cordoned["spec"]["unschedulable"] = True
    unready["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert len(facts(node(), cordoned, unready).gpus) == 4


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"key": "pool", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "pool", "value": "bench"},
    ],
)
def test_tolerated_taints_are_no_hindrance(toleration):
    assert len(facts(node(taints=TAINT), tolerations=[toleration]).gpus) == 4


def test_the_taint_of_gpu_nodes_is_tolerated_by_what_needs_gpus_alone():
    assert len(facts(node(taints=GPU_TAINT)).gpus) == 4
    with pytest.raises(HostError, match="tainted"):
        facts(node(taints=GPU_TAINT), gpus=False)


def test_gpus_may_have_another_name():
    shared = node(gpus=0)
    shared["status"]["allocatable"]["example.com/gpu"] = "2"
    assert len(facts(shared, gpu_resource="example.com/gpu").gpus) == 2
    assert facts(shared).gpus == ()


@pytest.mark.parametrize("present", [(), (node("small", gpus=0),), (node("full", taints=TAINT),)])
def test_where_no_gpu_node_runs_yet_the_file_tells(bench, present):
    one = bench()
    one.server.delete("nodes", "node-1")
    for other in present:
        one.server.put("nodes", other)
    reported = one.make(one.host(gpus_per_node=2)).probe()
    assert (len(reported.gpus), reported.driver) == (2, None)
    plan = one.plan(one.host(gpus_per_node=2), repeats=1, num_gpus=[2], device="gpu")
    assert [(job.blocked, job.case.num_gpus) for job in plan.jobs] == [(None, 2)]
    if not any(other["metadata"]["name"] == "small" for other in present):
        with pytest.raises(HostError, match="started on demand, set gpus_per_node: and variant:"):
            one.make(one.host()).probe()


def test_nodes_without_gpus_do_not_count_where_the_file_states_some():
    reported = facts(node("small", gpus=0), node(), gpus_per_node=4)
    assert (len(reported.gpus), reported.driver) == (4, "550.127.05")


def test_the_image_follows_from_driver_and_compute_capability(bench):
    one = bench()
    reported = one.make(one.host("registry: r.io/you")).probe()
    (image,) = reported.images
    assert (image.status, image.variant) == (Status.OK, "cuda12.5"), image
    assert image.reference.startswith("r.io/you/tfbench:")
    one.server.put("nodes", node(**{"nvidia.com/cuda.driver-version.full": "470.57.02"}))
    (image,) = one.make(one.host("registry: r.io/you")).probe().images
    assert image.status is Status.DRIVER_TOO_OLD


def test_where_nodes_may_not_be_listed_the_file_tells(bench):
    one = bench()

    def fault(method, path):
        if "/nodes" in path:
            raise Answer(403, "Forbidden", "nodes is forbidden")

    one.server.faults = fault
    with pytest.raises(HostError, match="gpus_per_node"):
        one.make(one.host()).probe()
    assert len(one.make(one.host(gpus_per_node=4)).probe().gpus) == 4


def test_the_selector_and_all_pages_are_asked_for(bench):
    one = bench()
    for number in range(2, 7):
        one.server.put("nodes", node(f"node-{number}"))
    one.server.put("nodes", node("other", gpus=1, pool="other"))
    reported = one.make(one.host(node_selector={"pool": "bench"})).probe()
    assert len(reported.gpus) == 4
    assert len(one.asked("GET", "/nodes")) == 3


ANSWER = {
    "driver": "550.127.05",
    "gpus": [{"index": 0, "name": "NVIDIA L4", "uuid": "GPU-1", "compute_capability": "8.9", "memory_bytes": 24 << 30}],
}


def without_labels() -> dict:
    """Describe a node of a cluster without GPU feature discovery, as on GKE."""
    bare = node(taints=GPU_TAINT)
    bare["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    return bare


@pytest.fixture
def quick_probe(monkeypatch) -> None:
    monkeypatch.setattr(probe, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(probe, "PROBE_SECONDS", 1.0)


@pytest.mark.slow
def test_where_labels_are_missing_a_job_asks_the_driver_and_leaves_nothing(bench, quick_probe):
    one = bench(plays.answers_probes_with("warning: of a library", json.dumps(ANSWER)))
    one.server.put("nodes", without_labels())
    facts = one.make(one.host("registry: mine")).probe()
    assert (facts.driver, {gpu.name for gpu in facts.gpus}, len(facts.gpus)) == ("550.127.05", {"NVIDIA L4"}, 4)
    assert [gpu.index for gpu in facts.gpus] == [0, 1, 2, 3]
    assert facts.images[0].status is Status.OK and facts.images[0].variant != "cpu"
    wait_until(lambda: not one.server.all("jobs"), "the Job to go")
    assert one.make(one.host("image: mine")).probe().driver is None and len(one.asked("POST", "/jobs")) == 1, (
        "an image that is named needs no Job"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("play", "status", "said"),
    [
        (plays.answers_probes_with(json.dumps({"driver": None, "gpus": []})), Status.NO_GPU, "found no driver"),
        (plays.answers_probes_with("no such file", code=127), Status.ERROR, "exit code 127: no such file"),
        (plays.answers_probes_with("hello"), Status.UNSUPPORTED, "Expecting value"),
        (plays.waits_because("ErrImagePull", "manifest unknown"), Status.PULL_FAILED, "manifest unknown"),
        (plays.wait_for_a_node, Status.UNREACHABLE, "within 1 s: Unschedulable: 0/3 nodes are available"),
    ],
)
def test_a_job_that_cannot_ask_the_driver_says_why_and_what_to_do(bench, quick_probe, play, status, said):
    one = bench(play)
    one.server.put("nodes", without_labels())
    with pytest.raises(HostError, match=r"name variant: in hosts\.yml") as caught:
        one.make(one.host("registry: mine")).probe()
    assert said in caught.value.cause and caught.value.status is status, caught.value.cause
    wait_until(lambda: not one.server.all("jobs"), "the Job to go")


def test_credentials_are_read_every_few_seconds_not_for_each_request(monkeypatch):
    settings, now, renewed = SimpleNamespace(), [100.0], []

    def renew(given):
        renewed.append(given)
        given.refresh_api_key_hook = renew  # as the client's own does

    monkeypatch.setattr(api.time, "monotonic", lambda: now[0])
    settings.refresh_api_key_hook = seldom = api._seldom(renew)
    for _ in range(5):
        settings.refresh_api_key_hook(settings)
    assert renewed == [settings] and settings.refresh_api_key_hook is seldom
    now[0] += api.RENEW_SECONDS
    settings.refresh_api_key_hook(settings)
    assert renewed == [settings] * 2
    assert api._seldom(None) is None


@pytest.mark.parametrize(
    ("text", "amount"),
    [("8", 8), ("7500m", 7), ("64Gi", 64 << 30), ("1k", 1000), ("1e999999999", None), ("1..2", None), (None, None)],
)
def test_quantities_are_those_of_the_api_and_nothing_else(text, amount):
    assert api.quantity(text) == amount

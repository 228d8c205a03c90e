"""From the labels of nodes to the facts of a fleet, and to its image."""

import pytest

from orchestrate.engines.kubernetes import api
from orchestrate.engines.kubernetes.api import Node
from orchestrate.engines.kubernetes.nodes import fleet_facts
from orchestrate.errors import HostError
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import KubernetesQueue
from orchestrate.planning.images import wanted_images
from results.schema import Status
from tests.support.engines.kubernetes.fake_server import Answer
from tests.unit.kubernetes.conftest import node


def facts(*nodes, gpus=True, **queue):
    return fleet_facts(list(map(Node.model_validate, nodes)), KubernetesQueue(**queue), wants_gpus=gpus)


def test_labels_tell_gpus_driver_and_memory():
    reported = facts(node(), node("node-2", gpus=2, **{"nvidia.com/cuda.driver-version.full": "560.35.03"}))
    assert [gpu.index for gpu in reported.gpus] == [0, 1], "the fewest count, and the oldest driver"
    assert (reported.gpus[0].name, reported.gpus[0].compute_capability) == ("NVIDIA RTX A4000", "8.6")
    assert reported.gpus[0].memory_bytes == 16376 << 20
    assert (reported.driver, reported.cpu_count, reported.memory_bytes) == ("550.127.05", 7, 64 << 30)


@pytest.mark.parametrize(
    ("nodes", "status", "said"),
    [
        ([], Status.UNREACHABLE, "no node can run repeats.*set gpus_per_node: and variant:"),
        ([node(), node("b", **{"nvidia.com/gpu.product": "NVIDIA-L4"})], Status.UNSUPPORTED, "of the fleet differ"),
        ([node(**{"nvidia.com/gpu.replicas": "4"})], Status.UNSUPPORTED, "shared .*: 4 are offered, fewer there"),
        ([node(gpus=10, **{"nvidia.com/gpu.count": "1"})], Status.UNSUPPORTED, "10 are offered, 1 there"),
        ([node(**{"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "1"})], Status.UNSUPPORTED, "4 are offered"),
        ([node(**{"nvidia.com/gpu.sharing-strategy": "mps"})], Status.UNSUPPORTED, "strategy mps"),
    ],
)
def test_nodes_that_cannot_be_measured_say_why(nodes, status, said):
    with pytest.raises(HostError, match=said) as caught:
        facts(*nodes)
    assert caught.value.status is status


def test_nodes_for_which_there_are_no_images_are_unsupported():
    queue = KubernetesQueue(gpus_per_node=1)
    arm = facts(node(), node("b", **{"kubernetes.io/arch": "arm64"}))
    (image,) = wanted_images(Host(fleet="f", name="k", kubernetes=queue), arm)
    assert image.status is Status.UNSUPPORTED and "its processor is arm64" in image.reason


def test_cordoned_unready_and_gpuless_nodes_do_not_count():
    cordoned, unready = node("b", gpus=1), node("c", gpus=1)
    cordoned["spec"]["unschedulable"] = True
    unready["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    assert len(facts(node(), cordoned, unready).gpus) == 4
    reported = facts(node("small", gpus=0), node(), gpus_per_node=4)
    assert (len(reported.gpus), reported.driver) == (4, "550.127.05")
    renamed = node(gpus=0)
    renamed["status"]["allocatable"]["example.com/gpu"] = "2"
    assert [len(facts(renamed, gpu_resource=name).gpus) for name in ("example.com/gpu", "nvidia.com/gpu")] == [2, 0]


def test_where_no_gpu_node_runs_yet_the_file_tells(bench):
    one = bench()
    one.server.drop("nodes", "node-1")
    one.server.put("nodes", node("small", gpus=0))
    reported = one.make(one.host(gpus_per_node=2)).probe()
    assert (len(reported.gpus), reported.driver) == (2, None)


def test_only_nodes_with_the_selectors_labels_count_or_else_the_file_tells(bench):
    one = bench()
    one.server.put("nodes", node("other", gpus=1, pool="other"))
    assert len(one.make(one.host(node_selector={"pool": "bench"})).probe().gpus) == 4

    def fault(method, path):
        if "/nodes" in path:
            raise Answer(403, "Forbidden", "nodes is forbidden")

    one.server.faults = fault
    with pytest.raises(HostError, match="gpus_per_node"):
        one.make(one.host()).probe()
    assert len(one.make(one.host(gpus_per_node=4)).probe().gpus) == 4


def test_without_labels_the_variant_must_be_set(bench):
    one = bench()
    bare = node()
    bare["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-l4"}  # as on GKE
    one.server.put("nodes", bare)
    with pytest.raises(HostError, match=r"Set variant: in hosts\.yml"):
        one.make(one.host("registry: mine")).probe()
    found = one.make(one.host("registry: mine\n    variant: cuda12.5")).probe()
    assert (found.driver, len(found.gpus), found.images[0].variant) == (None, 4, "cuda12.5")


@pytest.mark.parametrize(
    ("text", "amount"),
    [("8", 8), ("7500m", 7), ("64Gi", 64 << 30), ("1k", 1000), ("1e999999999", None), ("1..2", None), (None, None)],
)
def test_quantities_are_those_of_the_api_and_nothing_else(text, amount):
    assert api.quantity(text) == amount

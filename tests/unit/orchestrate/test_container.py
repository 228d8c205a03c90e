"""What a container is given, in the engine's words."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrate.launchers.container import (
    ContainerSpec,
    container_document,
    job_container,
    probe_container,
)
from orchestrate.planning.plan import Job
from results.schema import Case, Origin
from tests.unit.orchestrate.test_check import host

UUIDS = ("GPU-aaaa", "GPU-bbbb")
CAPABILITIES = [["gpu", "compute", "utility"]]


def job(**changes: Any) -> Job:
    origin = Origin(run_id="r", fleet="a4000", host="node-a", launcher="docker", repeat=1)
    return Job(id="j", case=Case(model="resnet50"), origin=origin, gpus=(0, 1), **changes)


def requests(spec: ContainerSpec) -> Any:
    return container_document(spec)["HostConfig"].get("DeviceRequests")


@pytest.mark.parametrize(
    ("uuids", "devices", "wanted"),
    [
        (UUIDS, (), {"DeviceIDs": list(UUIDS), "Capabilities": CAPABILITIES}),
        ((), (), {"DeviceIDs": ["0", "1"], "Capabilities": CAPABILITIES}),
        (UUIDS, ("GPU-aaaa", "GPU-bbbb", "0", "1", "all"), {"Driver": "cdi", "DeviceIDs": list(UUIDS)}),
        (UUIDS, ("0", "1", "all"), {"Driver": "cdi", "DeviceIDs": ["0", "1"]}),
        (UUIDS, ("GPU-aaaa", "0", "1"), {"Driver": "cdi", "DeviceIDs": ["0", "1"]}),
        ((), ("0", "1"), {"Driver": "cdi", "DeviceIDs": ["0", "1"]}),
    ],
)
def test_gpus_are_asked_for_as_the_engine_names_them(uuids, devices, wanted):
    offered = frozenset(f"nvidia.com/gpu={name}" for name in devices)
    if offered:
        wanted = {**wanted, "DeviceIDs": [f"nvidia.com/gpu={name}" for name in wanted["DeviceIDs"]]}
    assert requests(job_container(job(gpu_uuids=uuids), host(), "image", offered or None)) == [wanted]


@pytest.mark.parametrize(
    ("uuids", "names"),
    [(UUIDS, ["0", "1"]), (("MIG-aaaa", "MIG-bbbb"), ["MIG-aaaa", "MIG-bbbb"])],
    ids=["cards", "slices"],
)
def test_an_engine_that_lists_nothing_is_asked_by_index_but_for_slices(uuids, names):
    (asked,) = requests(job_container(job(gpu_uuids=uuids), host(), "image", frozenset()))
    assert asked == {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={name}" for name in names]}


def test_an_engine_without_rights_is_asked_for_all_limits_but_memlock():
    assert job_container(job(), host(), "image").limits == {"fsize": 256 << 20, "memlock": -1}
    assert job_container(job(), host(), "image", lifts_memory_lock=False).limits == {"fsize": 256 << 20}


def test_variables_of_the_hosts_file_reach_the_container():
    given = dataclasses.replace(host(), environment={"NCCL_SOCKET_IFNAME": "=eth0,eth1"})
    assert "NCCL_SOCKET_IFNAME==eth0,eth1" in container_document(job_container(job(), given, "image"))["Env"]


def test_what_the_driver_compiles_is_kept_by_image():
    image = f"ghcr.io/you/tfbench@sha256:{'ab' * 32}"
    document = container_document(job_container(job(), host(), image, keeps_cache=True))
    (mount,) = document["HostConfig"]["Mounts"]
    assert mount == {
        "Type": "volume",
        "Source": "tfbench-cuda-cache-abababababababab",
        "Target": "/cuda-cache",
        "VolumeOptions": {"Labels": {"tfbench.cuda-cache": image}},
    }
    assert {"CUDA_CACHE_PATH=/cuda-cache", "CUDA_CACHE_MAXSIZE=2147483648"} <= set(document["Env"])
    assert document["HostConfig"]["ReadonlyRootfs"]
    tag = "ghcr.io/you/tfbench:mine"
    unknown = job_container(job(), host(), tag, keeps_cache=True)
    assert unknown == job_container(job(), host(), tag), "a tag may mean another image tomorrow"


def test_a_probe_sees_all_gpus_either_way():
    assert requests(probe_container("i")) == [{"Count": -1, "Capabilities": CAPABILITIES}]
    assert requests(probe_container("i", cdi=True)) == [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]


def test_a_benchmark_without_gpus_asks_for_none_and_has_no_rights():
    document = container_document(ContainerSpec(image="i", name="n", command=("--a",), environment={"A": "1"}))
    settings = document["HostConfig"]
    assert not settings["DeviceRequests"]
    assert settings["ReadonlyRootfs"] and settings["CapDrop"] == ["ALL"] and settings["NetworkMode"] == "none"
    assert settings["SecurityOpt"] == ["no-new-privileges:true"] and "Privileged" not in settings
    assert "Memory" not in settings and "NanoCpus" not in settings
    assert document["Env"] == ["A=1"] and document["NetworkDisabled"] and "Entrypoint" not in document

"""What a host reports about itself, read with distrust."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime

import pytest

from orchestrate.errors import LaunchFailed
from orchestrate.launchers.container import ContainerSpec
from orchestrate.launchers.docker.client import launch_refusal
from orchestrate.launchers.docker.launcher import ContainerLauncher, _engine_facts, gpu_ways
from orchestrate.launchers.pulls import PullLimits
from orchestrate.planning.facts import Facts, facts_from_probe
from results.schema import GPU
from results.schema.health import GPUFacts
from tests.unit.orchestrate.test_check import host

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROBED = {
    "cpu": "EPYC",
    "gpus": [{"index": 0, "name": "A4000"}],
    "gpu_states": [{"index": 0, "utilisation": 0.5, "processes": 1, "of_a_later_probe": [1]}],
    "gpu_raw": [{"vbios": "94.04"}],
    "gpu_problems": ["1 of 2 GPUs answer: GPU 1 is \u001b[31mlost", 7],
}


def test_gpus_and_their_states_come_from_the_probe():
    facts = facts_from_probe(json.dumps(PROBED))
    assert facts.gpus == (GPU(index=0, name="A4000"),)
    assert facts.gpu_states == (GPUFacts(index=0, utilisation=0.5, processes=1),)
    assert [problem.endswith("lost") and "\x1b" not in problem for problem in facts.gpu_problems] == [True]


@pytest.mark.parametrize("states", [[{"index": "x"}], [7], [{}], 3, {"index": 0}])
def test_malformed_states_are_a_failed_probe(states):
    with pytest.raises(ValueError, match="malformed"):
        facts_from_probe(json.dumps({**PROBED, "gpu_states": states}))


LISTED = [{"ID": "nvidia.com/gpu=all"}, {"ID": "nvidia.com/gpu=0"}]


@pytest.mark.parametrize(
    ("info", "engine", "ways"),
    [
        ({"Runtimes": {"nvidia": {}}, "DiscoveredDevices": LISTED}, {}, [("NVIDIA runtime", False, True)]),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": LISTED}, {}, [("CDI", True, True)]),
        ({"Runtimes": 7, "DiscoveredDevices": [3, {"ID": "vendor.com/net=1"}]}, {}, [("NVIDIA toolkit", False, False)]),
        ({"DiscoveredDevices": "nvidia.com/gpu=0"}, {}, [("NVIDIA toolkit", False, False)]),
        ({}, {"lists_devices": False}, [("NVIDIA toolkit", False, False), ("CDI", True, False)]),
        ({"Runtimes": {"nvidia": {}}}, {"is_podman": True}, [("CDI", True, False)]),
    ],
)
def test_how_an_engine_may_give_gpus(info, engine, ways):
    assert [(way.name, way.cdi, way.announced) for way in gpu_ways(info, **engine)] == ways


def test_podman_and_the_processor_are_named():
    podman = _engine_facts({"ServerVersion": "5.8.6", "Architecture": "arm64"}, host(), NOW, is_podman=True)
    assert (podman.engine, podman.architecture) == ("podman 5.8.6", "arm64")
    docker = _engine_facts({"ServerVersion": "28.5", "Architecture": "x86_64"}, host(), NOW)
    assert (docker.engine, docker.architecture) == ("docker 28.5", "amd64")


class EngineWithGPU:
    """The least that a probe needs of an engine; notes which images it is asked for."""

    is_podman, lists_devices = False, False

    def __init__(self, runtimes: Collection[str] = ("nvidia",), refuses: Collection[bool] = ()) -> None:
        self.asked: set[str] = set()
        self.left: dict[str, ContainerSpec] = {}
        self.runtimes, self.refuses = runtimes, refuses

    def info(self) -> dict[str, object]:
        return {"ServerVersion": "28.5", "Runtimes": dict.fromkeys(self.runtimes)}

    def registry_digest(self, reference: str) -> str:
        self.asked.add(reference)
        return "sha256:" + "a" * 64

    def image_id(self, reference: str) -> str:
        return "sha256:" + "b" * 64

    def create(self, spec: ContainerSpec) -> None:
        self.left[spec.name] = spec

    def start(self, name: str) -> None:
        if self.left[name].cdi in self.refuses:
            raise launch_refusal('could not select device driver "" with capabilities: [[gpu compute utility]]')

    def wait(self, name: str, seconds: float) -> None:
        pass

    def output(self, name: str, limit: int) -> bytes:
        return json.dumps({**PROBED, "driver": "580.95.05", "gpu_problems": []}).encode()

    def remove(self, name: str) -> None:
        del self.left[name]


def probe(engine: EngineWithGPU) -> Facts:
    launcher = ContainerLauncher(host(variants=("cuda12.5",), registry="r.example/you"), PullLimits())
    launcher._engine = engine  # type: ignore[assignment]
    return launcher.probe()


@pytest.mark.parametrize(
    ("refuses", "runtime"),
    [([], "NVIDIA toolkit"), ([False], "CDI"), ([True], "NVIDIA toolkit"), ([False, True], None)],
)
def test_ways_that_an_engine_does_not_announce_are_tried(refuses: list[bool], runtime: str | None):
    engine = EngineWithGPU((), refuses)
    facts = probe(engine)
    assert (facts.gpu_runtime, bool(facts.gpus)) == (runtime, runtime is not None)
    assert not engine.left, "left behind"


def test_an_announced_way_that_is_refused_is_an_error_in_the_engines_words():
    with pytest.raises(LaunchFailed, match="could not select device driver"):
        probe(EngineWithGPU(refuses=[False]))


def test_a_host_with_a_named_variant_is_asked_through_its_image_alone():
    engine = EngineWithGPU()
    (image,) = probe(engine).images
    assert engine.asked == {image.reference} == {"r.example/you/tfbench:0.1.0-cuda12.5"}

"""What an engine gives or refuses to give, and what a host reports about itself, read with distrust."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrate.errors import LaunchFailed
from orchestrate.launchers.container import ContainerSpec
from orchestrate.launchers.docker.client import launch_refusal
from orchestrate.launchers.docker.launcher import ContainerLauncher, _engine_facts, gpu_ways
from orchestrate.launchers.pulls import PullLimits
from orchestrate.planning.facts import Facts, facts_from_probe
from results.schema import GPU, Status
from results.schema.health import GPUFacts
from tests.unit.orchestrate.test_check import host
from tests.unit.orchestrate.test_container import job

Refuses = Callable[[ContainerSpec], str | None]


class Engine:
    """The least that a launcher needs of an engine, which refuses a start as a rule says.

    Attributes:
        started: What was started.
        left: Containers that exist.
        asked: Images that were looked up.
    """

    is_podman, lists_devices = False, True

    def __init__(self, refuses: Refuses = lambda spec: None, runtimes: Collection[str] = (), **given: Any) -> None:
        self.refuses = refuses
        self.reported = {"ServerVersion": "28.5", "Runtimes": dict.fromkeys(runtimes)}
        self.started: list[ContainerSpec] = []
        self.left: dict[str, ContainerSpec] = {}
        self.asked: set[str] = set()
        vars(self).update(given)

    def info(self) -> dict[str, Any]:
        return self.reported

    def registry_digest(self, reference: str) -> str:
        self.asked.add(reference)
        return "sha256:" + "a" * 64

    def image_id(self, reference: str) -> str:
        return "sha256:" + "b" * 64

    def create(self, spec: ContainerSpec) -> bool:
        self.left[spec.name] = spec
        return True

    def start(self, name: str) -> None:
        if (said := self.refuses(self.left[name])) is not None:
            raise launch_refusal(said)
        self.started.append(self.left[name])

    def wait(self, name: str, seconds: float) -> None:
        """Do nothing."""

    def output(self, name: str, limit: int) -> bytes:
        return json.dumps({**PROBED, "driver": "580.95.05", "gpu_problems": []}).encode()

    def remove(self, name: str) -> None:
        del self.left[name]


def launcher(engine: Engine, reported: list[str] | None = None, **settings: Any) -> ContainerLauncher:
    limits = PullLimits(notify=lambda _host, message: [] if reported is None else reported.append(message))
    made = ContainerLauncher(host(**settings), limits)
    made._engine = engine  # type: ignore[assignment]
    return made


NO_TOOLKIT = 'could not select device driver "" with capabilities: [[gpu compute utility]]'


def refuses_lock(spec: ContainerSpec) -> str | None:
    return "error setting rlimit type 8: operation not permitted" if "memlock" in spec.limits else None


def test_a_limit_that_an_engine_may_not_lift_is_left_out_with_one_warning():
    reported: list[str] = []
    engine = Engine(refuses_lock, ["nvidia"])
    made = launcher(engine, reported)
    for _ in range(2):
        assert made.start(job()) is False
        engine.left.clear()
    assert [spec.limits for spec in engine.started] == [{"fsize": 256 << 20}] * 2
    assert len(reported) == 1 and "may not raise the limit on locked memory" in reported[0]
    rootless = Engine(refuses_lock, ["nvidia"])
    rootless.reported["SecurityOptions"] = ["name=seccomp", "name=rootless"]
    launcher(rootless, reported).start(job())
    assert len(reported) == len(rootless.started) == 1, "an engine without root is not asked for it"


def test_gpus_are_asked_for_in_the_next_way_where_the_engine_lists_none():
    engine = Engine(lambda spec: None if spec.cdi else NO_TOOLKIT, lists_devices=False)
    launcher(engine).start(job())
    assert [spec.gpus for spec in engine.started] == [("nvidia.com/gpu=0", "nvidia.com/gpu=1")]
    with pytest.raises(LaunchFailed) as caught:
        launcher(Engine(lambda spec: NO_TOOLKIT, lists_devices=False)).start(job())
    assert caught.value.status is Status.NO_GPU


def test_podman_is_asked_by_cdi_only_because_it_ignores_capabilities():
    engine = Engine(runtimes=["nvidia"], is_podman=True)
    launcher(engine).start(job())
    assert [spec.cdi for spec in engine.started] == [True]


def probe(engine: Engine) -> Facts:
    return launcher(engine, variants=("cuda12.5",), registry="r.example/you").probe()


@pytest.mark.parametrize(
    ("refuses", "runtime"),
    [([], "NVIDIA toolkit"), ([False], "CDI"), ([True], "NVIDIA toolkit"), ([False, True], None)],
)
def test_ways_that_an_engine_does_not_announce_are_tried(refuses: list[bool], runtime: str | None):
    engine = Engine(lambda spec: NO_TOOLKIT if spec.cdi in refuses else None, lists_devices=False)
    facts = probe(engine)
    assert (facts.gpu_runtime, bool(facts.gpus)) == (runtime, runtime is not None)
    assert not engine.left, "left behind"


def test_a_host_with_a_named_variant_is_asked_through_its_image_alone():
    engine = Engine(runtimes=["nvidia"], lists_devices=False)
    (image,) = probe(engine).images
    assert engine.asked == {image.reference} == {"r.example/you/tfbench:0.1.0-cuda12.5"}
    engine.refuses = lambda spec: NO_TOOLKIT
    with pytest.raises(LaunchFailed, match="could not select device driver"):
        probe(engine)  # the announced way is refused


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

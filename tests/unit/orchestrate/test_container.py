"""What a container is given, what an engine gives or refuses, and what a host reports about itself."""

import dataclasses
import json
from collections.abc import Callable, Collection
from typing import Any

import pytest

from orchestrate.engines.base import PullLimits
from orchestrate.engines.docker.client import NoGPUs, NoMemoryLock, launch_refusal
from orchestrate.engines.docker.launcher import ContainerLauncher
from orchestrate.engines.invocation import job_container
from orchestrate.errors import LaunchFailed
from orchestrate.events import EventBus
from orchestrate.planning.facts import Facts, facts_from_probe
from orchestrate.planning.plan import Job
from results.schema import GPU, Case, Data, Status
from results.schema.health import GPUFacts
from tests.unit.orchestrate.fakes import make_job
from tests.unit.orchestrate.test_check import host

UUIDS = ("GPU-aaaa", "GPU-bbbb")
CAPABILITIES = [["gpu", "compute", "utility"]]


def job(**changes: Any) -> Job:
    one = make_job(Case(model="resnet50"), fleet="a4000", host="node-a")
    return dataclasses.replace(one, gpus=(0, 1), **changes)


def limits(container: dict[str, Any]) -> dict[str, int]:
    return {limit["Name"]: limit["Hard"] for limit in container["HostConfig"]["Ulimits"]}


@pytest.mark.parametrize(
    ("uuids", "offered", "cdi", "names"),
    [
        (UUIDS, None, False, UUIDS),
        ((), None, False, ("0", "1")),
        (UUIDS, ("GPU-aaaa", "GPU-bbbb", "0", "1", "all"), True, UUIDS),
        (UUIDS, ("GPU-aaaa", "0", "1"), True, ("0", "1")),
        (UUIDS, (), True, ("0", "1")),  # it lists nothing: by index, but for slices
        (("MIG-aaaa", "MIG-bbbb"), (), True, ("MIG-aaaa", "MIG-bbbb")),
    ],
)
def test_gpus_are_asked_for_as_the_engine_names_them(uuids, offered, cdi, names):
    devices = None if offered is None else frozenset(f"nvidia.com/gpu={name}" for name in offered)
    (asked,) = job_container(job(gpu_uuids=uuids), host(), "image", devices)["HostConfig"]["DeviceRequests"]
    if cdi:
        assert asked == {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={name}" for name in names]}
    else:
        assert asked == {"DeviceIDs": list(names), "Capabilities": CAPABILITIES}


def test_a_container_gets_the_limits_variables_and_data_of_its_host():
    settings = {"environment": {"NCCL_SOCKET_IFNAME": "=eth0,eth1"}, "data_dir": "/sets/imagenet"}
    given = host().model_copy(update=settings)
    assert limits(job_container(job(), given, "image")) == {"fsize": 256 << 20, "memlock": -1}
    assert limits(job_container(job(), given, "image", lifts_memory_lock=False)) == {"fsize": 256 << 20}
    reading = job(case=Case(model="resnet50", data=Data.TFRECORD))
    document, plain = (job_container(one, given, "image") for one in (reading, job()))
    assert "NCCL_SOCKET_IFNAME==eth0,eth1" in document["Env"] and "--data_dir=/data" in document["Cmd"]
    mount = {"Type": "bind", "Source": "/sets/imagenet", "Target": "/data", "ReadOnly": True}
    assert document["HostConfig"]["Mounts"] == [mount] and plain["HostConfig"]["Mounts"] == []
    assert [plain["HostConfig"].get(key) for key in ("Privileged", "Memory", "NanoCpus")] == [None, 0, 0], "no limits"
    assert "Entrypoint" not in plain
    assert (plain["HostConfig"]["CapDrop"], plain["HostConfig"]["SecurityOpt"]) == (["ALL"], ["no-new-privileges=true"])


Refuses = Callable[[dict[str, Any]], str | None]


class Engine:
    """The least that a launcher needs of an engine, which refuses a start as a rule says."""

    refuses: Refuses

    def __init__(self, refuses: Refuses = lambda made: None, runtimes: Collection[str] = (), **given: Any) -> None:
        self.reported = {"ServerVersion": "28.5", "Runtimes": dict.fromkeys(runtimes)}
        self.started: list[dict[str, Any]] = []
        self.left: dict[str, dict[str, Any]] = {}
        self.asked: set[str] = set()
        vars(self).update({"refuses": refuses, "is_podman": False, "is_remote": True, **given})
        self.info, self.remove = (lambda: self.reported), self.left.pop
        self.image = lambda reference: {"Id": f"sha256:{'b' * 64}"}

    def registry_digest(self, reference: str) -> str:
        self.asked.add(reference)
        return "sha256:" + "a" * 64

    def start(self, name: str, made: dict[str, Any]) -> bool:
        self.left[name] = made
        if (said := self.refuses(made)) is not None:
            raise launch_refusal(said)
        self.started.append(made)
        return False

    def run(self, purpose: str, made: dict[str, Any], seconds: float) -> bytes:
        try:
            self.start(purpose, made)
        finally:
            self.remove(purpose)
        return json.dumps({**PROBED, "driver": "580.95.05", "gpu_problems": []}).encode()


def launcher(engine: Engine, reported: list[str] | None = None, **settings: Any) -> ContainerLauncher:
    bus = EventBus()
    bus.subscribe(lambda event: [] if reported is None else reported.append(getattr(event, "message", "")))
    made = ContainerLauncher(host(**settings), PullLimits(bus))
    made._engine = engine
    return made


NO_TOOLKIT = 'could not select device driver "" with capabilities: [[gpu compute utility]]'


def by_cdi(made: dict[str, Any]) -> bool:
    return made["HostConfig"]["DeviceRequests"][0].get("Driver") == "cdi"


def refuses_lock(made: dict[str, Any]) -> str | None:
    return "error setting rlimit type 8: operation not permitted" if "memlock" in limits(made) else None


def test_a_limit_that_an_engine_may_not_lift_is_left_out_with_one_warning():
    reported: list[str] = []
    engine = Engine(refuses_lock, ["nvidia"])
    made = launcher(engine, reported)
    for _ in range(2):
        assert made.start(job()) is False
        engine.left.clear()
    assert list(map(limits, engine.started)) == [{"fsize": 256 << 20}] * 2
    assert len(reported) == 1 and "may not raise the limit on locked memory" in reported[0]
    other = Engine(refuses_lock, ["nvidia"])
    launcher(other, reported).start(dataclasses.replace(job(), gpus=(0,)))
    assert len(other.started) == len(reported) == 1, "one GPU needs no locked memory"


@pytest.mark.parametrize("given", [{"runtimes": ["nvidia"]}, {"is_podman": True}])
def test_gpus_are_asked_for_in_the_way_that_works_and_by_cdi_of_podman(given: dict[str, Any]):
    engine = Engine(lambda made: None if by_cdi(made) else NO_TOOLKIT, **given)
    launcher(engine).start(job())
    (started,) = engine.started
    assert started["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["nvidia.com/gpu=0", "nvidia.com/gpu=1"]
    with pytest.raises(LaunchFailed) as caught:
        launcher(Engine(lambda made: NO_TOOLKIT, **given)).start(job())
    assert caught.value.status is Status.NO_GPU


def probe(engine: Engine) -> Facts:
    return launcher(engine, variant=("cuda12.5",), registry="r.example/you").probe()


@pytest.mark.parametrize(
    ("refuses", "runtime"),
    [([], "CDI"), ([True], "NVIDIA toolkit"), ([False, True], None)],
)
def test_ways_that_an_engine_does_not_announce_are_tried(refuses: list[bool], runtime: str | None):
    engine = Engine(lambda made: NO_TOOLKIT if by_cdi(made) in refuses else None)
    facts = probe(engine)
    assert (facts.gpu_runtime, bool(facts.gpus)) == (runtime, runtime is not None)
    assert not engine.left, "left behind"


PROBED = {
    "cpu": "EPYC",
    "gpus": [{"index": 0, "name": "A4000"}],
    "gpu_states": [{"index": 0, "utilisation": 0.5, "processes": 1, "of_a_later_probe": [1]}],
    "gpu_raw": [{"vbios": "94.04"}],
    "cpu_flops_per_second": 0.0,
    "gpu_problems": ["1 of 2 GPUs answer: GPU 1 is \u001b[31mlost"],
}


def test_gpus_and_their_states_come_from_the_probe():
    facts = facts_from_probe(json.dumps(PROBED))
    assert facts.gpus == (GPU(index=0, name="A4000"),) and facts.cpu_flops_per_second is None
    assert facts.gpu_states == (GPUFacts(index=0, utilisation=0.5, processes=1),)
    assert [problem.endswith("lost") and "\x1b" not in problem for problem in facts.gpu_problems] == [True]
    for states in ([{"index": "x"}], [7], 3):
        with pytest.raises(LaunchFailed, match="malformed"):
            facts_from_probe(json.dumps({**PROBED, "gpu_states": states}))


RUNC = f"error setting rlimits for ready process: {'x' * 300}: error setting rlimit type 8: operation not permitted"
NO_FOLDER = "the folder data_dir does not exist"


@pytest.mark.parametrize(
    ("said", "kind", "remedy"),
    [
        (NO_TOOLKIT, NoGPUs, "container toolkit"),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", NoGPUs, "nvidia-ctk cdi generate"),
        (RUNC, NoMemoryLock, "memlock"),
        ("crun: setrlimit `RLIMIT_MEMLOCK`: Operation not permitted: OCI permission denied", NoMemoryLock, "memlock"),
        ('invalid mount config for type "bind": bind source path does not exist: /x', LaunchFailed, NO_FOLDER),
    ],
)
def test_what_real_engines_say_when_they_cannot_give_something(said, kind, remedy):
    error = launch_refusal(said)
    assert type(error) is kind and remedy in error.cause
    assert (error.status is Status.BAD_INPUT) is (remedy == NO_FOLDER)

"""A fake cluster and a plan on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import stamina.instrumentation

from orchestrate.engines.kubernetes import launcher as launchers
from orchestrate.engines.kubernetes.launcher import KubernetesLauncher
from orchestrate.events import Event, EventBus, JobState, RunOutcome
from orchestrate.inventory.hosts import Host, read_hosts
from orchestrate.options import How
from orchestrate.planning.plan import Plan, make_plan, plan_to_json
from orchestrate.running.context import RunContext, Stop
from orchestrate.running.probing import probe_hosts
from orchestrate.running.run import execute
from orchestrate.running.state import RunState
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import Record
from tests.support.engines.kubernetes.fake_server import FakeServer, Object
from tests.support.engines.kubernetes.plays import Play, work

IMAGE = "127.0.0.1:5000/tfbench:mine"


def node(name: str = "node-1", *, gpus: int = 4, **labels: str) -> Object:
    """Describe a node as a kubelet, the device plugin and GPU feature discovery do."""
    found = {"gpu.product": "NVIDIA-RTX-A4000", "gpu.compute.major": "8", "gpu.compute.minor": "6"}
    found |= {"gpu.memory": "16376", "cuda.driver-version.full": "550.127.05"}
    found = {f"nvidia.com/{key}": value for key, value in found.items()}
    return {
        "metadata": {"name": name, "labels": {**found, "pool": "bench", **labels}},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "7500m", "memory": "64Gi", "nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kernelVersion": "6.1", "osImage": "Debian 12", "kubeletVersion": "v1.33.0"},
        },
    }


class Bench:
    """A fleet on a fake cluster, and what happened to a run on it."""

    def __init__(self, folder: Path, play: Play) -> None:
        self.folder = folder
        self.server = FakeServer(play)
        self.server.put("nodes", node())
        self.kubeconfig = self.server.write_kubeconfig(folder / "kube.yml")
        self.events: list[Event] = []
        self.bus = EventBus()
        self.bus.subscribe(self.events.append)
        self.stop = Stop()
        self.launchers: list[KubernetesLauncher] = []

    def host(self, fleet: str = "", **queue: Any) -> Host:
        """Read a fleet from a hosts file, as users write it."""
        settings = {"context": "bench", "kubeconfig": "kube.yml", "max_jobs": 2, **queue}
        path, fleet = self.folder / "hosts.yml", fleet or f"image: {IMAGE}"
        path.write_text(f"version: 1\nfleets:\n  cloud:\n    {fleet}\n    kubernetes: {settings!r}\n")
        return read_hosts(path)[0]

    def make(self, host: Host) -> KubernetesLauncher:
        made = KubernetesLauncher(host)
        self.launchers.append(made)
        return made

    def plan(self, *hosts: Host, repeats: int = 3, run_id: str = "run1", **case: Any) -> Plan:
        block = {"model": ["googlenet"], "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 4, **case}
        suite = Suite(repeats=repeats, cases=[CaseBlock(**block)])
        facts = probe_hosts(hosts, self.make, self.bus)
        return make_plan(hosts, facts, lambda name: suite, run_id=run_id, seed=7)

    def run(self, plan: Plan) -> RunOutcome:
        self.planned = plan
        path = self.folder / "runs" / plan.run_id
        if path.exists():
            self.run_folder = RunFolder.open(path)
        else:
            self.run_folder = RunFolder.create(path.parent, path.name)
            self.run_folder.write_plan(plan_to_json(plan))
        state = RunState(plan)
        self.bus.subscribe(state.note)
        return execute(RunContext(plan, self.run_folder, self.make, self.bus, self.stop, How(), state))

    def measure(self, repeats: int = 3, *, num_hosts: int = 1, **queue: Any) -> RunOutcome:
        """Plan and run repeats on the fleet."""
        return self.run(self.plan(self.host(**queue), repeats=repeats, num_hosts=[num_hosts]))

    def records(self) -> list[Record]:
        return [record for job in self.planned.jobs if (record := self.run_folder.read_record(job.id))]

    def only_record(self, **queue: Any) -> Record:
        """Measure one repeat and return its record."""
        assert self.measure(1, **queue).missing == 0
        (record,) = self.records()
        return record

    @property
    def states(self) -> list[str]:
        """What was shown of the repeats, in order."""
        return [event.state for event in self.events if isinstance(event, JobState)]

    def asked(self, method: str, part: str) -> list[str]:
        return [line for line in self.server.requests if line.startswith(method) and part in line]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Give fake clusters that play Jobs so."""
    made: list[Bench] = []

    def make(play: Play = work) -> Bench:
        made.append(Bench(tmp_path, play))
        return made[-1]

    yield make
    for one in made:
        for launcher in one.launchers:
            launcher.close()
        one.server.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask more often than on a real cluster, and say nothing about it."""
    stamina.instrumentation.set_on_retry_hooks(())
    monkeypatch.setattr(launchers, "POLL_SECONDS", 0.05)
    monkeypatch.setattr("orchestrate.engines.bounded.LONGEST_DELAY_SECONDS", 0.2)

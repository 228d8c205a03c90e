"""After a run: `--when-done` after failures, other ends in tests/real; hosts that still cost money are named."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrate.afterwards import still_costing, when_done
from orchestrate.errors import NoUsableHost, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.base import Launcher
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan
from results.schema import GPU
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher


@pytest.mark.parametrize("ending", [RuntimeError("a bug"), NoUsableHost("nothing answers")])
def test_the_command_runs_after_a_bug_and_where_no_host_answers(tmp_path: Path, ending: Exception):
    reported: list[str] = []
    with pytest.raises(type(ending)), when_done(f"touch {tmp_path}/ran", reported.append):
        raise ending
    assert (tmp_path / "ran").exists() and reported[-1] == "--when-done succeeded"


def priced(name: str, usd: float | None, gpus: int = 1, **settings: object) -> HostPlan:
    facts = Facts(gpus=tuple(GPU(index=index, name="A4000") for index in range(gpus)))
    host = Host(fleet="a4000", name=name, docker=None, usd_per_gpu_hour=usd, **settings)  # type: ignore[arg-type]
    return HostPlan(host=host, suite="s", facts=facts, problem=None, jobs=())


def test_hosts_with_a_price_that_answer_are_named_with_what_they_cost():
    machines = {name: FakeHost() for name in ("two", "one", "free", "slurm")}
    machines["gone"] = FakeHost(failures={"running": Unreachable("no route to host")})
    hung, release = threading.Event(), threading.Event()

    class Hung(FakeLauncher):
        def running(self, run_id: str) -> list[str]:
            hung.set()
            release.wait()
            return []

    def make(host: Host) -> Launcher:
        return Hung(host, FakeHost()) if host.name == "hung" else FakeLauncher(host, machines[host.name])

    queue = SlurmQueue(container="none", shared_folder="/home", python="/usr/bin/python3")  # type: ignore[call-arg]
    entries = [priced("two", 0.17, gpus=2), priced("one", 0.36), priced("free", None), priced("gone", 9.0)]
    entries += [priced("slurm", 9.0, queue=queue), priced("hung", 9.0)]
    plan = Plan(run_id="r", created_at="now", seed=1, hosts=tuple(entries))
    assert still_costing(plan, make, seconds=1.0) == (
        "2 hosts still answer and cost 0.70 USD per hour until you return them: a4000.two 0.34, a4000.one 0.36"
    )
    assert hung.is_set()
    release.set()
    assert machines["gone"].count("close") == machines["two"].count("close") == 1
    assert machines["slurm"].calls == machines["free"].calls == []

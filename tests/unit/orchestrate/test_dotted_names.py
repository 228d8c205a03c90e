"""Names of fleets and hosts may hold dots, so that `a.b` + `c` and `a` + `b.c` look alike when they are joined."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console

from orchestrate.display.live import LiveDisplay
from orchestrate.errors import DocumentError
from orchestrate.events import Event, EventBus, event_document
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host, read_hosts
from orchestrate.launchers.base import Launcher
from orchestrate.planning.durations import Budget, Durations, earlier_durations
from orchestrate.planning.plan import Job, Plan, make_plan
from orchestrate.running.options import RunOptions, Stop
from orchestrate.running.run import execute, probe_hosts
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import Device
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher
from tests.unit.orchestrate.test_multi_host import ALONE_AND_TOGETHER, payload

ALONE = CaseBlock(model="resnet50", batch_per_gpu=2, num_steps=4, device=Device.CPU)


def hosts_named(*names: tuple[str, str], price: float | None = None) -> list[Host]:
    made = [(fleet, name, DockerAddress(scheme="ssh", target=f"{name}.{fleet}")) for fleet, name in names]
    return [Host(fleet=fleet, name=name, docker=docker, usd_per_gpu_hour=price) for fleet, name, docker in made]


def plan_for(hosts: list[Host], block: CaseBlock = ALONE) -> Plan:
    suite = Suite("tiny", "", 1, (block,))
    probed = probe_hosts(hosts, lambda host: FakeLauncher(host, FakeHost()), EventBus())
    return make_plan(hosts, probed, lambda _: suite, run_id="run1", seed=7)


def run(plan: Plan, runs: Path, launcher: type[FakeLauncher], machine: FakeHost) -> list[Event]:
    """Run a plan as `orchestrate run` does, with its journal."""
    folder, bus, events = RunFolder.create(runs, plan.run_id), EventBus(), []
    bus.subscribe(events.append)

    def make(host: Host) -> Launcher:
        return launcher(host, machine)

    with folder.journal() as journal:
        bus.subscribe(lambda event: journal.append(event_document(event)))
        execute(plan, folder, make, bus, Stop(), RunOptions())
    return events


def test_what_a_repeat_took_counts_for_its_fleet_and_for_no_other(tmp_path: Path):
    plan = plan_for(hosts_named(("a.b", "c"), ("a", "d.e")))
    run(plan, tmp_path, FakeLauncher, FakeHost())
    assert {fleet for fleet, _ in earlier_durations(tmp_path)} == {"a.b", "a"}


def test_two_hosts_of_one_joined_name_cost_what_each_costs():
    plans = [plan_for(hosts_named(place, price=usd)) for place, usd in ((("a.b", "c"), 3600.0), (("a", "b.c"), 36.0))]
    entries = [entry for plan in plans for entry in plan.hosts]
    budget = Budget(100.0, entries, Durations({("a.b", "x"): 1000.0, ("a", "x"): 1000.0}))
    dear, cheap = (entry.host.place for entry in entries)
    assert not budget.allows(dear, "x"), "1000 USD"
    assert budget.allows(cheap, "x"), "10 USD"
    assert len({entry.host.place for entry in entries}) == 2 and len({entry.host.key for entry in entries}) == 1


def test_a_fleets_multi_host_jobs_do_not_wait_for_a_fleet_whose_name_begins_alike(tmp_path: Path):
    plan = plan_for(hosts_named(("a", "x"), ("a", "y"), ("a.b", "z")), ALONE_AND_TOGETHER)
    (multi,) = plan.multi_host_jobs
    done, waited = threading.Event(), []

    def hold(job: Job) -> None:
        if job.origin.fleet == "a.b":
            waited.append(done.wait(10))
        elif job.member is not None:
            done.set()

    run(plan, tmp_path, FakeLauncher, FakeHost(payload=payload, on_follow=hold))
    assert waited == [True], f"{multi.job.id} began while the other fleet was at work"


def test_the_live_table_counts_a_multi_host_job_with_its_chief_only():
    hosts = hosts_named(("a", "x.resnet50-fp32-b2-2x1cpu-w1s4"), ("a", "y"), ("a", "x"))
    plan = plan_for(hosts, ALONE_AND_TOGETHER)
    assert [multi.job.case.name for multi in plan.multi_host_jobs] == ["resnet50-fp32-b2-2x1cpu-w1s4"]
    console = Console(file=io.StringIO(), width=200, height=30)
    display = LiveDisplay(console)
    display.planned(plan)
    assert [row.total for row in display._rows.values()] == [2, 1, 1]


def test_hosts_whose_records_would_have_one_name_are_refused_and_both_are_named(tmp_path: Path):
    path = tmp_path / "hosts.yml"
    path.write_text(
        "version: 1\nfleets:\n"
        "  a.b: {hosts: {c: {docker: 'ssh://one'}}}\n"
        "  a: {hosts: {b.c: {docker: 'ssh://two'}}}\n"
        "  d: {hosts: {e: {docker: 'ssh://three', gpus: none}}}\n"
    )
    with pytest.raises(DocumentError) as caught:
        read_hosts(path)
    first, second = caught.value.problems
    assert first == (
        f"{path}:4: host b.c: its name in records, a.b.c, is also that of host c of fleet a.b (line 3). "
        "Rename one of them"
    )
    assert "host e: gpus must be" in second, "all mistakes come in one answer"

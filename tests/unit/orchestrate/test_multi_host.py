"""Cases that hosts of a fleet train together, against fake hosts: one record, whatever happens to a part."""

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrate.engines.base import Ending, Launcher, OutputLine
from orchestrate.engines.invocation import job_container
from orchestrate.errors import Lost, Unreachable
from orchestrate.events import Event, HostLost, JobResult, RunOutcome, Warned
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.planning.plan import Job, members_of
from orchestrate.running import context, session
from orchestrate.suites import CaseBlock, Suite
from results.schema import Case, Communication, Device, Rank, Record, Status
from results.schema.record_json import to_json
from tests.support.engines.processes import wait_until
from tests.support.patience import patience
from tests.unit.orchestrate import test_run
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher, ok_record


def suite(repeats: int = 2, **changes: Any) -> Suite:
    """Make a suite of a case that each host runs alone, and that two run together."""
    block = {"model": "resnet50", "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 4, "device": Device.CPU}
    return Suite(repeats=repeats, cases=[CaseBlock(**{**block, "num_hosts": [1, 2], **changes})])


def multi_host_record(case: Case) -> Record:
    """Write what a chief would."""
    record = ok_record(dataclasses.replace(case, num_hosts=1))
    one, n = record.measurement, case.num_hosts
    assert one is not None
    part = {"seconds": one.seconds, "samples": one.samples, "samples_per_second": one.samples_per_second}
    ranks = [Rank(rank=rank, host=f"10.0.0.{rank}:29500", step_p50_seconds=0.5, **part) for rank in range(n)]
    counts = {name: getattr(one, name) * n for name in ("samples", "samples_per_second", "global_batch", "replicas")}
    return dataclasses.replace(record, case=case, measurement=dataclasses.replace(one, ranks=ranks, **counts))


def payload(job: Job) -> bytes | None:
    if job.member is None:
        return to_json(ok_record(job.case)).encode()
    return to_json(multi_host_record(job.case)).encode() if job.member.rank == 0 else None


class MeetingLauncher(FakeLauncher):
    """A part ends only when all parts have been started, as ranks wait for each other, or when it is stopped."""

    started: dict[str, threading.Barrier]
    waits: dict[str, threading.Event]
    parties: int | None

    def wait(self, job: Job, on_line: OutputLine) -> Ending:
        if job.member is not None and "follow" not in self._machine.failures:
            meeting = threading.Barrier(self.parties or job.case.num_hosts)
            self.started.setdefault(f"{job.case.name}.{job.origin.repeat}", meeting).wait(patience())
        event = self.waits.get(self._host.name)
        while job.member is not None and event is not None and not event.wait(0.02):
            if job.id in self._machine.stopped:
                break
        return super().wait(job, on_line)


class Bench(test_run.Bench):
    """Fake hosts of one fleet, whose parts wait for each other."""

    scheme, address = "ssh", "bench@{name}"

    def __init__(self, tmp_path: Path, chosen: Suite | None = None, **machines: FakeHost) -> None:
        for machine in machines.values():
            machine.payload = payload
        self.suite = chosen or suite()
        self.started: dict[str, threading.Barrier] = {}
        self.waits: dict[str, threading.Event] = {}
        self.parties: int | None = None
        super().__init__(tmp_path, **machines)

    def launcher(self, host: Host) -> Launcher:
        launcher = MeetingLauncher(host, self.machines[host.name])
        launcher.started, launcher.waits, launcher.parties = self.started, self.waits, self.parties
        return launcher

    def multi_host_records(self) -> list[Record]:
        return [found for multi in self.plan.multi_host_jobs if (found := self.folder.read_record(multi.job.id))]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "GRACE_SECONDS", 0.3)


def test_hosts_that_wait_for_others_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All parts start, whatever the limit, after what each host does alone."""
    clock = [0.0]
    monkeypatch.setattr("time.clock_gettime", lambda _: sum(clock))
    monkeypatch.setattr(Bench, "settings", {"usd_per_gpu_hour": 3600.0, "device": Device.CPU})
    bench = Bench(tmp_path, a=FakeHost(), b=FakeHost(on_follow=lambda job: clock.append(10.0)))
    assert bench.run(max_cost=1e9, max_parallel=1) == RunOutcome(ok=6, failed=0, missing=0)
    assert ["2x1cpu" in event.case for event in bench.seen(JobResult)] == [False] * 4 + [True] * 2
    assert {record.origin.host for record in bench.multi_host_records() if record.origin} == {"a+b"}
    assert bench.state.spent_usd() == pytest.approx(2 * 40), "a dollar a second for each"


def test_a_fleet_trains_together_while_a_slower_one_still_works(tmp_path: Path):
    def wait_for_the_others(_: Job) -> None:
        wait_until(lambda: ("start", together.members[0].id) in bench.machines["a"].calls, "the joint repeat")

    bench = Bench(tmp_path, suite(1), a=FakeHost(), b=FakeHost(), slow=FakeHost(on_follow=wait_for_the_others))
    bench.hosts[2] = bench.hosts[2].model_copy(update={"fleet": "slow"})
    bench.plan = bench.make_plan()
    (together,) = bench.plan.multi_host_jobs
    assert bench.run() == RunOutcome(ok=4, failed=0, missing=0)


def test_only_containers_with_peers_get_a_network_and_only_its_ports(tmp_path: Path):
    bench = Bench(tmp_path, a=FakeHost(), b=FakeHost())
    chief = bench.plan.multi_host_jobs[0].members[0]
    assert chief.member is not None
    on_host = dataclasses.replace(chief, member=dataclasses.replace(chief.member, network="host"))
    jobs = (chief, bench.plan.hosts[0].jobs[0], on_host)
    documents = [job_container(job, bench.hosts[0], "image") for job in jobs]
    chiefs, alone, hosts = (document["HostConfig"] for document in documents)
    assert [made["NetworkDisabled"] for made in documents] == [False, True, False]
    assert [made["NetworkMode"] for made in (chiefs, alone, hosts)] == ["bridge", "none", "host"]
    assert chiefs["PortBindings"] == {f"{port}/tcp": [{"HostPort": str(port)}] for port in (29500, 29501)}
    assert documents[0]["ExposedPorts"] == {"29500/tcp": {}, "29501/tcp": {}}
    assert alone["PortBindings"] == hosts["PortBindings"] == documents[1]["ExposedPorts"] == {}


def case(**changes: Any) -> Case:
    return Case(**{"model": "resnet50", "num_hosts": 2, "device": Device.CPU, **changes})


@pytest.mark.parametrize(
    ("changes", "host", "said"),
    [
        ({"num_hosts": 3}, {}, "needs 3 hosts, the fleet has 2"),
        ({"num_gpus": 2}, {}, "only one CPU device per host"),
        ({"device": Device.GPU}, {}, "Set network: host"),
        ({}, {"docker": DockerAddress(scheme="unix", target="/x")}, "Set its address:"),
    ],
)
def test_hosts_that_cannot_train_together_are_told_why(changes: dict[str, Any], host: dict[str, Any], said: str):
    base = {"fleet": "f", "docker": DockerAddress(scheme="ssh", target="u@a")}
    hosts = [Host(name="a", **{**base, **host}), Host(name="b", **base)]
    answer = members_of(hosts, case(**changes))
    assert isinstance(answer, str) and said in answer


def test_addresses_are_the_engines_unless_the_file_names_others():
    for scheme, target, expected in (
        ("ssh", "bench@10.0.0.11", "10.0.0.11"),
        ("tcp", "[fd00::1]:2376", "fd00::1"),
        ("unix", "/run/docker.sock", None),
    ):
        host = Host(fleet="f", name="n", docker=DockerAddress(scheme=scheme, target=target))
        assert host.cluster_address == expected
        assert host.model_copy(update={"address": "b"}).cluster_address == "b"
    ring = case(device=Device.GPU, communication=Communication.RING)
    members = members_of([Host(fleet="f", name=n, docker=None, address="fd00::1") for n in ("a", "b")], ring)
    assert isinstance(members, tuple) and members[1].addresses == ("[fd00::1]:29500", "[fd00::1]:29502")


NOTHING: dict[str, Any] = {"ending": Ending(exit_code=137), "payload": lambda job: None}


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (NOTHING, "f.b ended with exit code 137"),
        ({"on_follow": lambda job: 1 / 0}, "f.b: a bug in tfbench: ZeroDivisionError"),
        ({"failures": {"follow": Lost("the link is dead")}}, "f.b: the link is dead"),
    ],
)
def test_a_part_that_fails_ends_the_others_and_leaves_one_record(tmp_path: Path, part: dict[str, Any], said: str):
    bench = Bench(tmp_path, suite(1, num_hosts=2), a=FakeHost(), b=FakeHost())
    bench.waits["a"] = threading.Event()  # the chief does not notice by itself
    bench.parties = 1 if "failures" in part else 2
    vars(bench.machines["b"]).update(part)
    bench.run()
    (record,) = bench.multi_host_records()
    assert record.status is Status.LOST and said in (record.cause or "")
    assert bench.machines["a"].count("stop") == 1 and bench.machines["a"].containers == {}


def test_the_reason_of_another_rank_is_the_reason_of_the_whole(tmp_path: Path):
    bench = Bench(tmp_path, suite(1, num_hosts=2), a=FakeHost(), b=FakeHost())
    gone = "rank 1 (10.0.0.2:29502) is gone: its process has ended"
    case = bench.plan.multi_host_jobs[0].job.case
    for name, status, cause in (("a", Status.LOST, gone), ("b", Status.OOM, "killed by the kernel")):
        failed = {"status": status, "cause": cause, "measurement": None, "validity": None}
        left = to_json(dataclasses.replace(multi_host_record(case), **failed)).encode()
        vars(bench.machines[name]).update(payload=lambda job, left=left: left, ending=Ending(exit_code=3))
    bench.run()
    (record,) = bench.multi_host_records()
    assert (record.status, record.cause) == (Status.OOM, "f.b: killed by the kernel")


def test_an_unreachable_host_fails_the_job_but_not_what_others_do_alone(tmp_path: Path):
    (excluded,) = Bench(tmp_path / "alone", a=FakeHost()).plan.hosts[0].excluded
    assert excluded.endswith("needs 2 hosts, the fleet has 1")
    bench = Bench(tmp_path, a=FakeHost(), b=FakeHost())
    bench.machines["b"].failures["prepare"] = Unreachable("connection refused")
    assert bench.run() == RunOutcome(ok=2, failed=4, missing=0)
    ends = {(record.status, record.cause) for record in bench.multi_host_records()}
    assert ends == {(Status.UNREACHABLE, "f.b: connection refused")}


@pytest.mark.parametrize(("when", "seconds"), [("alone", 3600.0), ("together", 3600.0), ("alone", 0.0)])
def test_hosts_are_kept_for_a_time_while_none_answers(tmp_path: Path, monkeypatch, when: str, seconds: float):
    """With `together`, b is abandoned with its part, and has to be connected to again."""
    monkeypatch.setattr(context, "ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(context, "OFFLINE_SECONDS", seconds)
    monkeypatch.setattr("orchestrate.running.session.MARGIN_SECONDS", 2.5)
    away = {call: Unreachable("no route to host") for call in ("start", "follow", "stop", "remove", "running")}
    left = [when]

    def lose(job: Job) -> None:
        if ("together" if job.member else "alone") in left:
            left.clear()
            for machine in bench.machines.values():
                machine.failures.update(away)

    def come_back(event: Event) -> None:
        if seconds and isinstance(event, Warned) and event.message.startswith("no host answers"):
            bench.waits["b"].set()
            for machine in bench.machines.values():
                machine.failures.clear()

    bench = Bench(tmp_path, a=FakeHost(on_follow=lose), b=FakeHost())
    bench.waits["b"] = threading.Event()
    bench.bus.subscribe(come_back)
    outcome = bench.run()
    if seconds:
        failed = int(when == "together")
        assert outcome == RunOutcome(ok=6 - failed, failed=failed, missing=0) and not bench.seen(HostLost)
        assert all(machine.containers == {} for machine in bench.machines.values())
    else:
        assert "f.a" in {event.host for event in bench.seen(HostLost)}
        assert bench.statuses("a") == [Status.UNREACHABLE] * 2


def test_resume_reattaches_to_parts_and_removes_those_with_a_record(tmp_path: Path):
    """A repeat of the host's own waits until the part has ended."""
    bench = Bench(tmp_path, a=FakeHost(), b=FakeHost())
    bench.run()
    first, second = bench.plan.multi_host_jobs
    bench.folder.record_path(second.job.id).unlink()
    for index, machine in enumerate(bench.machines.values()):
        machine.containers = {first.members[index].id: "exited", second.members[index].id: "running"}
        machine.calls.clear()
        bench.folder.record_path(bench.plan.hosts[index].jobs[0].id).unlink()
    bench.started.clear()
    assert bench.run() == RunOutcome(ok=6, failed=0, missing=0)
    for index, machine in enumerate(bench.machines.values()):
        assert (machine.count("reattach"), machine.count("start")) == (2, 1)
        part, alone = second.members[index].id, bench.plan.hosts[index].jobs[0].id
        assert [job for call, job in machine.calls if call in ("start", "follow")] == [part, alone, alone, part]
        assert machine.containers == {}


def test_stop_ends_all_parts(tmp_path: Path):
    bench = Bench(tmp_path, suite(1), a=FakeHost(), b=FakeHost())
    bench.waits.update({name: threading.Event() for name in bench.machines})
    parts = [job.id for job in bench.plan.multi_host_jobs[0].members]

    def stop_when_all_run() -> None:
        wait_until(lambda: {*parts} <= {job for one in bench.machines.values() for job in one.containers}, "all parts")
        bench.stop.ask()
        bench.stop.ask()

    threading.Thread(target=stop_when_all_run, daemon=True).start()
    assert bench.run() == RunOutcome(ok=2, failed=1, missing=0, stopped=1)
    for part, (name, machine) in zip(parts, bench.machines.items(), strict=True):
        assert part.startswith(f"f.{name}.") and machine.count("stop") == 1

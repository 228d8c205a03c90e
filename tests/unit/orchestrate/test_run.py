"""The run engine against fake hosts: every repeat exactly one record, whatever happens."""

import dataclasses
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrate.display.tables import status_document
from orchestrate.engines.base import Ending, Launcher
from orchestrate.errors import Gone, LaunchFailed, Lost, PullFailed, Unreachable, UserError
from orchestrate.events import Event, EventBus, ImageReady, JobResult, JobState, JobStep, RunFinished, Warned
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.options import How
from orchestrate.planning.codec import plan_to_json
from orchestrate.planning.durations import Durations
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.plan import Job, Plan, make_plan
from orchestrate.running import part
from orchestrate.running.context import Stop
from orchestrate.running.probing import probe_hosts
from orchestrate.running.run import execute
from orchestrate.running.state import TRIED_AGAIN, Recorded, RunOutcome
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import GPU, Device, Record, Status
from results.schema.progress import step_line
from results.schema.record_json import to_json
from tests.support.engines.processes import wait_until
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher, ok_record

MODELS = {"model": ["resnet50", "googlenet"], "num_gpus": [1, 2]}
BLOCK = CaseBlock(**{**MODELS, "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 4})


class Bench:
    """Some fake hosts, a plan over them, and what happened."""

    suite = Suite("tiny", "", 3, (BLOCK,))
    scheme, address = "unix", "/{name}"
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, tmp_path: Path, **machines: FakeHost) -> None:
        self.machines = machines
        addresses = {one: DockerAddress(scheme=self.scheme, target=self.address.format(name=one)) for one in machines}
        self.hosts = [Host(fleet="f", name=name, docker=at, **self.settings) for name, at in addresses.items()]
        self.events: list[Event] = []
        self.bus = EventBus()
        self.bus.subscribe(self.events.append)
        self.stop = Stop()
        self.plan = self.make_plan()
        self.folder = RunFolder.create(tmp_path, self.plan.run_id)
        self.folder.write_plan(plan_to_json(self.plan))

    def launcher(self, host: Host) -> Launcher:
        return FakeLauncher(host, self.machines[host.name])

    def make_plan(self) -> Plan:
        probed = probe_hosts(self.hosts, self.launcher, self.bus)
        return make_plan(self.hosts, probed, lambda name: self.suite, run_id="run1", seed=7)

    def run(self, again: frozenset[Status] = TRIED_AGAIN, **how: Any) -> RunOutcome:
        return execute(self.plan, self.folder, self.launcher, self.bus, self.stop, How(**how), again=again)

    def records(self, host: str) -> list[Record]:
        (entry,) = [entry for entry in self.plan.hosts if entry.host.name == host]
        return [record for job in entry.jobs if (record := self.folder.read_record(job.id))]

    def statuses(self, host: str) -> list[Status]:
        return [record.status for record in self.records(host)]

    def causes(self, host: str) -> set[str]:
        return {record.cause or "" for record in self.records(host)}

    def seen(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def test_every_repeat_gets_one_record_and_nothing_stays_on_the_host(tmp_path: Path):
    bench = Bench(tmp_path, a=FakeHost(), b=FakeHost())
    assert bench.run() == RunOutcome(ok=24, failed=0, missing=0)
    for machine in bench.machines.values():
        assert machine.count("start") == machine.count("remove") == 12
        assert machine.containers == {}
    assert len(bench.seen(JobResult)) == 24
    assert isinstance(bench.events[-1], RunFinished)
    record = bench.folder.read_record(bench.plan.jobs[0].id)
    assert record is not None and record.origin == bench.plan.jobs[0].origin


def test_hosts_that_are_one_machine_are_measured_one_after_another(tmp_path: Path):
    running: set[str] = set()
    together: list[frozenset[str]] = []

    def note(job: Job) -> None:
        running.add(job.id)
        together.append(frozenset(name.split(".")[1] for name in running))
        time.sleep(0.01)
        running.discard(job.id)

    gpu = GPU(index=0, name="A4000", uuid="GPU-1")
    facts = {"a": Facts(boot_id="x"), "b": Facts(boot_id="x", gpus=(gpu,)), "c": Facts(gpus=(gpu,)), "d": Facts()}
    bench = Bench(tmp_path, **{name: FakeHost(facts=found, on_follow=note) for name, found in facts.items()})
    outcome = bench.run()
    assert outcome.failed == outcome.missing == 0
    assert together and all(len(hosts - {"d"}) == 1 for hosts in together if hosts != {"d"})
    said = "f.a, f.b, f.c are one machine: a run measures them one after another"
    assert said in [event.message for event in bench.seen(Warned)]


def test_a_fast_network_does_not_flood_the_run_with_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(part, "STEP_SECONDS", 3600.0)
    bench = Bench(tmp_path, a=FakeHost(lines=tuple(step_line(n, 12.3, "images", 0.08) for n in range(50))))
    bench.run()
    steps = [(step.step, step.samples_per_second, step.unit) for step in bench.seen(JobStep)]
    assert steps == [(0, 12.3, "images")] * 12
    assert {event.state for event in bench.seen(JobState)} == {"launching", "collecting"}
    assert bench.folder.log_path(bench.plan.jobs[0].id).read_text().count("\n") == 50


NO_IMAGE = Image(variant="cpu", reference="r", reason="", status=Status.PULL_FAILED, problem="no such image")
NO_RECORD: dict[str, Any] = {"payload": lambda job: None}


@pytest.mark.parametrize(
    ("machine", "status", "starts", "removals", "said"),
    [
        ({"facts": Unreachable("connection refused")}, Status.UNREACHABLE, 0, 0, "connection refused"),
        ({"facts": Facts(images=(NO_IMAGE,))}, Status.PULL_FAILED, 0, 0, "no such image"),
        ({"failures": {"follow": Lost("the link is dead")}}, Status.LOST, 1, 0, "the link is dead"),
        ({"failures": {"follow": Gone("somebody removed it")}}, Status.LOST, 2, 0, "somebody removed it"),
        ({"failures": {"start": LaunchFailed("no runtime", Status.NO_GPU)}}, Status.NO_GPU, 12, 12, "no runtime"),
        ({"ending": Ending(exit_code=137, out_of_memory=True), **NO_RECORD}, Status.OOM, 12, 12, "memory limit"),
        ({"payload": lambda job: b'{"status": "ok"'}, Status.BAD_RESULT, 12, 12, "not JSON"),
    ],
)
def test_each_failure_has_its_status_and_the_other_host_finishes(tmp_path, machine, status, starts, removals, said):
    """What was lost is not removed: it may still run, and `resume` must find it."""
    bench = Bench(tmp_path, bad=FakeHost(**machine), good=FakeHost())
    assert bench.run() == RunOutcome(ok=12, failed=12, missing=0)
    bad = bench.machines["bad"]
    assert bench.statuses("bad") == [status] * 12 and all(said in cause for cause in bench.causes("bad"))
    assert (bad.count("start"), bad.count("remove")) == (starts, removals)
    assert bad.count("reattach") == (said == "the link is dead")


@pytest.mark.parametrize(("call", "error"), [("start", Unreachable("no answer")), ("follow", Lost("link down"))])
def test_what_was_lost_is_collected_before_anything_else_starts(tmp_path: Path, call, error):
    class Blinking(FakeLauncher):
        def start(self, job):
            others.append({*machine.containers} - {job.id})
            return super().start(job) or fail("start")

    def fail(there: str) -> None:
        if there == call and len(others) == 1:
            raise error

    others: list[set[str]] = []
    machine = FakeHost(on_follow=lambda job: fail("follow"))
    bench = Bench(tmp_path, a=machine)
    bench.launcher = lambda host: Blinking(host, machine)
    assert bench.run() == RunOutcome(ok=12, failed=0, missing=0)
    assert not any(others) and (machine.count("start"), machine.count("reattach")) == (12, 1)


def test_resume_runs_only_what_is_missing_and_reattaches_to_the_rest(tmp_path: Path):
    machine = FakeHost()
    bench = Bench(tmp_path, a=machine)
    machine.on_follow = lambda job: bench.stop.launching.set() if machine.count("start") == 5 else None
    assert bench.run() == RunOutcome(ok=5, failed=0, missing=7)

    machine.containers[bench.plan.jobs[5].id] = "running"  # started by a controller that died
    machine.containers[bench.plan.jobs[0].id] = "exited"  # its record was stored, the clean-up was not done
    machine.on_follow = lambda job: None
    bench.stop = Stop()
    assert bench.run() == RunOutcome(ok=12, failed=0, missing=0)
    assert machine.count("start") == 11 and machine.count("reattach") == 1
    assert machine.containers == {}


@pytest.mark.parametrize(
    ("machine", "again", "repeated"),
    [
        ({"failures": {"prepare": PullFailed("registry is down")}}, {}, 12),
        ({**NO_RECORD, "ending": Ending(exit_code=1)}, {}, 0),
        ({"payload": lambda job: b"garbage"}, {"again": TRIED_AGAIN | {Status.BAD_RESULT}}, 12),
    ],
)
def test_resume_repeats_what_a_host_failed_or_what_is_named(tmp_path: Path, machine, again, repeated):
    bench = Bench(tmp_path, a=FakeHost(**machine))
    assert bench.run() == RunOutcome(ok=0, failed=12, missing=0)
    bench.machines["a"] = FakeHost()
    assert bench.run(**again) == RunOutcome(ok=repeated, failed=12 - repeated, missing=0)
    superseded = bench.folder.path / "superseded"
    assert len(list(superseded.iterdir()) if superseded.exists() else []) == repeated, "the old records are kept"


def test_a_file_that_is_no_record_any_more_is_measured_again(tmp_path: Path):
    bench = Bench(tmp_path, a=FakeHost())
    bench.run()
    bench.folder.record_path(bench.plan.jobs[3].id).write_text("{")
    assert Recorded.of(bench.plan, bench.folder).outcome() == RunOutcome(ok=11, failed=0, missing=1)
    (listed,) = status_document(bench.plan, bench.folder, running=False)["unreadable"]
    assert f"{bench.plan.jobs[3].id}.json: not a record, resume measures it again: not JSON" in listed
    assert bench.run() == RunOutcome(ok=12, failed=0, missing=0)
    assert bench.machines["a"].count("start") == 13 and len(list((bench.folder.path / "superseded").iterdir())) == 1
    assert any("its repeat runs again" in warned.message for warned in bench.seen(Warned))


@pytest.mark.parametrize("why", [Status.STOPPED, Status.TIMEOUT])
def test_what_is_ended_says_why_and_resume_measures_it_again(tmp_path: Path, monkeypatch, why: Status):
    monkeypatch.setattr("orchestrate.running.calls.CHECK_SECONDS", 0.01)
    machine = FakeHost()
    bench = Bench(tmp_path, a=machine)

    def hang(job: object) -> None:
        if why is Status.STOPPED:
            assert (bench.stop.ask(), bench.stop.ask()) == (1, 2)
        wait_until(lambda: bool(machine.stopped), "the end of a repeat")
        bench.stop.launching.set()

    machine.on_follow = hang
    with monkeypatch.context() as patch:
        if why is Status.TIMEOUT:
            patch.setattr("orchestrate.running.calls.END_AFTER_SECONDS", -3600.0)
        assert bench.run() == RunOutcome(ok=0, failed=1, missing=11, stopped=why is Status.STOPPED)
    assert bench.statuses("a") == [why]
    assert {Status.STOPPED: "by the user", Status.TIMEOUT: "timeout_minutes"}[why] in str(bench.causes("a"))

    machine.on_follow = lambda job: None
    machine.stopped.clear()
    bench.stop = Stop()
    assert bench.run(again=TRIED_AGAIN | {why}) == RunOutcome(ok=12, failed=0, missing=0)


def test_a_failed_clean_up_is_a_warning_and_logs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrate.running.part.MAX_LOG_BYTES", 1000)
    bench = Bench(tmp_path, a=FakeHost(failures={"remove": Unreachable("gone")}, lines=("x" * 99,) * 10_000))
    assert bench.run() == RunOutcome(ok=12, failed=0, missing=0), "the records stay"
    assert sum("clean up" in warned.message for warned in bench.seen(Warned)) == 12
    text = bench.folder.log_path(bench.plan.jobs[0].id).read_text()
    assert len(text) < 1100 and text.endswith("the rest of the output was not kept\n")


def test_gpus_decide_the_cases_and_are_named_by_uuid(tmp_path: Path):
    gpus = tuple(GPU(index=i, name="NVIDIA RTX A4000", uuid=f"GPU-{i}") for i in range(2))
    bench = Bench(tmp_path, a=FakeHost(facts=Facts(gpus=gpus)), b=FakeHost(facts=Unreachable("down")))
    jobs = bench.plan.hosts[0].jobs
    assert {job.case.device for job in bench.plan.jobs} == {Device.GPU}, "b is planned as its fleet mate"
    assert {(job.case.num_gpus, job.gpu_uuids) for job in jobs} == {(1, ("GPU-0",)), (2, ("GPU-0", "GPU-1"))}
    assert {job.case.num_gpus for job in bench.plan.hosts[1].jobs} == {1, 2}

    bench.machines["b"].facts = Facts(gpus=gpus)
    assert bench.run() == RunOutcome(ok=24, failed=0, missing=0), "b learned its GPUs when it came back"


def test_the_order_interleaves_repeats_and_follows_the_seed(tmp_path: Path):
    bench = Bench(tmp_path, a=FakeHost())
    names = [job.case.name for job in bench.plan.jobs]
    rounds = [names[start : start + 4] for start in (0, 4, 8)]
    assert [len(set(round_)) for round_ in rounds] == [4, 4, 4], "each round measures each case once"
    assert len(set(map(tuple, rounds))) > 1 and bench.make_plan().jobs == bench.plan.jobs


def test_variants_are_measured_side_by_side_but_for_impossible_ones(tmp_path: Path):
    good, other = (
        Image(variant=f"cuda12.{minor}", reference=f"r:{minor}", reason="", digest=f"sha256:{minor}")
        for minor in (5, 9)
    )
    never = Image(variant="cuda11.8", reference="r:cuda11.8", reason="", status=Status.UNSUPPORTED, problem="no code")
    machine = FakeHost(facts=Facts(gpus=(GPU(index=0, name="A"),), images=(good, other, never)))
    bench = Bench(tmp_path, a=machine)
    assert bench.run() == RunOutcome(ok=12, failed=6, missing=0)
    found = {(record.origin.variant, record.origin.image_digest, record.status) for record in bench.records("a")}
    measured = {(image.variant, image.digest, Status.OK) for image in (good, other)}
    assert found == measured | {("cuda11.8", None, Status.UNSUPPORTED)}
    assert machine.count("prepare") == 2, "nothing is brought for what cannot run"

    bench = Bench(tmp_path / "stopped", a=machine)
    bench.bus.subscribe(lambda event: bench.stop.launching.set() if isinstance(event, ImageReady) else None)
    assert bench.run() == RunOutcome(ok=0, failed=6, missing=12)
    assert machine.count("prepare") == 3, "no more is brought for a run that is stopped"


def test_a_host_that_answers_late_is_not_measured_on_its_cpu_beside_gpus(tmp_path: Path):
    machine = FakeHost(facts=Unreachable("booting"))
    bench = Bench(tmp_path, a=machine)
    machine.facts = Facts(gpus=(GPU(index=0, name="A4000"),))
    bench.run()
    assert bench.statuses("a") == [Status.UNSUPPORTED] * 12 and machine.count("start") == 0
    assert "did not answer when the run was planned" in bench.causes("a").pop()


def test_fail_fast_ends_the_run_at_the_first_failure(tmp_path: Path):
    bench = Bench(tmp_path, a=FakeHost(payload=lambda job: b"garbage"))
    assert bench.run(fail_fast=True) == RunOutcome(ok=0, failed=1, missing=11)


def test_a_gpu_case_on_a_host_without_gpus_is_no_gpu_and_not_started(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(Bench, "settings", {"device": Device.GPU})
    bench = Bench(tmp_path, a=FakeHost())
    bench.run()
    assert bench.statuses("a") == [Status.NO_GPU] * 6 and bench.machines["a"].count("start") == 0


PRICED = {"usd_per_gpu_hour": 36.0, "device": Device.CPU}
"""A cent a second for each GPU."""


def test_a_limit_of_cost_needs_prices_and_ends_the_run_in_time(tmp_path: Path, monkeypatch):
    with pytest.raises(UserError, match=r"Add usd_per_gpu_hour to: f\.a"):
        Bench(tmp_path / "free", a=FakeHost()).run(max_cost=1.0)
    monkeypatch.setattr(Bench, "settings", PRICED)
    bench = Bench(tmp_path, a=FakeHost())
    # A repeat that was never seen is computed to last half a minute, 0.30 USD; what is seen here takes no time at all.
    assert bench.run(max_cost=0.1) == RunOutcome(ok=0, failed=0, missing=12)
    assert any("the limit is 0.10" in event.message for event in bench.seen(Warned))
    assert bench.run(max_cost=2.0) == RunOutcome(ok=12, failed=0, missing=0)
    gpus = tuple(GPU(index=index, name="A") for index in range(8))
    late = Bench(tmp_path / "late", a=FakeHost(facts=Facts(gpus=gpus)))
    late.plan = dataclasses.replace(late.plan, hosts=[dataclasses.replace(late.plan.hosts[0], facts=None)])
    assert late.run(max_cost=2.0) == RunOutcome(ok=0, failed=0, missing=12), "one repeat of 8 GPUs would cost 2.40 USD"


def test_time_in_which_the_controller_slept_is_the_repeats_and_costs(tmp_path: Path, monkeypatch):
    slept = [0.0]
    monkeypatch.setattr("time.clock_gettime", lambda clock: sum(slept))
    monkeypatch.setattr(Durations, "seconds", lambda *_: 30.0)
    machine = FakeHost(on_follow=lambda job: slept.append(400.0))
    machine.payload = lambda job: to_json(ok_record(job.case, seconds=400.0)).encode()
    monkeypatch.setattr(Bench, "settings", PRICED)
    bench = Bench(tmp_path, a=machine)
    assert bench.run(max_cost=8.1) == RunOutcome(ok=2, failed=0, missing=10), "4 USD each"
    assert [record.warnings for record in bench.records("a")] == [[], []]


def test_a_bug_in_one_worker_leaves_a_traceback_and_the_others_finish(tmp_path: Path):
    def crash(job: Job) -> None:
        bench.folder.record_path(job.id).write_text("{")
        raise KeyError("planted")

    bench = Bench(tmp_path, bad=FakeHost(on_follow=crash), good=FakeHost())
    assert bench.run() == RunOutcome(ok=12, failed=1, missing=11)
    assert "KeyError: 'planted'" in (bench.folder.path / "traceback-f.bad.txt").read_text()
    assert bench.statuses("bad") == [Status.ERROR] and "a bug in tfbench" in bench.causes("bad").pop()
    bench.machines["bad"].on_follow = lambda job: None
    assert bench.run() == RunOutcome(ok=23, failed=1, missing=0), "resume runs what had not started"


def test_a_host_without_work_or_launcher_costs_itself_only(tmp_path: Path):
    bench = Bench(tmp_path, bad=FakeHost(), good=FakeHost(), idle=FakeHost())
    *others, idle = bench.plan.hosts
    bench.plan = dataclasses.replace(bench.plan, hosts=(*others, dataclasses.replace(idle, jobs=())))
    machines = {"good": bench.machines["good"]}
    bench.launcher = lambda host: FakeLauncher(host, machines[host.name])
    assert bench.run() == RunOutcome(ok=12, failed=0, missing=12)

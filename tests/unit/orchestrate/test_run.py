"""The run engine against fake hosts: every repeat exactly one record, whatever happens."""

import dataclasses
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrate.display.display import describe
from orchestrate.display.tables import status_document
from orchestrate.engines.base import Ending, Launcher
from orchestrate.errors import Gone, LaunchFailed, Lost, PullFailed, Unreachable, UserError
from orchestrate.events import Decided, Event, EventBus, HostLost, JobSkipped, RunOutcome, Warned
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.options import How
from orchestrate.planning.durations import known_durations
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.plan import Job, Plan, make_plan, plan_from_json, plan_to_json
from orchestrate.planning.stop_early import NOTHING_TO_COMPARE, StopEarly
from orchestrate.running.context import RunContext, Stop
from orchestrate.running.probing import probe_hosts
from orchestrate.running.run import execute
from orchestrate.running.state import TRIED_AGAIN, RunState
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import GPU, Device, Record, Status
from results.schema.record_json import to_json
from tests.support.engines.processes import wait_until
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher, ok_record

MODELS = {"model": ["resnet50", "googlenet"], "num_gpus": [1, 2]}
BLOCK = CaseBlock(**{**MODELS, "batch_per_gpu": 2, "warmup_steps": 1, "num_steps": 4})


class Bench:
    """Some fake hosts, a plan over them, and what happened."""

    suite = Suite(cases=[BLOCK])
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
        self.state = RunState(self.plan, known_durations(self.plan, self.folder.path.parent))
        self.bus.subscribe(self.state.note)
        run = RunContext(self.plan, self.folder, self.launcher, self.bus, self.stop, How(**how), self.state)
        return execute(run, again)

    def recorded(self) -> RunOutcome:
        state = RunState(self.plan)
        state.read(self.folder)
        return state.outcome()

    def records(self, host: str) -> list[Record]:
        (entry,) = [entry for entry in self.plan.hosts if entry.host.name == host]
        return [record for job in entry.jobs if (record := self.folder.read_record(job.id))]

    def statuses(self, host: str) -> list[Status]:
        return [record.status for record in self.records(host)]

    def causes(self, host: str) -> set[str]:
        return {record.cause or "" for record in self.records(host)}

    def seen(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


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


NO_IMAGE = Image(variant="cpu", reference="r", reason="no such image", status=Status.PULL_FAILED)
NO_RECORD: dict[str, Any] = {"payload": lambda job: None}


@pytest.mark.parametrize(
    ("machine", "status", "starts", "removals", "said"),
    [
        ({"facts": Facts(images=(NO_IMAGE,))}, Status.PULL_FAILED, 0, 0, "no such image"),
        ({"failures": {"follow": Lost("the link is dead")}}, Status.LOST, 1, 0, "the link is dead"),
        ({"failures": {"follow": Gone("somebody removed it")}}, Status.LOST, 2, 0, "somebody removed it"),
        ({"failures": {"start": LaunchFailed("no runtime", Status.NO_GPU)}}, Status.NO_GPU, 12, 12, "no runtime"),
        ({"ending": Ending(exit_code=137, out_of_memory=True), **NO_RECORD}, Status.OOM, 12, 12, "memory limit"),
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


def test_what_was_lost_is_collected_before_anything_else_starts(tmp_path: Path):
    beside: list[set[str]] = []

    def lose_the_first(job: Job) -> None:
        beside.append({*machine.containers} - {job.id})
        if len(beside) == 1:
            raise Lost("link down")

    machine = FakeHost(on_follow=lose_the_first)
    bench = Bench(tmp_path, a=machine)
    assert bench.run() == RunOutcome(ok=12, failed=0, missing=0)
    assert not any(beside) and (machine.count("start"), machine.count("reattach")) == (12, 1)


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
    assert bench.recorded() == RunOutcome(ok=11, failed=0, missing=1)
    (listed,) = status_document(bench.plan, bench.folder, running=False)["unreadable"]
    assert f"{bench.plan.jobs[3].id}.json: not a record, resume measures it again: not JSON" in listed
    assert bench.run() == RunOutcome(ok=12, failed=0, missing=0)
    assert bench.machines["a"].count("start") == 13 and len(list((bench.folder.path / "superseded").iterdir())) == 1
    assert any("its repeat runs again" in warned.message for warned in bench.seen(Warned))


def test_what_takes_too_long_is_ended_and_measured_again_if_asked(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("orchestrate.running.context.CHECK_SECONDS", 0.01)

    def hang(job: object) -> None:
        wait_until(lambda: bool(machine.stopped), "the end of a repeat")
        bench.stop.launching.set()

    machine = FakeHost(on_follow=hang)
    bench = Bench(tmp_path, a=machine)
    with monkeypatch.context() as patch:
        patch.setattr("orchestrate.running.context.END_AFTER_SECONDS", -3600.0)
        assert bench.run() == RunOutcome(ok=0, failed=1, missing=11)
    assert bench.statuses("a") == [Status.TIMEOUT] and "timeout_minutes" in str(bench.causes("a"))
    machine.on_follow = lambda job: None
    machine.stopped.clear()
    bench.stop = Stop()
    assert bench.run(again=TRIED_AGAIN | {Status.TIMEOUT}) == RunOutcome(ok=12, failed=0, missing=0)


def test_a_failed_clean_up_is_a_warning_and_logs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrate.running.session.MAX_LOG_BYTES", 1000)
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
    never = Image(variant="cuda11.8", reference="r:cuda11.8", reason="no code", status=Status.UNSUPPORTED)
    machine = FakeHost(facts=Facts(gpus=(GPU(index=0, name="A"),), images=(good, other, never)))
    bench = Bench(tmp_path, a=machine)
    assert bench.run() == RunOutcome(ok=12, failed=6, missing=0)
    found = {(record.origin.variant, record.origin.image_digest, record.status) for record in bench.records("a")}
    measured = {(image.variant, image.digest, Status.OK) for image in (good, other)}
    assert found == measured | {("cuda11.8", None, Status.UNSUPPORTED)}
    assert machine.count("prepare") == 2, "nothing is brought for what cannot run"


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
    monkeypatch.setattr("tests.unit.orchestrate.test_run.known_durations", lambda *_: {})
    monkeypatch.setattr("orchestrate.running.state.GUESS", (30.0, ""))
    machine = FakeHost(on_follow=lambda job: slept.append(400.0))
    machine.payload = lambda job: to_json(ok_record(job.case, seconds=400.0)).encode()
    monkeypatch.setattr(Bench, "settings", PRICED)
    bench = Bench(tmp_path, a=machine)
    assert bench.run(max_cost=8.1) == RunOutcome(ok=2, failed=0, missing=10), "4 USD each"
    assert [record.warnings for record in bench.records("a")] == [[], []]


@pytest.mark.parametrize(("call", "failed"), [("follow", 12), ("prepare", 0)])
def test_a_bug_leaves_a_traceback_and_the_other_host_finishes(tmp_path: Path, call: str, failed: int):
    """While a repeat runs, it is a failure of that repeat; otherwise `resume` runs the rest."""
    bench = Bench(tmp_path, bad=FakeHost(failures={call: KeyError("planted")}), good=FakeHost())
    assert bench.run() == RunOutcome(ok=12, failed=failed, missing=12 - failed)
    assert "KeyError: 'planted'" in (bench.folder.path / "traceback-f.bad.txt").read_text()
    assert all(
        "a bug in tfbench" in cause for cause in (*bench.causes("bad"), *(e.cause for e in bench.seen(HostLost)))
    )
    bench.machines["bad"].failures.clear()
    assert bench.run() == RunOutcome(ok=24 - failed, failed=failed, missing=0)


# ---- `--stop-early`: repeats that no comparison needs are skipped; `resume` and `status` find the same answers


def seconds_of(job: Job) -> float:
    """Two steady fleets: GoogLeNet on `b1` varies from repeat to repeat."""
    base = {"a": 2.0, "b": 3.0}[job.origin.fleet] + {"1": 0.0, "2": 0.002}[job.origin.host[-1]]
    noise = (0.6, -0.5, 0.4, -0.3, 0.5, -0.4, 0.35, -0.45, 0.2, 0.1)
    noisy = job.case.model == "googlenet" and job.origin.host == "b1"
    return base + (noise[job.origin.repeat - 1] if noisy else 0.0)


class EarlyBench(Bench):
    """Two fleets of two hosts, ten repeats of two cases at most, to be decided to ± 2 %."""

    suite = Suite(repeats=10, cases=[BLOCK.model_copy(update={"num_gpus": [1]})])

    def __init__(self, tmp_path: Path) -> None:
        payload = lambda job: to_json(ok_record(job.case, seconds=seconds_of(job))).encode()  # noqa: E731
        super().__init__(tmp_path, **{name: FakeHost(payload=payload) for name in ("a1", "a2", "b1", "b2")})

    def make_plan(self) -> Plan:
        self.hosts = [host.model_copy(update={"fleet": host.name[0]}) for host in self.hosts]
        return plan_from_json(plan_to_json(dataclasses.replace(super().make_plan(), stop_early=0.02)))

    @property
    def starts(self) -> int:
        return sum(machine.count("start") for machine in self.machines.values())


def test_a_decided_comparison_ends_and_the_noisy_one_goes_on(tmp_path):
    bench = EarlyBench(tmp_path)
    outcome = bench.run(max_parallel=4)
    assert outcome.missing == outcome.failed == 0 and outcome.ok + outcome.skipped == 80
    ended = {(event.case.split("-")[0], event.host) for event in bench.seen(JobSkipped)}
    assert {place for place in ended if "googlenet" not in place[0]} >= {("resnet50", key) for key in ("a.a1", "b.b2")}
    noisy = [job for job in bench.plan.jobs if job.case.model == "googlenet"]
    assert all(bench.folder.read_record(job.id) is not None for job in noisy), "all ten repeats, on both fleets"
    decided = bench.seen(Decided)
    assert len(decided) == 1 and "a / b is known to ± " in decided[0].answer
    assert describe(decided[0]).startswith("decided: resnet50")
    answers = sorted(bench.state.early.answers)
    assert "not decided: ± " in answers[0] and "known to ± " in answers[1]
    assert bench.recorded() == outcome
    starts = bench.starts
    assert bench.run() == outcome and bench.starts == starts == outcome.ok, "resume finds the same, and starts nothing"
    assert sorted(bench.state.early.answers) == answers


def test_prices_decide_where_the_ratio_is_clear_of_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr(EarlyBench, "settings", {"usd_per_gpu_hour": 1.0, "device": Device.CPU})
    outcome = (bench := EarlyBench(tmp_path)).run()
    assert any("above its price ratio of 1.00" in text for text in bench.state.early.answers if "googlenet" in text)
    assert outcome.skipped > 0


def test_a_fleet_that_fails_is_not_tried_ten_times(tmp_path):
    bench = EarlyBench(tmp_path)
    failed = {"status": Status.OOM, "cause": "no memory", "measurement": None, "validity": None}
    for name in ("b1", "b2"):
        bench.machines[name].payload = lambda job: to_json(dataclasses.replace(ok_record(job.case), **failed)).encode()
    outcome = bench.run(max_parallel=1)
    assert all("no repeat on b succeeded (2 of each host)" in text for text in bench.state.early.answers)
    assert 8 <= outcome.failed < 80 and outcome.skipped > 0


def test_without_the_flag_or_without_two_fleets_nothing_is_skipped(tmp_path):
    plan = EarlyBench(tmp_path).plan
    one_fleet = dataclasses.replace(plan, hosts=plan.hosts[:2])
    for measured, answers in ((dataclasses.replace(plan, stop_early=None), []), (one_fleet, [NOTHING_TO_COMPARE])):
        early = StopEarly(measured)
        for job in measured.jobs:
            assert early.add(job, ok_record(job.case, seconds=2.0)) == [] and not early.skips(job)
        assert early.answers == answers

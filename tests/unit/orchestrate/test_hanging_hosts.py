"""No host holds a run: whatever call of its launcher hangs or never ends, the run does within its own limits."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from orchestrate.engines.base import Launcher
from orchestrate.errors import Unreachable
from orchestrate.events import ImageProgress, RunOutcome, Warned
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import make_plan
from orchestrate.running import context, probing, run, session, worker
from results.schema import Status
from tests.support.patience import patience
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher
from tests.unit.orchestrate.test_run import Bench

CALLS = ("prepare", "start", "follow", "remove", "running", "close", "log", "stop")


class HangingLauncher(FakeLauncher):
    """One of its calls never ends; `log` stands for output without an end, `stop` for a benchmark that goes on."""

    hangs = ""

    def __getattribute__(self, name: str) -> object:
        hangs = object.__getattribute__(self, "hangs")
        if name == ("wait" if hangs == "follow" else hangs):
            return lambda *_: time.sleep(3600)
        return object.__getattribute__(self, name)

    def wait(self, job, on_line):
        while self.hangs in ("log", "stop"):
            if self.hangs == "log":
                on_line("one more line")
            time.sleep(0.01)
        return super().wait(job, on_line)


class HangingBench(Bench):
    """Two hosts, of which one hangs."""

    def __init__(self, tmp_path: Path, hangs: str) -> None:
        self.hangs = hangs
        super().__init__(tmp_path, bad=FakeHost(), good=FakeHost())

    def launcher(self, host: object) -> Launcher:
        made = HangingLauncher(host, self.machines[host.name])  # type: ignore[attr-defined]
        made.hangs = self.hangs if host.name == "bad" else ""  # type: ignore[attr-defined]
        return made


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every limit be a part of a second."""
    monkeypatch.setattr(session, "MARGIN_SECONDS", 0.5)
    monkeypatch.setattr(context, "END_AFTER_SECONDS", 0.1)
    monkeypatch.setattr(context, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(context, "STOP_SECONDS", 0.5)
    monkeypatch.setattr(probing, "CLOSE_SECONDS", 0.3)
    for name in ("REQUEST_SECONDS", "PREPARE_SECONDS"):
        monkeypatch.setattr(session, name, 0.3)
    for module in (run, probing, worker):
        monkeypatch.setattr(module, "PROBE_SECONDS", 0.3)


@pytest.mark.parametrize("hangs", CALLS)
def test_a_host_that_hangs_is_abandoned_and_the_other_finishes(tmp_path: Path, monkeypatch, quick, hangs: str):
    bench = HangingBench(tmp_path, hangs)
    bench.hosts[0] = bench.hosts[0].model_copy(update={"timeout_minutes": 0.3 / 60})
    bench.plan = bench.make_plan()
    bench.run()
    assert bench.statuses("good") == [Status.OK] * 12
    statuses = bench.statuses("bad")
    assert len(statuses) == 12, "every repeat has one record"
    if hangs in ("log", "stop", "follow"):
        assert statuses.count(Status.TIMEOUT) == 1 and statuses.count(Status.LOST) == 11
    elif hangs not in ("remove", "close"):
        assert set(statuses) <= {Status.LOST, Status.TIMEOUT}
    else:
        assert Status.OK in statuses, "its record was safe before"


def test_a_probe_that_hangs_or_fails_in_any_way_belongs_to_its_host(tmp_path: Path, quick):
    class Odd(FakeLauncher):
        def __init__(self, host, machine):
            super().__init__(host, machine)
            if host.name == "full":  # as /tmp, where ssh's socket would be
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp")

        def probe(self):
            if self._host.name == "hangs":
                time.sleep(3600)
            if self._host.name == "odd":
                raise OverflowError("int too large")
            return super().probe()

    bench = Bench(tmp_path, hangs=FakeHost(), odd=FakeHost(), full=FakeHost(), good=FakeHost())
    found = probing.probe_hosts(bench.hosts, lambda host: Odd(host, bench.machines[host.name]), bench.bus)
    *failed, good = (found[host.place] for host in bench.hosts)
    for answer, said in zip(failed, ("did not answer in time", "int too large", "No space left"), strict=True):
        assert isinstance(answer, str) and said in answer
    assert isinstance(good, Facts)


def test_stop_asks_every_host_and_names_those_that_hang(tmp_path: Path, quick):
    bench = HangingBench(tmp_path, "running")
    for machine in bench.machines.values():
        machine.containers = {job.id: "running" for job in bench.plan.jobs}
    removed, problems = run.stop_run(bench.plan, bench.launcher)
    assert removed == 12 and len(problems) == 1 and problems[0].startswith("f.bad: ")


class LateLauncher(FakeLauncher):
    """The probe of the host `late` answers only when it is let."""

    def __init__(self, host, machine, answers: threading.Event, begun: list[str]) -> None:
        super().__init__(host, machine)
        self.answers, self.begun = answers, begun

    def probe(self):
        self.begun.append(self._host.name)
        if self._host.name == "late":
            self.answers.wait(patience())
        return super().probe()


def test_a_host_that_answers_late_holds_no_other_and_joins_them(tmp_path: Path, monkeypatch):
    """It is probed again while others are measured."""
    monkeypatch.setattr(probing, "LATE_SECONDS", 0.3)
    bench, answers, begun = Bench(tmp_path, late=FakeHost(), good=FakeHost()), threading.Event(), list[str]()
    bench.launcher = lambda host: LateLauncher(host, bench.machines[host.name], answers, begun)
    probed = probing.probe_hosts(bench.hosts, bench.launcher, bench.bus)
    slow, good = (probed[host.place] for host in bench.hosts)
    assert "it has not answered after" in str(slow) and isinstance(good, Facts)
    bench.plan = make_plan(bench.hosts, probed, lambda name: bench.suite, run_id="run1", seed=7)
    bench.machines["good"].on_follow = lambda job: answers.set()  # it is measured before the other answers
    assert bench.run() == RunOutcome(ok=24, failed=0, missing=0) and begun.count("late") == 2


def test_a_host_that_reports_a_download_is_awaited_longer(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(probing, "LATE_SECONDS", 1.0)
    bench = Bench(tmp_path, late=FakeHost(), good=FakeHost())

    class Loading(FakeLauncher):
        def probe(self):
            for done in range(30 if self._host.name == "late" else 0):
                bench.bus.emit(ImageProgress(host=self._host.key, image="i", done_bytes=done, total_bytes=30))
                time.sleep(0.05)
            return super().probe()

    probed = probing.probe_hosts(bench.hosts, lambda host: Loading(host, bench.machines[host.name]), bench.bus)
    assert all(isinstance(facts, Facts) for facts in probed.values())


def test_a_host_that_never_answered_is_not_taken_for_a_lost_network(tmp_path: Path, monkeypatch):
    """Else five servers that do not speak ssh would hold the end of a run for half an hour."""
    monkeypatch.setattr(context, "OFFLINE_SECONDS", 5.0)
    gone = Unreachable("it speaks no ssh")
    bench = Bench(tmp_path, bad=FakeHost(facts=gone, failures={"running": gone}), good=FakeHost())
    far = DockerAddress(scheme="ssh", target="bad")
    bench.hosts = [bench.hosts[0].model_copy(update={"docker": far}), bench.hosts[1]]
    bench.plan = bench.make_plan()
    assert bench.run() == RunOutcome(ok=12, failed=12, missing=0)
    assert not [warned.message for warned in bench.seen(Warned) if "no host answers" in warned.message]

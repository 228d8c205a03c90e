"""Commands over a fake host: their exit codes, what they refuse, and names that are no plain words."""

import functools
import json
import os
import signal
import time
from pathlib import Path

import pytest

from orchestrate import commands
from orchestrate.commands import How, What, Where
from orchestrate.errors import Unreachable, UserError
from orchestrate.planning.facts import Facts
from results.runs.store import RunFolder
from results.schema.exit_codes import ExitCode
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher

CASE = "{model: alexnet, batch_per_gpu: 1, num_gpus: [1, 2], warmup_steps: 1, num_steps: 4}"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """Give the host of a hosts file, and a suite of two repeats, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("hosts.yml").write_text('version: 1\nfleets: {f: {hosts: {h: {docker: "unix:///none"}}}}\n')
    Path("two.yml").write_text(f"description: two\nrepeats: 1\ncases: [{CASE}]\n")
    machine = FakeHost(facts=Facts(cpu="a", cpu_count=2, cpu_limit=2.0))
    monkeypatch.setattr(commands, "make_launcher", lambda host, run_path, pulls: FakeLauncher(host, machine))
    return machine


def run(*, runs_dir: str = "runs", run_id: str | None = "one", fail_fast: bool = False) -> int:
    how = How(display="none", report=False, fail_fast=fail_fast)
    return commands.run(Where(runs_dir=Path(runs_dir)), What(suite="two.yml"), how, run_id=run_id)


deep_check = functools.partial(commands.check, Where(), deep=True)


@pytest.mark.parametrize("command", [run, deep_check])
def test_a_run_that_the_user_ended_in_its_last_repeat_was_stopped(host: FakeHost, command):
    def interrupt(_job: object) -> None:
        while not host.stopped and (command is deep_check or host.count("start") == 2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)  # two signals at once would be one

    host.on_follow = interrupt
    assert command() == ExitCode.STOPPED


def test_a_failure_that_ends_a_run_is_no_stop_of_the_user(host: FakeHost, capsys):
    host.payload = lambda _job: b"garbage"
    assert run(fail_fast=True) == ExitCode.SOME_FAILED
    assert "stopped. Resume" not in capsys.readouterr().err


def test_a_deep_check_of_hosts_that_do_not_answer_finds_none_usable(host: FakeHost):
    host.facts = Unreachable("no route to host")
    assert deep_check() == ExitCode.NO_HOST


def test_a_name_whose_repeats_are_on_a_host_is_refused(host: FakeHost):
    host.containers["f.h.earlier"] = "running"
    with pytest.raises(UserError, match=r"another run one is on f\.h\. Choose another --run-id, or end .* stop one"):
        run()
    assert run(run_id=None) == ExitCode.OK


def test_paths_may_hold_any_bytes_but_those_of_a_plan(host: FakeHost, monkeypatch: pytest.MonkeyPatch):
    def prepare(_self: object, _job: object, on_progress) -> None:
        on_progress(1, 2)

    monkeypatch.setattr(FakeLauncher, "prepare", prepare)
    other = os.fsdecode(b"caf\xe9")
    assert run(runs_dir=other) == ExitCode.OK
    kinds = {event["event"] for event in map(json.loads, Path(other, "one", "events.jsonl").read_text().splitlines())}
    assert "run_finished" in kinds and not {"image_progress", "job_step"} & kinds, "progress is not stored"
    Path("hosts.yml").rename(Path(other, "hosts.yml"))
    Path("two.yml").rename(Path(other, "two.yml"))
    monkeypatch.chdir(other)
    with pytest.raises(UserError, match=r"the path of hosts\.yml, or a path in it, is not UTF-8"):
        run()
    assert not Path("runs").exists()


def test_a_run_that_cannot_be_described_hides_no_other(host: FakeHost, capsys):
    assert (run(), run(run_id="two")) == (ExitCode.OK, ExitCode.OK)
    plan = RunFolder.open(Path("runs/one")).plan_path
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"created_at": "yesterday"}))
    capsys.readouterr()
    assert commands.runs(Path("runs"), format="json") == ExitCode.OK
    one, two = sorted(json.loads(capsys.readouterr().out)["runs"], key=lambda found: found["run"])
    assert (one["progress"], two["progress"]) == ("unknown", "2/2")
    with pytest.raises(UserError, match="no such run folder"):
        commands.status("x" * 300, Path("runs"))

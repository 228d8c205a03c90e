"""Commands over a fake host: their exit codes, what they refuse, and names that are no plain words."""

import errno
import functools
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrate import commands, session
from orchestrate.engines.invocation import container_name
from orchestrate.errors import Unreachable, UserError
from orchestrate.options import How, What, Where
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import plan_from_json
from results.schema.exit_codes import ExitCode
from tests.support import PROJECT
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher

CASE = "{model: alexnet, batch_per_gpu: 1, num_gpus: [1, 2], warmup_steps: 1, num_steps: 4}"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    """Give the host of a hosts file, and a suite of two repeats, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TFBENCH_RUNS_DIR", raising=False)
    Path("hosts.yml").write_text('version: 1\nfleets: {f: {hosts: {h: {docker: "unix:///none"}}}}\n')
    Path("two.yml").write_text(f"description: two\nrepeats: 1\ncases: [{CASE}]\n")
    machine = FakeHost(facts=Facts(cpu="a", cpu_count=2, cpu_limit=2.0))
    monkeypatch.setattr(session, "make_launcher", lambda host, run_path, pulls: FakeLauncher(host, machine))
    return machine


HOW = How(display="none", report=False)


def run(*, run_id: str | None = "one") -> int:
    return commands.run(Where(), What(suite="two.yml"), HOW, run_id=run_id)


deep_check = functools.partial(commands.check, Where(), deep=True)


@pytest.mark.parametrize("command", [run, deep_check])
def test_a_run_that_the_user_ended_in_its_last_repeat_was_stopped(host: FakeHost, command):
    def interrupt(_job: object) -> None:
        while not host.stopped and (command is deep_check or host.count("start") == 2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)  # two signals at once would be one

    host.on_follow = interrupt
    assert command() == ExitCode.STOPPED


def test_a_deep_check_of_hosts_that_do_not_answer_finds_none_usable(host: FakeHost):
    host.facts = Unreachable("no route to host")
    assert deep_check() == ExitCode.NO_HOST


def test_runs_of_one_name_in_two_folders_share_no_container(host: FakeHost):
    assert (run(), Path("runs").rename("elsewhere"), run())[::2] == (ExitCode.OK, ExitCode.OK)
    ids = {json.loads(Path(folder, "one", "plan.json").read_text())["run_id"] for folder in ("runs", "elsewhere")}
    assert len(ids) == 2 and all(one.startswith("one-") for one in ids)


def test_runs_are_listed_though_one_cannot_be_described(host: FakeHost, capsys):
    assert (run(), run(run_id="two")) == (ExitCode.OK, ExitCode.OK)
    Path("runs/one/plan.json").write_text("{")
    capsys.readouterr()
    assert commands.runs(format="json") == ExitCode.OK
    listed = json.loads(capsys.readouterr().out)["runs"]
    progress = {found["run"]: found["progress"] for found in listed}
    assert progress["one"].startswith("unknown: is damaged: ") and progress["two"] == "2/2"


def resume() -> int:
    return commands.resume(HOW, run="one")


def statuses() -> list[str]:
    return [json.loads(path.read_text())["status"] for path in sorted(Path("runs/one/records").glob("*.json"))]


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, number: int, part: str, host: FakeHost, of: Any = os) -> None:
    """Let one call of `of.NAME` on a path with `part` fail once a benchmark runs."""
    real, failed = getattr(of, name), []

    def call(*arguments: object, **more: object) -> object:
        first = arguments[0]
        path = str(Path(f"/proc/self/fd/{first}").readlink()) if isinstance(first, int) else str(first)
        if part in path and host.count("start") and not failed:
            failed.append(path)
            raise OSError(number, os.strerror(number), path)
        return real(*arguments, **more)

    monkeypatch.setattr(of, name, call)


FAULTS = {
    "a record cannot be written": lambda m, h: fail_once(m, "replace", errno.EIO, "/records/", h),
    "a record cannot be made safe": lambda m, h: fail_once(m, "fsync", errno.ESTALE, "/records/", h),
    "the journal cannot be written": lambda m, h: fail_once(m, "write", errno.EROFS, "events.jsonl", h),
    "the folder was moved": lambda m, h: Path("runs/one").rename("runs/moved"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_this_machines_disk_costs_no_repeat(host: FakeHost, monkeypatch: pytest.MonkeyPatch, fault: str):
    with monkeypatch.context() as patch:

        def once(_job: object) -> None:
            if host.count("start") == 1:
                FAULTS[fault](patch, host)

        host.on_follow = once
        with pytest.raises(UserError, match=r"nothing more can be stored\. What runs on the hosts continues") as caught:
            run()
        assert caught.value.exit_code == ExitCode.NO_HOST
    if Path("runs/moved").exists():
        Path("runs/moved").rename("runs/one")
    assert set(statuses()) <= {"ok"}, "what did not run has no record"
    host.on_follow = lambda job: None
    assert resume() == ExitCode.OK and statuses() == ["ok", "ok"]


def test_a_record_that_cannot_be_read_now_is_not_measured_again(host: FakeHost, monkeypatch: pytest.MonkeyPatch):
    assert run() == ExitCode.OK
    starts = host.count("start")
    with monkeypatch.context() as patch:
        fail_once(patch, "open", errno.EIO, "/records/", host, Path)
        with pytest.raises(UserError, match="Input/output error"):
            resume()
    assert resume() == ExitCode.OK and host.count("start") == starts


def test_status_says_what_runs_now_and_how_long_the_rest_takes(host: FakeHost, capsys):
    assert run(run_id="earlier") == ExitCode.OK
    shown: list[dict[str, Any]] = []

    def look(_job: object) -> None:
        capsys.readouterr()
        assert commands.status("one", format="json") == ExitCode.SOME_FAILED
        shown.append(json.loads(capsys.readouterr().out))

    host.on_follow = look
    assert run() == ExitCode.OK
    hosts = [document["hosts"][0] for document in shown if document["controller_active"]]
    assert [(found["ended"], found["now"]) for found in hosts] == [(0, ["timing"]), (1, ["timing"])]
    assert commands.status("one", format="json") == ExitCode.OK
    assert json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))["seconds_left"] == 0


def test_a_run_of_an_older_version_that_was_killed_is_resumed(host: FakeHost):
    """Its plan, its journal and the names of its containers are read as before: nothing runs twice. It has no folder `logs`."""
    old = PROJECT / "tests" / "frozen" / "interrupted" / "version-1-of-27-november"
    shutil.copytree(old, Path("runs/one"))
    planned = plan_from_json((old / "plan.json").read_bytes(), "plan.json")
    ended, running, *others = planned.hosts[0].jobs
    assert [container_name(job) for job in (running, *others)] == [
        f"tfbench-version-1-of-27-november-f.h.alexnet-fp32-b1-{name}"
        for name in ("1cpu-w1s4.r1", "2cpu-w1s4.r2", "1cpu-w1s4.r2")
    ]
    host.containers[running.id] = "running"
    record = Path(f"runs/one/records/{ended.id}.json")
    before = record.read_bytes()
    assert resume() == ExitCode.OK and statuses() == ["ok"] * 4
    assert record.read_bytes() == before
    assert (host.count("reattach"), host.count("start")) == (1, 2)

"""After a run: `--when-done` runs however the run ended, and hosts that still cost money are named."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrate.afterwards import run_command, still_costing, when_done
from orchestrate.errors import NoUsableHost, Unreachable, UserError
from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.base import Launcher
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan
from results.schema import GPU
from tests.benchmarks.fleet.bench_fleet import PROJECT, stand_in_engines, write_hosts
from tests.unit.orchestrate.fakes import FakeHost, FakeLauncher


@pytest.mark.parametrize(
    ("ending", "ran"),
    [
        (None, True),
        (RuntimeError("a bug"), True),
        (KeyboardInterrupt(), True),
        (NoUsableHost("nothing answers"), True),
        (UserError("hosts.yml:3: …"), False),
    ],
)
def test_the_command_runs_unless_the_user_made_a_mistake(tmp_path: Path, ending: BaseException | None, ran: bool):
    reported: list[str] = []
    try:
        with when_done(f"touch {tmp_path}/ran", reported.append):
            if ending is not None:
                raise ending
    except (RuntimeError, UserError, KeyboardInterrupt) as error:
        assert error is ending
    assert (tmp_path / "ran").exists() == ran
    assert (
        reported[-1] == "--when-done succeeded"
        if ran
        else reported == [f"--when-done did not run, {WHY}{tmp_path}/ran"]
    )


WHY = "because nothing was measured: touch "


def test_without_a_command_nothing_is_said_or_done():
    reported: list[str] = []
    with when_done(None, reported.append):
        pass
    with pytest.raises(RuntimeError), when_done(None, reported.append):
        raise RuntimeError
    assert reported == []


def test_its_output_is_kept_off_stdout_and_its_failure_is_reported(capfd: pytest.CaptureFixture[str]):
    reported: list[str] = []
    assert run_command("echo out; echo err >&2; cat; exit 7", reported.append) == 7
    assert capfd.readouterr() == ("", "out\nerr\n")
    assert reported[0] == "--when-done: echo out; echo err >&2; cat; exit 7"
    assert (
        reported[1].startswith("--when-done FAILED with exit code 7: echo out;") and "still cost money" in reported[1]
    )


def test_the_command_runs_also_where_nobody_reads_what_is_said(tmp_path: Path):
    def tell(line: str) -> None:
        raise BrokenPipeError

    with when_done(f"touch {tmp_path}/ran", tell):
        pass
    assert (tmp_path / "ran").exists()


def priced(name: str, usd: float | None, gpus: int = 1, **settings: object) -> HostPlan:
    facts = Facts(gpus=tuple(GPU(index=index, name="A4000") for index in range(gpus)))
    host = Host(fleet="a4000", name=name, docker=None, usd_per_gpu_hour=usd, **settings)  # type: ignore[arg-type]
    return HostPlan(host=host, suite="s", facts=facts, problem=None, jobs=())


def plan_of(*entries: HostPlan) -> Plan:
    return Plan(run_id="r", created_at="now", seed=1, hosts=entries)


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
        return Hung(host, FakeHost()) if host.name == "hung" else Answering(host, machines[host.name])

    queue = SlurmQueue(container="none", shared_folder="/home", python="/usr/bin/python3")  # type: ignore[call-arg]
    entries = [priced("two", 0.17, gpus=2), priced("one", 0.36), priced("free", None), priced("gone", 9.0)]
    plan = plan_of(*entries, priced("slurm", 9.0, queue=queue), priced("hung", 9.0))
    assert still_costing(plan, make, seconds=1.0) == (
        "2 hosts still answer and cost 0.70 USD per hour until you return them: a4000.two 0.34, a4000.one 0.36"
    )
    assert hung.is_set()
    release.set()
    assert machines["gone"].count("close") == machines["two"].count("close") == 1
    assert machines["slurm"].calls == machines["free"].calls == []


class Answering(FakeLauncher):
    def running(self, run_id: str) -> list[str]:
        self._note("running")
        return super().running(run_id)


def test_many_hosts_are_counted_and_some_named():
    line = still_costing(
        plan_of(*(priced(f"n{index:02}", 0.1) for index in range(30))), lambda host: Answering(host, FakeHost())
    )
    assert line is not None and line.startswith("30 hosts still answer and cost 3.00 USD per hour")
    assert line.endswith("a4000.n19 0.10, 10 more")
    alone = still_costing(plan_of(priced("n", 0.1)), lambda host: Answering(host, FakeHost()))
    assert alone == "1 host still answers and costs 0.10 USD per hour until you return it: a4000.n 0.10"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Give a folder whose sockets have short names: a unix socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="tfb-after-"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_run_that_is_ended_by_ctrl_c_runs_the_command_and_keeps_its_own_exit_code(short_folder: Path):
    hosts = write_hosts(short_folder, 1, cases=1)
    hosts.write_text(hosts.read_text().replace('"suite"', '"usd_per_gpu_hour": 0.17, "suite"'))
    flags = ["--hosts", str(hosts), "--runs-dir", str(short_folder / "runs")]
    orchestrate = [sys.executable, "-m", "orchestrate"]
    cost = "1 host still answers and costs 0.17 USD per hour until you return it: fleet-00.node-0000 0.17"
    with stand_in_engines(short_folder, 1, seconds=2):
        command = [*orchestrate, "run", *flags, "--display=plain", "--no-report"]
        with subprocess.Popen(
            [*command, "--when-done=echo it is gone; exit 7"],
            cwd=PROJECT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NO_COLOR": "1"},
        ) as run:
            assert run.stderr is not None
            watchdog = threading.Timer(300, run.kill)
            watchdog.start()
            printed = []
            for line in run.stderr:
                printed.append(line)
                if line.endswith(".r1: starting\n"):
                    run.send_signal(signal.SIGINT)
            watchdog.cancel()
        assert run.returncode == 130, printed
        status = subprocess.run([*orchestrate, "status", *flags[2:]], cwd=PROJECT, capture_output=True, text=True)
    said = [line.strip() for line in printed]
    begin = said.index("--when-done: echo it is gone; exit 7")
    assert said[begin + 1] == "it is gone" and said[begin + 2].startswith("--when-done FAILED with exit code 7")
    assert said[begin + 3 :] == [cost]
    assert cost in status.stderr

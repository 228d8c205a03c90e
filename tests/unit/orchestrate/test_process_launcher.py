"""Processes that the agent guards, here on this machine: started, followed, reattached, stopped, cleaned up."""

import dataclasses
import os
import sys
import threading
from pathlib import Path

import pytest

from orchestrate import loop
from orchestrate.engines.base import Ending
from orchestrate.engines.ssh import channel
from orchestrate.engines.ssh.launcher import ProcessLauncher
from orchestrate.inventory.hosts import Host
from orchestrate.planning.plan import Job
from results.schema import Case, Data, Device
from tests.unit.orchestrate.fakes import make_job

HOST = Host(fleet="f", name="h", docker=None, cpus=1)
JOB = make_job(Case(model="resnet50"), launcher="process")


def launcher(folder: Path, program: str, host: Host = HOST) -> ProcessLauncher:
    """Make a launcher that starts `program` instead of a benchmark; `output` is its record's path."""
    prelude = "import sys, time, os, signal\noutput = sys.argv[-1].partition('=')[2]\n"
    made = ProcessLauncher(host, folder)
    made.command = [sys.executable, "-c", prelude + program]
    return made


def folder(tmp_path: Path) -> Path:
    return tmp_path / "work" / "jobs" / "r" / JOB.id


def run(it: ProcessLauncher, job: Job = JOB) -> tuple[list[str], int | None, bytes | None]:
    """Start a repeat, follow it to its end and return its output, exit code and record."""
    assert it.start(job) is False
    lines: list[str] = []
    ending = loop.wait_for(it.follow(job, lines.append))
    return lines, ending.exit_code, ending.record


@pytest.mark.slow
def test_output_beyond_what_is_kept_is_a_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(channel.LIMITS, "log_bytes", 1 << 20)
    monkeypatch.setitem(channel.LIMITS, "wait_seconds", 0.5)
    loud = launcher(tmp_path, "print('x' * 2_000_000)\nfor n in range(12): print(n, flush=True); time.sleep(0.2)")
    lines, code, _ = run(loud)
    assert code == 0 and len([line for line in lines if not line]) > 1


def test_silence_after_output_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(channel.LIMITS, "wait_seconds", 0.3)
    assert run(launcher(tmp_path, "print('once', flush=True); time.sleep(2)")) == (["once"], 0, None)


def test_output_record_and_exit_code_come_back_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # the user's run folder is relative
    program = "print(os.getsid(0), len(os.sched_getaffinity(0)))\nopen(output, 'w').write('{}')\nsys.exit(3)"
    it = launcher(Path(), program)
    (line,), code, record = run(it)
    assert (line.partition(" ")[2], code, record) == ("1", 3, b"{}")
    assert int(line.partition(" ")[0]) != os.getsid(0), "it outlives the interrupt of its controller"
    assert it.running("r") == [JOB.id]
    it.remove(JOB)
    assert it.running("r") == [] and list((tmp_path / "work").iterdir()) == []


KILLS_ITS_GUARDIAN = "kill -9 $PPID; sleep 0.5; for last; do :; done; printf {} >${last#*=}"


def test_a_guardian_killed_as_its_benchmark_starts_leaves_no_unknown_one(tmp_path: Path):
    it = launcher(tmp_path, "")
    it.command = ["sh", "-c", KILLS_ITS_GUARDIAN, "sh"]
    assert run(it) == ([], None, b"{}"), "an unknown one would run beside the next repeat"
    it.remove(JOB)


PRINTS = """\
print(*(os.environ.get(n) for n in ('CUDA_VISIBLE_DEVICES', 'NCCL_DEBUG', 'NCCL_ALGO')))
print([flag for flag in sys.argv if flag.startswith('--data_dir')])
"""


@pytest.mark.parametrize(
    ("device", "gpus", "uuids", "visible"),
    [
        (Device.CPU, (), (), "-1"),
        (Device.GPU, (0, 2), (), "0,2"),
        (Device.GPU, (0,), ("GPU-a",), "GPU-a"),
        (Device.GPU, (), (), "5"),
    ],
    ids=["a CPU case sees none", "by index", "by UUID", "not known: as the user has it"],
)
def test_a_benchmark_sees_its_gpus_its_data_and_variables(tmp_path, monkeypatch, device, gpus, uuids, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    host = HOST.model_copy(update={"environment": {"NCCL_DEBUG": "INFO"}, "data_dir": "/sets"})
    it = launcher(tmp_path, PRINTS, host)
    data = Data.TFRECORD if device is Device.CPU else Data.SYNTHETIC
    case = dataclasses.replace(JOB.case, device=device, data=data)
    job = dataclasses.replace(JOB, case=case, gpus=gpus, gpu_uuids=uuids)
    flags = ["--data_dir=/sets"] if data is Data.TFRECORD else []
    assert run(it, job) == ([f"{visible} INFO Tree", repr(flags)], 0, None)
    it.remove(job)


ASKED = "signal.signal(signal.SIGTERM, lambda *_: (open(output, 'w').write('stopped'), sys.exit(3)))\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
READY = "print('ready', flush=True)\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent wait for half a second before it kills."""
    monkeypatch.setitem(channel.LIMITS, "stop_grace_seconds", 0.5)


@pytest.mark.parametrize(
    ("program", "exit_code", "record"), [(ASKED, 3, b"stopped"), (DEAF, 128 + 9, None)], ids=["asked first", "killed"]
)
def test_stop_asks_first_and_kills_what_ignores_it(tmp_path: Path, quick: None, program, exit_code, record):
    it = launcher(tmp_path, f"{program}{READY}time.sleep(600)")
    it.start(JOB)
    ending = loop.wait_for(it.follow(JOB, lambda line: threading.Thread(target=it.stop, args=(JOB,)).start()))
    assert (ending.exit_code, ending.record) == (exit_code, record)


def test_a_record_is_cut_one_byte_above_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrate.engines.ssh.launcher.MAX_RECORD_BYTES", 1000)
    it = launcher(tmp_path, "open(output, 'w').write('x' * 5000)")
    assert run(it) == ([], 0, b"x" * 1001)
    it.remove(JOB)


@pytest.mark.parametrize("damaged", [b"", b'{"guardian": "1'])
def test_a_damaged_state_loses_no_repeat_that_has_ended(tmp_path: Path, damaged: bytes):
    it = launcher(tmp_path, "open(output, 'w').write('{}')")
    assert run(it) == ([], 0, b"{}")
    (folder(tmp_path) / "state.json").write_bytes(damaged)
    assert it.start(JOB) is True and loop.wait_for(it.follow(JOB, print)) == Ending(exit_code=0, record=b"{}")
    it.remove(JOB)
    assert not folder(tmp_path).exists()

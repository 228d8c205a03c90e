"""Subprocesses without Docker: started, followed, adopted by a later controller, stopped, cleaned up."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from orchestrate.inventory.hosts import Host
from orchestrate.launchers.process import ProcessLauncher
from orchestrate.planning.plan import Job
from results.schema import Case, Device, Origin
from results.schema.record_json import MAX_RECORD_BYTES

HOST = Host(fleet="f", name="h", docker=None, cpus=1)
JOB = Job(
    id="f.h.case.r1",
    case=Case(model="resnet50"),
    origin=Origin(run_id="r", fleet="f", host="h", launcher="process", repeat=1),
)


def launcher(folder: Path, program: str, host: Host = HOST) -> ProcessLauncher:
    """Make a launcher that starts `program` instead of a benchmark; `output` is its record's path."""
    prelude = "import sys, time, os, signal\noutput = sys.argv[-2].partition('=')[2]\n"
    return ProcessLauncher(host, folder, [sys.executable, "-c", prelude + program])


def test_output_record_and_exit_code_come_back_and_nothing_stays(tmp_path: Path):
    it = launcher(tmp_path, "print('hello', len(os.sched_getaffinity(0)))\nopen(output, 'w').write('{}')\nsys.exit(3)")
    assert it.start(JOB) is False
    lines: list[str] = []
    ending = it.follow(JOB, lines.append)
    assert (ending.exit_code, lines, it.collect(JOB)) == (3, ["hello 1"], b"{}")
    assert it.running("r") == [JOB.id]
    it.remove(JOB)
    assert it.running("r") == [] and list((tmp_path / "work").iterdir()) == []


def test_a_record_is_found_where_the_run_folder_is_relative_to_the_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    it = launcher(Path("runs"), "open(output, 'w').write('{}')")
    it.start(JOB)
    it.follow(JOB, lambda _line: None)
    assert it.collect(JOB) == b"{}"
    it.remove(JOB)


PRINT_VARIABLES = "print(*(os.environ.get(n) for n in ('CUDA_VISIBLE_DEVICES', 'NCCL_DEBUG', 'NCCL_ALGO')))"


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
def test_a_benchmark_sees_its_gpus_and_the_variables_of_the_hosts_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: Device,
    gpus: tuple[int, ...],
    uuids: tuple[str, ...],
    visible: str,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    it = launcher(tmp_path, PRINT_VARIABLES, dataclasses.replace(HOST, environment={"NCCL_DEBUG": "INFO"}))
    job = dataclasses.replace(JOB, case=dataclasses.replace(JOB.case, device=device), gpus=gpus, gpu_uuids=uuids)
    it.start(job)
    lines: list[str] = []
    it.follow(job, lines.append)
    it.remove(job)
    assert lines == [f"{visible} INFO Tree"]


def test_a_process_killed_by_a_signal_says_which(tmp_path: Path):
    it = launcher(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    it.start(JOB)
    assert it.follow(JOB, lambda line: None).exit_code == 128 + 9
    assert it.collect(JOB) is None


def test_a_later_controller_adopts_what_runs_and_collects_what_ended(tmp_path: Path):
    program = "print('begun', flush=True)\nwhile not os.path.exists(output + '.go'): time.sleep(0.05)\nopen(output, 'w').write('{}')"
    first = launcher(tmp_path, program)
    first.start(JOB)
    log = tmp_path / "work" / JOB.id / "output.log"
    while not log.exists() or not log.read_text():
        time.sleep(0.02)

    second = launcher(tmp_path, program)
    assert second.start(JOB) is True, "it runs: adopted, not started again"
    (tmp_path / "work" / JOB.id / "record.json.go").touch()
    lines: list[str] = []
    done = threading.Thread(target=first.follow, args=(JOB, lambda line: None))  # reaps the child
    done.start()
    assert second.follow(JOB, lines.append).exit_code is None, "only its own controller knows the exit code"
    done.join()
    assert lines == ["begun"] and second.collect(JOB) == b"{}"

    third = launcher(tmp_path, program)
    assert third.start(JOB) is True, "it has ended and left a record: collected, not started again"


def test_what_was_never_started_is_started_even_if_its_folder_is_there(tmp_path: Path):
    folder = tmp_path / "work" / JOB.id
    folder.mkdir(parents=True)
    (folder / "output.log").touch()
    it = launcher(tmp_path, "open(output, 'w').write('{}')")
    assert it.start(JOB) is False
    it.follow(JOB, lambda line: None)
    it.remove(JOB)


def test_stop_asks_first_so_that_a_record_can_be_written(tmp_path: Path):
    program = (
        "signal.signal(signal.SIGTERM, lambda *_: (open(output, 'w').write('stopped'), sys.exit(3)))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    it = launcher(tmp_path, program)
    it.start(JOB)

    def stop_when_ready(line: str) -> None:
        threading.Thread(target=it.stop, args=(JOB,)).start()

    assert it.follow(JOB, stop_when_ready).exit_code == 3
    assert it.collect(JOB) == b"stopped"


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orchestrate.launchers.process.STOP_GRACE_SECONDS", 0.5)
    it = launcher(
        tmp_path, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
    )
    it.start(JOB)
    ending = it.follow(JOB, lambda line: threading.Thread(target=it.stop, args=(JOB,)).start())
    assert ending.exit_code == 128 + 9


def test_a_line_without_end_and_control_characters_do_no_harm(tmp_path: Path):
    it = launcher(tmp_path, "sys.stdout.write('x' * 5_000_000 + '\\n\\x1b[31mred\\x1b[0m\\rgone\\n')")
    it.start(JOB)
    lines: list[str] = []
    it.follow(JOB, lines.append)
    assert len(lines) == 2 and len(lines[0]) <= 2000 and lines[1] == "red gone"


def test_a_huge_record_is_read_no_further_than_its_limit(tmp_path: Path):
    it = launcher(tmp_path, "open(output, 'wb').truncate(1 << 30)")
    it.start(JOB)
    it.follow(JOB, lambda line: None)
    payload = it.collect(JOB)
    assert payload is not None and len(payload) == MAX_RECORD_BYTES + 1


def test_a_benchmark_outlives_the_interrupt_of_its_controller(tmp_path: Path):
    it = launcher(tmp_path, "open(output, 'w').write(str(os.getsid(0)))")
    it.start(JOB)
    it.follow(JOB, lambda line: None)
    assert int(it.collect(JOB) or b"0") != os.getsid(0)

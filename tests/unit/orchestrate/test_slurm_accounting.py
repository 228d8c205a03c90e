"""What becomes of a repeat that Slurm's queue has forgotten: accounting is asked once, where there is some."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from orchestrate.inventory.hosts import Host
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.launchers.slurm import commands, launcher
from orchestrate.launchers.slurm.answers import SlurmState, read_answer
from orchestrate.launchers.slurm.launcher import SlurmLauncher
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, make_plan
from orchestrate.suites import CaseBlock, Suite
from results.schema import Device, Status

pytestmark = pytest.mark.slow  # starts programs and waits for them

SUITE = Suite("tiny", "", 1, (CaseBlock(model="resnet50", batch_per_gpu=2, device=Device.CPU),))


def in_bash(script: str, path: Path) -> list[str]:
    """Run a script of ours as the launcher's shell does, in a function, with `path` as all programs of its own."""
    whole = f"ask() {{\n{script}\n}}\nask"
    environment = {"PATH": f"{path}:/usr/bin:/bin"}
    return subprocess.run(
        ["bash", "-c", whole], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def write_sacct(folder: Path, text: str) -> None:
    """Put a stand-in for `sacct` into a folder, that answers only to the flags that the real one knows."""
    program = folder / "sacct"
    program.write_text(f'#!/bin/sh\n[ "$4" = "--jobs=12_3,12_5" ] || exit 1\ncat <<END\n{text}\nEND\n')
    program.chmod(0o755)


def test_accounting_is_read_and_what_it_adds_is_left_out(tmp_path: Path):
    write_sacct(tmp_path, "12_3|NODE_FAIL|n1\n12_5|CANCELLED by 0|n[1-2]\n12_9.batch|FAILED|n1\nmalformed")
    answer = read_answer(in_bash(commands.accounting([(12, 5), (12, 3)]), tmp_path))
    assert answer.state((12, 3)) == SlurmState("NODE_FAIL", "n1", "reported by accounting")
    cancelled = answer.state((12, 5))
    assert cancelled is not None and cancelled.name == "CANCELLED"
    assert len(answer.states) == 2


def test_a_cluster_without_accounting_tells_nothing(tmp_path: Path):
    assert in_bash(commands.accounting([(12, 3)]), tmp_path) == []


class Shell:
    """A cluster whose queue forgets a running task; counts how often accounting is asked."""

    def __init__(self, accounted: str) -> None:
        self.looks = 0
        self.asked = 0
        self.accounted = accounted

    def run(self, script: str) -> list[str]:
        if "sacct" in script:
            self.asked += 1
            return [self.accounted] if self.accounted else []
        if "sbatch" in script:
            return ["submitted|12"]
        if "tell()" not in script:
            return []
        self.looks += 1
        return ["state|12_0|RUNNING|n1|tfbench:1|None"] if self.looks == 1 else []


def one_job() -> tuple[Host, Job]:
    queue = SlurmQueue(container="none", shared_folder="/shared", poll_seconds=0.5, max_jobs=1)
    host = Host(fleet="lab", name="slurm", docker=None, queue=queue)
    plan = make_plan([host], {host.place: Facts()}, lambda name: SUITE, run_id="run1", seed=1)
    return host, plan.jobs[0]


@pytest.mark.parametrize(
    ("accounted", "status", "words"),
    [
        ("state|12_0|OUT_OF_MEMORY|n1|tfbench:0|reported by accounting", Status.OOM, "OUT_OF_MEMORY"),
        ("state|12_0|NODE_FAIL|n1|tfbench:0|reported by accounting", Status.LOST, "node n1 failed"),
        ("", Status.LOST, "Slurm no longer lists it"),
    ],
)
def test_a_forgotten_repeat_gets_the_status_that_accounting_knows(monkeypatch, accounted, status, words):
    monkeypatch.setattr(launcher, "SETTLE_SECONDS", 2.0)
    host, job = one_job()
    shell = Shell(accounted)
    slurm = SlurmLauncher(host, host.queue)
    monkeypatch.setattr(slurm, "_shell", shell)
    try:
        slurm.submit([job])
        ended = slurm.follow(dataclasses.replace(job), lambda line: None)
    finally:
        slurm.close()
    assert ended.failure is not None and ended.failure[0] is status
    assert words in ended.failure[1]
    assert shell.asked == 1

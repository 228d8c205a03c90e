from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import pytest

from results.runs.reading import from_json
from results.schema import Case, Status
from results.schema.record_json import to_json
from tests.real.training.memory_errors import MEMORY, PERHAPS_MEMORY
from tests.unit.results.factory import make_failure, make_record
from tfbench.max_batch import find_max_batch, largest_batch
from tfbench.outcomes import outcome
from tfbench.outcomes.outcome import CaseFailedError, outcome_of

CASE = Case(model="resnet50", batch_per_gpu=32)


@pytest.mark.parametrize(("limit", "start"), [(1, 1), (7, 1), (100, 1), (100, 64), (100, 512), (128, 128), (5, 256)])
def test_the_largest_batch_that_fits_is_found(limit, start):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= limit

    found = largest_batch(fits, start)
    assert found <= limit
    assert limit - found < 8 if limit > 8 else found == limit
    assert len(tried) == len(set(tried)) <= 12


def test_nothing_fits_is_zero():
    assert largest_batch(lambda _: False, 16) == 0


@pytest.fixture
def trials(monkeypatch):
    """Let trials end with an error above a batch, without training; give the batches that were tried."""

    def plant(error, limit):
        tried = []

        def run(command, **_):
            case = dataclasses.replace(CASE, batch_per_gpu=batch_of(command), warmup_steps=0, num_steps=2)
            tried.append(case.batch_per_gpu)
            record = make_record(case=case)
            if case.batch_per_gpu > limit:
                found = outcome_of(error)
                record = make_failure(found.status, found.cause, case=case)
            Path(command[-1].partition("=")[2]).write_text(to_json(record))
            return subprocess.CompletedProcess(command, 0)

        monkeypatch.setattr(subprocess, "run", run)
        return tried

    return plant


def batch_of(command):
    return int(next(flag.partition("=")[2] for flag in command if flag.startswith("--batch_size=")))


@pytest.mark.parametrize("error", [*MEMORY, *PERHAPS_MEMORY], ids=lambda error: str(error)[-40:])
def test_the_search_shrinks_on_every_way_in_which_memory_ends(error, trials, monkeypatch):
    monkeypatch.setattr(outcome, "free_gpu_memory_bytes", lambda: 200 * 2**20)
    tried = trials(error, 40)
    assert find_max_batch(CASE) == 40
    assert max(tried) > 40


def test_the_search_does_not_shrink_for_a_broken_library(trials, monkeypatch):
    monkeypatch.setattr(outcome, "free_gpu_memory_bytes", lambda: 20 * 2**30)
    tried = trials(PERHAPS_MEMORY[0], 40)
    with pytest.raises(CaseFailedError, match=r"trial of batch 64: .*CUBLAS_STATUS_NOT_INITIALIZED.*tfbench\.doctor"):
        find_max_batch(CASE)
    assert tried == [32, 64]


def test_where_nothing_fits_the_last_reason_is_given(trials):
    trials(MEMORY[0], 0)
    with pytest.raises(CaseFailedError, match=r"not even a batch of 1 fits: InternalError: .*Dst tensor"):
        find_max_batch(CASE)


HANGING_TRIALS = """
import sys
from tfbench.__main__ import main
sys.executable = sys.argv[1]
sys.exit(main(["--model=resnet50", "--device=cpu", "--find_max_batch", "--max_seconds=1", "--output=" + sys.argv[2]]))
"""


def test_a_search_whose_trial_hangs_ends_in_time_and_leaves_no_process(tmp_path):
    trial, started, output = tmp_path / "trial", tmp_path / "started", tmp_path / "record.json"
    trial.write_text(f'#!/bin/sh\necho $$ > {started}\necho "$@" >> {started}\nexec sleep 60\n')
    trial.chmod(0o755)
    command = [sys.executable, "-c", HANGING_TRIALS, str(trial), str(output)]
    subprocess.run(command, cwd=Path(__file__).parents[3], check=False, timeout=30)
    record = from_json(output.read_bytes())
    assert (record.status, record.cause) == (Status.TIMEOUT, "not finished after --max_seconds=1")
    process, flags = started.read_text().splitlines()
    assert "--max_seconds=300" in flags, "each trial has a limit of its own"
    for _ in range(100):
        if not Path(f"/proc/{process}").exists():
            return
        time.sleep(0.05)
    pytest.fail("the trial goes on")

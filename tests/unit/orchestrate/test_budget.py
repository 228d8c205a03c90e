"""What a run takes and costs, from what earlier runs took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.planning.budget import GUESSED_REPEAT_SECONDS, earlier_durations, estimate
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import make_plan
from orchestrate.suites import CaseBlock, Suite
from results.schema import GPU

SUITE = Suite("s", "", 2, (CaseBlock(model=["resnet50_v1.5", "googlenet"], batch_per_gpu=8),))
GPUS = tuple(GPU(index=i, name="A4000", uuid=f"GPU-{i}") for i in range(4))


def plan_of(price: float | None):
    host = Host(fleet="f", name="h", docker=DockerAddress(scheme="ssh", target="h"), usd_per_gpu_hour=price)
    return make_plan([host], {("f", "h"): Facts(gpus=GPUS)}, lambda name: SUITE, run_id="r", seed=1)


def events(folder: Path, *rows: tuple[str, float, str]) -> None:
    run = folder / "earlier"
    run.mkdir()
    lines = [
        json.dumps({"event": "job_result", "host": "f.h", "case": case, "status": status, "seconds": seconds})
        for case, seconds, status in rows
    ]
    (run / "events.jsonl").write_text("\n".join([*lines, '{"event": "job_result", "ho']))


def test_without_earlier_runs_everything_is_a_guess():
    estimated = estimate(plan_of(0.5), {})
    assert (estimated.seconds, estimated.seen) == (4 * GUESSED_REPEAT_SECONDS, 0)
    assert estimated.usd == pytest.approx(4 * 0.5 * 4 * GUESSED_REPEAT_SECONDS / 3600), "all four GPUs are rented"


def test_earlier_runs_tell_how_long_a_case_takes(tmp_path: Path):
    plan = plan_of(None)
    names = sorted({job.case.name for job in plan.jobs})
    events(tmp_path, (names[0], 10, "ok"), (names[0], 30, "ok"), (names[0], 9999, "timeout"), (names[1], 40, "ok"))
    durations = earlier_durations(tmp_path)
    assert durations == {("f", names[0]): 20, ("f", names[1]): 40}
    estimated = estimate(plan, durations)
    assert (estimated.seconds, estimated.usd, estimated.seen) == (120, None, 1)

"""How long a run takes before anything like it ran, and while it goes on."""

import json
import statistics
from pathlib import Path

import pytest

from orchestrate.display.tables import estimate_text
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host
from orchestrate.planning import durations as durations_module
from orchestrate.planning.durations import (
    GUESSED_REPEAT_SECONDS,
    computed_durations,
    earlier_durations,
    estimate,
    host_seconds,
    step_seconds,
)
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.plan import make_plan
from orchestrate.suites import CaseBlock, Suite, read_suite
from results.reference import all_published
from results.reference.networks import networks
from results.schema import GPU, Case, Precision

HERE = Host(fleet="here", name="this-machine", docker=None)
CPU = Facts(cpu_limit=2.0, cpu_flops_per_second=1.08e11, cpu_loop_seconds=0.068)
"""The machine whose runs are known: NumPy's products reach 108 GFLOP/s on it, with nothing else to do (docs/method.md)."""

AVX2 = Facts(cpu_limit=2.0, cpu_flops_per_second=1.63e11, cpu_loop_seconds=0.0373, cpu_vector_bits=256)
"""A machine whose CPU has no AVX-512: the suite took 450 s and 460 s, where the rate of the other CPU promised 330."""


def quick_plan(facts=CPU):
    host = HERE.model_copy(update={"suite": "quick"})
    return make_plan([host], {host.place: facts}, read_suite, run_id="r", seed=1)


def test_the_quick_suite_is_estimated_before_its_first_run():
    plan = quick_plan()
    computed = computed_durations(plan)
    estimated = estimate(plan, computed)
    assert estimated.seconds == pytest.approx(
        3 * sum(seconds for seconds, _ in computed.values()) + host_seconds(plan.hosts[0])
    )
    assert {basis.partition(" ")[0] for basis in estimated.basis} == {"computed"}
    assert 12 * 15 + 100 < estimated.seconds < 8 * 60, "fifteen seconds of steps a repeat, and ended in eight minutes"
    narrow = quick_plan(AVX2)
    assert estimate(narrow, computed_durations(narrow)).seconds == pytest.approx(455, rel=0.1)


def test_gpus_are_near_their_published_figures():
    """Single GPUs, except figures that their own source contradicts: half of the rows within 1.25, nine in ten within 1.65."""
    errors = []
    for row in all_published():
        if row["model"] in networks() and row["num_gpus"] == "1" and not row["suspect"] and row["unit"] == "images":
            batch = int(row["batch_per_gpu"] or 64)
            case = Case(model=row["model"], precision=Precision(row["precision"]), batch_per_gpu=batch)
            facts = Facts(gpus=(GPU(index=0, name=row["gpu"]),))
            if (step := step_seconds(case, HERE, facts)) is not None:
                ratio = case.batch_per_gpu / step / float(row["samples_per_second"])
                errors.append(max(ratio, 1 / ratio))
    errors.sort()
    assert len(errors) > 20 and statistics.median(errors) < 1.25 and errors[int(0.9 * len(errors))] < 1.65


def test_an_estimate_shows_time_cost_and_what_it_rests_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durations_module, "host_seconds", lambda entry: 80.0 if entry.host.fleet == "x" else 0.0)
    facts = Facts(gpus=(GPU(index=0, name="RTX A4000"),), images=(Image(variant="cpu", reference="r:cpu", reason=""),))
    common = {"docker": None, "suite": "quick"}
    hosts = [Host(fleet=name, name="a", usd_per_gpu_hour=usd, **common) for name, usd in (("x", 1.0), ("y", 3.0))]
    plan = make_plan(hosts, {host.place: facts for host in hosts}, read_suite, run_id="r", seed=1)
    seen = {("x", name): (30.0, "from earlier runs") for name in {job.case.name for job in plan.jobs}}
    estimated = estimate(plan, seen | {("y", name): (60.0, "computed") for _, name in seen})
    assert estimate_text(estimated) == "estimate: 12 min, about 0.72 USD (50% from earlier runs, 50% computed)"


TWO_CASES = Suite(repeats=2, cases=[CaseBlock(model=["resnet50_v1.5", "googlenet"], batch_per_gpu=8)])
GPUS = tuple(GPU(index=i, name="A future GPU", uuid=f"GPU-{i}") for i in range(4))


def test_a_duration_is_the_median_of_earlier_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durations_module, "host_seconds", lambda entry: 0.0)
    host = Host(fleet="f", name="h", docker=DockerAddress(scheme="ssh", target="h"), usd_per_gpu_hour=0.5)
    plan = make_plan([host], {("f", "h"): Facts(gpus=GPUS)}, lambda name: TWO_CASES, run_id="r", seed=1)
    assert computed_durations(plan) == {}, "this GPU is unknown"
    guessed = estimate(plan, {})
    assert (guessed.seconds, guessed.basis) == (4 * GUESSED_REPEAT_SECONDS, {"guessed": 4})
    assert guessed.usd == pytest.approx(4 * 0.5 * 4 * GUESSED_REPEAT_SECONDS / 3600), "all four GPUs are rented"
    one, two = sorted({job.case.name for job in plan.jobs})
    rows = [(one, 10, "ok"), (one, 30, "ok"), (one, 9999, "timeout"), (two, 40, "ok")]
    common = {"event": "job_result", "fleet": "f", "host": "f.h"}
    lines = [json.dumps(common | {"case": case, "status": status, "seconds": s}) for case, s, status in rows]
    (tmp_path / "earlier").mkdir()
    (tmp_path / "earlier" / "events.jsonl").write_text("\n".join([*lines, '{"event": "job_result", "ho']))
    assert earlier_durations(tmp_path) == {
        ("f", name): (seconds, "from earlier runs") for name, seconds in ((one, 20), (two, 40))
    }
    estimated = estimate(plan, earlier_durations(tmp_path))
    assert (estimated.seconds, estimated.basis) == (120, {"from earlier runs": 4})

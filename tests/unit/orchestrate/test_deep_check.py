"""A deep check from its plan to its verdicts: fakes for what hosts measured, records as they are stored."""

from __future__ import annotations

import dataclasses
import io
import json

import pytest
from rich.console import Console

from orchestrate.accepting.deep import (
    FOLDER,
    judge_records,
    plan_deep_check,
    verdict_grid,
    verdicts_json,
)
from orchestrate.accepting.judging import Acceptance
from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Facts
from results.grid import print_grid
from results.runs.store import RunFolder
from results.schema import GPU, Check, Device, DeviceResult, Record, Status, Validity
from results.schema.health import GPUFacts
from tests.unit.results.factory import make_environment

NAME = "NVIDIA A100-SXM4-80GB"
GPUS = tuple(GPU(index=index, name=NAME, uuid=f"GPU-{index}") for index in range(4))
HOSTS = [Host(fleet="a100", name=name, docker=None) for name in ("one", "two", "away")]
PROBED = {HOSTS[0].place: Facts(gpus=GPUS), HOSTS[1].place: Facts(gpus=GPUS), HOSTS[2].place: "no route to host"}


def result(metric, value, place=None, kind=None):
    unit = "FLOP/s" if kind else "B/s"
    return DeviceResult(metric=metric, unit=unit, arithmetic=kind, amount=value, seconds=1.0, value=value, gpu=place)


def record_of(job, *, slow=None, wrong=None, status=Status.OK, **seen):
    """Return what a healthy host with four GPUs leaves; one of them slower, or wrong."""
    results, observed, checks = [], [], []
    for place in range(4):
        share = 0.6 if place == slow else 1.0
        products = {"fp32": 18e12, "tf32": 120e12, "fp16": 240e12}
        results += [result("sustained_product", 1.1 * rate, place, kind) for kind, rate in products.items()]
        results += [result("memory_add", 1.75e12, place), result("host_to_device", 12e9, place)]
        results += [result("sustained_product", share * rate, place, kind) for kind, rate in products.items()]
        heat = {"throttle_thermal_share": 0.7, "sm_clock_mhz": 800.0} if place == slow else {}
        observed.append(GPUFacts(place=place, index=place + 1, name=NAME, **{**heat, **seen}))
        checks.append(Check(name=f"product_of_device_{place}", passed=place != wrong, detail="", value=0.0, limit=1e-5))
    results += [result("all_reduce", 1.9e11), result("python_loop", 1e7)]
    return Record(
        status=status,
        cause=None if status is Status.OK else "product_of_device_1 (0.5, limit 1e-05)",
        case=job.case,
        started_at="2026-11-01T10:00:00+00:00",
        finished_at="2026-11-01T10:01:30+00:00",
        origin=job.origin,
        environment=make_environment(4, NAME),
        validity=Validity(valid=wrong is None, checks=checks),
        device_results=results,
        device_observations=observed,
    )


def checked(tmp_path, run_id="now", **changes):
    """Store what hosts `one` and `two` left; `one` with changes."""
    plan = plan_deep_check(HOSTS, PROBED, run_id)
    folder = RunFolder.create(tmp_path / FOLDER, run_id)
    for entry, own in zip(plan.hosts, (changes, {}), strict=False):
        folder.write_record(entry.jobs[0].id, record_of(entry.jobs[0], **own))
    return judge_records(plan, folder, tmp_path)


def test_each_host_has_one_case_over_all_its_gpus_or_its_processor():
    plan = plan_deep_check(HOSTS, PROBED | {HOSTS[1].place: Facts()}, "r")
    first, second, _ = plan.hosts
    assert [(job.case.num_gpus, job.gpus, job.case.deep_check) for job in first.jobs] == [(4, (0, 1, 2, 3), True)]
    assert [(job.case.device, job.case.num_gpus) for job in second.jobs] == [(Device.CPU, 1)]
    assert "--deep_check" in first.jobs[0].case.flags()


def test_a_throttled_gpu_of_one_host_is_rejected_and_the_others_accepted(tmp_path):
    found = checked(tmp_path, slow=2)
    one, two, away = found
    assert (one.verdict, two.verdict, away.verdict) == (Acceptance.REJECT, Acceptance.ACCEPT, Acceptance.WARNING)
    assert one.gpus == {1: "accept", 2: "accept", 3: "reject", 4: "accept"}, "by the driver's own indices"
    assert away.findings[0].text == "no route to host"
    console = Console(file=io.StringIO(), width=300)
    print_grid(verdict_grid(found), console)
    text = console.file.getvalue()
    assert "a100/one, GPU 3: reject: throttled_thermal: held back by heat in 70% of the readings, 800 MHz. " in text
    assert "a100/one, GPU 3: reject: fp16 products: 144 TFLOP/s, 40% below the fleet's median (240 TFLOP/s)" in text
    documents = json.loads(verdicts_json(found))["hosts"]
    assert [document["verdict"] for document in documents] == ["reject", "accept", "warning"]
    assert documents[0]["gpus"][2] == {"index": 3, "verdict": "reject"}
    assert documents[1]["figures"]["gpus"][0]["rates"]["fp16 products"] == 240e12


@pytest.mark.parametrize(("status", "verdict"), [(Status.LOST, "reject"), (Status.PULL_FAILED, "warning")])
def test_a_check_that_failed_rejects_only_where_that_is_the_hosts_fault(tmp_path, status, verdict):
    plan = plan_deep_check(HOSTS[:1], PROBED, "r")
    folder = RunFolder.create(tmp_path / FOLDER, "r")
    job = plan.hosts[0].jobs[0]
    failed = dataclasses.replace(record_of(job), status=status, cause="why", device_results=[], validity=None)
    folder.write_record(job.id, failed)
    (found,) = judge_records(plan, folder, tmp_path)
    assert (found.verdict, found.findings[0].text) == (verdict, f"{status}: why")

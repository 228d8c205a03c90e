"""The deep check of hosts: one case per host, run by the usual launchers, then a verdict on each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from orchestrate.checks.judging import (
    OF_GPU,
    OF_HOST,
    Acceptance,
    GPUFigures,
    HostFigures,
    HostFinding,
    HostVerdict,
    Rate,
    judge,
)
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, Plan, make_plan
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import Device, DeviceResult, Record, Status
from results.schema.health import GPUFacts
from results.text_table import Grid

FOLDER = "checks"
"""Folder of the deep checks, within the folder of the runs."""

MOST_GPUS = 16
"""Maximum number of GPUs of a host that are checked together."""

CHECK_SECONDS = 600.0
"""Time limit of a check, five times its usual duration; detects GPUs that hang."""

MAX_EARLIER = 10
"""Number of latest checks with which a host is compared."""

FAULTS_OF_THE_HOST = frozenset({Status.INVALID, Status.NO_GPU, Status.LOST, Status.TIMEOUT})
"""Statuses of a check that reject a host: wrong numbers, a lost GPU, or a hang. Other failures are warnings."""

PRODUCT_CHECK = "product_of_device_"
"""Prefix of the names of checks of a device's products, followed by its index."""

SUITE = Suite(
    "deep-check",
    "each device alone, then all under load",
    1,
    (CaseBlock.model_validate({"model": "device", "num_gpus": list(range(1, MOST_GPUS + 1)), "deep_check": True}),),
)


def plan_deep_check(hosts: Sequence[Host], probed: Mapping[HostPlace, Facts | str], run_id: str) -> Plan:
    """Plan one case per host: over all of its GPUs, or its CPU."""
    plan = make_plan(hosts, probed, lambda _: SUITE, run_id=run_id, seed=1, repeats=1)
    entries = []
    for entry in plan.hosts:
        ordered = sorted(entry.jobs, key=lambda job: job.case.num_gpus)
        on_gpus = [job for job in ordered if job.case.device is Device.GPU]
        chosen = on_gpus[-1:] or ordered[:1]  # logical devices of a CPU share it
        jobs = tuple(dataclasses.replace(job, max_seconds=CHECK_SECONDS) for job in chosen)
        entries.append(dataclasses.replace(entry, jobs=jobs, excluded=()))
    return dataclasses.replace(plan, hosts=tuple(entries))


def judge_records(plan: Plan, folder: RunFolder, runs_dir: Path) -> list[HostVerdict]:
    """Judge the hosts of a plan by their records, in the order of `hosts.yml`.

    A host whose check failed is rejected if it is at fault, and gets a warning otherwise.
    """
    figures, failures = [], {}
    for entry in plan.hosts:
        record = folder.read_record(entry.jobs[0].id) if entry.jobs else None
        if record is not None and record.device_results:
            figures.append(figures_of(record, entry.jobs[0]))
        if record is None:
            failures[entry.host.place] = Acceptance.WARNING, entry.problem or "not checked"
        elif record.status is not Status.OK:
            worst = Acceptance.REJECT if record.status in FAULTS_OF_THE_HOST else Acceptance.WARNING
            failures[entry.host.place] = worst, f"{record.status}: {record.cause}"
    judged = {(found.fleet, found.host): found for found in judge(figures, earlier_figures(runs_dir, folder.run_id))}
    verdicts = []
    for place in (entry.host.place for entry in plan.hosts):
        verdict = judged.get(place) or HostVerdict(*place)
        if place in failures:
            worst, text = failures[place]
            failure = HostFinding(worst, None, "check", text)
            verdict = dataclasses.replace(verdict, findings=(failure, *verdict.findings))
        verdicts.append(verdict)
    return verdicts


def earlier_figures(runs_dir: Path, without: str) -> dict[tuple[str, str], list[HostFigures]]:
    """Return the figures of the latest earlier checks, by fleet and host.

    Args:
        runs_dir: Folder of the runs.
        without: Id of the current check.
    """
    found: dict[tuple[str, str], list[HostFigures]] = {}
    for path in sorted((runs_dir / FOLDER).glob("*/records")):
        for stored in RunFolder(path.parent).records() if path.parent.name != without else ():
            record = stored.record
            if record is not None and record.status is Status.OK and record.case.deep_check:
                figures = figures_of(record)
                found.setdefault((figures.fleet, figures.host), []).append(figures)
    return {key: values[-MAX_EARLIER:] for key, values in found.items()}


def figures_of(record: Record, job: Job | None = None) -> HostFigures:
    """Return a host's figures from the record of its deep check.

    Products are those under load on all devices, or if there are none, those of the device alone.

    Args:
        record: With indices as in its container, which may have only some of the host's GPUs.
        job: What was started: its GPUs have the host's indices, by UUID; None: keep those of the record.
    """
    origin, on_gpus = record.origin, record.case.device is Device.GPU
    results = [result for result in record.device_results if result.value is not None]
    gpus = record.device_observations
    if not gpus and record.environment:
        gpus = [
            GPUFacts(place=place, index=gpu.index, name=gpu.name, uuid=gpu.uuid)
            for place, gpu in enumerate(record.environment.gpus)
        ]
    if job and {gpu.uuid for gpu in gpus} <= set(job.gpu_uuids) and len(job.gpu_uuids) == len(job.gpus):
        of_host: dict[str | None, int] = dict(zip(job.gpu_uuids, job.gpus, strict=True))
        gpus = [dataclasses.replace(gpu, index=of_host[gpu.uuid]) for gpu in gpus]
    return HostFigures(
        fleet=origin.fleet if origin else "-",
        host=origin.host if origin else "-",
        gpus=tuple(_gpu(gpu, record, results) for gpu in gpus) if on_gpus else (),
        rates=_rates(OF_HOST, [result for result in results if result.gpu is None or not on_gpus]),
    )


def _gpu(gpu: GPUFacts, record: Record, results: Iterable[DeviceResult]) -> GPUFigures:
    checks = record.validity.checks if record.validity else []
    return GPUFigures(
        **vars(gpu),
        rates=_rates(OF_GPU, [result for result in results if result.gpu == gpu.place]),
        products_right=next((check.passed for check in checks if check.name == f"{PRODUCT_CHECK}{gpu.place}"), None),
    )


def _rates(rates: Sequence[Rate], results: Sequence[DeviceResult]) -> dict[str, float]:
    """Return every rate that was measured.

    The last result counts, because load follows measurements of single devices; of all-reduces, which are measured at
    several sizes, the best.
    """
    found = {}
    for rate in rates:
        for metric in rate.metrics:
            values = [r.value for r in results if (r.metric, r.arithmetic) == (metric, rate.arithmetic) and r.value]
            if values and rate.name not in found:
                found[rate.name] = max(values) if metric == "all_reduce" else values[-1]
    return found


def verdict_grid(verdicts: Sequence[HostVerdict]) -> Grid:
    """Return a grid with a row per host and GPU, and a line below for each finding."""
    rows: list[list[str]] = []
    notes: list[str] = []
    for verdict in verdicts:
        name, figures = f"{verdict.fleet}/{verdict.host}", verdict.figures
        of_host = _cells(OF_HOST, figures.rates if figures else {})
        rows.append([name, "", str(verdict.verdict), *([""] * (len(OF_GPU) + 4)), *of_host])
        labels = {gpu.index: gpu.label for gpu in figures.gpus} if figures else {}
        for gpu in figures.gpus if figures else ():
            link = "" if gpu.pcie_width is None else f"{gpu.pcie_generation or '?'} x{gpu.pcie_width}"
            readings = (gpu.sm_clock_mhz, gpu.power_watts, gpu.temperature_celsius)
            shown = ["" if reading is None else f"{reading:.0f}" for reading in readings]
            label, found = f"GPU {gpu.index} {gpu.name or ''}", str(verdict.gpus[gpu.index])
            rows.append(["", label, found, *_cells(OF_GPU, gpu.rates), link, *shown, *([""] * len(OF_HOST))])
        for finding in verdict.findings:
            where = f", {labels[finding.gpu]}" if finding.gpu in labels else ""
            notes.append(f"{name}{where}: {finding.verdict}: {finding.figure}: {finding.text}")
    of_gpu, of_host = ([f"{rate.name} {rate.unit}>" for rate in rates] for rates in (OF_GPU, OF_HOST))
    columns = ["host", "device", "verdict", *of_gpu, "link", "clock MHz>", "power W>", "°C>", *of_host]
    return Grid("Deep check", columns, rows, notes).without_empty_columns()


def _cells(rates: Sequence[Rate], figures: Mapping[str, float]) -> list[str]:
    values = [rate.shown(figures[rate.name]) if rate.name in figures else None for rate in rates]
    return ["" if value is None else f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values]


def verdicts_json(verdicts: Sequence[HostVerdict]) -> str:
    """Return the verdicts and the figures as JSON."""
    documents = [
        {
            "verdict": verdict.verdict,
            "gpus": [{"index": index, "verdict": found} for index, found in verdict.gpus.items()],
            **dataclasses.asdict(verdict),
        }
        for verdict in verdicts
    ]
    return json.dumps({"version": 2, "hosts": documents}, indent=2) + "\n"

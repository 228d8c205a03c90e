"""The deep check of hosts: one case for each, through the launchers that runs use, then the judgement of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrate.accepting.figures import HostFigures
from orchestrate.accepting.judging import Finding, HostVerdict, Verdict, judge, worse
from orchestrate.accepting.reading import figures_of
from orchestrate.inventory.hosts import Host, Place
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, Plan, make_plan
from orchestrate.suites import CaseBlock, Suite
from results.runs.store import RunFolder
from results.schema import Record, Status

FOLDER = "checks"
"""Of the deep checks, within the folder of the runs."""

MOST_GPUS = 16
"""GPUs of a host that are checked together."""

CHECK_SECONDS = 600.0
"""Longest check: five times what it takes; a GPU that hangs is found by it."""

MAX_EARLIER = 10
"""Earlier checks that a host is compared with: the latest ones."""

FAULTS_OF_THE_HOST = frozenset({Status.INVALID, Status.NO_GPU, Status.LOST, Status.TIMEOUT})
"""Ends of a check that reject a host: it computes wrong numbers, lost its GPU, or hangs. Others say nothing of it."""

SUITE = Suite(
    "deep-check",
    "each device alone, then all under load",
    1,
    (CaseBlock.model_validate({"model": "device", "num_gpus": list(range(1, MOST_GPUS + 1)), "deep_check": True}),),
)


@dataclass(frozen=True)
class Checked:
    """A deep check.

    Attributes:
        verdicts: Of the hosts in the order of `hosts.yml`.
        figures: What was measured, by fleet and host.
    """

    verdicts: list[HostVerdict]
    figures: Mapping[tuple[str, str], HostFigures]


def plan_deep_check(hosts: Sequence[Host], probed: Mapping[Place, Facts | str], run_id: str) -> Plan:
    """Plan one case for each host: over all of its GPUs, or its processor."""
    plan = make_plan(hosts, probed, lambda _: SUITE, run_id=run_id, seed=1, repeats=1)
    entries = [dataclasses.replace(entry, jobs=_largest(entry.jobs), left_out=()) for entry in plan.hosts]
    return dataclasses.replace(plan, hosts=tuple(entries))


def _largest(jobs: Sequence[Job]) -> tuple[Job, ...]:
    """Keep the case of the most GPUs; of a processor, whose logical devices are one, that of a single device."""
    ordered = sorted(jobs, key=lambda job: job.case.num_gpus)
    on_gpus = [job for job in ordered if job.case.device == "gpu"]
    chosen = on_gpus[-1:] or ordered[:1]
    return tuple(dataclasses.replace(job, max_seconds=CHECK_SECONDS) for job in chosen)


def judge_records(plan: Plan, folder: RunFolder, runs_dir: Path) -> Checked:
    """Judge what the hosts of a plan measured.

    One whose check failed is rejected where that is the host's fault, and doubtful where nobody can know.
    """
    records = {entry.host.place: _record(entry.jobs, folder.read_record) for entry in plan.hosts}
    figures = [figures_of(record) for record in records.values() if record and record.device_results]
    judged = {(found.fleet, found.host): found for found in judge(figures, earlier_figures(runs_dir, folder.run_id))}
    verdicts = []
    for entry in plan.hosts:
        record, place = records[entry.host.place], (entry.host.fleet, entry.host.name)
        known = judged.get(place)
        if known is None or record is None or record.status is not Status.OK:
            known = _with_failure(known or HostVerdict(*place, Verdict.ACCEPT, {}, ()), record, entry.problem)
        verdicts.append(known)
    return Checked(verdicts, {(item.fleet, item.host): item for item in figures})


def _record(jobs: Sequence[Job], read: Callable[[str], Record | None]) -> Record | None:
    return read(jobs[0].id) if jobs else None


def _with_failure(verdict: HostVerdict, record: Record | None, problem: str | None) -> HostVerdict:
    """Return a verdict that is no better than how the check ended."""
    if record is None:
        text, worst = problem or "not checked", Verdict.DOUBTFUL
    else:
        text = f"{record.status}: {record.cause}"
        worst = Verdict.REJECT if record.status in FAULTS_OF_THE_HOST else Verdict.DOUBTFUL
    findings = (Finding(worst, None, "check", text), *verdict.findings)
    return dataclasses.replace(verdict, verdict=worse(worst, verdict.verdict), findings=findings)


def earlier_figures(runs_dir: Path, without: str) -> dict[tuple[str, str], list[HostFigures]]:
    """Return what hosts measured in the latest earlier checks, by fleet and host.

    Args:
        runs_dir: Folder of the runs.
        without: Id of the check that is judged.
    """
    found: dict[tuple[str, str], list[HostFigures]] = {}
    for record in _earlier_records(runs_dir / FOLDER, without):
        figures = figures_of(record)
        found.setdefault((figures.fleet, figures.host), []).append(figures)
    return {key: values[-MAX_EARLIER:] for key, values in found.items()}


def _earlier_records(folder: Path, without: str) -> Iterator[Record]:
    for path in sorted(folder.glob("*/records")):
        if path.parent.name != without:
            for stored in RunFolder(path.parent).records():
                if stored.record is not None and stored.record.status is Status.OK and stored.record.case.deep_check:
                    yield stored.record

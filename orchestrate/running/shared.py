"""What the workers of a run share, and what each does with a repeat that ended or is not needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrate.events import EventBus, JobResult, JobSpared
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import Launcher
from orchestrate.planning.budget import Budget
from orchestrate.planning.plan import Job
from orchestrate.running.early_end import EarlyEnd
from orchestrate.running.options import Options, Stop
from orchestrate.running.watchdog import Watchdog
from results.runs.store import RunFolder
from results.schema import Record, Status

MakeLauncher = Callable[[Host], Launcher]


@dataclass(frozen=True)
class Shared:
    """What the workers of a run share.

    Attributes:
        budget: None: the run may cost what it costs.
        statuses: How each repeat that has a record ended, by job id: each thread writes its own repeats'.
        early: Says which repeats are not needed any more.
    """

    folder: RunFolder
    make: MakeLauncher
    bus: EventBus
    stop: Stop
    watchdog: Watchdog
    budget: Budget | None
    options: Options
    statuses: dict[str, Status]
    early: EarlyEnd


def set_record_aside(folder: RunFolder, job: Job) -> None:
    """Keep a record under another name, so that its repeat can run again and nothing is lost."""
    path = folder.record_path(job.id)
    aside = folder.path / "superseded"
    aside.mkdir(exist_ok=True)
    path.rename(aside / f"{path.stem}.{len(list(aside.glob(f'{path.stem}.*')))}.json")


def spare(job: Job, host: str, shared: Shared) -> bool:
    """Leave a repeat out, and say so, where its case is known closely enough without it."""
    if not shared.early.spares(job):
        return False
    shared.bus.emit(JobSpared(job=job.id, host=host, case=job.case.name, why=shared.early.why(job)))
    return True


def finish(job: Job, record: Record, host: str, seconds: float, shared: Shared) -> None:
    """Store a repeat's record, then tell.

    Args:
        job: The repeat.
        record: Its end.
        host: `Host.key` of the one that stands for it.
        seconds: That it took.
        shared: What learns of it.
    """
    shared.folder.write_record(job.id, record)
    shared.statuses[job.id] = record.status
    shared.early.add(job, record)
    measured = record.measurement if record.status is Status.OK else None
    if shared.budget is not None and record.status is Status.OK:
        shared.budget.learn(job.origin.fleet, job.case.name, seconds)
    shared.bus.emit(
        JobResult(
            job=job.id,
            host=host,
            status=record.status,
            cause=record.cause,
            samples_per_second=measured.samples_per_second if measured else None,
            unit=measured.unit if measured else None,
            seconds=seconds,
            case=job.case.name,
        )
    )

"""State shared by the workers of a run, and functions to finish, skip and drop repeats."""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from orchestrate.engines.base import Launcher
from orchestrate.errors import UserError
from orchestrate.events import Decided, EventBus, HostLost, JobResult, JobSkipped, Warned
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.durations import Budget, usd_text
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job
from orchestrate.planning.stop_early import StopEarly
from orchestrate.running.calls import Calls
from orchestrate.running.judge import failed_record, now
from orchestrate.running.options import RunOptions, Stop
from orchestrate.text import plain_text
from results.errors import is_disk_full
from results.program import command_line
from results.runs.store import RunFolder
from results.schema import Device, Mode, Record, Status
from results.schema.exit_codes import ExitCode

MakeLauncher = Callable[[Host], Launcher]

Late = dict[HostPlace, asyncio.Task[Facts]]
"""Probes that continue while others are measured."""

NO_HOST_ANSWERS = (
    "no host answers: this machine may have no network. Running benchmarks continue; hosts are dropped after "
    "{:g} minutes without an answer"
)


class StorageFailed(UserError):
    """This machine cannot store the results of a run: a full disk, a failing or read-only one, a moved folder."""

    exit_code: ClassVar[ExitCode] = ExitCode.NO_HOST


@contextmanager
def storing(folder: RunFolder) -> Iterator[None]:
    """Turn failures of this machine's files, while they are used, into `StorageFailed`, with a remedy."""
    try:
        yield
    except OSError as error:
        why = "the disk is full" if is_disk_full(error) else plain_text(str(error))
        raise StorageFailed(
            f"{folder.path}: {why}: nothing more can be stored. What runs on the hosts continues. "
            f"Mend this, then: {command_line('orchestrate', 'resume', folder.path)}"
        ) from error


class Connectivity:
    """Whether any host answers; if none does, this machine has lost its network.

    Args:
        ask: Asks some hosts; returns whether one has answered.
        bus: Receives a warning for each change.
        seconds: How long workers wait, for the warning.
    """

    def __init__(self, ask: Callable[[], Awaitable[bool]], bus: EventBus, seconds: float) -> None:
        self._ask = ask
        self._bus = bus
        self._minutes = seconds / 60
        self._asking: asyncio.Task[bool] | None = None
        self._away_at = 0.0
        self._answers = True

    async def answers(self) -> bool:
        """Return whether a host answers now; workers that ask together get one answer."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._look())
        return await asyncio.shield(self._asking)

    async def _look(self) -> bool:
        try:
            before, self._answers = self._answers, await self._ask()
        finally:
            self._asking = None
        if not (before and self._answers):
            self._away_at = time.monotonic()
        if before != self._answers:
            said = "hosts answer again" if self._answers else NO_HOST_ANSWERS.format(self._minutes)
            self._bus.emit(Warned(host=None, message=said))
        return self._answers

    def was_away(self, since: float) -> bool:
        """Return whether no host answered at some time after `since`, in monotonic seconds."""
        return self._away_at > since


@dataclass(frozen=True)
class RunContext:
    """State shared by the workers of a run.

    Attributes:
        budget: None: no limit of cost.
        statuses: Status of each repeat with a record, by job id.
        early: Decides which repeats are not needed any more.
        network: Whether any host answers.
        late: Taken by the workers of their hosts.
        failures: Errors that ended the run.
    """

    folder: RunFolder
    make: MakeLauncher
    bus: EventBus
    stop: Stop
    calls: Calls
    budget: Budget | None
    options: RunOptions
    statuses: dict[str, Status]
    early: StopEarly
    network: Connectivity
    late: Late
    failures: list[StorageFailed] = field(default_factory=list)

    def fail(self, failure: StorageFailed) -> None:
        """End the run, and leave running repeats to `resume`."""
        self.failures.append(failure)
        self.stop.launching.set()
        self.calls.abandon_all(failure)


def supersede_record(folder: RunFolder, job_id: str) -> None:
    """Move a record to `superseded/`, so that its repeat can run again."""
    path = folder.record_path(job_id)
    aside = folder.path / "superseded"
    aside.mkdir(exist_ok=True)
    path.rename(aside / f"{path.stem}.{len(list(aside.glob(f'{path.stem}.*')))}.json")


def skip(job: Job, host: Host, shared: RunContext) -> bool:
    """Skip a repeat, with an event, if no comparison needs it any more; return whether it was skipped."""
    if why := shared.early.skips(job):
        shared.bus.emit(JobSkipped(job=job.id, host=host.key, case=job.case.name, why=why))
    return bool(why)


def affordable(
    hosts: Sequence[Host], case: str, shared: RunContext, *, meter: str | None = None, warn: bool = True
) -> bool:
    """Return whether one more repeat fits within the cost limit; if not, emit a warning.

    Args:
        hosts: Hosts of the repeat.
        case: Name of its case.
        shared: State shared by workers.
        meter: Key for counting its cost; None: its hosts, from their start to their end.
        warn: Whether to emit the warning.
    """
    budget = shared.budget
    if budget is None or all(budget.allows(host.place, case, meter) for host in hosts):
        return True
    if warn:
        which = "no new repeats will start" if meter is None else "the last repeats will not start"
        spent = f"the run has cost {usd_text(budget.spent_usd())} USD, near its limit of {usd_text(budget.limit_usd)}"
        shared.bus.emit(Warned(host=hosts[0].key, message=f"{which}: {spent}"))
    return False


def drop_host(host: Host, status: Status, cause: str, jobs: Sequence[Job], shared: RunContext) -> None:
    """Drop a host, or the hosts that it represents, and record the cause for the remaining repeats."""
    shared.bus.emit(HostLost(host=host.key, status=status, cause=cause))
    for job in jobs:
        finish(job, failed_record(job, status, cause, now()), host, 0.0, shared)


def drop_for_bug(name: str, error: Exception, host: Host, jobs: Sequence[Job], shared: RunContext) -> None:
    """Write the traceback of a bug to the run's folder, and a record for each repeat that it ended.

    Args:
        name: Part of the traceback's file name.
        error: The bug.
        host: Represents the work that ended.
        jobs: The repeats that had started; those without a record get one. `resume` runs the others.
        shared: State shared by workers.
    """
    path = shared.folder.path / f"traceback-{name}.txt"
    with storing(shared.folder):
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    left = [job for job in jobs if job.id not in shared.statuses]
    drop_host(host, Status.ERROR, f"a bug in tfbench: {error!r}. Traceback: {path}", left, shared)


def finish(job: Job, record: Record, host: Host, seconds: float, shared: RunContext) -> None:
    """Store a repeat's record, then report it.

    Args:
        job: The repeat.
        record: Its record.
        host: Represents it in events.
        seconds: Its duration.
        shared: State shared by workers.
    """
    with storing(shared.folder):
        shared.folder.write_record(job.id, record)
    shared.statuses[job.id] = record.status
    decided = shared.early.add(job, record)
    measured = record.measurement if record.status is Status.OK else None
    if shared.budget is not None and record.status is Status.OK:
        shared.budget.add(job.origin.fleet, job.case.name, seconds)
    shared.bus.emit(
        JobResult(
            job=job.id,
            host=host.key,
            status=record.status,
            cause=record.cause,
            samples_per_second=measured.samples_per_second if measured else None,
            unit=measured.unit if measured else None,
            seconds=seconds,
            case=job.case.name,
            fleet=host.fleet,
        )
    )
    for answer in decided:
        shared.bus.emit(Decided(case=job.case.name, answer=answer))


TOO_LOW_PEAKS = frozenset({"above_peak", "gpu_shared", "throttled_power", "throttled_thermal", "throttled_hardware"})
"""Warnings of a repeat whose measured peaks are too low to be reused."""

_PeakKey = tuple[Device, str, str, str | None]


class DevicePeaks:
    """Measured peaks of one host in this run, by device, precision and image."""

    def __init__(self) -> None:
        self._known: dict[_PeakKey, tuple[float, float]] = {}

    def add(self, job: Job, record: Record) -> None:
        """Store the peaks that a repeat has measured, unless its warnings show that they are too low."""
        measured = record.measurement
        if record.status is not Status.OK or measured is None or measured.peaks_reused:
            return
        flops, traffic = measured.peak_flops_per_second, measured.peak_bytes_per_second
        if not flops or not traffic or TOO_LOW_PEAKS & {warning.code for warning in record.warnings}:
            return
        on_gpus = job.case.device is Device.GPU  # logical CPU devices share one processor
        devices = job.case.replicas if on_gpus else job.case.num_hosts
        best = self._known.get(_peak_key(job), (0.0, 0.0))  # keep the higher of repeated measurements
        self._known[_peak_key(job)] = max(best[0], flops / devices), max(best[1], traffic / devices)

    def of(self, job: Job) -> tuple[float, float] | None:
        """Return the peaks of a job's device for `Job.known_peaks`; None: unknown, or not needed."""
        if job.case.mode is Mode.DEVICE or job.case.num_hosts > 1:
            return None
        return self._known.get(_peak_key(job))


def _peak_key(job: Job) -> _PeakKey:
    first = next(iter((*job.gpu_uuids, *map(str, job.gpus))), "")
    return job.case.device, first, job.case.precision, job.origin.image_digest

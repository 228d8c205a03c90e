"""What the workers of a run share, and what each does with a repeat that ended or is not needed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from orchestrate.errors import UserError
from orchestrate.events import Decided, EventBus, HostLost, JobResult, JobSkipped, Warned
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import Launcher
from orchestrate.planning.durations import Budget
from orchestrate.planning.plan import Job
from orchestrate.planning.stop_early import StopEarly
from orchestrate.running.judge import failed_record, now
from orchestrate.running.options import RunOptions, Stop
from orchestrate.running.watchdog import Watchdog
from results.errors import is_disk_full
from results.program import command_line
from results.runs.store import RunFolder
from results.schema import Device, Mode, Record, Status
from results.schema.exit_codes import ExitCode

MakeLauncher = Callable[[Host], Launcher]


class DiskFull(UserError):
    """This machine's disk is full: nothing more can be stored."""

    exit_code: ClassVar[ExitCode] = ExitCode.NO_HOST


def disk_full(error: Exception, folder: RunFolder) -> DiskFull | None:
    """Explain an error as a full disk, with what to do; None: it is another one."""
    if isinstance(error, DiskFull):
        return error
    if not is_disk_full(error):
        return None
    return DiskFull(
        f"{folder.path}: the disk is full: nothing more can be stored. What runs on the hosts continues. "
        f"Free space there, then: {command_line('orchestrate', f'resume {folder.path}')}"
    )


@dataclass(frozen=True)
class Shared:
    """What the workers of a run share.

    Attributes:
        budget: None: the run may cost what it costs.
        statuses: How each repeat that has a record ended, by job id: each thread writes its own repeats'.
        early: Decides which repeats are not needed any more.
        failures: Why nothing can be stored any more.
    """

    folder: RunFolder
    make: MakeLauncher
    bus: EventBus
    stop: Stop
    watchdog: Watchdog
    budget: Budget | None
    options: RunOptions
    statuses: dict[str, Status]
    early: StopEarly
    failures: list[DiskFull] = field(default_factory=list)

    def fail(self, error: Exception) -> bool:
        """End the run for a full disk, leaving what runs to `resume`; False: the error is another one."""
        if (failure := disk_full(error, self.folder)) is None:
            return False
        self.failures.append(failure)
        self.stop.launching.set()
        self.watchdog.abandon_all(failure)
        return True


def set_record_aside(folder: RunFolder, job: Job) -> None:
    """Keep a record under another name, so that its repeat can run again and nothing is lost."""
    path = folder.record_path(job.id)
    aside = folder.path / "superseded"
    aside.mkdir(exist_ok=True)
    path.rename(aside / f"{path.stem}.{len(list(aside.glob(f'{path.stem}.*')))}.json")


def skip(job: Job, host: Host, shared: Shared) -> bool:
    """Skip a repeat, with an event, where no comparison needs it any more."""
    if why := shared.early.skips(job):
        shared.bus.emit(JobSkipped(job=job.id, host=host.key, case=job.case.name, why=why))
    return bool(why)


def affordable(hosts: Sequence[Host], case: str, shared: Shared, *, meter: str | None = None) -> bool:
    """Return whether one more repeat can end within the limit of cost; warn of the first host when it cannot.

    Args:
        hosts: That take part in it.
        case: Name of what is measured.
        shared: Has the budget.
        meter: What the repeat's cost is counted under; None: its hosts, from their start to their end.
    """
    budget = shared.budget
    if budget is None or all(budget.allows(host.place, case, meter) for host in hosts):
        return True
    message = f"no new repeats will start: the run has cost {budget.spent_usd():.2f} USD, near its limit"
    shared.bus.emit(Warned(host=hosts[0].key, message=message))
    return False


def drop_host(host: Host, status: Status, cause: str, jobs: Sequence[Job], shared: Shared) -> None:
    """Drop a host, or the hosts that it represents: the remaining repeats end with the reason."""
    shared.bus.emit(HostLost(host=host.key, status=status, cause=cause))
    for job in jobs:
        finish(job, failed_record(job, status, cause, now()), host, 0.0, shared)


def drop_for_bug(name: str, error: Exception, host: Host, jobs: Sequence[Job], shared: Shared) -> None:
    """Leave the traceback of a bug in the run's folder, and a record for everything that was still to do.

    Args:
        name: Part of the traceback's file name.
        error: The bug.
        host: That represents the work that ended.
        jobs: Its repeats; those without a record get one.
        shared: Takes the record and the events.
    """
    path = shared.folder.path / f"traceback-{name}.txt"
    path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    left = [job for job in jobs if shared.folder.read_record(job.id) is None]
    drop_host(host, Status.ERROR, f"a bug in tfbench: {error!r}. Traceback: {path}", left, shared)


def finish(job: Job, record: Record, host: Host, seconds: float, shared: Shared) -> None:
    """Store a repeat's record, then report it.

    Args:
        job: The repeat.
        record: Its end.
        host: That represents it.
        seconds: That it took.
        shared: Takes the record and the events.
    """
    shared.folder.write_record(job.id, record)
    shared.statuses[job.id] = record.status
    decided = shared.early.add(job, record)
    measured = record.measurement if record.status is Status.OK else None
    if shared.budget is not None and record.status is Status.OK:
        shared.budget.learn(job.origin.fleet, job.case.name, seconds)
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
"""Warnings of a repeat whose limits are not to be passed on: the device did not reach what it can."""

_PeakKey = tuple[Device, str, str, str | None]


class DevicePeaks:
    """What the devices of one host reached in this run, by device, precision and image. Callable from any thread."""

    def __init__(self) -> None:
        self._known: dict[_PeakKey, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def learn(self, job: Job, record: Record) -> None:
        """Take in the limits that a repeat has measured, where nothing held the device back."""
        measured = record.measurement
        if record.status is not Status.OK or measured is None or measured.peaks_reused:
            return
        flops, traffic = measured.peak_flops_per_second, measured.peak_bytes_per_second
        if not flops or not traffic or TOO_LOW_PEAKS & {warning.code for warning in record.warnings}:
            return
        on_gpus = job.case.device is Device.GPU  # logical CPU devices are one processor
        devices = job.case.replicas if on_gpus else job.case.num_hosts
        with self._lock:
            best = self._known.get(_peak_key(job), (0.0, 0.0))  # one that was measured again was too low before
            self._known[_peak_key(job)] = max(best[0], flops / devices), max(best[1], traffic / devices)

    def of(self, job: Job) -> tuple[float, float] | None:
        """Return the limits of a job's device as `Job.known_peaks` has them; None: not known, or not needed."""
        if job.case.mode is Mode.DEVICE or job.case.num_hosts > 1:
            return None
        with self._lock:
            return self._known.get(_peak_key(job))


def _peak_key(job: Job) -> _PeakKey:
    first = next(iter((*job.gpu_uuids, *map(str, job.gpus))), "")
    return job.case.device, first, job.case.precision, job.origin.image_digest

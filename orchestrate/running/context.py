"""What the workers of a run share: its folder and events, its stop, its limits of time and cost, and its network.

A run is a group of tasks in the loop. A launcher waits for its host in a worker thread, and its task waits no longer
than a limit by the controller's clock: no host can block a run. What this machine cannot store ends all tasks.
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import anyio
import anyio.abc

from orchestrate.errors import Lost, UserError
from orchestrate.events import Decided, EventBus, JobResult, JobSkipped, Warned
from orchestrate.inventory.hosts import Host
from orchestrate.options import How
from orchestrate.planning.durations import usd_text
from orchestrate.planning.plan import Job, Plan
from orchestrate.project import command_line
from orchestrate.running.probing import MakeLauncher, query_hosts
from orchestrate.running.state import RunState
from orchestrate.text import plain_text
from results.errors import is_disk_full
from results.runs.store import RunFolder
from results.schema import Device, Mode, Record, Status
from results.schema.exit_codes import ExitCode

CHECK_SECONDS = 0.25

END_AFTER_SECONDS = 2.0
"""Time for a repeat to end by itself after its limit and record the cause."""

STOP_SECONDS = 12.0
"""Longest wait for hosts after the second interrupt."""

OFFLINE_SECONDS = 1800.0
"""How long hosts are kept, in all, while no host answers.

Longer than most networks are away: a router restarts, a train leaves a tunnel, somebody logs in to a VPN again. Hosts
that are gone for good, or idle, then cost and delay no more than half an hour.
"""

ASK_AGAIN_SECONDS = 15.0
"""Interval of queries while no host answers."""

MAX_ASKED, ASK_SECONDS = 5, 30.0
"""Hosts asked, and longest wait, to see whether this machine has lost its network."""

STOP_POLL_SECONDS = 0.1


class Abandoned(Lost):
    """A host did not respond in time; its benchmark may still run."""


class Stop:
    """Stops a run from a signal handler or another thread: first gracefully, then at once.

    Attributes:
        launching: Set: no new repeats start.
        running: Set: running repeats are ended.
        asked: Whether the user wants it; otherwise a failure may be the cause.
    """

    def __init__(self) -> None:
        self.launching = threading.Event()
        self.running = threading.Event()
        self.asked = False

    async def wait(self, seconds: float) -> bool:
        """Wait for a stop, in the loop; return whether it came in time."""
        ends_at = time.monotonic() + seconds
        while not self.launching.is_set() and (left := ends_at - time.monotonic()) > 0:
            await anyio.sleep(min(left, STOP_POLL_SECONDS))
        return self.launching.is_set()

    def ask(self) -> None:
        """Request a stop: no new repeats start; once more: running repeats are ended, too."""
        self.launching.set()
        if self.asked:
            self.running.set()
        self.asked = True


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


@asynccontextmanager
async def all_or_none() -> AsyncIterator[anyio.abc.TaskGroup]:
    """Yield a group of tasks, which the first error ends; it is raised as it is, not as a group of errors."""
    try:
        async with anyio.create_task_group() as tasks:
            yield tasks
    except ExceptionGroup as errors:
        error: Exception = errors
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


@dataclass
class RunContext:
    """A run, whose workers share it; belongs to the loop.

    Attributes:
        plan: The plan.
        folder: Folder for records and logs.
        make: Returns the launcher of a host.
        bus: Receives all events.
        stop: Ends the run early.
        how: How the plan is executed.
        state: Subscribed to `bus`; with a limit of cost, each host has a price.
        tasks: The tasks of the run.
        deadlines: Of all calls of hosts: the scope of each, and what returns its deadline in monotonic seconds.
        ends_at: Deadline of all calls.
    """

    plan: Plan
    folder: RunFolder
    make: MakeLauncher
    bus: EventBus
    stop: Stop
    how: How
    state: RunState
    tasks: anyio.abc.TaskGroup = field(init=False)
    deadlines: dict[anyio.CancelScope, Callable[[], float]] = field(default_factory=dict)
    ends_at: float = math.inf
    _asking: asyncio.Task[bool] | None = None
    _offline_left: float = field(default_factory=lambda: OFFLINE_SECONDS)
    _offline_at: float = 0.0

    # -- limits of time ------------------------------------------------------------------------------------------------

    async def keep_limits(self) -> None:
        """Keep all deadlines; once running repeats are to end, wait for no host much longer."""
        while True:
            if self.stop.running.is_set():
                self.ends_at = min(self.ends_at, time.monotonic() + STOP_SECONDS)
            for scope, deadline in list(self.deadlines.items()):
                if (ends_at := min(deadline(), self.ends_at)) < scope.deadline:
                    scope.deadline = ends_at
            await anyio.sleep(CHECK_SECONDS)

    # -- the network ---------------------------------------------------------------------------------------------------

    async def network_returned(self, host: Host, since: float) -> bool:
        """Wait, within limits, while no host answers: this machine may have lost its network.

        Args:
            host: The host that asks; this machine needs no network.
            since: In monotonic seconds.

        Returns:
            Whether no host answered at some time after `since`, and one does now.
        """
        if not host.is_remote or self._offline_left <= 0:
            return False
        if self._asking is None or self._asking.done():  # workers that ask together get one answer
            self._asking = asyncio.create_task(self._ask_hosts())
        asking = self._asking
        while not asking.done() and not self.stop.launching.is_set():
            await asyncio.wait([asking], timeout=STOP_POLL_SECONDS)
        return not self.stop.launching.is_set() and asking.result() and self._offline_at > since

    async def _ask_hosts(self) -> bool:
        """Ask until a host answers; return whether one does."""
        began, is_offline = time.monotonic(), False
        while not (answers := await self._any_answers()):
            self._offline_at = time.monotonic()
            if not is_offline:
                self.warn(
                    "no host answers: this machine may have no network. Running benchmarks continue; hosts are dropped "
                    f"after {OFFLINE_SECONDS / 60:g} minutes without an answer"
                )
            is_offline = True
            if self._offline_at - began >= self._offline_left or await self.stop.wait(ASK_AGAIN_SECONDS):
                break
        self._offline_left -= time.monotonic() - began
        if answers and is_offline:
            self._offline_at = time.monotonic()
            self.warn("hosts answer again")
        return answers

    async def _any_answers(self) -> bool:
        """Ask some remote hosts; return whether one has answered."""
        remote = [entry.host for entry in self.plan.hosts if entry.host.is_remote]
        asked = random.sample(remote, min(len(remote), MAX_ASKED))
        answers = await query_hosts(asked, self.make, lambda _, there: there.running(self.plan.run_id), ASK_SECONDS)
        return any(not isinstance(answer, str) for answer in answers.values())

    # -- repeats -------------------------------------------------------------------------------------------------------

    def warn(self, message: str, host: Host | None = None) -> None:
        """Emit a warning about a host, or about the run."""
        self.bus.emit(Warned(host=host.key if host else None, message=message))

    def report_bug(self, error: Exception, host: Host) -> str:
        """Write the traceback of a bug to the run's folder; return a cause that names it."""
        path = self.folder.path / f"traceback-{host.key}.txt"
        with storing(self.folder):
            path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        return f"a bug in tfbench: {error!r}. Traceback: {path}"

    def skips(self, job: Job, host: Host) -> bool:
        """Skip a repeat, with an event, if no comparison needs it any more; return whether it was skipped."""
        if why := self.state.early.skips(job):
            self.bus.emit(JobSkipped(job=job.id, host=host.key, case=job.case.name, why=why))
        return bool(why)

    def affords(self, job: Job, host: Host) -> bool:
        """Return whether one more repeat, beside those that run, fits within the cost limit; if not, emit a warning."""
        limit, state = self.how.max_cost, self.state
        if limit is None:
            return True
        spent, rest = state.spent_usd(), state.rest_usd(job)
        if spent + state.rest_usd() + rest <= limit:
            return True
        cost = f"the run has cost {usd_text(spent)} USD, one more costs about {usd_text(rest)}"
        self.warn(f"no new repeats will start: {cost}, the limit is {usd_text(limit)}", host)
        return False

    def finish(self, job: Job, record: Record, host: Host, seconds: float = 0.0) -> None:
        """Store a repeat's record, then report it.

        Args:
            job: The repeat.
            record: Its record.
            host: Represents it in events.
            seconds: Its duration.
        """
        with storing(self.folder):
            self.folder.write_record(job.id, record)
        decided = self.state.early.add(job, record)
        measured = record.measurement if record.status is Status.OK else None
        self.bus.emit(
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
            self.bus.emit(Decided(case=job.case.name, answer=answer))


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

"""What the workers of a run share: its folder and events, its stop, its limits of time and cost, and its network.

A run is a group of tasks in the loop. A launcher waits for its host in a worker thread, and its task waits no longer
than a limit by the controller's clock: no host can block a run.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import anyio
import anyio.abc

from orchestrate.engines.base import Launcher
from orchestrate.errors import Lost, UserError
from orchestrate.events import Decided, EventBus, JobResult, JobSkipped, Warned
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.options import How
from orchestrate.planning.durations import usd_text
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, Plan
from orchestrate.running.state import Recorded, RunState
from orchestrate.text import plain_text
from results.errors import is_disk_full
from results.program import command_line
from results.runs.store import RunFolder
from results.schema import Device, Mode, Record, Status
from results.schema.exit_codes import ExitCode

CHECK_SECONDS = 0.25

END_AFTER_SECONDS = 2.0
"""Time for a repeat to end by itself after its limit and record the cause."""

STOP_SECONDS = 12.0
"""Longest wait for hosts after the second interrupt."""

T = TypeVar("T")


_UNLIMITED = anyio.CapacityLimiter(math.inf)


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, which is abandoned with this task."""
    return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=_UNLIMITED)


class Abandoned(Lost):
    """A host did not respond in time; its benchmark may still run."""


MakeLauncher = Callable[[Host], Launcher]

Late = dict[HostPlace, asyncio.Task[Facts]]
"""Probes that continue while others are measured."""

OFFLINE_SECONDS = 1800.0
"""How long hosts are kept, in all, while no host answers.

Longer than most networks are away: a router restarts, a train leaves a tunnel, somebody logs in to a VPN again. Hosts
that are gone for good, or idle, then cost and delay no more than half an hour.
"""


ASK_AGAIN_SECONDS = 15.0
"""Interval of queries while no host answers."""

STOP_POLL_SECONDS = 0.1


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

    def ask(self) -> int:
        """Request a stop.

        Returns:
            1 for the first call: no new repeats start; 2 for later ones: running repeats are ended, too.
        """
        again, self.asked = self.asked, True
        self.launching.set()
        if again:
            self.running.set()
        return 2 if again else 1


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


@dataclass
class Connectivity:
    """Whether any host answers; if none does, this machine has lost its network.

    Attributes:
        ask: Asks some hosts; returns whether one has answered.
        bus: Receives a warning for each change.
        stop: Ends all waiting.
    """

    ask: Callable[[], Awaitable[bool]]
    bus: EventBus
    stop: Stop
    _waiting: asyncio.Task[bool] | None = None
    _seconds_left: float = field(default_factory=lambda: OFFLINE_SECONDS)
    _is_away: bool = False
    _away_at: float = 0.0

    async def returned(self, since: float) -> bool:
        """Wait, within limits, while no host answers.

        Args:
            since: In monotonic seconds.

        Returns:
            Whether no host answered at some time after `since`, and one does now.
        """
        if self._waiting is None or self._waiting.done():  # workers that ask together get one answer
            self._waiting = asyncio.create_task(self._wait())
        waiting = self._waiting
        while not waiting.done() and not self.stop.launching.is_set():
            await asyncio.wait([waiting], timeout=STOP_POLL_SECONDS)
        return not self.stop.launching.is_set() and waiting.result() and self._away_at > since

    async def _wait(self) -> bool:
        began = time.monotonic()
        while not (answers := await self.ask()):
            self._away_at = time.monotonic()
            if not self._is_away:
                self._warn(
                    "no host answers: this machine may have no network. Running benchmarks continue; hosts are dropped "
                    f"after {OFFLINE_SECONDS / 60:g} minutes without an answer"
                )
            self._is_away = True
            if self._away_at - began >= self._seconds_left or await self.stop.wait(ASK_AGAIN_SECONDS):
                break
        self._seconds_left -= time.monotonic() - began
        if answers and self._is_away:
            self._is_away, self._away_at = False, time.monotonic()
            self._warn("hosts answer again")
        return answers

    def _warn(self, message: str) -> None:
        self.bus.emit(Warned(host=None, message=message))


@dataclass
class RunContext:
    """What the workers of a run share; belongs to the loop.

    Attributes:
        how: How the plan is executed.
        recorded: The repeats with a record, and those that are not needed any more.
        state: What the events say; with a limit of cost, each host has a price.
        network: Whether any host answers.
        late: Taken by the sessions of their hosts.
        tasks: The tasks of the run.
        watched: A check for each running part, which ends it if it has exceeded a limit.
        failures: Errors that ended the run.
        scopes: Of all calls of hosts.
        ends_at: Deadline of all calls, in monotonic seconds.
    """

    plan: Plan
    folder: RunFolder
    make: MakeLauncher
    bus: EventBus
    stop: Stop
    how: How
    recorded: Recorded
    state: RunState
    network: Connectivity
    late: Late
    tasks: anyio.abc.TaskGroup
    watched: list[Callable[[], None]] = field(default_factory=list)
    failures: list[StorageFailed] = field(default_factory=list)
    scopes: set[anyio.CancelScope] = field(default_factory=set)
    ends_at: float = math.inf

    # -- limits of time ------------------------------------------------------------------------------------------------

    async def keep_limits(self) -> None:
        """End parts that exceed their limits; once running ones are to end, wait for no host much longer."""
        while True:
            if self.stop.running.is_set():
                self._abandon_after(STOP_SECONDS)
            for check in list(self.watched):
                check()
            await anyio.sleep(CHECK_SECONDS)

    def _abandon_after(self, seconds: float) -> None:
        self.ends_at = min(self.ends_at, time.monotonic() + seconds)
        for scope in self.scopes:
            scope.deadline = min(scope.deadline, self.ends_at)

    def fail(self, failure: StorageFailed) -> None:
        """End the run, and leave running repeats to `resume`."""
        self.failures.append(failure)
        self.stop.launching.set()
        self._abandon_after(0.0)

    def start_soon(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do something in a task of the run, which a failure to store what it reports does not crash."""

        async def act() -> None:
            try:
                await action()
            except StorageFailed as failure:
                self.fail(failure)

        self.tasks.start_soon(act)

    # -- repeats -------------------------------------------------------------------------------------------------------

    def warn(self, message: str, host: Host) -> None:
        """Emit a warning about a host."""
        self.bus.emit(Warned(host=host.key, message=message))

    def skips(self, job: Job, host: Host) -> bool:
        """Skip a repeat, with an event, if no comparison needs it any more; return whether it was skipped."""
        if why := self.recorded.early.skips(job):
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
        decided = self.recorded.add(job, record)
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

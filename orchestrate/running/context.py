"""State of a run that its workers share: it finishes, skips and drops repeats, and limits calls of hosts.

A run is a group of tasks in the loop. A launcher waits for its host in a worker thread, and its task waits no longer
than a limit by the controller's clock: no host can block a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeVar

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


class Limited(Protocol):
    """Something that runs within limits."""

    def exceeded(self) -> str:
        """Return which limit it has exceeded, in words; empty: none."""

    def end(self, status: Status, cause: str) -> None:
        """End it, once, without waiting for its host."""


class Calls:
    """Limits the calls of a run, and ends repeats that take too long; belongs to the loop.

    Attributes:
        tasks: The tasks of the run.
        watched: The running repeats, or parts of them.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.watched: list[Limited] = []
        self.tasks = tasks
        self._scopes: set[anyio.CancelScope] = set()
        self._last = math.inf
        self._reason: Exception = Abandoned("it did not answer in time")

    @contextlib.contextmanager
    def limit(self, ends_at: float) -> Iterator[anyio.CancelScope]:
        """Await no longer than until a deadline in the block; a thread that takes longer is abandoned.

        Args:
            ends_at: The deadline in monotonic seconds.

        Yields:
            The scope, whose deadline may be moved.

        Raises:
            Abandoned: It took too long.
        """
        with anyio.CancelScope(deadline=min(ends_at, self._last)) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise self._reason

    async def keep_limits(self, stopped: Callable[[], bool]) -> None:
        """End repeats that exceed their limits, and all of them once the run is stopped.

        Args:
            stopped: Whether running repeats are to be ended.
        """
        while True:
            if stopped():
                self._abandon_after(STOP_SECONDS)
            for running in list(self.watched):
                if stopped():
                    running.end(Status.STOPPED, "stopped by the user")
                elif why := running.exceeded():
                    running.end(Status.TIMEOUT, why)
            await anyio.sleep(CHECK_SECONDS)

    def abandon_all(self, reason: Exception) -> None:
        """Stop waiting for hosts, for a reason of this machine; running repeats continue."""
        self._reason = reason
        self._abandon_after(0.0)

    def _abandon_after(self, seconds: float) -> None:
        self._last = min(self._last, time.monotonic() + seconds)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._last)


MakeLauncher = Callable[[Host], Launcher]

Late = dict[HostPlace, asyncio.Task[Facts]]
"""Probes that continue while others are measured."""

OFFLINE_SECONDS = 1800.0
"""How long each host is kept, in all, while no host answers.

Longer than most networks are away: a router restarts, a train leaves a tunnel, somebody logs in to a VPN again. Hosts
that are gone for good, or idle, then cost and delay no more than half an hour.
"""


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


class Connectivity:
    """Whether any host answers; if none does, this machine has lost its network.

    Args:
        ask: Asks some hosts; returns whether one has answered.
        bus: Receives a warning for each change.
    """

    def __init__(self, ask: Callable[[], Awaitable[bool]], bus: EventBus) -> None:
        self._ask = ask
        self._bus = bus
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
            lost = (
                "no host answers: this machine may have no network. Running benchmarks continue; hosts are dropped "
                f"after {OFFLINE_SECONDS / 60:g} minutes without an answer"
            )
            self._bus.emit(Warned(host=None, message="hosts answer again" if self._answers else lost))
        return self._answers

    def was_away(self, since: float) -> bool:
        """Return whether no host answered at some time after `since`, in monotonic seconds."""
        return self._away_at > since


class Budget:
    """Limits the cost of a run: no repeat starts that would exceed it.

    Args:
        limit_usd: For the whole run.
        state: Of the run; each host needs a price.
    """

    def __init__(self, limit_usd: float, state: RunState) -> None:
        self.limit_usd = limit_usd
        self.state = state
        self._allowed: dict[str, tuple[Job, Sequence[Host]]] = {}  # that have not ended, by id

    def allows(self, job: Job, hosts: Sequence[Host]) -> bool:
        """Return whether one more repeat on these hosts fits within the limit, and reserve its cost until `release`."""
        allowed = {**self._allowed, job.id: (job, hosts)}
        rest = sum(self.state.rest_usd(one, [host.key for host in used]) for one, used in allowed.values())
        fits = self.state.spent_usd() + rest <= self.limit_usd
        if fits:
            self._allowed = allowed
        return fits

    def release(self, job_id: str) -> None:
        """Reserve nothing more for a repeat that has ended or will not start."""
        self._allowed.pop(job_id, None)


@dataclass(frozen=True)
class RunContext:
    """State of a run that its workers share.

    Attributes:
        budget: None: no limit of cost.
        how: How the plan is executed.
        recorded: The repeats with a record, and those that are not needed any more.
        network: Whether any host answers.
        late: Taken by the sessions of their hosts.
        failures: Errors that ended the run.
    """

    plan: Plan
    folder: RunFolder
    make: MakeLauncher
    bus: EventBus
    stop: Stop
    calls: Calls
    budget: Budget | None
    how: How
    recorded: Recorded
    network: Connectivity
    late: Late
    failures: list[StorageFailed] = field(default_factory=list)

    def fail(self, failure: StorageFailed) -> None:
        """End the run, and leave running repeats to `resume`."""
        self.failures.append(failure)
        self.stop.launching.set()
        self.calls.abandon_all(failure)

    def start_soon(self, action: Callable[[], Awaitable[None]]) -> None:
        """Do something in a task of the run, which a failure to store what it reports does not crash."""

        async def act() -> None:
            try:
                await action()
            except StorageFailed as failure:
                self.fail(failure)

        self.calls.tasks.start_soon(act)

    def warn(self, message: str, host: Host | None = None) -> None:
        """Emit a warning about a host, or the whole run."""
        self.bus.emit(Warned(host=host.key if host else None, message=message))

    def skips(self, job: Job, host: Host) -> bool:
        """Skip a repeat, with an event, if no comparison needs it any more; return whether it was skipped."""
        if why := self.recorded.early.skips(job):
            self.release(job)
            self.bus.emit(JobSkipped(job=job.id, host=host.key, case=job.case.name, why=why))
        return bool(why)

    def affords(self, job: Job, hosts: Sequence[Host], *, warn: bool = True) -> bool:
        """Return whether one more repeat fits within the cost limit; if not, emit a warning.

        Args:
            job: The repeat.
            hosts: Its hosts, or its queue.
            warn: Whether to emit the warning.
        """
        budget = self.budget
        if budget is None or budget.allows(job, hosts):
            return True
        if warn:
            which = "no new repeats will start" if hosts[0].queue is None else "the last repeats will not start"
            spent, limit = usd_text(budget.state.spent_usd()), usd_text(budget.limit_usd)
            rest = usd_text(budget.state.rest_usd(job, [host.key for host in hosts]))
            self.warn(
                f"{which}: the run has cost {spent} USD, one more costs about {rest}, the limit is {limit}", hosts[0]
            )
        return False

    def release(self, job: Job) -> None:
        """Reserve nothing more for a repeat that has ended or will not start."""
        if self.budget is not None:
            self.budget.release(job.id)

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
        self.release(job)
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

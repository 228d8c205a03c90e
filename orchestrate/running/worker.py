"""Workers, which run the repeats of a host or a queue."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from orchestrate.engines.base import OnTurn, QueueLauncher, Turn, always_running
from orchestrate.errors import Busy, CancelledInQueue, Gone, HostError, Lost, Unreachable
from orchestrate.inventory.hosts import Host
from orchestrate.planning.durations import Budget, clock_seconds
from orchestrate.planning.plan import HostPlan, Job, complete_job
from orchestrate.running.calls import Abandoned, Watched
from orchestrate.running.context import (
    DevicePeaks,
    RunContext,
    StorageFailed,
    affordable,
    drop_for_bug,
    drop_host,
    finish,
    skip,
)
from orchestrate.running.judge import failed_record, judge, now
from orchestrate.running.options import AWAY, DROP_AFTER, HOST_FAULTS, QUEUED
from orchestrate.running.session import HostSession
from results.schema import Record, Status

BUSY_SECONDS = 1.0
"""Time between two attempts to start a repeat while another run measures on the machine."""

ASK_AGAIN_SECONDS = 15.0
"""Interval of queries while no host answers."""

T = TypeVar("T")


@dataclass
class Attempt:
    """One attempt at a repeat, and its clock, which excludes time in a queue.

    Attributes:
        budget: Counts the cost of a machine in a queue; None: a single host, or no limit.
        began: When it started, in `clock_seconds`.
        started_at: The same in UTC, ISO 8601.
        turn: The last report of its queue, or None.
    """

    job: Job
    budget: Budget | None = None
    began: float = field(default_factory=clock_seconds)
    started_at: str = field(default_factory=now)
    turn: Turn | None = None

    def take(self, turn: Turn, watched: Watched) -> str | None:
        """Process a report of the queue.

        Returns:
            The repeat's new state in a word; None: unchanged.
        """
        before, self.turn = self.turn, turn
        if turn.waiting:
            watched.wait()
            if self.budget is not None:
                self.budget.pause(self.job.place, self.job.id)
            return QUEUED if before is None or not before.waiting else None
        if before is not None and not before.waiting and before.node == turn.node:
            return None
        self.began, self.started_at = clock_seconds(), now()
        if self.budget is not None:
            self.budget.begin(self.job.place, self.job.id)
        watched.run()
        return f"on {turn.node}" if turn.node else "running"

    def end(self) -> None:
        """Stop counting its cost."""
        if self.budget is not None:
            self.budget.end(self.job.place, self.job.id)


class Worker(ABC):
    """Runs the repeats of a host or a queue, or the multi-host jobs of a fleet.

    Args:
        host: Represents the work in events and records.
        jobs: The repeats without a record.
        shared: State shared by the workers of a run.
        name: For the file with the traceback of a bug.
    """

    def __init__(self, host: Host, jobs: Sequence[Job], shared: RunContext, name: str) -> None:
        self.host = host
        self.jobs = list(jobs)
        self.shared = shared
        self._name = name
        self._todo: deque[Job] = deque()
        self._faults = 0  # consecutive repeats that ended by a fault of a host
        self._started: list[Job] = []  # repeats that have started, and have no record yet
        self._put_back: set[str] = set()  # ids of repeats that may still run on a host that was lost
        self._offline_seconds = shared.options.offline_seconds

    async def work(self) -> None:
        """Run the repeats until they are done, the host is dropped, or the run is stopped."""
        if self.shared.stop.launching.is_set():
            return
        try:
            if await self._ready():
                self._todo.extend(self.jobs)
                await self._work_through()
        except StorageFailed as failure:
            self.shared.fail(failure)
        except Exception as error:  # noqa: BLE001  a bug: ends this host, not the others
            self._drop_for_bug(error)
        finally:
            for session in self._sessions():
                await session.close()

    def _drop_for_bug(self, error: Exception) -> None:
        try:
            drop_for_bug(self._name, error, self.host, self._started, self.shared)
        except StorageFailed as failure:
            self.shared.fail(failure)

    async def _work_through(self) -> None:
        """Run repeats from the list until it is empty, the host is dropped, or the run is stopped."""
        stop, options = self.shared.stop.launching, self.shared.options
        while not stop.is_set() and (job := await self._next()) is not None:
            if job.id not in self._put_back and skip(job, self.host, self.shared):
                await self._skip_unneeded(job)
                continue
            self._started.append(job)
            record = await self._run_once(job)
            self._started.remove(job)
            if record is None:
                continue
            self._faults = self._faults + 1 if record.status in HOST_FAULTS else 0
            if options.fail_fast and record.status is not Status.OK:
                stop.set()
            if record.status in AWAY and not self._is_dropped() and await self._wait_for_network():
                self._faults = 0
                await self._reconnect()
            if self._faults >= DROP_AFTER * self.host.slots or self._is_dropped():
                await self._drop(record)

    async def _next(self) -> Job | None:
        """Take the next repeat from the list; None: the list is empty, or the repeat would cost too much."""
        if not self._todo:
            return None
        job = self._todo.popleft()
        fits = job.id in self._put_back or affordable(self._hosts_of(job), job.case.name, self.shared)
        return job if fits else None

    async def _drop(self, record: Record) -> list[Job]:
        """Drop the host with the cause of its last failure, unless the run is stopped anyway.

        Returns:
            The remaining repeats.
        """
        left = list(self._todo)
        self._todo.clear()
        if left and not self.shared.stop.running.is_set():
            status = record.status if record.status in HOST_FAULTS else Status.LOST
            drop_host(self.host, status, record.cause or "", left, self.shared)
        return left

    async def _wait_for_network(self) -> bool:
        """Wait, within limits, while no host answers; return whether it has waited and a host answers."""
        if not self.host.is_remote:
            return False
        stop, began, waited = self.shared.stop.launching, time.monotonic(), False
        while not stop.is_set() and not await self._network_answers():
            if time.monotonic() - began >= self._offline_seconds:
                self._offline_seconds = 0.0
                return False
            waited = True
            await self.shared.stop.wait(ASK_AGAIN_SECONDS)
        self._offline_seconds -= time.monotonic() - began
        return waited and not stop.is_set()

    async def _network_answers(self) -> bool:
        try:
            return await self.shared.calls.wait(self.shared.network.answers, math.inf)
        except Abandoned:  # the run ends
            return True

    async def _online(self, action: Callable[[], Awaitable[T]], *, has_answered: bool) -> T:
        """Call a function, and once more if it failed while no host answered, unless its host never has.

        Raises:
            HostError: It failed.
        """
        began = time.monotonic()
        try:
            return await action()
        except (Unreachable, Lost) as error:
            if not has_answered or isinstance(error, Abandoned):
                raise
            if not (await self._wait_for_network() or self.shared.network.was_away(began)):
                raise
            return await action()

    def _failed(
        self, job: Job, error: HostError, started_at: str, watched: Watched | None, cause: str | None = None
    ) -> Record:
        """Return the record of a repeat whose host failed; if it was abandoned, with the reason why it was ended."""
        status, cause = error.status, cause or error.cause
        if isinstance(error, Abandoned):
            if watched is not None and watched.stopped_for is not None:
                status, cause = watched.stopped_for[0], f"{watched.stopped_for[1]}; {cause}"
            elif self.shared.stop.running.is_set():
                status, cause = Status.STOPPED, f"stopped by the user; {cause}"
        return failed_record(job, status, cause, started_at)

    @abstractmethod
    async def _ready(self) -> bool:
        """Connect and prepare the host; False: nothing is left to do, or every repeat got a record."""

    @abstractmethod
    async def _run_once(self, job: Job) -> Record | None:
        """Run one repeat, from start to record.

        Returns:
            Its record; None: it was cancelled in its queue before it started.
        """

    @abstractmethod
    def _sessions(self) -> Sequence[HostSession]:
        """Return the open sessions."""

    def _is_dropped(self) -> bool:
        """Return whether a host of this work cannot be used any more."""
        return any(session.problem is not None for session in self._sessions())

    def _hosts_of(self, job: Job) -> list[Host]:
        """Return the hosts of a repeat."""
        return [self.host]

    async def _skip_unneeded(self, job: Job) -> None:  # noqa: B027
        """Skip a repeat that no comparison needs any more."""

    async def _reconnect(self) -> None:  # noqa: B027
        """Open sessions again that were abandoned while no host answered."""


class HostWorker(Worker):
    """Runs the repeats of one host, one after another.

    Args:
        entry: The host's part of the plan.
        jobs: Those of its repeats without a record.
        shared: State shared by the workers of a run.
        parts: Its parts of multi-host jobs without a record.
    """

    def __init__(self, entry: HostPlan, jobs: list[Job], shared: RunContext, parts: Sequence[Job] = ()) -> None:
        super().__init__(entry.host, jobs, shared, entry.host.key)
        self.entry = entry
        self._parts = parts
        self._session: HostSession  # from `_ready` on
        self._peaks = DevicePeaks()

    async def work(self) -> None:
        """See `Worker.work`."""
        if self.entry.jobs:
            await super().work()
        if self.shared.budget is not None and self._parts:
            self.shared.budget.begin(self.host.place)  # it also costs while it waits for the others of its fleet

    def _sessions(self) -> Sequence[HostSession]:
        return [self._session] if hasattr(self, "_session") else []

    async def _ready(self) -> bool:
        self._session = await HostSession.open(self.entry, self.shared)
        if self.host.queue is None:  # in a queue, each repeat costs while it has a machine
            self._session.count_cost()
        if not self.jobs:
            await self._session.sweep_only(self.entry.jobs)
            return False
        try:
            await self._online(self._prepare, has_answered=self.entry.facts is not None)
        except HostError as error:
            if not self.shared.stop.launching.is_set():
                drop_host(self.host, error.status, error.cause, self.jobs, self.shared)
            return False
        return True

    async def _prepare(self) -> None:
        """Probe a host that was not, remove leftovers, wait for parts of multi-host jobs, and prepare images."""
        if (facts := await self._session.probe_missing()) is not None:
            self.jobs = [complete_job(job, self.host, facts) for job in self.jobs]
        self._finish_blocked()
        there = await self._session.sweep(self.entry.jobs, {job.id for job in self.jobs})
        for part in self._parts:
            if part.id in there:
                await self._session.wait_for(part)
        self.jobs.sort(key=lambda job: job.id not in there)  # what may still run comes first
        await self._session.prepare_images(self.jobs)

    def _finish_blocked(self) -> None:
        """Write the records of blocked repeats, before anything is pulled for them."""
        for job in self.jobs:
            if job.blocked is not None:
                finish(job, failed_record(job, *job.blocked, now()), self.host, 0.0, self.shared)
        self.jobs = [job for job in self.jobs if job.blocked is None]

    async def _run_once(self, job: Job) -> Record | None:
        job = dataclasses.replace(job, known_peaks=self._peaks.of(job))
        attempt, watched = self._attempt(job), None
        ended = False
        try:
            reattached = await self._start(job)
            watched = self._session.watch(job)
            outcome = await self._session.follow(job, watched, self._on_turn(attempt, watched))
            record = judge(
                job,
                outcome.ending,
                outcome.payload,
                started_at=attempt.started_at,
                stopped_for=watched.stopped_for,
                last_line=outcome.last_line,
                observed_seconds=None if reattached else clock_seconds() - attempt.began,
            )
            ended = True
        except CancelledInQueue:
            return None
        except HostError as error:
            record = self._failed(job, error, attempt.started_at, watched)
            ended = error.status is not Status.LOST  # a lost repeat may still run: `resume` and `stop` can find it
            if self._may_reattach(error, watched):
                self._session.warn(f"{job.id} may still run: {error.cause}. Reattaching to it")
                self._put_back.add(job.id)
                self._todo.appendleft(job)  # first: it would slow down any other repeat
                return record
        finally:
            attempt.end()
        finish(job, record, self.host, clock_seconds() - attempt.began, self.shared)
        if ended:
            await self._session.remove(job)
        if self.host.queue is None:  # a queue's next repeat may get another machine
            self._peaks.add(job, record)
        return record

    async def _start(self, job: Job) -> bool:
        """Start a repeat once no other run measures on the machine.

        Raises:
            CancelledInQueue: The run was stopped before.
        """
        waits = False
        while True:
            try:
                return await self._session.start(job)
            except Busy as error:
                if not waits:
                    self._session.warn(f"{error.cause}: waiting until its repeat has ended")
                waits = True
            if await self.shared.stop.wait(BUSY_SECONDS):
                raise CancelledInQueue(job.id)

    def _may_reattach(self, error: HostError, watched: Watched | None) -> bool:
        """Return whether a repeat whose host failed may still run, and the host has another try."""
        may_run = isinstance(error, Unreachable | Lost) and not isinstance(error, Gone)
        ending = self.shared.stop.launching.is_set() or self.shared.options.fail_fast or self._is_dropped()
        ended = watched is not None and watched.stopped_for is not None
        return may_run and not (ended or ending or self.host.queue) and self._faults < DROP_AFTER - 1

    def _attempt(self, job: Job) -> Attempt:
        return Attempt(job)

    def _on_turn(self, attempt: Attempt, watched: Watched) -> OnTurn:
        """Return the callback for reports of a queue; a host has none."""
        return always_running


class QueueWorker(HostWorker):
    """Runs the repeats of one queue, with one worker slot per allowed job.

    Each repeat costs while it has a machine, and jobs in the queue must be cancelled when they are no longer needed.
    """

    _cancelled = False
    _too_expensive = False
    _trouble = ""

    @property
    def _queue(self) -> QueueLauncher:
        return cast(QueueLauncher, self._session.launcher)

    async def _work_through(self) -> None:
        if not self._todo or not await self._enqueue():
            return
        slots = [self._work_slot() for _ in range(min(self.host.slots, len(self.jobs)))]
        bugs = [bug for bug in await asyncio.gather(*slots, return_exceptions=True) if bug is not None]
        await self._clear_waiting()
        if bugs:
            raise bugs[0]

    async def _work_slot(self) -> None:
        try:
            await super()._work_through()
        except StorageFailed as failure:
            self.shared.fail(failure)  # at once: other slots may follow a repeat for hours

    async def _enqueue(self) -> bool:
        """Submit the affordable repeats; if the queue rejects them, each gets a record."""
        self._todo = deque(itertools.takewhile(self._affordable, self._todo))
        submitted = list(self._todo)
        try:
            await self._session.call(lambda: self._queue.submit(submitted))
        except HostError as error:
            drop_host(self.host, error.status, error.cause, submitted, self.shared)
            return False
        return True

    def _affordable(self, job: Job) -> bool:
        fits = affordable([self.host], job.case.name, self.shared, meter=job.id, warn=not self._too_expensive)
        self._too_expensive |= not fits
        return fits

    async def _next(self) -> Job | None:
        """See `Worker._next`; while the rest of the queue costs too much, its last repeat is cancelled."""
        cancelled: list[Job] = []
        job = self._todo.popleft() if self._todo else None
        while job is not None and not self._affordable(job):
            cancelled.append(self._todo.pop() if self._todo else job)
            self._release(cancelled[-1:])
            job = None if cancelled[-1] is job else job
        await self._clear(cancelled)
        return job

    def _release(self, jobs: Sequence[Job]) -> None:
        """Reserve nothing more for repeats that will not start."""
        if (budget := self.shared.budget) is not None:
            for job in jobs:
                budget.end(job.place, job.id)

    def _is_dropped(self) -> bool:
        """See `Worker._is_dropped`; a job that does not end is not a fault of other machines."""
        return False

    async def _skip_unneeded(self, job: Job) -> None:
        """Cancel all repeats that are not needed, in few requests.

        This includes those that have just started, whose results would never be collected.
        """
        others = [other for other in self._todo if skip(other, self.host, self.shared)]
        gone = {other.id for other in others}
        self._todo = deque(other for other in self._todo if other.id not in gone)
        await self._clear([job, *others])

    async def _drop(self, record: Record) -> list[Job]:
        left = await super()._drop(record)
        await self._clear(left)
        return left

    async def _clear(self, jobs: list[Job]) -> None:
        self._release(jobs)
        if jobs:
            clear = self._session.call(lambda: self._queue.clear(jobs))
            await self._session.attempt("cancel jobs that are no longer needed", clear)

    async def _clear_waiting(self) -> None:
        """Cancel repeats without a slot when the run is stopped: the queue may start them when others end."""
        if self.shared.stop.launching.is_set():
            await self._clear(list(self._todo))

    def _attempt(self, job: Job) -> Attempt:
        return Attempt(job, self.shared.budget)

    def _on_turn(self, attempt: Attempt, watched: Watched) -> OnTurn:
        """Return a callback that updates a repeat's clock, warns of queue failures, and cancels jobs after a stop."""
        watched.wait()

        def on_turn(turn: Turn) -> None:
            if (state := attempt.take(turn, watched)) is not None:
                self._session.state(attempt.job, state)
            self._report_trouble(turn.trouble)
            self._cancel_when_stopped()

        return on_turn

    def _report_trouble(self, trouble: str) -> None:
        """Warn once each time the queue stops answering."""
        before, self._trouble = self._trouble, trouble
        if trouble and not before:
            self._session.warn(f"the queue does not answer at the moment; its jobs continue: {trouble}")

    def _cancel_when_stopped(self) -> None:
        """Cancel waiting jobs, once, after a stop was requested."""
        if not self.shared.stop.launching.is_set():
            return
        before, self._cancelled = self._cancelled, True
        if not before:
            self.shared.calls.start(self._cancel_waiting)

    async def _cancel_waiting(self) -> None:
        cancel = self._session.call(lambda: self._queue.cancel_waiting(self.jobs))
        await self._session.attempt("cancel waiting jobs", cancel)

"""Workers, which run repeats: those of a host, of a queue, or of hosts that train together."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar, cast

import anyio

from orchestrate.engines.base import QueueLauncher, Turn
from orchestrate.errors import Busy, CancelledInQueue, Gone, HostError, Lost, Unreachable
from orchestrate.events import HostLost
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import HostPlan, Job, JobOnHosts, complete_job, whole_job
from orchestrate.running import context
from orchestrate.running.context import Abandoned, DevicePeaks, RunContext, StorageFailed, storing
from orchestrate.running.judge import failed_record, now
from orchestrate.running.part import RunningPart, has_failed, how_failed, judge_parts
from orchestrate.running.session import HostSession
from orchestrate.running.state import AWAY, DROP_AFTER, HOST_FAULTS, PART_DONE
from results.schema import Record, Status

BUSY_SECONDS = 1.0
"""Time between two attempts to start a repeat while another run measures on the machine."""

ASK_AGAIN_SECONDS = 15.0
"""Interval of queries while no host answers."""

POLL_SECONDS = 0.2

GRACE_SECONDS = 5.0
"""Time for the other parts to end by themselves after one has failed, so that their records have the cause."""

T = TypeVar("T")


class Worker:
    """Runs repeats one after another, on one host or on hosts that train together.

    Args:
        run: State of the run.
        entries: The hosts; the first represents the work in events and records.
        repeats: The repeats without a record, in order.
        awaited: Parts of later workers' repeats on these hosts, which a dead controller may have left running.
    """

    def __init__(
        self, run: RunContext, entries: Sequence[HostPlan], repeats: Sequence[JobOnHosts], awaited: Sequence[Job] = ()
    ) -> None:
        self.run = run
        self.host = entries[0].host
        self.entries = entries
        self.left = {repeat.job.id: repeat for repeat in repeats}  # without a record
        self.todo: deque[JobOnHosts] = deque()  # not started
        self.sessions: dict[HostPlace, HostSession] = {}
        self._awaited = awaited
        self._there: set[str] = set()  # ids of jobs that a dead controller started
        self._started: dict[str, Job] = {}  # repeats that have no record yet
        self._put_back: set[str] = set()  # ids of repeats that may still run on a host that was lost
        self._lost: list[RunningPart] = []  # of repeats with a record, which may still run
        self._peaks = DevicePeaks()
        self._faults = 0  # consecutive repeats that ended by a fault of a host
        self._given_up: tuple[Status, str] | None = None
        self._dropped: set[HostPlace] = set()
        self._offline_seconds = context.OFFLINE_SECONDS

    async def work(self) -> None:
        """Run the repeats until they are done, the hosts are dropped, or the run is stopped."""
        if self.run.stop.launching.is_set():
            return
        try:
            for entry in self.entries:
                if self._parts_on(entry.host) or not self.left:
                    await self._open(entry)
            self._finish_impossible()
            was_there = {key: any(job.id in self._there for job in one.members) for key, one in self.left.items()}
            self.todo.extend(sorted(self.left.values(), key=lambda repeat: not was_there[repeat.job.id]))
            await self.work_through()
        except StorageFailed as failure:
            self.run.fail(failure)
        except Exception as error:  # noqa: BLE001  a bug: ends this work, not that of others
            self._report_bug(error)
        finally:
            for session in self.sessions.values():
                await session.close()

    def _report_bug(self, error: Exception) -> None:
        """Write the traceback to the run's folder, and a record for each repeat that the bug ended."""
        name = self.host.key if len(self.entries) == 1 else f"{self.host.fleet}+together"
        path = self.run.folder.path / f"traceback-{name}.txt"
        try:
            with storing(self.run.folder):
                path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
            cause = f"a bug in tfbench: {error!r}. Traceback: {path}"
            self.run.bus.emit(HostLost(host=self.host.key, status=Status.ERROR, cause=cause))
            for job in self._started.values():
                if job.id not in self.run.recorded.statuses:
                    self.run.finish(job, failed_record(job, Status.ERROR, cause, now()), self.host)
        except StorageFailed as failure:
            self.run.fail(failure)

    # -- hosts ---------------------------------------------------------------------------------------------------------

    async def _open(self, entry: HostPlan) -> None:
        """Connect to a host and prepare it; if nothing is left to do, only clean up."""
        session = self.sessions[entry.host.place] = await HostSession.open(entry, self.run)
        if not self.left:
            return await session.attempt("look for leftovers", session.sweep({part.id for part in self._awaited}))
        try:
            await self._online(partial(self._prepare, session), has_answered=entry.facts is not None)
        except HostError as error:
            session.problem = error

    async def _prepare(self, session: HostSession) -> None:
        """Probe a host that was not, remove leftovers, wait for parts that still run, and prepare images."""
        host = session.host
        if (facts := await session.probe_missing()) is not None:
            for key, repeat in self.left.items():
                members = [complete_job(job, host, facts) if job.place == host.place else job for job in repeat.members]
                self.left[key] = JobOnHosts(job=whole_job(members), members=tuple(members))
        for repeat in list(self.left.values()):
            if repeat.job.blocked is not None:  # before anything is pulled for it
                self._finish(repeat, failed_record(repeat.job, *repeat.job.blocked, now()))
        there = await session.sweep({job.id for job in (*self._parts_on(host), *self._awaited)})
        for job in self._awaited:
            if job.id in there:  # its result stays there
                part = RunningPart(job, session, steps=False)
                await part.start()
                await part.follow()
        self._there |= there
        await session.prepare_images(self._parts_on(host))

    def _parts_on(self, host: Host) -> list[Job]:
        """Return the parts of the remaining repeats on a host."""
        return [job for repeat in self.left.values() for job in repeat.members if job.place == host.place]

    def _hosts_of(self, repeat: JobOnHosts) -> list[Host]:
        return [self.sessions[job.place].host for job in repeat.members]

    async def _reconnect(self) -> None:
        """Open sessions again that were abandoned while no host answered."""
        for session in [session for session in self.sessions.values() if session.problem is not None]:
            await session.close()
            await self._open(session.entry)

    async def _wait_for_network(self) -> bool:
        """Wait, within limits, while no host answers; return whether it has waited and a host answers."""
        if not self.host.is_remote:
            return False
        stop, began, waited = self.run.stop, time.monotonic(), False
        while not stop.launching.is_set() and not await self._network_answers():
            if time.monotonic() - began >= self._offline_seconds:
                self._offline_seconds = 0.0
                return False
            waited = True
            await stop.wait(ASK_AGAIN_SECONDS)
        self._offline_seconds -= time.monotonic() - began
        return waited and not stop.launching.is_set()

    async def _network_answers(self) -> bool:
        with contextlib.suppress(Abandoned), self.run.calls.limit(float("inf")):
            return await self.run.network.answers()
        return True  # the run ends

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
            if not (await self._wait_for_network() or self.run.network.was_away(began)):
                raise
            return await action()

    # -- repeats -------------------------------------------------------------------------------------------------------

    async def work_through(self) -> None:
        """Run repeats from the list until it is empty, or the run is stopped."""
        stop = self.run.stop.launching
        while not stop.is_set():
            self._finish_impossible()
            if self.todo and self._lost:
                await self._remove_lost()
                continue
            if (repeat := await self.next_repeat()) is None:
                return
            if repeat.job.id not in self._put_back and self.run.skips(repeat.job, self.host):
                await self.skip_unneeded(repeat)
                continue
            self._started[repeat.job.id] = repeat.job
            record = await self._run_once(repeat)
            del self._started[repeat.job.id]
            if record is None:
                continue
            self._faults = self._faults + 1 if record.status in HOST_FAULTS else 0
            if self.run.how.fail_fast and record.status is not Status.OK:
                stop.set()
            if record.status in AWAY and await self._wait_for_network():
                self._faults = 0
                await self._reconnect()
            if self._faults >= DROP_AFTER * self.host.slots:
                await self.give_up(record)

    async def next_repeat(self) -> JobOnHosts | None:
        """Take the next repeat from the list; None: the list is empty, or the repeat would cost too much."""
        if not self.todo:
            return None
        repeat = self.todo.popleft()
        fits = repeat.job.id in self._put_back or self.run.affords(repeat.job, self._hosts_of(repeat))
        return repeat if fits else None

    async def give_up(self, record: Record) -> None:
        """Drop the hosts, with the cause of their last failure."""
        self._given_up = record.status, record.cause or ""
        if self.todo:
            self.run.bus.emit(HostLost(host=self.host.key, status=record.status, cause=record.cause or ""))

    def _finish_impossible(self) -> None:
        """Write the records of the remaining repeats whose hosts were dropped, unless the run is stopped."""
        if self.run.stop.launching.is_set():
            return
        for place, session in self.sessions.items():
            if (error := session.problem) is not None and place not in self._dropped and self._parts_on(session.host):
                self.run.bus.emit(HostLost(host=session.host.key, status=error.status, cause=error.cause))
                self._dropped.add(place)
        for repeat in list(self.left.values()):
            if repeat.job.id not in self._started and (obstacle := self._obstacle(repeat)) is not None:
                self._finish(repeat, failed_record(repeat.job, *obstacle, now()))
        self.todo = deque(repeat for repeat in self.todo if repeat.job.id in self.left)

    def _obstacle(self, repeat: JobOnHosts) -> tuple[Status, str] | None:
        """Return why a repeat cannot start, as a status and a cause."""
        if self._given_up is not None:
            return self._given_up
        for job in repeat.members:
            session = self.sessions.get(job.place)
            if session is not None and (error := session.problem) is not None:
                return error.status, f"{session.host.key}: {error.cause}" if len(repeat.members) > 1 else error.cause
        return None

    def _finish(self, repeat: JobOnHosts, record: Record, seconds: float = 0.0) -> None:
        self.run.finish(repeat.job, record, self.host, seconds)
        self.left.pop(repeat.job.id, None)

    async def _remove_lost(self) -> None:
        """Remove parts of earlier repeats that may still run and would slow down the next one."""
        for part in self._lost:
            try:
                await part.session.call(partial(part.session.launcher.remove, part.job))
            except HostError as error:
                part.session.problem = error
        self._lost.clear()

    async def _run_once(self, repeat: JobOnHosts) -> Record | None:
        """Run one repeat, from start to record.

        Returns:
            Its record; None: it was cancelled before it started.
        """
        parts = [
            self.make_part(dataclasses.replace(job, known_peaks=self._peaks.of(job)), steps=number == 0)
            for number, job in enumerate(repeat.members)
        ]
        chief = parts[0]
        try:
            if len(parts) == 1:
                await self._run_part(chief, parts)
            else:
                await self._run_together(parts)
        except CancelledInQueue:
            return None
        record = judge_parts(repeat.job, parts, stopped=self.run.stop.running.is_set())
        if len(parts) == 1 and self._may_reattach(chief):
            chief.session.warn(f"{repeat.job.id} may still run: {record.cause}. Reattaching to it")
            self._put_back.add(repeat.job.id)
            self.todo.appendleft(repeat)  # first: it would slow down any other repeat
            return record
        self._finish(repeat, record, clock_seconds() - chief.began)
        in_queue = self.host.queue is not None  # whose next repeat may get another machine
        for part in [part for part in parts if part.session.problem is None]:
            if isinstance(part.error, Lost | Unreachable) and not isinstance(part.error, Gone) and not in_queue:
                self._lost.append(part)
            if not isinstance(part.error, Lost):  # a lost part may still run: `resume` and `stop` can find it
                await part.remove()
        if not in_queue:
            self._peaks.add(repeat.job, record)
        return record

    def make_part(self, job: Job, *, steps: bool) -> RunningPart:
        """Return a part of a repeat; `steps`: whether it reports steps."""
        return RunningPart(job, self.sessions[job.place], steps=steps)

    async def _run_part(self, part: RunningPart, parts: Sequence[RunningPart]) -> None:
        """Start a part once no other run measures on its machine, follow it to its end and collect its record.

        Raises:
            CancelledInQueue: The run was stopped before, or another part has failed.
        """
        waits = False
        try:
            while True:
                try:
                    await part.start()
                    break
                except Busy as error:
                    if not waits:
                        part.session.warn(f"{error.cause}: waiting until its repeat has ended")
                    waits = True
                if await self.run.stop.wait(BUSY_SECONDS) or any(map(has_failed, parts)):
                    raise CancelledInQueue(part.job.id)
            await part.follow()
            await part.collect()
        except HostError as error:
            part.error = error
        finally:
            part.ended_at = time.monotonic()

    async def _run_together(self, parts: Sequence[RunningPart]) -> None:
        """Run all parts at once, because the ranks wait for each other; if one fails, end the others."""
        failures: list[StorageFailed] = []

        async def work(part: RunningPart) -> None:
            try:
                await self._run_part(part, parts)
            except CancelledInQueue:
                part.error = Unreachable("another run measured there")
            except StorageFailed as failure:
                failures.append(failure)
                self.run.fail(failure)
            except Exception as error:  # noqa: BLE001  a bug: the others must not hang
                part.error = HostError(f"a bug in tfbench: {error!r}")
            if part is not parts[0]:
                part.session.state(part.job, PART_DONE)

        async with anyio.create_task_group() as group:
            for part in parts:
                group.start_soon(work, part)
            while running := [part for part in parts if part.ended_at is None]:
                await anyio.sleep(POLL_SECONDS)
                first = min(filter(has_failed, parts), key=lambda part: part.ended_at or 0.0, default=None)
                if first is not None and time.monotonic() - (first.ended_at or 0.0) > GRACE_SECONDS:
                    for part in running:
                        part.end(Status.LOST, how_failed(first))
        if failures:
            raise failures[0]

    def _may_reattach(self, part: RunningPart) -> bool:
        """Return whether a repeat whose host failed may still run, and the host has another try."""
        may_run = isinstance(part.error, Unreachable | Lost) and not isinstance(part.error, Gone)
        ending = self.run.stop.launching.is_set() or self.run.how.fail_fast or part.session.problem is not None
        return may_run and not (part.stopped_for or ending or self.host.queue) and self._faults < DROP_AFTER - 1

    async def skip_unneeded(self, repeat: JobOnHosts) -> None:
        """Skip a repeat that no comparison needs any more."""
        self.left.pop(repeat.job.id)


class QueueWorker(Worker):
    """Runs the repeats of one queue, with one worker slot per allowed job.

    Each repeat costs while it has a machine, and jobs in the queue must be cancelled when they are no longer needed.
    """

    _cancelled = False
    _too_expensive = False
    _trouble = ""

    @property
    def _session(self) -> HostSession:
        return self.sessions[self.host.place]

    @property
    def _queue(self) -> QueueLauncher:
        return cast(QueueLauncher, self._session.launcher)

    async def work_through(self) -> None:
        """Submit the affordable repeats, and run them in all worker slots."""
        self.todo = deque(itertools.takewhile(self._affordable, self.todo))
        if not self.todo or self.run.stop.launching.is_set():
            return
        submitted = [repeat.job for repeat in self.todo]
        try:
            await self._session.call(lambda: self._queue.submit(submitted))
        except HostError as error:
            self._session.problem = error
            self._finish_impossible()
        slots = [self._work_slot() for _ in range(min(self.host.slots, len(self.todo)))]
        bugs = [bug for bug in await asyncio.gather(*slots, return_exceptions=True) if bug is not None]
        if self.run.stop.launching.is_set():  # the queue may start them when others end
            await self._clear([repeat.job for repeat in self.todo])
        if bugs:
            raise bugs[0]

    async def _work_slot(self) -> None:
        try:
            await super().work_through()
        except StorageFailed as failure:
            self.run.fail(failure)  # at once: other slots may follow a repeat for hours

    def _affordable(self, repeat: JobOnHosts) -> bool:
        fits = self.run.affords(repeat.job, [self.host], warn=not self._too_expensive)
        self._too_expensive |= not fits
        return fits

    async def next_repeat(self) -> JobOnHosts | None:
        """See `Worker.next_repeat`; while the rest of the queue costs too much, its last repeat is cancelled."""
        cancelled: list[Job] = []
        repeat = self.todo.popleft() if self.todo else None
        while repeat is not None and not self._affordable(repeat):
            last = self.todo.pop() if self.todo else repeat
            cancelled.append(last.job)
            self.run.release(last.job)
            repeat = None if last is repeat else repeat
        await self._clear(cancelled)
        return repeat

    async def skip_unneeded(self, repeat: JobOnHosts) -> None:
        """Cancel all repeats that are not needed, in few requests.

        This includes those that have just started, whose results would never be collected.
        """
        unneeded = [repeat, *(one for one in self.todo if self.run.skips(one.job, self.host))]
        for one in unneeded:
            await super().skip_unneeded(one)
        self.todo = deque(one for one in self.todo if one.job.id in self.left)
        await self._clear([one.job for one in unneeded])

    async def give_up(self, record: Record) -> None:
        """See `Worker.give_up`; the remaining jobs leave the queue."""
        await super().give_up(record)
        waiting = [repeat.job for repeat in self.todo]
        self._finish_impossible()
        await self._clear(waiting)

    async def _clear(self, jobs: list[Job]) -> None:
        for job in jobs:
            self.run.release(job)
        if jobs:
            clear = self._session.call(lambda: self._queue.clear(jobs))
            await self._session.attempt("cancel jobs that are no longer needed", clear)

    def make_part(self, job: Job, *, steps: bool) -> RunningPart:
        """See `Worker.make_part`."""
        part = super().make_part(job, steps=steps)
        part.on_turn = partial(self._note_turn, part)
        return part

    def _note_turn(self, part: RunningPart, turn: Turn) -> None:
        """Update a repeat's clock, warn of failures of the queue, and cancel waiting jobs after a stop."""
        if (state := part.take_turn(turn)) is not None:
            self._session.state(part.job, state)
        before, self._trouble = self._trouble, turn.trouble
        if turn.trouble and not before:
            self._session.warn(f"the queue does not answer at the moment; its jobs continue: {turn.trouble}")
        if self.run.stop.launching.is_set() and not self._cancelled:
            self._cancelled = True
            self.run.start_soon(self._cancel_waiting)

    async def _cancel_waiting(self) -> None:
        waiting = [repeat.job for repeat in self.left.values()]
        cancel = self._session.call(lambda: self._queue.cancel_waiting(waiting))
        await self._session.attempt("cancel waiting jobs", cancel)

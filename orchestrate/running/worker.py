"""Workers, which run repeats: those of a host, of a queue, or of hosts that train together."""

from __future__ import annotations

import dataclasses
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

import anyio

from orchestrate.engines.base import QueueLauncher
from orchestrate.errors import CancelledInQueue, HostError, Lost, Unreachable
from orchestrate.events import HostChecked, HostLost
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.loop import in_thread
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import HostPlan, Job, JobOnHosts, complete_job, whole_job
from orchestrate.running.context import Abandoned, DevicePeaks, RunContext, StorageFailed, all_or_none
from orchestrate.running.judge import failed_record, now
from orchestrate.running.probing import PROBE_SECONDS, close
from orchestrate.running.session import HostSession, RunningPart, judge_parts
from orchestrate.running.state import AWAY, DROP_AFTER, HOST_FAULTS, RepeatState
from results.schema import Record, Status


class Worker:
    """Runs repeats on one host, on a queue or on hosts that train together: one after another in each of its slots.

    A queue gets all of its repeats at once. Those that are not needed any more must be cancelled there, also after a
    stop: it may start them when others end.

    Args:
        run: The run.
        entries: The hosts; the first represents the work in events and records.
        repeats: The repeats in order; those with a record do not run again.
        turns: Limit how many work at once.
        after: Workers that must have ended before.
    """

    def __init__(
        self,
        run: RunContext,
        entries: Sequence[HostPlan],
        repeats: Sequence[JobOnHosts],
        turns: Sequence[anyio.CapacityLimiter],
        after: Sequence[Worker] = (),
    ) -> None:
        self._turns = turns
        self._after = after
        self._ended = anyio.Event()
        self._entries = entries
        self._run = run
        self._host = entries[0].host
        self._in_queue = self._host.queue is not None
        self._todo = deque(repeats)
        self._there: set[str] = set()  # ids of repeats that may run already: collected first, whatever they cost
        self._sessions: dict[HostPlace, HostSession] = {}
        self._peaks = DevicePeaks()
        self._faults = 0  # consecutive repeats that ended by a fault of a host

    async def work(self) -> None:
        """Wait for its turn, then run the repeats until they are done, the hosts are dropped, or the run is stopped."""
        for worker in self._after:
            await worker._ended.wait()
        for turn in self._turns:
            await turn.acquire()
        try:
            if self._run.stop.launching.is_set():
                return
            self._todo = deque(repeat for repeat in self._todo if not self._run.state.is_done(repeat.job))
            for entry in self._entries:
                if self._parts_on(entry.host) or not self._todo:
                    await self._open(entry)
            self._finish_impossible()
            self._todo = deque(sorted(self._todo, key=lambda repeat: repeat.job.id not in self._there))
            if self._in_queue:
                await self._submit()
            async with all_or_none() as slots:
                for _ in range(min(self._host.slots, len(self._todo))):
                    slots.start_soon(self._work_slot)
            if self._run.stop.launching.is_set():
                await self._cancel(self._todo)
        except StorageFailed:
            raise
        except Exception as error:  # noqa: BLE001  a bug: ends this work, not that of others
            cause = self._run.report_bug(error, self._host)
            self._run.bus.emit(HostLost(host=self._host.key, status=Status.ERROR, cause=cause))
        finally:
            for session in self._sessions.values():
                await close(session.launcher)
            for turn in self._turns:
                turn.release()
            self._ended.set()

    # -- hosts ---------------------------------------------------------------------------------------------------------

    async def _open(self, entry: HostPlan) -> None:
        """Connect to a host and prepare it, once more if no host answered meanwhile; without work, only clean up."""
        launcher = await in_thread(partial(self._run.make, entry.host))
        session = self._sessions[entry.host.place] = HostSession(entry, launcher, self._run)
        if not self._todo:
            return await session.attempt("look for leftovers", session.sweep())
        began = time.monotonic()
        try:
            try:
                await self._prepare(session)
            except (Unreachable, Lost) as error:
                has_answered = entry.facts is not None and not isinstance(error, Abandoned)
                if not (has_answered and await self._run.network_returned(self._host, began)):
                    raise
                await self._prepare(session)
        except HostError as error:
            session.problem = error

    async def _prepare(self, session: HostSession) -> None:
        """Probe a host without facts, remove leftovers, wait for parts that still run, and prepare images."""
        host = session.host
        if session.entry.facts is None:
            facts = await session.call(session.launcher.probe, PROBE_SECONDS)
            self._run.bus.emit(HostChecked(host=host.key, problem=None, gpus=len(facts.gpus)))
            for place, repeat in enumerate(self._todo):
                members = [complete_job(job, host, facts) if job.place == host.place else job for job in repeat.members]
                self._todo[place] = JobOnHosts(job=whole_job(members), members=tuple(members))
        self._finish_impossible()  # before anything is pulled for it
        there = {job.id: job for job in await session.sweep()}
        own = {job.id: job for job in self._parts_on(host)}
        for job in there.values():
            if job.id not in own:  # a part of a later worker's repeat, which a dead controller left: it stays there
                part = RunningPart(job=job, session=session)
                await part.start()
                await part.follow()
        self._there |= {repeat.job.id for repeat in self._todo if any(job.id in there for job in repeat.members)}
        await session.prepare_images([*own.values()])

    def _parts_on(self, host: Host) -> list[Job]:
        """Return the parts of the remaining repeats on a host."""
        return [job for repeat in self._todo for job in repeat.members if job.place == host.place]

    def _finish_impossible(self) -> list[JobOnHosts]:
        """Write the records of the repeats that cannot start, unless the run is stopped; return these repeats."""
        if self._run.stop.launching.is_set():
            return []
        for session in self._sessions.values():
            key, error = session.host.key, session.problem
            if error is not None and not self._run.state.hosts[key].dropped and self._parts_on(session.host):
                self._run.bus.emit(HostLost(host=key, status=error.status, cause=error.cause))
        impossible = [(repeat, why) for repeat in self._todo if (why := self._obstacle(repeat)) is not None]
        for repeat, why in impossible:
            self._run.finish(repeat.job, failed_record(repeat.job, *why, now()), self._host)
        self._todo = deque(one for one in self._todo if not self._run.state.is_done(one.job))
        return [repeat for repeat, _ in impossible]

    def _obstacle(self, repeat: JobOnHosts) -> tuple[Status, str] | None:
        """Return why a repeat cannot start, as a status and a cause."""
        for session in [self._sessions[job.place] for job in repeat.members if job.place in self._sessions]:
            if (error := session.problem) is not None:
                return error.status, f"{session.host.key}: {error.cause}" if len(repeat.members) > 1 else error.cause
        return repeat.job.blocked

    # -- repeats -------------------------------------------------------------------------------------------------------

    async def _work_slot(self) -> None:
        stop = self._run.stop.launching
        while not stop.is_set() and (repeat := await self._next()) is not None:
            began = time.monotonic()
            if (record := await self._run_once(repeat)) is None:
                continue
            self._faults = self._faults + 1 if record.status in HOST_FAULTS else 0
            if self._run.how.fail_fast and record.status is not Status.OK:
                stop.set()
            if record.status in AWAY and await self._run.network_returned(self._host, began):
                self._faults = 0
                again = [one for one in self._sessions.values() if one.problem is not None and not self._in_queue]
                for session in again:
                    session.problem = None
                for session in again:
                    await close(session.launcher)
                    await self._open(session.entry)
            if self._faults >= DROP_AFTER * self._host.slots:
                self._sessions[self._host.place].problem = HostError(record.cause or "", record.status)

    async def _next(self) -> JobOnHosts | None:
        """Take the next repeat that is possible, needed and not too expensive; None: there is none."""
        await self._cancel(self._finish_impossible())
        while self._todo:
            repeat = self._todo.popleft()
            if repeat.job.id in self._there and not self._in_queue:
                return repeat
            if self._run.skips(repeat.job, self._host):
                unneeded = [repeat, *(one for one in self._todo if self._run.skips(one.job, self._host))]
                self._todo = deque(one for one in self._todo if not self._run.state.is_done(one.job))
                await self._cancel(unneeded)
                continue
            if self._run.affords(repeat.job, self._host):
                return repeat
            too_expensive = [repeat, *self._todo]
            self._todo.clear()
            await self._cancel(too_expensive)
        return None

    async def _run_once(self, repeat: JobOnHosts) -> Record | None:
        """Run one repeat, from start to record.

        Returns:
            Its record; None: it was cancelled before it started.
        """
        jobs = [dataclasses.replace(job, known_peaks=self._peaks.of(job)) for job in repeat.members]
        parts = [RunningPart(job=job, session=self._sessions[job.place]) for job in jobs]
        chief = parts[0]
        try:
            async with all_or_none() as tasks:
                for part in parts:
                    tasks.start_soon(part.run, parts)
        except CancelledInQueue:
            return None
        record = judge_parts(repeat.job, parts)
        if len(parts) == 1 and self._may_reattach(chief):
            self._run.warn(f"{repeat.job.id} may still run: {record.cause}. Reattaching to it", self._host)
            self._there.add(repeat.job.id)
            self._todo.appendleft(repeat)  # first: it would slow down any other repeat
            return record
        self._run.finish(repeat.job, record, self._host, clock_seconds() - chief.began)
        for part in parts:
            if part.may_run and not self._in_queue:  # it would slow down the next repeat; `resume` and `stop` find it
                part.session.problem = part.session.problem or part.error
            elif not isinstance(part.error, Lost) and (self._in_queue or part.session.problem is None):
                await part.remove()
        if not self._in_queue:
            self._peaks.add(repeat.job, record)
        return record

    def _may_reattach(self, part: RunningPart) -> bool:
        """Return whether a repeat whose host failed may still run, and the host has another try."""
        ends = self._run.stop.launching.is_set() or self._run.how.fail_fast or part.session.problem is not None
        return part.may_run and not (part.stopped_for or ends or self._in_queue) and self._faults < DROP_AFTER - 1

    # -- a queue -------------------------------------------------------------------------------------------------------

    async def _submit(self) -> None:
        """Submit all repeats, unless not even the first may start."""
        if self._todo and (self._run.stop.launching.is_set() or not self._run.affords(self._todo[0].job, self._host)):
            self._todo.clear()
        if jobs := [repeat.job for repeat in self._todo]:
            session = self._sessions[self._host.place]
            try:
                await session.call(lambda: cast(QueueLauncher, session.launcher).submit(jobs))
            except HostError as error:
                session.problem = error
                self._finish_impossible()
            self._run.tasks.start_soon(self._cancel_waiting)

    async def _cancel_waiting(self) -> None:
        """Cancel what has not started in the queue once the run is stopped; running repeats continue."""
        await self._run.stop.wait(math.inf)
        running = self._run.state.hosts[self._host.key].running
        await self._cancel([*running.values(), *self._todo], only_waiting=True)

    async def _cancel(self, repeats: Iterable[JobOnHosts | RepeatState], *, only_waiting: bool = False) -> None:
        """Remove repeats that are no longer needed from the queue."""
        if (jobs := [repeat.job for repeat in repeats]) and self._in_queue:
            session = self._sessions[self._host.place]
            queue = cast(QueueLauncher, session.launcher)
            cancel = session.call(partial(queue.cancel_waiting if only_waiting else queue.clear, jobs))
            await session.attempt("cancel jobs that are no longer needed", cancel)

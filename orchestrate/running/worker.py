"""Workers, which run repeats: those of a host, of a queue, or of hosts that train together."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import cast

from orchestrate.engines.base import QueueLauncher
from orchestrate.errors import CancelledInQueue, HostError, Lost, Unreachable
from orchestrate.events import HostLost
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import HostPlan, Job, JobOnHosts, complete_job, whole_job
from orchestrate.running.context import Abandoned, DevicePeaks, RunContext, StorageFailed, in_thread, storing
from orchestrate.running.judge import failed_record, now
from orchestrate.running.session import HostSession, RunningPart, judge_parts, run_parts
from orchestrate.running.state import AWAY, DROP_AFTER, HOST_FAULTS
from results.schema import Record, Status


class Worker:
    """Runs repeats on one host, on a queue or on hosts that train together: one after another in each of its slots.

    A queue gets all of its repeats at once. Those that are not needed any more must be cancelled there, also after a
    stop: it may start them when others end.

    Args:
        run: The run.
        entries: The hosts; the first represents the work in events and records.
        repeats: The repeats without a record, in order.
        awaited: Parts of later workers' repeats on these hosts, which a dead controller may have left running.
    """

    def __init__(
        self, run: RunContext, entries: Sequence[HostPlan], repeats: Sequence[JobOnHosts], awaited: Sequence[Job] = ()
    ) -> None:
        self.entries = entries
        self._run = run
        self._host = entries[0].host
        self._in_queue = self._host.queue is not None
        self._awaited = awaited
        self._todo = deque(repeats)
        self._running: dict[str, Job] = {}  # repeats that have started and have no record
        self._there: set[str] = set()  # ids of repeats that may run already: collected first, whatever they cost
        self._lost: list[RunningPart] = []  # of repeats with a record, which may still run
        self._sessions: dict[HostPlace, HostSession] = {}
        self._peaks = DevicePeaks()
        self._faults = 0  # consecutive repeats that ended by a fault of a host
        self._dropped: set[HostPlace] = set()

    async def work(self) -> None:
        """Run the repeats until they are done, the hosts are dropped, or the run is stopped."""
        if self._run.stop.launching.is_set():
            return
        try:
            for entry in self.entries:
                if self._parts_on(entry.host) or not self._todo:
                    await self._open(entry)
            self._finish_impossible()
            self._todo = deque(sorted(self._todo, key=lambda repeat: repeat.job.id not in self._there))
            await self._work_through()
        except StorageFailed as failure:
            self._run.fail(failure)
        except Exception as error:  # noqa: BLE001  a bug: ends this work, not that of others
            self._report_bug(error)
        finally:
            for session in self._sessions.values():
                await session.close()

    def _report_bug(self, error: Exception) -> None:
        """Write the traceback to the run's folder, and a record for each repeat that the bug ended."""
        name = self._host.key if len(self.entries) == 1 else f"{self._host.fleet}+together"
        path = self._run.folder.path / f"traceback-{name}.txt"
        try:
            with storing(self._run.folder):
                path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
            cause = f"a bug in tfbench: {error!r}. Traceback: {path}"
            self._run.bus.emit(HostLost(host=self._host.key, status=Status.ERROR, cause=cause))
            for job in [job for job in self._running.values() if job.id not in self._run.recorded.statuses]:
                self._run.finish(job, failed_record(job, Status.ERROR, cause, now()), self._host)
        except StorageFailed as failure:
            self._run.fail(failure)

    # -- hosts ---------------------------------------------------------------------------------------------------------

    async def _open(self, entry: HostPlan) -> None:
        """Connect to a host and prepare it, once more if no host answered meanwhile; without work, only clean up."""
        launcher = await in_thread(partial(self._run.make, entry.host))
        session = self._sessions[entry.host.place] = HostSession(entry, launcher, self._run)
        if not self._todo:
            return await session.attempt("look for leftovers", session.sweep({part.id for part in self._awaited}))
        began = time.monotonic()
        try:
            try:
                await self._prepare(session)
            except (Unreachable, Lost) as error:
                never_answered = entry.facts is None
                if never_answered or isinstance(error, Abandoned) or not await self._network_returned(began):
                    raise
                await self._prepare(session)
        except HostError as error:
            session.problem = error

    async def _prepare(self, session: HostSession) -> None:
        """Probe a host that was not, remove leftovers, wait for parts that still run, and prepare images."""
        host = session.host
        if (facts := await session.probe_missing()) is not None:
            for place, repeat in enumerate(self._todo):
                members = [complete_job(job, host, facts) if job.place == host.place else job for job in repeat.members]
                self._todo[place] = JobOnHosts(job=whole_job(members), members=tuple(members))
        self._finish_impossible()  # before anything is pulled for it
        there = await session.sweep({job.id for job in (*self._parts_on(host), *self._awaited)} | self._running.keys())
        for job in self._awaited:
            if job.id in there:  # its result stays there
                part = RunningPart(job, session, steps=False)
                await part.start()
                await part.follow()
        self._there |= {repeat.job.id for repeat in self._todo if any(job.id in there for job in repeat.members)}
        await session.prepare_images(self._parts_on(host))

    def _parts_on(self, host: Host) -> list[Job]:
        """Return the parts of the remaining repeats on a host."""
        return [job for repeat in self._todo for job in repeat.members if job.place == host.place]

    async def _network_returned(self, since: float) -> bool:
        """See `Connectivity.returned`; this machine needs no network."""
        return self._host.is_remote and await self._run.network.returned(since)

    def _finish_impossible(self) -> list[JobOnHosts]:
        """Write the records of the repeats that cannot start, unless the run is stopped; return these repeats."""
        if self._run.stop.launching.is_set():
            return []
        for place, session in self._sessions.items():
            if (error := session.problem) is not None and place not in self._dropped and self._parts_on(session.host):
                self._run.bus.emit(HostLost(host=session.host.key, status=error.status, cause=error.cause))
                self._dropped.add(place)
        obstacles = [(repeat, self._obstacle(repeat)) for repeat in self._todo]
        self._todo = deque(repeat for repeat, obstacle in obstacles if obstacle is None)
        for repeat, obstacle in obstacles:
            if obstacle is not None:
                self._run.finish(repeat.job, failed_record(repeat.job, *obstacle, now()), self._host)
        return [repeat for repeat, obstacle in obstacles if obstacle is not None]

    def _obstacle(self, repeat: JobOnHosts) -> tuple[Status, str] | None:
        """Return why a repeat cannot start, as a status and a cause."""
        for session in [self._sessions[job.place] for job in repeat.members if job.place in self._sessions]:
            if (error := session.problem) is not None:
                return error.status, f"{session.host.key}: {error.cause}" if len(repeat.members) > 1 else error.cause
        return repeat.job.blocked

    # -- repeats -------------------------------------------------------------------------------------------------------

    async def _work_through(self) -> None:
        """Run the repeats in all slots."""
        if self._in_queue:
            await self._submit()
        slots = [self._work_slot() for _ in range(min(self._host.slots, len(self._todo)))]
        bugs = [bug for bug in await asyncio.gather(*slots, return_exceptions=True) if bug is not None]
        if self._run.stop.launching.is_set():
            await self._cancel(self._todo)
        if bugs:
            raise bugs[0]

    async def _work_slot(self) -> None:
        stop = self._run.stop.launching
        try:
            while not stop.is_set() and (repeat := await self._next()) is not None:
                began = time.monotonic()
                self._running[repeat.job.id] = repeat.job
                record = await self._run_once(repeat)
                del self._running[repeat.job.id]
                if record is None:
                    continue
                self._faults = self._faults + 1 if record.status in HOST_FAULTS else 0
                if self._run.how.fail_fast and record.status is not Status.OK:
                    stop.set()
                if record.status in AWAY and await self._network_returned(began):
                    self._faults = 0
                    for session in list(self._sessions.values()):
                        if session.problem is not None and not self._in_queue:
                            await session.close()
                            await self._open(session.entry)
                if self._faults >= DROP_AFTER * self._host.slots:
                    self._sessions[self._host.place].problem = HostError(record.cause or "", record.status)
        except StorageFailed as failure:
            self._run.fail(failure)  # at once: other slots may follow a repeat for hours

    async def _next(self) -> JobOnHosts | None:
        """Take the next repeat that is possible, needed and not too expensive; None: there is none."""
        await self._cancel(self._finish_impossible())
        if self._todo and self._lost:
            for part in self._lost:  # it would slow down the next repeat
                try:
                    await part.session.call(partial(part.session.launcher.remove, part.job))
                except HostError as error:
                    part.session.problem = error
            self._lost.clear()
            self._finish_impossible()
        while self._todo:
            repeat = self._todo.popleft()
            if repeat.job.id in self._there and not self._in_queue:
                return repeat
            if self._run.skips(repeat.job, self._host):
                unneeded = [repeat, *(one for one in self._todo if self._run.skips(one.job, self._host))]
                ids = {one.job.id for one in unneeded}
                self._todo = deque(one for one in self._todo if one.job.id not in ids)
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
        parts = [RunningPart(job, self._sessions[job.place], steps=rank == 0) for rank, job in enumerate(jobs)]
        chief = parts[0]
        try:
            await run_parts(parts)
        except CancelledInQueue:
            return None
        record = judge_parts(repeat.job, parts)
        if len(parts) == 1 and self._may_reattach(chief):
            chief.session.warn(f"{repeat.job.id} may still run: {record.cause}. Reattaching to it")
            self._there.add(repeat.job.id)
            self._todo.appendleft(repeat)  # first: it would slow down any other repeat
            return record
        self._run.finish(repeat.job, record, self._host, clock_seconds() - chief.began)
        for part in [part for part in parts if part.session.problem is None or self._in_queue]:
            if part.may_run and not self._in_queue:  # whose next repeat may get another machine
                self._lost.append(part)
            if not isinstance(part.error, Lost):  # a lost part may still run: `resume` and `stop` can find it
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
            self._run.start_soon(self._cancel_waiting)

    async def _cancel_waiting(self) -> None:
        """Cancel what has not started in the queue once the run is stopped; running repeats continue."""
        await self._run.stop.wait(math.inf)
        session, jobs = self._sessions[self._host.place], [*self._running.values(), *(one.job for one in self._todo)]
        if jobs:
            cancel = session.call(lambda: cast(QueueLauncher, session.launcher).cancel_waiting(jobs))
            await session.attempt("cancel waiting jobs", cancel)

    async def _cancel(self, repeats: Iterable[JobOnHosts]) -> None:
        """Remove repeats that will not start from the queue."""
        if (jobs := [repeat.job for repeat in repeats]) and self._in_queue:
            session = self._sessions[self._host.place]
            clear = session.call(lambda: cast(QueueLauncher, session.launcher).clear(jobs))
            await session.attempt("cancel jobs that are no longer needed", clear)

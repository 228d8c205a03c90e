"""Runs multi-host jobs: all parts start and end together, and give one record.

The hosts of a fleet first finish their own repeats. Then one task per fleet runs its multi-host jobs, so that no two
repeats wait for each other's hosts.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import anyio

from orchestrate.errors import HostError, Lost, Unreachable
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import Job, MultiHostJob, Plan, complete_job, whole_job
from orchestrate.running.calls import Watched
from orchestrate.running.context import RunContext, StorageFailed, finish
from orchestrate.running.judge import failed_record, judge, now
from orchestrate.running.session import HostSession, Outcome
from orchestrate.running.worker import Worker
from results.schema import Record, Status

POLL_SECONDS = 0.2

GRACE_SECONDS = 5.0
"""Time for the other parts to end by themselves after one has failed, so that their records have the cause."""

CONTROLLER_REASONS = frozenset({Status.TIMEOUT, Status.STOPPED})
"""Reasons for which the controller ended a part, other than the failure of another part."""


@dataclass
class MemberRun:
    """The running part of a repeat on one host.

    Attributes:
        outcome: Its results; None: it has not ended, or its host was lost.
        error: Why its host failed.
        failure: Why this machine cannot store its output.
        ended_at: Monotonic seconds; None: it runs.
    """

    job: Job
    session: HostSession
    watched: Watched
    outcome: Outcome | None = None
    error: HostError | None = None
    failure: StorageFailed | None = None
    ended_at: float | None = None

    @property
    def host(self) -> Host:
        """The host that it runs on."""
        return self.session.host

    @property
    def failed(self) -> bool:
        """Whether it has ended with a failure."""
        if self.ended_at is None:
            return False
        return self.error is not None or self.outcome is None or self.outcome.ending.exit_code != 0

    @property
    def how(self) -> str:
        """How it failed, in words."""
        if self.error is not None:
            return f"{self.host.key}: {self.error.cause}"
        code = None if self.outcome is None else self.outcome.ending.exit_code
        return f"the part on {self.host.key} ended with exit code {code}"


async def run_multi_host(
    plan: Plan, alone: Mapping[HostPlace, anyio.Event], shared: RunContext, done: Collection[str]
) -> None:
    """Run the remaining multi-host jobs of a plan, for each fleet once its hosts have finished their own repeats.

    Args:
        plan: The whole plan.
        alone: Set when a host has finished its own repeats.
        shared: State shared by the workers of a run.
        done: Ids of the repeats that have a record or need none.
    """
    fleets = {
        fleet: list(multi_host_jobs)
        for fleet, multi_host_jobs in groupby(plan.multi_host_jobs, key=lambda multi: multi.job.origin.fleet)
    }
    few = shared.options.max_parallel is not None
    turns = anyio.CapacityLimiter(1 if few else math.inf)

    async def meet(fleet: str) -> None:
        for place, has_finished in alone.items():
            if few or place.fleet == fleet:
                await has_finished.wait()
        left = [multi for multi in fleets[fleet] if multi.job.id not in done]
        async with turns:
            await MultiHostWorker(plan, fleets[fleet], left, shared).work()

    async with anyio.create_task_group() as group:
        for fleet in fleets:
            group.start_soon(meet, fleet)


class MultiHostWorker(Worker):
    """Runs the multi-host jobs of one fleet, one after another.

    Args:
        plan: The whole plan.
        every: All multi-host jobs of the fleet.
        todo: Those without a record, in order.
        shared: State shared by the workers of a run.
    """

    def __init__(
        self, plan: Plan, every: Sequence[MultiHostJob], todo: Sequence[MultiHostJob], shared: RunContext
    ) -> None:
        self._entries = {entry.host.place: entry for entry in plan.hosts}
        chief = self._entries[every[0].members[0].place].host
        super().__init__(chief, [multi.job for multi in todo], shared, f"{chief.fleet}+together")
        self._every = every
        self._left = {multi.job.id: multi for multi in todo}
        self._opened: dict[HostPlace, HostSession] = {}
        self._lost: list[MemberRun] = []
        self._there: set[str] = set()  # ids of parts that a dead controller started

    async def _ready(self) -> bool:
        for place in dict.fromkeys(job.place for multi in self._every for job in multi.members):
            ours = self._parts(self._every, place)
            if self._parts(self._left.values(), place):
                await self._open(place)
            elif not self._left:  # a resumed run with nothing left to do
                await (await self._new_session(place)).sweep_only(ours)
        first = {multi.job.id for multi in self._left.values() if any(job.id in self._there for job in multi.members)}
        self.jobs = sorted((multi.job for multi in self._left.values()), key=lambda job: job.id not in first)
        return bool(self._left)

    async def _new_session(self, place: HostPlace) -> HostSession:
        entry = self._entries[place]
        session = self._opened[place] = await HostSession.open(entry, self.shared)
        return session

    async def _open(self, place: HostPlace) -> None:
        """Connect to a host and prepare it."""
        session = await self._new_session(place)
        session.count_cost()
        try:
            await self._online(lambda: self._prepare(session, place), has_answered=session.entry.facts is not None)
        except HostError as error:
            session.problem = error

    async def _prepare(self, session: HostSession, place: HostPlace) -> None:
        """Probe a host that was not, remove what was lost there or left by a controller, and prepare images."""
        await self._complete(session, place)
        left = [multi for multi in self._left.values() if multi.job.id not in self.shared.statuses]
        ours = [*session.entry.jobs, *self._parts(self._every, place)]
        self._there.update(await session.sweep(ours, {job.id for job in self._parts(left, place)}))
        await session.prepare_images(self._parts([multi for multi in left if multi.job.blocked is None], place))

    async def _reconnect(self) -> None:
        for place, session in [*self._opened.items()]:
            if session.problem is not None:
                await session.close()
                await self._open(place)

    async def _complete(self, session: HostSession, place: HostPlace) -> None:
        """Complete the parts of a host that was not probed when the plan was made."""
        if (facts := await session.probe_missing()) is None:
            return
        for key, multi in self._left.items():
            members = [complete_job(job, session.host, facts) if job.place == place else job for job in multi.members]
            self._left[key] = MultiHostJob(job=whole_job(members), members=tuple(members))

    @staticmethod
    def _parts(multi_host_jobs: Collection[MultiHostJob], place: HostPlace) -> list[Job]:
        """Return the parts of a host."""
        return [job for multi in multi_host_jobs for job in multi.members if job.place == place]

    def _sessions(self) -> Sequence[HostSession]:
        return list(self._opened.values())

    def _sessions_of(self, job: Job) -> list[HostSession]:
        """Return the sessions of a job's hosts, by rank."""
        return [self._opened[member.place] for member in self._left[job.id].members]

    def _hosts_of(self, job: Job) -> list[Host]:
        return [session.host for session in self._sessions_of(job)]

    def _is_dropped(self) -> bool:
        """See `Worker._is_dropped`; `_run_once` checks the hosts of each job."""
        return False

    async def _run_once(self, job: Job) -> Record:
        multi, began, started_at = self._left[job.id], clock_seconds(), now()
        parts: list[MemberRun] = []
        await self._remove_lost()
        problem = next(((s.host.key, s.problem) for s in self._sessions_of(job) if s.problem is not None), None)
        if multi.job.blocked is not None:
            record = failed_record(multi.job, *multi.job.blocked, started_at)
        elif problem is not None:
            key, error = problem
            record = failed_record(multi.job, error.status, f"{key}: {error.cause}", started_at)
        else:
            parts = await self._run_parts(multi)
            for part in parts:
                if part.failure is not None:
                    raise part.failure
            record = self._judge(multi, parts, started_at)
        finish(multi.job, record, self.host, clock_seconds() - began, self.shared)
        for part in [part for part in parts if part.session.problem is None]:
            if isinstance(part.error, Lost | Unreachable):
                self._lost.append(part)
            if not isinstance(part.error, Lost):
                await part.session.remove(part.job)
        return record

    async def _remove_lost(self) -> None:
        """Remove parts of earlier repeats that may still run and would slow down the next one."""
        for part in self._lost:
            try:
                await part.session.call(lambda part=part: part.session.launcher.remove(part.job))  # type: ignore[misc]
            except HostError as error:
                part.session.problem = error
        self._lost.clear()

    async def _run_parts(self, multi: MultiHostJob) -> list[MemberRun]:
        """Start all parts at once, because the ranks wait for each other, and wait for their ends."""
        parts = [
            MemberRun(job, session, session.watch(job))
            for job, session in zip(multi.members, self._sessions_of(multi.job), strict=True)
        ]
        async with anyio.create_task_group() as group:
            for part in parts:
                group.start_soon(self._work_part, part)
            await self._follow(parts)
        return parts

    async def _work_part(self, part: MemberRun) -> None:
        """Start one part, follow it to its end and collect its record."""
        chief = part.job.member is not None and part.job.member.rank == 0
        try:
            await part.session.start(part.job)
            part.outcome = await part.session.follow(part.job, part.watched, steps=chief)
        except HostError as error:
            part.error = error
        except StorageFailed as failure:
            part.failure = failure
            self.shared.fail(failure)
        except Exception as error:  # noqa: BLE001  a bug: the others must not hang
            part.error = HostError(f"a bug in tfbench: {error!r}")
        finally:
            self.shared.calls.forget(part.watched)
            part.ended_at = time.monotonic()
            if not chief:
                part.session.state(part.job, "done")  # the chief reports the result

    async def _follow(self, parts: Sequence[MemberRun]) -> None:
        """Wait until all parts have ended or are abandoned; if one fails, end the others."""
        while running := [part for part in parts if part.ended_at is None]:
            await anyio.sleep(POLL_SECONDS)
            failed = [part for part in parts if part.failed]
            if not failed:
                continue
            first = min(failed, key=lambda part: part.ended_at or 0.0)
            if time.monotonic() - (first.ended_at or 0.0) > GRACE_SECONDS:
                for part in running:
                    self.shared.calls.end(part.watched, Status.LOST, first.how)

    def _judge(self, multi: MultiHostJob, parts: Sequence[MemberRun], started_at: str) -> Record:
        """Return the record of the repeat: the chief's, unless another part has the cause.

        Args:
            multi: The multi-host job.
            parts: By rank; each has ended or was abandoned.
            started_at: UTC, ISO 8601.
        """
        chief = parts[0]
        record = self._record_of(multi.job, chief, started_at)
        if record.status is Status.OK:
            return _with_host_names(record, parts)
        for part in parts:
            if part.watched.stopped_for is not None and part.watched.stopped_for[0] in CONTROLLER_REASONS:
                return failed_record(multi.job, *part.watched.stopped_for, started_at)
        if record.status is Status.LOST:
            for part in parts:
                outcome = part.outcome
                reported = outcome is not None and (outcome.payload is not None or outcome.ending.out_of_memory)
                own = self._record_of(part.job, part, started_at) if reported else None
                if own is not None and own.status not in (Status.OK, Status.LOST, Status.STOPPED):
                    return failed_record(multi.job, own.status, f"{part.host.key}: {own.cause}", started_at)
        if chief.error is None:
            return record
        others = [part for part in parts[1:] if part.failed]
        cause = chief.how if not others else f"{chief.how}; {others[0].how}"
        return failed_record(multi.job, record.status, cause, started_at)

    def _record_of(self, job: Job, part: MemberRun, started_at: str) -> Record:
        outcome = part.outcome
        if part.error is not None or outcome is None:
            return self._failed(job, part.error or Lost(""), started_at, part.watched, cause=part.how)
        return judge(
            job,
            outcome.ending,
            outcome.payload,
            started_at=started_at,
            stopped_for=part.watched.stopped_for,
            last_line=outcome.last_line,
        )


def _with_host_names(record: Record, parts: Sequence[MemberRun]) -> Record:
    """Replace the addresses of hosts by their names, because addresses are private."""
    if record.measurement is None:
        return record
    names = {part.job.member.rank: part.host.name for part in parts if part.job.member is not None}
    ranks = [dataclasses.replace(rank, host=names[rank.rank]) for rank in record.measurement.ranks]
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, ranks=ranks))

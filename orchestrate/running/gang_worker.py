"""The repeats that several hosts do together: started at once, watched together, ended together, one record each.

The hosts of a fleet do first what each does alone; then they meet, in one thread of the fleet's own, so that no two
repeats ever wait for each other's hosts.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

from orchestrate.errors import HostError, Lost
from orchestrate.inventory.hosts import Host, Place
from orchestrate.planning.plan import Gang, Job, Plan, learn, whole_job
from orchestrate.running.judge import failed_record, judge, now
from orchestrate.running.retries import Retries
from orchestrate.running.session import HostSession, Left
from orchestrate.running.shared import Shared, affordable, finish, set_aside, set_aside_for_bug, spare
from orchestrate.running.watchdog import Watched
from results.schema import Record, Status

LOOK_SECONDS = 0.2

GRACE_SECONDS = 5.0
"""What the others get to end by themselves when one has ended badly: they know it, and can say why."""

GIVE_UP_SECONDS = 20.0
"""A part that has not ended this long after it was stopped is abandoned: its host does not answer."""

TELLING = frozenset({Status.TIMEOUT, Status.STOPPED})
"""Why we ended a part ourselves, where that was not for another part's sake."""


@dataclass
class Part:
    """One host's part of a repeat, while it runs.

    Attributes:
        left: What it left; None: it has not ended, or its host was lost.
        error: Why its host failed.
        ended_at: Monotonic seconds; None: it runs.
    """

    job: Job
    session: HostSession
    watched: Watched
    left: Left | None = None
    error: HostError | None = None
    ended_at: float | None = None

    @property
    def host(self) -> Host:
        """Where it runs."""
        return self.session.host

    @property
    def failed(self) -> bool:
        """Whether it has ended other than well."""
        if self.ended_at is None:
            return False
        return self.error is not None or self.left is None or self.left.ending.exit_code != 0

    @property
    def how(self) -> str:
        """Say for a person how it failed."""
        if self.error is not None:
            return f"{self.host.key}: {self.error.cause}"
        code = None if self.left is None else self.left.ending.exit_code
        return f"the part on {self.host.key} ended with exit code {code}"


def work_together(plan: Plan, alone: Mapping[Place, Future[None]], shared: Shared, done: Collection[str]) -> None:
    """Do what is left of a plan's gangs, fleet by fleet, side by side; each when its hosts have done their own work.

    Args:
        plan: The whole plan.
        alone: The work of each host by itself.
        shared: What workers share.
        done: Ids of the repeats that have a record or need none.
    """
    fleets = {fleet: list(gangs) for fleet, gangs in groupby(plan.gangs, key=lambda gang: gang.job.origin.fleet)}
    if not fleets:
        return
    few = shared.options.max_parallel is not None

    def meet(fleet: str) -> None:
        for place, work in alone.items():
            if few or place.fleet == fleet:
                work.exception()
        GangWorker(plan, fleets[fleet], [gang for gang in fleets[fleet] if gang.job.id not in done], shared).work()

    with ThreadPoolExecutor(1 if few else len(fleets), thread_name_prefix="fleet") as pool:
        for met in [pool.submit(meet, fleet) for fleet in fleets]:
            met.result()


class GangWorker:
    """Works through the gangs of one fleet, one after another.

    Args:
        plan: The whole plan.
        gangs: All of the fleet.
        todo: Those that have no record yet, in their order.
        shared: What the workers of a run share.
    """

    def __init__(self, plan: Plan, gangs: Sequence[Gang], todo: list[Gang], shared: Shared) -> None:
        self._gangs = gangs
        self._todo = todo
        self._shared = shared
        self._retries = Retries()
        self._entries = {entry.host.place: entry for entry in plan.hosts}
        self._chief = self._entries[gangs[0].members[0].place].host
        self._sessions: dict[Place, HostSession] = {}

    def work(self) -> None:
        """Run the repeats until they are done, the fleet's hosts fail too often, or the run is stopped."""
        if self._shared.stop.launching.is_set():
            return
        try:
            if self._todo:
                for place in self._places(self._todo):
                    self._open(place)
                self._work_through()
            else:
                self._sweep_all()
        except Exception as error:  # noqa: BLE001  a bug: this fleet ends, the others must not
            jobs = [gang.job for gang in self._todo]
            set_aside_for_bug(f"{self._chief.fleet}+together", error, self._chief, jobs, self._shared)
        finally:
            for session in self._sessions.values():
                session.close()

    def _new_session(self, place: Place) -> HostSession:
        """Open a session of a host."""
        entry = self._entries[place]
        session = self._sessions[place] = HostSession(entry, self._shared.make(entry.host), self._shared)
        return session

    def _open(self, place: Place) -> None:
        """Connect to a host, learn what it is, bring the images, and remove what an earlier controller left."""
        session = self._new_session(place)
        session.count_cost()
        try:
            self._learn(session, place)
            session.sweep(self._parts(self._gangs, place), {job.id for job in self._parts(self._todo, place)})
            session.bring_images(self._parts([gang for gang in self._todo if gang.job.blocked is None], place))
        except HostError as error:
            session.problem = error

    def _learn(self, session: HostSession, place: Place) -> None:
        """Complete the parts of a host that could not be asked when the plan was made."""
        if (facts := session.learn()) is None:
            return
        for index, gang in enumerate(self._todo):
            members = [learn(job, session.host, facts) if job.place == place else job for job in gang.members]
            self._todo[index] = Gang(job=whole_job(members), members=tuple(members))

    def _sweep_all(self) -> None:
        """Clean up where nothing is left to do, when a run is resumed."""
        for place in self._places(self._gangs):
            self._new_session(place).sweep_only(self._parts(self._gangs, place))

    def _work_through(self) -> None:
        stop, options = self._shared.stop.launching, self._shared.options
        for position, gang in enumerate(self._todo):
            hosts = [session.host for session in self._sessions_of(gang)]
            if stop.is_set() or not affordable(hosts, gang.job.case.name, self._shared):
                return
            if spare(gang.job, self._chief, self._shared):
                continue
            for tries in itertools.count(1):
                record = self._run_once(gang)
                if not self._retries.again(gang.job, record, tries, self._shared):
                    break
            if options.fail_fast and record.status is not Status.OK:
                stop.set()
            if self._retries.faults >= options.set_aside_after:
                if left := [gang.job for gang in self._todo[position + 1 :]]:
                    set_aside(self._chief, record.status, record.cause or "", left, self._shared)
                return

    def _run_once(self, gang: Gang) -> Record:
        began, started_at = time.monotonic(), now()
        parts: list[Part] = []
        problem = next(((s.host.key, s.problem) for s in self._sessions_of(gang) if s.problem is not None), None)
        if gang.job.blocked is not None:
            record = failed_record(gang.job, *gang.job.blocked, started_at)
        elif problem is not None:
            key, error = problem
            record = failed_record(gang.job, error.status, f"{key}: {error.cause}", started_at)
        else:
            parts = self._start(gang)
            self._follow(parts)
            record = judge_gang(gang, parts, started_at)
        finish(gang.job, record, self._chief, time.monotonic() - began, self._shared)
        for part in parts:
            if part.session.problem is None and not isinstance(part.error, Lost):
                part.session.remove(part.job)
        return record

    def _start(self, gang: Gang) -> list[Part]:
        """Start all parts at once: the ranks wait for each other."""
        parts = [
            Part(job, session, session.watch(job))
            for job, session in zip(gang.members, self._sessions_of(gang), strict=True)
        ]
        for part in parts:
            threading.Thread(target=self._work_part, args=(part,), name=part.job.id, daemon=True).start()
        return parts

    def _work_part(self, part: Part) -> None:
        """Start one part, follow it to its end and fetch its record; in a thread of its own."""
        chief = part.job.member is not None and part.job.member.rank == 0
        try:
            part.session.start(part.job)
            part.left = part.session.follow(part.job, part.watched, tells_steps=chief)
        except HostError as error:
            part.error = error
        except Exception as error:  # noqa: BLE001  a bug: it must not leave the others waiting
            part.error = HostError(f"a bug in tfbench: {error!r}")
        finally:
            self._shared.watchdog.forget(part.job)
            part.ended_at = time.monotonic()
            if not chief:
                part.session.state(part.job, "done")  # the chief reports the result

    def _follow(self, parts: Sequence[Part]) -> None:
        """Wait until all parts have ended; when one fails, end the others, and soon wait for none any more."""
        reported = False
        while running := [part for part in parts if part.ended_at is None]:
            time.sleep(LOOK_SECONDS)
            failed = [part for part in parts if part.failed]
            if not failed:
                continue
            first = min(failed, key=lambda part: part.ended_at or 0.0)
            since = time.monotonic() - (first.ended_at or 0.0)
            if since > GRACE_SECONDS and not reported:
                reported = True
                for part in running:
                    _end(part, first)
            if since > GIVE_UP_SECONDS:
                for part in running:
                    _abandon(part)
                return

    def _places(self, gangs: Sequence[Gang]) -> list[Place]:
        """Return where gangs run, each host once."""
        return list(dict.fromkeys(job.place for gang in gangs for job in gang.members))

    def _parts(self, gangs: Sequence[Gang], place: Place) -> list[Job]:
        """Return the parts that a host does."""
        return [job for gang in gangs for job in gang.members if job.place == place]

    def _sessions_of(self, gang: Gang) -> list[HostSession]:
        """Return the sessions of a gang's hosts, by rank."""
        return [self._sessions[job.place] for job in gang.members]


def _end(part: Part, because_of: Part) -> None:
    """End a part for the sake of another one."""
    if part.watched.stopped_for is None:
        part.watched.stopped_for = (Status.LOST, because_of.how)
    name = f"stop {part.job.id}"
    threading.Thread(target=part.session.stop, args=(part.job,), name=name, daemon=True).start()


def _abandon(part: Part) -> None:
    """Stop using a host that does not end a benchmark when asked."""
    part.error = Lost(f"did not end its part within {GIVE_UP_SECONDS:g} s: its host does not answer")
    part.session.problem = part.error


def judge_gang(gang: Gang, parts: Sequence[Part], started_at: str) -> Record:
    """Turn what the parts left into the one record of the repeat: the chief's, unless another knows better.

    Args:
        gang: What was asked for.
        parts: By rank; each has ended or was given up.
        started_at: UTC, ISO 8601.
    """
    chief = parts[0]
    record = _record_of(gang.job, chief, started_at)
    if record.status is Status.OK:
        return _with_host_names(record, parts)
    for part in parts:
        if part.watched.stopped_for is not None and part.watched.stopped_for[0] in TELLING:
            return failed_record(gang.job, *part.watched.stopped_for, started_at)
    if record.status is Status.LOST:
        for part in parts[1:]:
            left = part.left
            reported = left is not None and (left.payload is not None or left.ending.out_of_memory)
            own = _record_of(part.job, part, started_at) if reported else None
            if own is not None and own.status not in (Status.OK, Status.LOST, Status.STOPPED):
                return failed_record(gang.job, own.status, f"{part.host.key}: {own.cause}", started_at)
    if chief.error is None:
        return record
    others = [part for part in parts[1:] if part.failed]
    cause = chief.how if not others else f"{chief.how}; {others[0].how}"
    return failed_record(gang.job, record.status, cause, started_at)


def _record_of(job: Job, part: Part, started_at: str) -> Record:
    left = part.left
    if part.error is not None or left is None:
        status = Status.LOST if part.error is None else part.error.status
        return failed_record(job, status, part.how, started_at)
    return judge(
        job,
        left.ending,
        left.payload,
        started_at=started_at,
        stopped_for=part.watched.stopped_for,
        last_line=left.last_line,
    )


def _with_host_names(record: Record, parts: Sequence[Part]) -> Record:
    """Write the hosts' names for their addresses, which are nobody's business but theirs."""
    if record.measurement is None:
        return record
    names = {part.job.member.rank: part.host.name for part in parts if part.job.member is not None}
    ranks = [dataclasses.replace(rank, host=names[rank.rank]) for rank in record.measurement.ranks]
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, ranks=ranks))

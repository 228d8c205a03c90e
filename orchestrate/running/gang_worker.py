"""The repeats that several hosts do together: started at once, watched together, ended together, one record each.

The hosts of a fleet do first what each does alone; then they meet, in one thread of the fleet's own, so that no two
repeats ever wait for each other's hosts.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from orchestrate.errors import HostError, Lost
from orchestrate.events import HostLost, ImageReady, JobState, Warned
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import Ending, Launcher
from orchestrate.planning.gangs import hosts_of, whole_job
from orchestrate.planning.plan import Gang, Job, Plan, learn
from orchestrate.running.judge import failed_record, judge, now
from orchestrate.running.output import Output
from orchestrate.running.retries import Retries
from orchestrate.running.shared import Shared, finish, spare
from orchestrate.running.watchdog import Watched
from results.schema import Record, Status

LOOK_SECONDS = 0.2

GRACE_SECONDS = 5.0
"""What the others get to end by themselves when one has ended badly: they know it, and can say why."""

GIVE_UP_SECONDS = 20.0
"""After so long a part that was told to end and has not is left alone: its host does not answer."""

TELLING = frozenset({Status.TIMEOUT, Status.STOPPED})
"""Why we ended a part ourselves, where that was not for another part's sake."""


@dataclass
class Part:
    """One host's part of a repeat, while it runs.

    Attributes:
        ending: How it ended; None: not yet, or its host was lost.
        payload: The record file that it left.
        error: Why its host failed.
        ended_at: Monotonic seconds; None: it runs.
    """

    job: Job
    host: Host
    launcher: Launcher
    watched: Watched
    ending: Ending | None = None
    payload: bytes | None = None
    error: HostError | None = None
    last_line: str = ""
    ended_at: float | None = None

    @property
    def failed(self) -> bool:
        """Whether it has ended other than well."""
        if self.ended_at is None:
            return False
        return self.error is not None or self.ending is None or self.ending.exit_code != 0

    @property
    def how(self) -> str:
        """Say for a person how it failed."""
        if self.error is not None:
            return f"{self.host.key}: {self.error.cause}"
        code = None if self.ending is None else self.ending.exit_code
        return f"the part on {self.host.key} ended with exit code {code}"


def work_together(plan: Plan, alone: Mapping[str, Future[None]], shared: Shared, done: Collection[str]) -> None:
    """Do what is left of a plan's gangs, fleet by fleet, side by side; each when its hosts have done their own work.

    Args:
        plan: The whole plan.
        alone: By `Host.key`, the work of each host by itself.
        shared: What workers share.
        done: Ids of the repeats that have a record or need none.
    """
    fleets = {fleet: list(gangs) for fleet, gangs in groupby(plan.gangs, key=lambda gang: gang.job.origin.fleet)}
    if not fleets:
        return
    few = shared.options.max_parallel is not None

    def meet(fleet: str) -> None:
        for key, work in alone.items():
            if few or key.startswith(f"{fleet}."):
                work.exception()
        GangWorker(plan, fleets[fleet], [gang for gang in fleets[fleet] if gang.job.id not in done], shared).work()

    with ThreadPoolExecutor(1 if few else len(fleets), thread_name_prefix="fleet") as pool:
        for met in [pool.submit(meet, fleet) for fleet in fleets]:
            met.result()


@dataclass
class _Place:
    """A host while gangs use it; `problem`: why it cannot be used any more."""

    host: Host
    launcher: Launcher
    problem: HostError | None = None


@dataclass
class GangWorker:
    """Works through the gangs of one fleet, one after another.

    Attributes:
        gangs: All of the fleet.
        todo: Those that have no record yet, in their order.
    """

    plan: Plan
    gangs: Sequence[Gang]
    todo: list[Gang]
    shared: Shared
    _places: dict[str, _Place] = field(default_factory=dict)
    _retries: Retries = field(init=False)

    def __post_init__(self) -> None:
        self._retries = Retries(self.shared)

    def work(self) -> None:
        """Run the repeats until they are done, the fleet's hosts fail too often, or the run is stopped."""
        if self.shared.stop.launching.is_set():
            return
        if not self.todo:
            self._sweep_all()
            return
        try:
            for gang in self.todo:
                for host in hosts_of(gang, self.plan):
                    if host.key not in self._places:
                        self._places[host.key] = self._open(host)
            self._work_through()
        except Exception as error:  # noqa: BLE001  a bug: this fleet ends, the others must not
            self._tell_bug(error)
        finally:
            for place in self._places.values():
                if self.shared.budget is not None:
                    self.shared.budget.end(place.host.key)
                place.launcher.close()

    def _open(self, host: Host) -> _Place:
        """Connect to a host, learn what it is, bring the images, and remove what an earlier controller left."""
        place = _Place(host, self.shared.make(host))
        if self.shared.budget is not None:
            self.shared.budget.begin(host.key)
        try:
            self._learn(place)
            self._sweep(place)
            jobs = [job for gang in self.todo if gang.job.blocked is None for job in gang.members if _is_on(job, host)]
            for image, job in {job.origin.image: job for job in jobs}.items():
                place.launcher.prepare(job, lambda done, total: None)
                if image is not None:
                    self.shared.bus.emit(ImageReady(host=host.key, image=image, digest=job.origin.image_digest))
        except HostError as error:
            place.problem = error
        return place

    def _learn(self, place: _Place) -> None:
        """Complete the parts of a host that could not be asked when the plan was made."""
        (entry,) = [entry for entry in self.plan.hosts if entry.host.key == place.host.key]
        if entry.facts is not None:
            return
        facts = place.launcher.probe()
        for index, gang in enumerate(self.todo):
            members = [learn(job, place.host, facts) if _is_on(job, place.host) else job for job in gang.members]
            self.todo[index] = Gang(job=whole_job(members), members=tuple(members))

    def _sweep_all(self) -> None:
        """Clean up where nothing is left to do, when a run is resumed."""
        hosts = {host.key: host for gang in self.gangs for host in hosts_of(gang, self.plan)}
        for host in hosts.values():
            place = _Place(host, self.shared.make(host))
            self._try(host, "look for leftovers", lambda place=place: self._sweep(place))  # type: ignore[misc]
            place.launcher.close()

    def _sweep(self, place: _Place) -> None:
        """Remove what an earlier controller left of repeats whose record is safe."""
        left = {job.id for gang in self.todo for job in gang.members}
        ours = {job.id: job for gang in self.gangs for job in gang.members if _is_on(job, place.host)}
        for job_id in place.launcher.running(self.plan.run_id):
            if job_id in ours and job_id not in left:
                place.launcher.remove(ours[job_id])

    def _work_through(self) -> None:
        for position, gang in enumerate(self.todo):
            if self.shared.stop.launching.is_set() or not self._affordable(gang):
                return
            if spare(gang.job, hosts_of(gang, self.plan)[0].key, self.shared):
                continue
            record = self._retries.run(gang.job, partial(self._run_once, gang))
            if self.shared.options.fail_fast and record.status is not Status.OK:
                self.shared.stop.launching.set()
            if self._retries.faults >= self.shared.options.set_aside_after:
                self._set_aside(record.status, record.cause or "", self.todo[position + 1 :])
                return

    def _affordable(self, gang: Gang) -> bool:
        budget, case = self.shared.budget, gang.job.case.name
        hosts = hosts_of(gang, self.plan)
        if budget is None or all(budget.allows(host.key, host.fleet, case) for host in hosts):
            return True
        self._warn(hosts[0], f"starts nothing more: the run has cost {budget.spent_usd():.2f} USD, near its limit")
        return False

    def _run_once(self, gang: Gang) -> Record:
        began, started_at = time.monotonic(), now()
        if gang.job.blocked is not None:
            record = failed_record(gang.job, *gang.job.blocked, started_at)
        elif problems := [p for host in hosts_of(gang, self.plan) if (p := self._places[host.key]).problem is not None]:
            error = problems[0].problem
            assert error is not None, "just looked"
            record = failed_record(gang.job, error.status, f"{problems[0].host.key}: {error.cause}", started_at)
        else:
            parts = self._start(gang)
            self._follow(parts)
            record = judge_gang(gang, parts, started_at)
            self._finish(gang, record, began)
            self._clean_up(parts)
            return record
        self._finish(gang, record, began)
        return record

    def _start(self, gang: Gang) -> list[Part]:
        """Start all parts at once: the ranks wait for each other."""
        parts = []
        for job, host in zip(gang.members, hosts_of(gang, self.plan), strict=True):
            launcher = self._places[host.key].launcher
            watched = self.shared.watchdog.watch(
                job,
                lambda launcher=launcher, job=job, host=host: self._stop(launcher, job, host),  # type: ignore[misc]
                timeout=host.timeout_minutes * 60,
                silence=host.silence_minutes * 60,
            )
            parts.append(Part(job, host, launcher, watched))
        for part in parts:
            self._state(part, "launching")
            threading.Thread(target=self._work_part, args=(part,), name=part.job.id, daemon=True).start()
        return parts

    def _work_part(self, part: Part) -> None:
        """Start one part, follow it to its end and fetch its record; in a thread of its own."""
        try:
            if part.launcher.start(part.job):
                self._state(part, "adopted")
            chief = part.job.member is not None and part.job.member.rank == 0
            place = (part.host.key, self.shared.folder, self.shared.bus)
            with Output(part.job, *place, part.watched, tells_steps=chief) as output:

                def on_line(line: str) -> None:
                    output.take(line)
                    part.last_line = output.last_line

                part.ending = part.launcher.follow(part.job, on_line)
                part.payload = part.launcher.collect(part.job)
        except HostError as error:
            part.error = error
        except Exception as error:  # noqa: BLE001  a bug: it must not leave the others waiting
            part.error = HostError(f"a bug in tfbench: {error!r}")
        finally:
            self.shared.watchdog.forget(part.job)
            part.ended_at = time.monotonic()
            if part.job.member is not None and part.job.member.rank > 0:
                self._state(part, "done")  # its result is the whole's, told of the chief

    def _follow(self, parts: Sequence[Part]) -> None:
        """Wait until all parts have ended; when one fails, end the others, and soon wait for none any more."""
        told = False
        while running := [part for part in parts if part.ended_at is None]:
            time.sleep(LOOK_SECONDS)
            failed = [part for part in parts if part.failed]
            if not failed:
                continue
            first = min(failed, key=lambda part: part.ended_at or 0.0)
            since = time.monotonic() - (first.ended_at or 0.0)
            if since > GRACE_SECONDS and not told:
                told = True
                for part in running:
                    self._end_part(part, first)
            if since > GIVE_UP_SECONDS:
                for part in running:
                    self._abandon(part)
                return

    def _end_part(self, part: Part, because_of: Part) -> None:
        if part.watched.stopped_for is None:
            part.watched.stopped_for = (Status.LOST, because_of.how)
        stop = (part.launcher, part.job, part.host)
        threading.Thread(target=self._stop, args=stop, name=f"stop {part.job.id}", daemon=True).start()

    def _abandon(self, part: Part) -> None:
        """Use a host no more that does not end what it was told to."""
        part.error = Lost(f"did not end its part within {GIVE_UP_SECONDS:g} s: its host does not answer")
        self._places[part.host.key].problem = part.error

    def _stop(self, launcher: Launcher, job: Job, host: Host) -> None:
        self._try(host, f"end {job.id}", lambda: launcher.stop(job))

    def _clean_up(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if self._places[part.host.key].problem is None and not isinstance(part.error, Lost):
                self._try(part.host, f"clean up after {part.job.id}", lambda part=part: part.launcher.remove(part.job))  # type: ignore[misc]

    def _state(self, part: Part, state: str) -> None:
        """Tell the state of a part; the chief's is that of the whole, whose name it has."""
        self.shared.bus.emit(JobState(job=part.job.id, host=part.host.key, state=state))

    def _finish(self, gang: Gang, record: Record, began: float) -> None:
        finish(gang.job, record, hosts_of(gang, self.plan)[0].key, time.monotonic() - began, self.shared)

    def _set_aside(self, status: Status, cause: str, gangs: Sequence[Gang]) -> None:
        """Give up on the fleet's gangs: what remains ends with the reason."""
        for gang in gangs:
            self._finish(gang, failed_record(gang.job, status, cause, now()), time.monotonic())
        if gangs:
            chief = hosts_of(gangs[0], self.plan)[0]
            self.shared.bus.emit(HostLost(host=chief.key, status=status, cause=cause))

    def _tell_bug(self, error: Exception) -> None:
        """Leave the traceback in the run's folder, and a record for everything that was still to do."""
        path = self.shared.folder.path / f"traceback-{self.gangs[0].job.origin.fleet}.txt"
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        left = [gang for gang in self.todo if self.shared.folder.read_record(gang.job.id) is None]
        self._set_aside(Status.ERROR, f"a bug in tfbench: {error!r}. Traceback: {path}", left)

    def _try(self, host: Host, what: str, action: Callable[[], None]) -> None:
        """Do something whose failure is only a warning."""
        try:
            action()
        except HostError as error:
            self._warn(host, f"could not {what}: {error.cause}")

    def _warn(self, host: Host, message: str) -> None:
        self.shared.bus.emit(Warned(host=host.key, message=message))


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
            told = part.ending is not None and (part.payload is not None or part.ending.out_of_memory)
            own = _record_of(part.job, part, started_at) if told else None
            if own is not None and own.status not in (Status.OK, Status.LOST, Status.STOPPED):
                return failed_record(gang.job, own.status, f"{part.host.key}: {own.cause}", started_at)
    if chief.error is None:
        return record
    others = [part for part in parts[1:] if part.failed]
    cause = chief.how if not others else f"{chief.how}; {others[0].how}"
    return failed_record(gang.job, record.status, cause, started_at)


def _record_of(job: Job, part: Part, started_at: str) -> Record:
    if part.error is not None or part.ending is None:
        status = Status.LOST if part.error is None else part.error.status
        return failed_record(job, status, part.how, started_at)
    return judge(
        job,
        part.ending,
        part.payload,
        started_at=started_at,
        stopped_for=part.watched.stopped_for,
        last_line=part.last_line,
    )


def _with_host_names(record: Record, parts: Sequence[Part]) -> Record:
    """Write the hosts' names for their addresses, which are nobody's business but theirs."""
    if record.measurement is None:
        return record
    names = {part.job.member.rank: part.host.name for part in parts if part.job.member is not None}
    ranks = [dataclasses.replace(rank, host=names[rank.rank]) for rank in record.measurement.ranks]
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, ranks=ranks))


def _is_on(job: Job, host: Host) -> bool:
    return (job.origin.fleet, job.origin.host) == (host.fleet, host.name)

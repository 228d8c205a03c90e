"""The state of a run, reduced from its records and events: what has ended, runs and costs, and how long it takes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field

from orchestrate import events
from orchestrate.events import Event, RunOutcome
from orchestrate.planning.durations import GUESS, Durations, clock_seconds, host_seconds, hourly_usd
from orchestrate.planning.plan import HostPlan, Job, Plan
from orchestrate.planning.stop_early import StopEarly
from results.runs.store import RunFolder
from results.schema import Status
from results.schema.record_json import RecordError

HOST_FAULTS = frozenset({Status.UNREACHABLE, Status.PULL_FAILED, Status.LOST})
"""Failures of a host rather than of a case."""

DROP_AFTER = 2
"""Consecutive faults after which a host is dropped; in a queue, per worker slot."""

AWAY = frozenset({Status.UNREACHABLE, Status.LOST})
"""Failures that a host and this machine's network can have caused."""

QUEUED = "queued"
"""The state of a repeat that waits in a queue."""

NO_MACHINE = frozenset({QUEUED, "launching", "reattached"})
"""States in which a repeat in a queue may have no machine."""

PART_DONE = "done"
"""The last state of a part of a repeat on several hosts; the result is that of the first host."""

SKIPPED = "skipped"
"""The status of a repeat that is not needed."""

TRIED_AGAIN = HOST_FAULTS | {Status.STOPPED}
"""Statuses that `resume` measures again; a failure of the benchmark itself is a result and is kept."""

NO_PLAN = Plan(run_id="", created_at="", seed=0, hosts=())


@dataclass(slots=True)
class RepeatState:
    """A repeat on a host, or on several that train together.

    Attributes:
        job: The whole repeat.
        hosts: Those on which it runs; the first leads it.
        state: Its last state, while it runs.
        began: Since when it has a machine, in seconds since the epoch; None: it waits or has ended.
        ran: Seconds for which it had machines before.
        status: How it ended; empty: it has not.
        cause: Why it failed.
    """

    job: Job
    hosts: list[HostState] = field(default_factory=list)
    state: str = ""
    began: float | None = None
    ran: float = 0.0
    status: str = ""
    cause: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """Fleet and name of a case, whose repeats take about equally long."""
        return self.job.origin.fleet, self.job.case.name

    @property
    def failed(self) -> bool:
        """Whether it ended with a failure."""
        return self.status not in ("", Status.OK, Status.STOPPED, SKIPPED)

    def release(self, at: float) -> None:
        """Note that it has no machine any more."""
        if self.began is not None:
            self.ran, self.began = self.ran + at - self.began, None


@dataclass
class HostState:
    """What a host has done, does, and still has to do. Displays read it in threads of their own.

    Attributes:
        entry: Its part of the plan.
        repeats: Its repeats, by the id of its part.
        usd_per_second: What it costs; a queue costs that for each repeat that has a machine. 0: no price.
        running: What runs, by the id of the whole repeat.
        latest: The repeat that changed its state last.
        step: The last line of progress of that repeat.
        began: When the run began, in seconds since the epoch.
        ended: When its last repeat ended; None: some have not, or it is a queue.
        pulled: Share of a pull that is done, and when it was reported; None: there is none.
        dropped: Whether it was dropped.
    """

    entry: HostPlan
    repeats: dict[str, RepeatState]
    usd_per_second: float
    running: dict[str, RepeatState] = field(default_factory=dict)
    latest: RepeatState | None = None
    step: events.JobStep | None = None
    began: float | None = None
    ended: float | None = None
    pulled: tuple[float, float] | None = None
    dropped: bool = False

    @property
    def states(self) -> list[str]:
        """The states of what runs."""
        return [repeat.state for repeat in list(self.running.values())]

    def spent_usd(self, now: float) -> float:
        """Return its cost so far: of a machine until its last repeat has ended, of a queue while repeats run."""
        if self.entry.host.queue is not None:
            seconds = sum(one.ran + (0.0 if one.began is None else now - one.began) for one in self.repeats.values())
        else:
            ended = now if self.ended is None else self.ended
            seconds = 0.0 if self.began is None else max(0.0, ended - self.began)
        return seconds * self.usd_per_second

    def setup_left(self, now: float) -> float:
        """Return the seconds before its first repeat: as a pull goes on, else as estimated; it is set up only once."""
        if self.began is None or self.latest is not None:
            return 0.0
        if (pulled := self.pulled) is not None and pulled[0] > 0:
            share, at = pulled
            return max(0.0, (at - self.began) * (1 - share) / share - (now - at))
        was_set_up = any(one.status == Status.OK for one in self.repeats.values())
        return 0.0 if was_set_up else max(0.0, host_seconds(self.entry) - (now - self.began))


class RunState:
    """Reduces the records and events of a run to its state.

    Args:
        plan: The plan; without one, hosts are being probed.
        durations: Expected durations of its repeats; without any, those of the run itself count.

    Attributes:
        early: Has all records that count.
        hosts: By `Host.key`.
        repeats: By id.
        counts: Number of repeats that have ended or are not needed, by status.
        folder: The run's folder, once the run has started.
    """

    def __init__(self, plan: Plan = NO_PLAN, durations: Durations | None = None) -> None:
        self.early = StopEarly(plan)
        self.hosts: dict[str, HostState] = {}
        self.repeats = {job.id: RepeatState(job) for job in plan.jobs}
        self.counts: Counter[str] = Counter()
        self.stopping: events.Stopping | None = None
        self.folder = ""
        self._plan = plan
        self._epoch = time.time() - clock_seconds()  # clocks are set while benchmarks run
        self._durations = dict(durations or {})
        whole = {part.id: multi.job.id for multi in plan.multi_host_jobs for part in multi.members}
        for entry in plan.hosts:
            repeats = {part.id: self.repeats[whole.get(part.id, part.id)] for part in plan.jobs_on(entry.host)}
            host = self.hosts[entry.host.key] = HostState(entry, repeats, (hourly_usd(entry) or 0.0) / 3600)
            for repeat in repeats.values():
                repeat.hosts.append(host)

    # -- records and events ----------------------------------------------------------------------------------------

    def read(self, folder: RunFolder, again: Container[Status] = ()) -> dict[str, RecordError | None]:
        """Take from the records of the run what has ended, whatever events say.

        Args:
            folder: The run's folder.
            again: Statuses of records that do not count.

        Returns:
            The repeats whose record does not count, by id: why it is none, or cannot be read; None: for its status.
        """
        excluded: dict[str, RecordError | None] = {}
        self.early = StopEarly(self._plan)
        self.counts.clear()
        for repeat in self.repeats.values():
            job, repeat.status = repeat.job, ""
            try:
                record = folder.read_record(job.id)
            except RecordError as error:
                excluded[job.id] = error
                continue
            if record is not None and record.status in again:
                excluded[job.id] = None
            elif record is not None:
                self.early.add(job, record)
                self._end(job.id, record.status, record.cause, self._now())
        for repeat in self.repeats.values():
            if not repeat.status and self.early.skips(repeat.job):
                self._end(repeat.job.id, SKIPPED, None, self._now())
        return excluded

    def note(self, event: Event, at: float | None = None) -> None:
        """Process an event.

        Args:
            event: The event.
            at: When it happened, in seconds since the epoch; None: now.
        """
        at = self._now() if at is None else at
        match event:
            case events.RunStarted():
                self.folder, self.stopping = event.folder, None
                for host in self.hosts.values():  # what an earlier controller followed is followed anew
                    host.began, host.dropped = at, False
                    host.running.clear()
                    for repeat in host.repeats.values():
                        repeat.release(at)
            case events.Stopping():
                self.stopping = event
            case events.JobSkipped():
                self._end(event.job, SKIPPED, None, at)
            case events.JobResult():
                self._end(event.job, event.status, event.cause, at)
                if event.status == Status.OK and event.seconds and event.job in self.repeats:
                    self._durations[self.repeats[event.job].kind] = event.seconds, "from this run"
            case _ if (of := self.hosts.get(getattr(event, "host", None) or "")) is not None:
                self._note_host(of, event, at)

    def _end(self, job_id: str, status: str, cause: str | None, at: float) -> None:
        if (repeat := self.repeats.get(job_id)) is None:
            return
        self.counts[status] += 1
        repeat.release(at)
        repeat.status, repeat.cause = status, cause or ""
        for host in repeat.hosts:
            host.running.pop(job_id, None)
            if host.entry.host.queue is None and all(one.status for one in host.repeats.values()):
                host.ended = at

    def _note_host(self, host: HostState, event: Event, at: float) -> None:
        in_queue = host.entry.host.queue is not None
        match event:
            case events.HostChecked(problem=None):
                host.usd_per_second = (hourly_usd(host.entry, event.gpus) or 0.0) / 3600
            case events.ImageProgress() if event.total_bytes:
                host.pulled = event.done_bytes / event.total_bytes, at
            case events.ImageReady():
                host.pulled = None
            case events.JobState() if (repeat := host.repeats.get(event.job)) is not None:
                host.latest, host.step, host.pulled = repeat, None, None
                if event.state == PART_DONE:
                    host.running.pop(repeat.job.id, None)
                    return
                host.running[repeat.job.id], repeat.state = repeat, event.state
                if event.state == QUEUED:  # also what was preempted
                    repeat.release(at)
                elif repeat.began is None and not (in_queue and event.state in NO_MACHINE):
                    repeat.began = at
            case events.JobStep():
                host.step = event
            case events.HostLost():
                host.dropped = True
                if not in_queue:  # its running repeats continue
                    host.running.clear()

    # -- what is done ----------------------------------------------------------------------------------------------

    @property
    def done(self) -> int:
        """Number of repeats that have ended or are not needed."""
        return self.counts.total()

    def is_done(self, job: Job) -> bool:
        """Return whether a repeat has a record, or is not needed."""
        return bool(self.repeats[job.id].status)

    def outcome(self) -> RunOutcome:
        """Count the repeats now."""
        counts = self.counts
        return RunOutcome(
            ok=counts[Status.OK],
            failed=self.done - counts[Status.OK] - counts[SKIPPED],
            missing=len(self.repeats) - self.done,
            stopped=counts[Status.STOPPED],
            skipped=counts[SKIPPED],
        )

    # -- time and cost ---------------------------------------------------------------------------------------------

    def seconds_left(self, key: str | None = None, now: float | None = None) -> float:
        """Return the seconds until a host, or the slowest of all, is done.

        It is 0 before the run begins, and while there is nothing but a guess.

        Args:
            key: `Host.key`; None: all.
            now: In seconds since the epoch; None: now.
        """
        now = self._now() if now is None else now
        if key is None:
            return max((self.seconds_left(one, now) for one in self.hosts), default=0.0)
        host = self.hosts[key]
        if host.began is None or not self._durations:
            return 0.0
        running = [self._left(one, now) for one in list(host.running.values()) if one.began is not None]
        if self.stopping is not None:
            return 0.0 if self.stopping.now else max(running, default=0.0)
        todo = () if host.dropped else host.repeats.values()
        waiting = [self._left(one, now) for one in todo if one.began is None and not one.status]
        parallel = max(1, min(host.entry.host.slots, len(running) + len(waiting)))
        setup = host.setup_left(now) if waiting else 0.0
        return setup + max((sum(waiting) + sum(running)) / parallel, max(running, default=0.0))

    def spent_usd(self) -> float:
        """Return the cost of the run so far, with the present controller."""
        now = self._now()
        return sum(host.spent_usd(now) for host in self.hosts.values())

    def rest_usd(self, job: Job | None = None) -> float:
        """Return the expected cost of a repeat; None: of the rest of all that run."""
        running = {name for host in self.hosts.values() for name in host.running}
        repeats, now = [self.repeats[name] for name in (running if job is None else {job.id})], self._now()
        return sum(self._left(repeat, now) * host.usd_per_second for repeat in repeats for host in repeat.hosts)

    def fitting_repeats(self, usd: float) -> int:
        """Return about how many repeats a run could finish, round by round, before it has cost this much."""
        setup = sum(host_seconds(host.entry) * host.usd_per_second for host in self.hosts.values())
        jobs = [repeat.job for repeat in self.repeats.values() if repeat.job.blocked is None]
        jobs.sort(key=lambda job: job.origin.repeat)
        return sum(setup + cost <= usd for cost in itertools.accumulate(map(self.rest_usd, jobs)))

    def _left(self, repeat: RepeatState, now: float) -> float:
        """Return the seconds that a repeat still takes: as measured in this run, else as estimated."""
        if repeat.job.blocked is not None:
            return 0.0
        ran = 0.0 if repeat.began is None else now - repeat.began
        return max(0.0, self._durations.get(repeat.kind, GUESS)[0] - ran)

    def _now(self) -> float:
        return self._epoch + clock_seconds()

"""The state of a run, reduced from its events: what displays and `status` show, and how long the rest takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from orchestrate import events
from orchestrate.events import Event
from orchestrate.planning.durations import Durations, clock_seconds, host_seconds, hourly_usd
from orchestrate.planning.plan import HostPlan, Job, Plan
from orchestrate.planning.stop_early import StopEarly
from orchestrate.text import plain_text, shortened
from results.program import command_line
from results.runs.store import RunFolder
from results.schema import Record, Status
from results.schema.record_json import RecordError

HOST_FAULTS = frozenset({Status.UNREACHABLE, Status.PULL_FAILED, Status.LOST})
"""Failures of a host rather than of a case."""

DROP_AFTER = 2
"""Consecutive faults after which a host is dropped; in a queue, per worker slot."""

AWAY = frozenset({Status.UNREACHABLE, Status.LOST})
"""Failures that a host and this machine's network can have caused."""

QUEUED = "queued"
"""The state of a repeat that waits in a queue."""

PART_DONE = "done"
"""The last state of a part of a repeat on several hosts; the result is that of the first host."""

TRIED_AGAIN = HOST_FAULTS | {Status.STOPPED}
"""Statuses that `resume` measures again; a failure of the benchmark itself is a result and is kept."""

MAX_CAUSES = 10
MAX_HOSTS_NAMED = 4


@dataclass(frozen=True)
class RunOutcome:
    """Counts of the repeats of a run.

    Attributes:
        missing: Repeats without a record, because the run was stopped.
        stopped: Those of `failed` that were running when the run was stopped.
        skipped: Repeats without a record, because they were not needed (`--stop-early`).
        answers: Results of the comparisons with `--stop-early`, in words.
    """

    ok: int
    failed: int
    missing: int
    stopped: int = 0
    skipped: int = 0
    answers: tuple[str, ...] = ()


@dataclass
class Recorded:
    """What the records of a run contain; by job id.

    Attributes:
        total: Number of repeats of the plan.
        early: Has all records that count.
        statuses: Statuses of repeats with a record.
        causes: Causes of failures.
        unreadable: Files that are not records, or cannot be read.
        again: Repeats to be measured again, in spite of their record.
        skipped: Repeats that no comparison needs.
    """

    total: int
    early: StopEarly
    statuses: dict[str, Status] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, RecordError] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, plan: Plan, folder: RunFolder, again: Container[Status] = ()) -> Recorded:
        """Read the records of a run; those with a status of `again` do not count."""
        made = cls(len(plan.jobs), StopEarly(plan))
        for job in plan.jobs:
            try:
                record = folder.read_record(job.id)
            except RecordError as error:
                made.unreadable[job.id] = error
                continue
            if record is not None and record.status in again:
                made.again.append(job.id)
            elif record is not None:
                made.add(job, record)
        made.skipped = {job.id for job in plan.jobs if job.id not in made.statuses and made.early.skips(job)}
        return made

    def add(self, job: Job, record: Record) -> list[str]:
        """Add a repeat; return the comparisons that it decided, in words."""
        self.statuses[job.id] = record.status
        if record.status is not Status.OK:
            self.causes[job.id] = record.cause or ""
        return self.early.add(job, record)

    def outcome(self) -> RunOutcome:
        """Count the statuses now."""
        counts = Counter(self.statuses.values())
        return RunOutcome(
            ok=counts[Status.OK],
            failed=len(self.statuses) - counts[Status.OK],
            missing=self.total - len(self.statuses) - self.early.skipped,
            stopped=counts[Status.STOPPED],
            skipped=self.early.skipped,
            answers=tuple(self.early.answers),
        )


Kind = tuple[str, str]
"""Fleet and name of a case, whose repeats take about equally long."""


@dataclass
class HostState:
    """What a host has done, does, and still has to do. Displays read it in threads of their own.

    Attributes:
        entry: Its part of the plan.
        jobs: Its repeats by id, with those of several hosts that it leads.
        setup_seconds: Estimated duration of pulls or installations, before its first repeat.
        waiting: Repeats that have not started, by kind.
        running: Start of running repeats, by id, in seconds since the epoch.
        states: Last state of its running repeats, by id.
        latest: Id of the repeat that changed its state last.
        step: The last line of progress of that repeat.
        setup_at: When its setup began.
        pulled: Share of a pull that is done, and when it was reported.
        ended: Repeats that have ended, or are not needed.
        failed: Those of them that failed.
        dropped: Whether it was dropped.
        took: Seconds of its ended repeats.
        expected: Estimate of the same repeats.
        left: Ids of its jobs that have not ended, with its parts of repeats on several hosts.
        usd_per_second: What it costs; a queue costs that for each running repeat. 0: no price.
        costs_since: When it began to cost, in seconds since the epoch; None: it does not, or is a queue.
        settled_usd: What it had cost before that, and a queue for repeats that do not run any more.
    """

    entry: HostPlan
    jobs: dict[str, Job]
    setup_seconds: float
    waiting: Counter[Kind]
    running: dict[str, float] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    latest: str = ""
    step: events.JobStep | None = None
    setup_at: float | None = None
    pulled: tuple[float, float] | None = None
    ended: int = 0
    failed: int = 0
    dropped: bool = False
    took: float = 0.0
    expected: float = 0.0
    left: set[str] = field(default_factory=set)
    usd_per_second: float = 0.0
    costs_since: float | None = None
    settled_usd: float = 0.0

    def spent_usd(self, now: float) -> float:
        """Return its cost so far: of a machine until its last repeat has ended, of a queue while repeats run."""
        began = list(self.running.values()) if self.entry.host.queue is not None else []
        if self.costs_since is not None:  # of a machine
            began.append(self.costs_since)
        return self.settled_usd + sum(self.usd_per_second * (now - at) for at in began)

    def begin_costs(self, at: float) -> None:
        """Note that it costs from now on, unless it is a queue or has nothing left to do."""
        if self.left and self.entry.host.queue is None:
            self.costs_since = at

    def end_costs(self, job_id: str, at: float) -> None:
        """Note that a repeat has ended, and that a machine does not cost any more after its last one."""
        self.left.discard(job_id)
        if not self.left:
            self.settled_usd, self.costs_since = self.spent_usd(at), None

    def stop_running(self, job_id: str, at: float) -> bool:
        """Note that a repeat does not run any more; return whether it did."""
        if (began := self.running.pop(job_id, None)) is not None and self.entry.host.queue is not None:
            self.settled_usd += self.usd_per_second * (at - began)
        return began is not None


class RunState:
    """Reduces events to the state of a run.

    Args:
        plan: The plan; None: hosts are probed before there is one.
        durations: Expected durations of its repeats; without any, those of the run itself count.

    Attributes:
        done: Repeats that have ended, or are not needed.
        results: Of repeats that have ended, by job id.
        hosts: By `Host.key`.
    """

    def __init__(self, plan: Plan | None = None, durations: Durations = Durations()) -> None:  # noqa: B008 (frozen)
        self.total = len(plan.jobs) if plan else 0
        self.done = 0
        self.results: dict[str, events.JobResult] = {}
        self.stopping: events.Stopping | None = None
        self.hosts: dict[str, HostState] = {}
        self._folder = ""
        self._epoch = time.time() - clock_seconds()  # clocks are set while benchmarks run
        self._durations = durations
        self._measured: dict[Kind, float] = {}
        self._members = {one.job.id: one.members for one in plan.multi_host_jobs} if plan else {}
        parts = [part for members in self._members.values() for part in members]
        for entry in plan.hosts if plan else ():
            led = [one.job for one in plan.multi_host_jobs if one.members[0].place == entry.host.place] if plan else []
            jobs = {job.id: job for job in (*entry.jobs, *led)}
            waiting = Counter(kind for job in jobs.values() if (kind := _kind(job)) is not None)
            setup = host_seconds(entry) if waiting and durations else 0.0
            left = {job.id for job in (*entry.jobs, *(part for part in parts if part.place == entry.host.place))}
            rate = (hourly_usd(entry) or 0.0) / 3600
            self.hosts[entry.host.key] = HostState(entry, jobs, setup, waiting, left=left, usd_per_second=rate)

    def resume(self, stored: Iterable[tuple[Event, float]], again: Iterable[Status]) -> None:
        """Continue from the events of earlier controllers; repeats with a status of `again` run once more."""
        for event, at in stored:
            self.note(event, at)
        for result in [result for result in self.results.values() if result.status in set(again)]:
            del self.results[result.job]
            for taking_part, job_id in self._jobs_of(result):
                taking_part.left.add(job_id)
            if (host := self.hosts.get(result.host)) is not None and (kind := _kind(host.jobs.get(result.job))):
                host.waiting[kind] += 1
                host.ended -= 1
                host.failed -= result.status not in (Status.OK, Status.STOPPED)
        for host in self.hosts.values():
            host.waiting.update(kind for job in host.running if (kind := _kind(host.jobs.get(job))))
            host.running.clear()
            host.states.clear()
            host.dropped = False
            host.costs_since, host.settled_usd = None, 0.0  # a limit of cost is one controller's
        self.stopping = None

    def note(self, event: Event, at: float | None = None) -> None:
        """Process an event.

        Args:
            event: The event.
            at: When it happened, in seconds since the epoch; None: now.
        """
        at = self._now() if at is None else at
        match event:
            case events.RunStarted():
                self._folder, self.done = event.folder, event.done
                for host in self.hosts.values():
                    host.setup_at = at
                    host.begin_costs(at)
            case events.Stopping():
                self.stopping = event
            case events.JobResult() | events.JobSkipped():
                self.done += 1
        if (of := self.hosts.get(getattr(event, "host", None) or "")) is not None:
            self._note_host(of, event, at)
        if isinstance(event, events.JobResult | events.JobSkipped):
            for host, job_id in self._jobs_of(event):
                host.end_costs(job_id, at)
        if isinstance(event, events.JobResult):
            self.results[event.job] = event

    def _jobs_of(self, event: events.JobResult | events.JobSkipped) -> list[tuple[HostState, str]]:
        """Return the hosts of a repeat that has ended, each with the id of its part."""
        parts = [(".".join(part.place), part.id) for part in self._members.get(event.job, ())]
        return [(self.hosts[key], job) for key, job in parts or [(event.host, event.job)] if key in self.hosts]

    def _note_host(self, host: HostState, event: Event, at: float) -> None:
        match event:
            case events.HostChecked(problem=None):
                host.usd_per_second = (hourly_usd(host.entry, event.gpus) or 0.0) / 3600
            case events.ImageProgress():
                if event.total_bytes:
                    host.pulled = event.done_bytes / event.total_bytes, at
            case events.ImageReady():
                host.pulled = None
            case events.JobState():
                self._note_job(host, event, at)
            case events.JobStep():
                host.step = event
            case events.JobResult() | events.JobSkipped():
                kind = _kind(host.jobs.get(event.job))
                was_running = host.stop_running(event.job, at)
                host.states.pop(event.job, None)
                host.ended += 1
                if kind is not None and not was_running and host.waiting[kind]:
                    host.waiting[kind] -= 1
                if isinstance(event, events.JobResult):
                    host.failed += event.status not in (Status.OK, Status.STOPPED)
                    if event.status == Status.OK and event.seconds and kind:
                        host.took += event.seconds
                        host.expected += self._durations.seconds(*kind)
                        self._measured[kind] = event.seconds
            case events.HostLost():
                host.dropped = True
                host.waiting.clear()
                if host.entry.host.queue is None:  # whose running repeats continue
                    host.running.clear()
                    host.states.clear()

    @staticmethod
    def _note_job(host: HostState, event: events.JobState, at: float) -> None:
        host.setup_seconds, host.pulled = 0.0, None
        host.states[event.job] = event.state
        host.latest, host.step = event.job, None
        if event.state == PART_DONE:
            del host.states[event.job]
            return
        kind = _kind(host.jobs.get(event.job))
        if kind is not None and event.state == QUEUED and host.stop_running(event.job, at):
            host.waiting[kind] += 1
        waits = host.entry.host.queue is not None and event.state in (QUEUED, "launching", "reattached")
        if event.job in host.jobs and event.job not in host.left:  # its record was damaged
            host.left.add(event.job)
            host.begin_costs(at)
        if kind is not None and not waits and event.job not in host.running:
            host.running[event.job] = at
            host.waiting[kind] -= host.waiting[kind] > 0

    # -- time ------------------------------------------------------------------------------------------------------

    def seconds_left(self, key: str | None = None, now: float | None = None) -> float:
        """Return the seconds until a host, or the slowest of all, is done; 0 while there is nothing but a guess.

        Args:
            key: `Host.key`; None: all.
            now: In seconds since the epoch; None: now.
        """
        now = self._now() if now is None else now
        if key is None:
            return max((self.seconds_left(one, now) for one in self.hosts), default=0.0)
        host = self.hosts[key]
        if not (self._durations or host.expected or self._measured.keys() & host.waiting.keys()):
            return 0.0
        began = [(kind, at) for job, at in list(host.running.items()) if (kind := _kind(host.jobs[job])) is not None]
        running = [max(0.0, self._expected(host, kind) - (now - at)) for kind, at in began]
        if self.stopping is not None:
            return 0.0 if self.stopping.now else max(running, default=0.0)
        waiting = sum(self._expected(host, kind) * count for kind, count in list(host.waiting.items()))
        parallel = max(1, min(host.entry.host.slots, len(running) + host.waiting.total()))
        setup = self._setup_left(host, now) if waiting or running else 0.0
        return setup + max((waiting + sum(running)) / parallel, max(running, default=0.0))

    # -- cost ------------------------------------------------------------------------------------------------------

    def spent_usd(self) -> float:
        """Return the cost of the run so far, with the present controller."""
        now = self._now()
        return sum(host.spent_usd(now) for host in self.hosts.values())

    def rest_usd(self, job: Job, hosts: Sequence[str]) -> float:
        """Return the expected cost of the rest of a repeat on these hosts, of which the first leads it."""
        chief = self.hosts[hosts[0]]
        rest = self._expected(chief, (job.origin.fleet, job.case.name))
        if (began := chief.running.get(job.id)) is not None:
            rest = max(0.0, rest - (self._now() - began))
        return rest * sum(self.hosts[key].usd_per_second for key in hosts)

    def _now(self) -> float:
        return self._epoch + clock_seconds()

    def _expected(self, host: HostState, kind: Kind) -> float:
        """Return the duration of a repeat: as measured in this run, else as estimated, times the host's slowness."""
        slowness = host.took / host.expected if host.expected else 1.0
        return self._measured.get(kind) or self._durations.seconds(*kind) * slowness

    @staticmethod
    def _setup_left(host: HostState, now: float) -> float:
        began = now if host.setup_at is None else host.setup_at
        if (pulled := host.pulled) is not None and pulled[0] > 0:
            share, at = pulled
            return max(0.0, (at - began) * (1 - share) / share - (now - at))
        return max(0.0, host.setup_seconds - (now - began))

    # -- words -----------------------------------------------------------------------------------------------------

    def failures(self, event: events.RunFinished) -> list[str]:
        """Summarise what failed by cause and host, with the command that repeats only that."""
        if not event.failed and not event.missing:
            return []
        failed = [result for result in self.results.values() if result.status != Status.OK]
        groups = Counter((result.status, result.cause or "") for result in failed)
        lines = []
        for (status, cause), number in groups.most_common(MAX_CAUSES):
            hosts = [one.host for one in failed if (one.status, one.cause or "") == (status, cause)]
            lines.append(
                plain_text(f"  {number} × {status} on {shortened([*dict.fromkeys(hosts)], MAX_HOSTS_NAMED)}: {cause}")
            )
        if len(groups) > MAX_CAUSES:
            lines.append(f"  … and {len(groups) - MAX_CAUSES} more causes")
        if event.failed > len(failed):
            lines.append(f"  {event.failed - len(failed)} failed earlier, see: {command_line('orchestrate', 'status')}")
        again = sorted({result.status for result in failed} - HOST_FAULTS - {Status.STOPPED})
        flag = ["--again", ",".join(again)] if again else []
        resume = command_line("orchestrate", "resume", self._folder, *flag)
        return [*lines, plain_text(f"  to repeat only these: {resume}")]


def _kind(job: Job | None) -> Kind | None:
    """Return the kind of a repeat; None: it does not run here, or is blocked."""
    return None if job is None or job.blocked is not None else (job.origin.fleet, job.case.name)

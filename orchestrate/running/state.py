"""The state of a run, reduced from its events: what displays and `status` show, and how long the rest takes."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
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

NO_MACHINE = frozenset({QUEUED, "launching", "reattached"})
"""States in which a repeat in a queue may have no machine."""

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

SKIPPED = "skipped"
"""The status of a repeat that is not needed."""


@dataclass
class RepeatState:
    """A repeat on a host, or the part that a host has in the repeat of another one.

    Attributes:
        job: The repeat or part.
        kind: None: a part, or a repeat that cannot run: it takes no time here.
        state: Its last state; empty: it does not run.
        began: Since when it has a machine, in seconds since the epoch; None: it waits or has ended.
        status: How it ended; empty: it has not.
    """

    job: Job
    kind: Kind | None
    state: str = ""
    began: float | None = None
    status: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended with a failure."""
        return self.status not in ("", Status.OK, Status.STOPPED, SKIPPED)


@dataclass
class HostState:
    """What a host has done, does, and still has to do. Displays read it in threads of their own.

    Attributes:
        entry: Its part of the plan.
        repeats: Its repeats by id, and its parts of repeats that other hosts lead.
        setup_seconds: Estimated duration of pulls or installations, before its first repeat.
        usd_per_second: What it costs; a queue costs that for each running repeat. 0: no price.
        latest: The repeat that changed its state last.
        step: The last line of progress of that repeat.
        setup_at: When its setup began.
        pulled: Share of a pull that is done, and when it was reported.
        dropped: Whether it was dropped.
        costs_since: When it began to cost, in seconds since the epoch; None: it does not, or is a queue.
        settled_usd: What it had cost before that, and a queue for repeats that do not run any more.
    """

    entry: HostPlan
    repeats: dict[str, RepeatState]
    setup_seconds: float
    usd_per_second: float
    latest: RepeatState | None = None
    step: events.JobStep | None = None
    setup_at: float | None = None
    pulled: tuple[float, float] | None = None
    dropped: bool = False
    costs_since: float | None = None
    settled_usd: float = 0.0

    @property
    def states(self) -> list[str]:
        """The states of what runs, in the order of the plan."""
        return [repeat.state for repeat in self.repeats.values() if repeat.state]

    @property
    def waiting(self) -> Counter[Kind]:
        """The repeats that have not started, by kind."""
        todo = () if self.dropped else self.repeats.values()
        return Counter(one.kind for one in todo if one.kind is not None and one.began is None and not one.status)

    def spent_usd(self, now: float) -> float:
        """Return its cost so far: of a machine until its last repeat has ended, of a queue while repeats run."""
        in_queue = self.entry.host.queue is not None
        began = [one.began for one in self.repeats.values()] if in_queue else [self.costs_since]
        return self.settled_usd + sum(self.usd_per_second * (now - at) for at in began if at is not None)

    def begin(self, at: float) -> None:
        """Note that it costs from now on, unless it is a queue or has nothing left to do."""
        if self.entry.host.queue is None and not all(one.status for one in self.repeats.values()):
            self.costs_since = at

    def end(self, repeat: RepeatState, at: float, status: str = "") -> None:
        """Note that a repeat has no machine any more; `status`: how it ended; empty: it waits again."""
        if self.entry.host.queue is not None and repeat.began is not None:
            self.settled_usd += self.usd_per_second * (at - repeat.began)
        repeat.began, repeat.status = None, status
        if self.costs_since is not None and all(one.status for one in self.repeats.values()):
            self.settled_usd, self.costs_since = self.spent_usd(at), None


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
        whole = {one.job.id: one.job for one in plan.multi_host_jobs} if plan else {}
        for entry in plan.hosts if plan else ():
            jobs = [whole.get(job.id, job) for job in plan.jobs_on(entry.host)] if plan else []
            repeats = {job.id: RepeatState(job, _kind(job)) for job in jobs}
            setup = host_seconds(entry) if durations and any(repeat.kind for repeat in repeats.values()) else 0.0
            self.hosts[entry.host.key] = HostState(entry, repeats, setup, (hourly_usd(entry) or 0.0) / 3600)

    def resume(self, stored: Iterable[tuple[Event, float]], again: Container[Status]) -> None:
        """Continue from the events of earlier controllers; repeats with a status of `again` run once more."""
        for event, at in stored:
            self.note(event, at)
        self.results = {job: result for job, result in self.results.items() if result.status not in again}
        for host in self.hosts.values():
            for repeat in host.repeats.values():
                repeat.state, repeat.began = "", None
                repeat.status = "" if repeat.status in again else repeat.status
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
                    host.begin(at)
            case events.Stopping():
                self.stopping = event
            case events.JobResult() | events.JobSkipped():
                self._note_end(event, at)
            case _ if (of := self.hosts.get(getattr(event, "host", None) or "")) is not None:
                self._note_host(of, event, at)

    def _note_end(self, event: events.JobResult | events.JobSkipped, at: float) -> None:
        self.done += 1
        for host, repeat in self._on_hosts(event.job, event.host):
            host.end(repeat, at, event.status if isinstance(event, events.JobResult) else SKIPPED)
            repeat.state = ""
            if isinstance(event, events.JobResult) and event.status == Status.OK and event.seconds and repeat.kind:
                self._measured[repeat.kind] = event.seconds
        if isinstance(event, events.JobResult):
            self.results[event.job] = event

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
                host.setup_seconds, host.pulled = 0.0, None
                host.latest, host.step = repeat, None
                repeat.state = "" if event.state == PART_DONE else event.state
                if repeat.state and repeat.status:  # its record was damaged
                    repeat.status = ""
                    host.begin(at)
                if event.state == QUEUED:  # also what was preempted
                    host.end(repeat, at)
                elif repeat.began is None and repeat.state and not (in_queue and event.state in NO_MACHINE):
                    repeat.began = at
            case events.JobStep():
                host.step = event
            case events.HostLost():
                host.dropped = True
                for repeat in host.repeats.values() if not in_queue else ():  # its running repeats continue
                    repeat.state, repeat.began = "", None

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
        todo = host.waiting
        if not (self._durations or self._measured.keys() & {repeat.kind for repeat in host.repeats.values()}):
            return 0.0
        running = [
            max(0.0, self._expected(repeat.kind) - (now - began))
            for repeat in host.repeats.values()
            if repeat.kind is not None and (began := repeat.began) is not None
        ]
        if self.stopping is not None:
            return 0.0 if self.stopping.now else max(running, default=0.0)
        waiting = sum(self._expected(kind) * count for kind, count in todo.items())
        parallel = max(1, min(host.entry.host.slots, len(running) + todo.total()))
        setup = self._setup_left(host, now) if waiting or running else 0.0
        return setup + max((waiting + sum(running)) / parallel, max(running, default=0.0))

    # -- cost ------------------------------------------------------------------------------------------------------

    def spent_usd(self) -> float:
        """Return the cost of the run so far, with the present controller."""
        now = self._now()
        return sum(host.spent_usd(now) for host in self.hosts.values())

    def rest_usd(self, job: Job | None = None) -> float:
        """Return the expected cost of a repeat; None: of the rest of all that run."""
        if job is not None:
            return sum(self._rest_usd(*found) for found in self._on_hosts(job.id, ".".join(job.place)))
        every = ((host, repeat) for host in self.hosts.values() for repeat in host.repeats.values())
        return sum(self._rest_usd(host, repeat) for host, repeat in every if repeat.state)

    def _rest_usd(self, host: HostState, repeat: RepeatState) -> float:
        ran = 0.0 if repeat.began is None else self._now() - repeat.began
        expected = self._expected((repeat.job.origin.fleet, repeat.job.case.name))
        return max(0.0, expected - ran) * host.usd_per_second

    def _on_hosts(self, job_id: str, key: str) -> list[tuple[HostState, RepeatState]]:
        """Return a repeat of a host, with its parts on others."""
        parts = [(".".join(part.place), part.id) for part in self._members.get(job_id, ())] or [(key, job_id)]
        found = [(self.hosts[key], part) for key, part in parts if key in self.hosts]
        return [(host, host.repeats[part]) for host, part in found if part in host.repeats]

    def _now(self) -> float:
        return self._epoch + clock_seconds()

    def _expected(self, kind: Kind) -> float:
        """Return the duration of a repeat: as measured in this run, else as estimated."""
        return self._measured.get(kind) or self._durations.seconds(*kind)

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
        groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for result in failed:
            groups[result.status, result.cause or ""].append(result.host)
        lines = []
        for (status, cause), hosts in sorted(groups.items(), key=lambda group: -len(group[1]))[:MAX_CAUSES]:
            named = shortened([*dict.fromkeys(hosts)], MAX_HOSTS_NAMED)
            lines.append(plain_text(f"  {len(hosts)} × {status} on {named}: {cause}"))
        if len(groups) > MAX_CAUSES:
            lines.append(f"  … and {len(groups) - MAX_CAUSES} more causes")
        if event.failed > len(failed):
            lines.append(f"  {event.failed - len(failed)} failed earlier, see: {command_line('orchestrate', 'status')}")
        again = sorted({result.status for result in failed} - HOST_FAULTS - {Status.STOPPED})
        flag = ["--again", ",".join(again)] if again else []
        resume = command_line("orchestrate", "resume", self._folder, *flag)
        return [*lines, plain_text(f"  to repeat only these: {resume}")]


def _kind(job: Job) -> Kind | None:
    """Return the kind of a repeat; None: another host leads it, or it is blocked."""
    is_part = job.member is not None and job.member.rank > 0
    return None if is_part or job.blocked is not None else (job.origin.fleet, job.case.name)

"""The state of a run, reduced from its events: what displays and `status` show, and how long the rest takes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from orchestrate import events
from orchestrate.events import Event
from orchestrate.planning.durations import Durations, clock_seconds, host_seconds
from orchestrate.planning.plan import Job, Plan
from orchestrate.planning.stop_early import StopEarly
from orchestrate.running.options import HOST_FAULTS, QUEUED
from orchestrate.text import plain_text
from results.program import command_line
from results.runs.store import RunFolder
from results.schema import Record, Status
from results.schema.record_json import RecordError

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
        made.skipped = made.early.among(job for job in plan.jobs if job.id not in made.statuses)
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
class Load:
    """What a host still has to do.

    Attributes:
        slots: Repeats that may run in parallel.
        setup_seconds: Estimated duration of pulls or installations, before its first repeat.
        waiting: Repeats that have not started, by kind.
        running: Kind and start of running repeats, by id, in seconds since the epoch.
        setup_at: When its setup began.
        progress: Share of a pull that is done, and when it was reported.
        took: Seconds of its ended repeats.
        expected: Estimate of the same repeats.
        states: Last state of its running repeats, by id.
    """

    slots: int
    setup_seconds: float
    waiting: Counter[Kind]
    running: dict[str, tuple[Kind, float]] = field(default_factory=dict)
    setup_at: float | None = None
    progress: tuple[float, float] | None = None
    took: float = 0.0
    expected: float = 0.0
    states: dict[str, str] = field(default_factory=dict)


class RunState:
    """Reduces events to the state of a run.

    Args:
        plan: The plan; None: hosts are probed before there is one.
        durations: Expected durations of its repeats; without any, those of the run itself count.
    """

    def __init__(self, plan: Plan | None = None, durations: Durations = Durations()) -> None:  # noqa: B008 (frozen)
        self.total = len(plan.jobs) if plan else 0
        self.done = 0
        self.results: dict[str, events.JobResult] = {}
        self.stopping: events.Stopping | None = None
        self._folder = ""
        self._epoch = time.time() - clock_seconds()  # clocks are set while benchmarks run
        self._durations = durations
        self._measured: dict[Kind, float] = {}
        self._kinds: dict[str, Kind] = {}
        self._loads: dict[str, Load] = {}
        together = plan.multi_host_jobs if plan else ()
        for entry in plan.hosts if plan else ():
            led = [multi.job for multi in together if multi.members[0].place == entry.host.place]
            kinds = {job.id: (job.origin.fleet, job.case.name) for job in (*entry.jobs, *led) if job.blocked is None}
            self._kinds |= kinds
            setup = host_seconds(entry) if kinds and durations else 0.0
            self._loads[entry.host.key] = Load(entry.host.slots, setup, Counter(kinds.values()))

    def resume(self, stored: Iterable[tuple[Event, float]], again: Iterable[Status]) -> None:
        """Continue from the events of earlier controllers; repeats with a status of `again` run once more."""
        for event, at in stored:
            self.note(event, at)
        for result in [result for result in self.results.values() if result.status in set(again)]:
            del self.results[result.job]
            if (load := self._loads.get(result.host)) is not None and (kind := self._kinds.get(result.job)):
                load.waiting[kind] += 1
        for load in self._loads.values():
            load.waiting.update(kind for kind, _ in load.running.values())
            load.running.clear()
            load.states.clear()
        self.stopping = None

    def note(self, event: Event, at: float | None = None) -> None:
        """Process an event.

        Args:
            event: The event.
            at: When it happened, in seconds since the epoch; None: now.
        """
        at = self._now() if at is None else at
        if isinstance(event, events.RunStarted):
            self._folder, self.done = event.folder, event.done
            for load in self._loads.values():
                load.setup_at = at
        if isinstance(event, events.Stopping):
            self.stopping = event
        if isinstance(event, events.JobResult | events.JobSkipped):
            self.done += 1
        if isinstance(event, events.JobResult):
            self.results[event.job] = event
        host = getattr(event, "host", None) or ""
        if host in self._loads:
            self._note_load(self._loads[host], event, at)

    def _note_load(self, load: Load, event: Event, at: float) -> None:
        match event:
            case events.ImageProgress():
                if event.total_bytes:
                    load.progress = event.done_bytes / event.total_bytes, at
            case events.JobState():
                self._note_job(load, event, at)
            case events.JobResult() | events.JobSkipped():
                kind = self._kinds.get(event.job)
                was_running = load.running.pop(event.job, None)
                load.states.pop(event.job, None)
                if kind is not None and was_running is None and load.waiting[kind]:
                    load.waiting[kind] -= 1
                if isinstance(event, events.JobResult) and event.status == Status.OK and event.seconds and kind:
                    load.took += event.seconds
                    load.expected += self._durations.seconds(*kind)
                    self._measured[kind] = event.seconds
            case events.HostLost():
                load.waiting.clear()
                load.running.clear()
                load.states.clear()

    def _note_job(self, load: Load, event: events.JobState, at: float) -> None:
        load.setup_seconds, load.progress = 0.0, None
        load.states[event.job] = event.state
        kind = self._kinds.get(event.job)
        if kind is None:
            return
        if event.state == QUEUED:
            if load.running.pop(event.job, None) is not None:
                load.waiting[kind] += 1
        elif event.job in load.running or event.job in self.results:
            return
        elif load.slots == 1 or event.state != "launching":  # in a queue, it may still wait
            load.running[event.job] = kind, at
            load.waiting[kind] -= load.waiting[kind] > 0

    def doing(self, host: str) -> list[str]:
        """Return the states of a host's running repeats."""
        return list(self._loads[host].states.values()) if host in self._loads else []

    # -- time ------------------------------------------------------------------------------------------------------

    def seconds_left(self, host: str | None = None, now: float | None = None) -> float:
        """Return the seconds until a host, or the slowest of all, is done; 0 while there is nothing but a guess.

        Args:
            host: `Host.key`; None: all.
            now: In seconds since the epoch; None: now.
        """
        now = self._now() if now is None else now
        if host is None:
            return max((self.seconds_left(key, now) for key in self._loads), default=0.0)
        load = self._loads[host]
        if not (self._durations or load.expected or self._measured.keys() & load.waiting.keys()):
            return 0.0
        running = [max(0.0, self._expected(load, kind) - (now - began)) for kind, began in load.running.values()]
        if self.stopping is not None:
            return 0.0 if self.stopping.now else max(running, default=0.0)
        waiting = sum(self._expected(load, kind) * count for kind, count in load.waiting.items())
        parallel = max(1, min(load.slots, len(running) + load.waiting.total()))
        setup = self._setup_left(load, now) if waiting or running else 0.0
        return setup + max((waiting + sum(running)) / parallel, max(running, default=0.0))

    def _now(self) -> float:
        return self._epoch + clock_seconds()

    def _expected(self, load: Load, kind: Kind) -> float:
        """Return the duration of a repeat: as measured in this run, else as estimated, times the host's slowness."""
        slowness = load.took / load.expected if load.expected else 1.0
        return self._measured.get(kind) or self._durations.seconds(*kind) * slowness

    @staticmethod
    def _setup_left(load: Load, now: float) -> float:
        began = now if load.setup_at is None else load.setup_at
        if load.progress is not None and load.progress[0] > 0:
            share, at = load.progress
            return max(0.0, (at - began) * (1 - share) / share - (now - at))
        return max(0.0, load.setup_seconds - (now - began))

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
            lines.append(plain_text(f"  {number} × {status} on {shortened([*dict.fromkeys(hosts)])}: {cause}"))
        if len(groups) > MAX_CAUSES:
            lines.append(f"  … and {len(groups) - MAX_CAUSES} more causes")
        if event.failed > len(failed):
            lines.append(f"  {event.failed - len(failed)} failed earlier, see: {command_line('orchestrate', 'status')}")
        again = sorted({result.status for result in failed} - HOST_FAULTS - {Status.STOPPED})
        flag = ["--again", ",".join(again)] if again else []
        resume = command_line("orchestrate", "resume", self._folder, *flag)
        return [*lines, plain_text(f"  to repeat only these: {resume}")]


def shortened(names: Sequence[str]) -> str:
    """Return the first few names, and the number of others."""
    more = f" and {len(names) - MAX_HOSTS_NAMED} more" if len(names) > MAX_HOSTS_NAMED else ""
    return ", ".join(names[:MAX_HOSTS_NAMED]) + more

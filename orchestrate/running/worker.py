"""The work of one host: its repeats one after another, each from start to record."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from orchestrate.errors import HostError
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import OnTurn, always_running
from orchestrate.planning.device_peaks import DevicePeaks
from orchestrate.planning.plan import HostPlan, Job, learn
from orchestrate.running.attempt import Attempt
from orchestrate.running.judge import failed_record, judge, now
from orchestrate.running.retries import Retries
from orchestrate.running.session import HostSession
from orchestrate.running.shared import Shared, affordable, finish, set_aside, set_aside_for_bug, spare
from orchestrate.running.watchdog import Watched
from results.schema import Record, Status


@dataclass
class HostWorker:
    """Works through the repeats of one host, in one thread.

    Attributes:
        entry: The host's part of the plan.
        jobs: Those of its repeats that have no record yet.
        shared: What the workers of a run share.
    """

    entry: HostPlan
    jobs: list[Job]
    shared: Shared
    _session: HostSession = field(init=False)
    _todo: deque[Job] = field(init=False, default_factory=deque)
    _lock: threading.Lock = field(init=False, default_factory=threading.Lock)
    _retries: Retries = field(init=False, default_factory=Retries)
    _peaks: DevicePeaks = field(init=False, default_factory=DevicePeaks)

    @property
    def host(self) -> Host:
        """The host."""
        return self.entry.host

    def work(self) -> None:
        """Run the host's repeats until they are done, the host is set aside, or the run is stopped."""
        if not self.entry.jobs or self.shared.stop.launching.is_set():
            return
        self._session = HostSession(self.entry, self.shared.make(self.host), self.shared)
        try:
            if self.host.queue is None:  # of a queue, each repeat costs while it has a machine
                self._session.count_cost()
            if not self.jobs:
                self._session.sweep_only(self.entry.jobs)
            elif self._ready():
                self._todo.extend(self.jobs)
                self._work_through()
        except Exception as error:  # noqa: BLE001  a bug: this host ends, the others must not
            set_aside_for_bug(self.host.key, error, self.host, self.jobs, self.shared)
        finally:
            self._session.close()

    def _ready(self) -> bool:
        """Connect and bring the images; a host that cannot gives each of its repeats a record."""
        try:
            if (facts := self._session.learn()) is not None:
                self.jobs = [learn(job, self.host, facts) for job in self.jobs]
            self._finish_blocked()
            self._session.sweep(self.entry.jobs, {job.id for job in self.jobs})
            self._session.bring_images(self.jobs)
        except HostError as error:
            set_aside(self.host, error.status, error.cause, self.jobs, self.shared)
            return False
        return True

    def _finish_blocked(self) -> None:
        """Write the records of what cannot run here, before anything is pulled for it."""
        for job in self.jobs:
            if job.blocked is not None:
                finish(job, failed_record(job, *job.blocked, now()), self.host, 0.0, self.shared)
        self.jobs = [job for job in self.jobs if job.blocked is None]

    def _work_through(self) -> None:
        """Take repeats from the list until it is empty, the host is set aside, or the run is stopped."""
        stop, options = self.shared.stop.launching, self.shared.options
        while not stop.is_set() and (job := self._next()) is not None:
            if spare(job, self.host, self.shared):
                self._leave_out(job)
                continue
            informed = dataclasses.replace(job, known_peaks=self._peaks.of(job))
            for tries in itertools.count(1):
                record = self._run_once(informed)
                if record is None or not self._retries.again(job, record, tries, self.shared):
                    break
            if record is None:
                continue
            if self.host.queue is None:  # a queue's next repeat may get another machine
                self._peaks.learn(job, record)
            if options.fail_fast and record.status is not Status.OK:
                stop.set()
            if self._retries.faults >= options.set_aside_after * self.host.lanes:
                self._give_up(record)

    def _next(self) -> Job | None:
        """Take the next repeat; None: there is none, or it would cost too much."""
        if not self._todo:
            return None
        job = self._todo.popleft()
        return job if affordable([self.host], job.case.name, self.shared) else None

    def _leave_out(self, job: Job) -> None:
        """Leave a repeat out whose case is known closely enough."""

    def _give_up(self, record: Record) -> list[Job]:
        """Set the host aside for the reason of its last failure.

        Returns:
            The repeats that were left.
        """
        with self._lock:
            left = list(self._todo)
            self._todo.clear()
            self._retries.faults = 0
        if left:
            set_aside(self.host, record.status, record.cause or "", left, self.shared)
        return left

    def _run_once(self, job: Job) -> Record | None:
        """Run one repeat, from start to record.

        Returns:
            None: it was taken out of its queue before it began.
        """
        attempt = self._attempt(job)
        ended = False
        try:
            self._session.start(job)
            watched = self._session.watch(job)
            left = self._session.follow(job, watched, self._on_turn(attempt, watched))
            record = judge(
                job,
                left.ending,
                left.payload,
                started_at=attempt.started_at,
                stopped_for=watched.stopped_for,
                last_line=left.last_line,
            )
            ended = True
        except HostError as error:
            record = failed_record(job, error.status, error.cause, attempt.started_at)
            ended = error.status is not Status.LOST  # what was lost may still run: `resume` and `stop` can find it
        finally:
            attempt.end()
        finish(job, record, self.host, time.monotonic() - attempt.began, self.shared)
        if ended:
            self._session.remove(job)
        return record

    def _attempt(self, job: Job) -> Attempt:
        return Attempt(job)

    def _on_turn(self, attempt: Attempt, watched: Watched) -> OnTurn:
        """Return what takes in the reports of a queue: a host has none."""
        return always_running

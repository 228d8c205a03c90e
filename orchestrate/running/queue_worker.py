"""The work of a queue: its repeats side by side, in as many lanes as it may have jobs."""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

from orchestrate.errors import HostError, Withdrawn
from orchestrate.launchers.base import OnTurn, QueueLauncher, Turn
from orchestrate.planning.plan import Job
from orchestrate.running.attempt import Attempt
from orchestrate.running.shared import affordable, set_aside, spare
from orchestrate.running.watchdog import Watched
from orchestrate.running.worker import HostWorker
from results.schema import Record


@dataclass
class QueueWorker(HostWorker):
    """Works through the repeats of one queue, in several lanes (threads).

    What is paid is each repeat while it has a machine, and what the queue holds must be taken back when it is not
    wanted any more.
    """

    _withdrawn: bool = field(init=False, default=False)
    _trouble: str = field(init=False, default="")

    @property
    def _queue(self) -> QueueLauncher:
        return cast(QueueLauncher, self._session.launcher)

    def _work_through(self) -> None:
        if not self._todo or not self._enqueue():
            return
        lanes, work_lane = min(self.host.lanes, len(self.jobs)), super()._work_through
        with ThreadPoolExecutor(lanes, thread_name_prefix=self.host.key) as pool:
            working = [pool.submit(work_lane) for _ in range(lanes)]
        self._leave_nothing_waiting()
        for lane in working:
            lane.result()

    def _enqueue(self) -> bool:
        """Put what can be paid into the queue; a queue that refuses gives each repeat a record."""
        self._todo = deque(itertools.takewhile(self._affordable, self._todo))
        submitted = list(self._todo)
        try:
            self._queue.submit(submitted)
        except HostError as error:
            set_aside(self.host, error.status, error.cause, submitted, self.shared)
            return False
        return True

    def _affordable(self, job: Job) -> bool:
        return affordable([self.host], job.case.name, self.shared, meter=job.id)

    def _next(self) -> Job | None:
        with self._lock:
            return self._todo.popleft() if self._todo else None

    def _leave_out(self, job: Job) -> None:
        """Take a repeat out of the queue, and with it all others that are not needed either, in few requests.

        Also those that have just begun: nobody follows them, so that they would leave their results behind.
        """
        with self._lock:
            others = [other for other in self._todo if spare(other, self.host, self.shared)]
            gone = {other.id for other in others}
            self._todo = deque(other for other in self._todo if other.id not in gone)
        self._session.attempt("withdraw jobs that are no longer needed", lambda: self._queue.clear([job, *others]))

    def _give_up(self, record: Record) -> list[Job]:
        if left := super()._give_up(record):
            self._session.attempt("withdraw waiting jobs", lambda: self._queue.clear(left))
        return left

    def _leave_nothing_waiting(self) -> None:
        """Clear what no lane took when the run was stopped: the queue may have begun it as the last ones ended."""
        left = list(self._todo)
        if self.shared.stop.launching.is_set() and left:
            self._session.attempt("withdraw waiting jobs", lambda: self._queue.clear(left))

    def _run_once(self, job: Job) -> Record | None:
        try:
            return super()._run_once(job)
        except Withdrawn:
            return None

    def _attempt(self, job: Job) -> Attempt:
        return Attempt(job, self.shared.budget)

    def _on_turn(self, attempt: Attempt, watched: Watched) -> OnTurn:
        """Return what starts and stops a repeat's clock, warns of a silent queue, and empties it when the run stops."""
        watched.wait()

        def on_turn(turn: Turn) -> None:
            if (state := attempt.take(turn, watched)) is not None:
                self._session.state(attempt.job, state)
            self._tell_trouble(turn.trouble)
            self._withdraw_when_stopped()

        return on_turn

    def _tell_trouble(self, trouble: str) -> None:
        """Warn once that the queue does not answer, and not again before it has."""
        with self._lock:
            before, self._trouble = self._trouble, trouble
        if trouble and not before:
            self._session.warn(f"the queue does not answer at the moment; its jobs continue: {trouble}")

    def _withdraw_when_stopped(self) -> None:
        """Take what waits out of the queue, once, when nothing new is to be started."""
        if not self.shared.stop.launching.is_set():
            return
        with self._lock:
            before, self._withdrawn = self._withdrawn, True
        if not before:
            self._session.attempt("withdraw waiting jobs", lambda: self._queue.withdraw(self.jobs))

"""One try of a repeat, and its clock: what it waits in a queue counts for nothing."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from orchestrate.launchers.base import Turn
from orchestrate.planning.budget import Budget
from orchestrate.planning.plan import Job
from orchestrate.running.judge import now
from orchestrate.running.watchdog import Watched

QUEUED = "queued"


@dataclass
class Attempt:
    """One try of a repeat.

    Attributes:
        budget: Counts what a machine costs that a queue chose; None: nobody counts, or the host's own worker does.
        began: Monotonic seconds of its start.
        started_at: The same in UTC, ISO 8601.
        turn: The last report of its queue; None: nothing yet, or there is no queue.
    """

    job: Job
    budget: Budget | None = None
    began: float = field(default_factory=time.monotonic)
    started_at: str = field(default_factory=now)
    turn: Turn | None = None

    def take(self, turn: Turn, watched: Watched) -> str | None:
        """Take in what the queue reports.

        Returns:
            The repeat's new state in a word; None: it is as before.
        """
        before, self.turn = self.turn, turn
        if turn.waiting:
            watched.wait()
            self.end()
            return QUEUED if before is None or not before.waiting else None
        if before is not None and not before.waiting and before.node == turn.node:
            return None
        self.began, self.started_at = time.monotonic(), now()
        if self.budget is not None:
            self.budget.begin(self.job.place, self.job.id)
        watched.run()
        return f"on {turn.node}" if turn.node else "running"

    def end(self) -> None:
        """Stop to count its cost."""
        if self.budget is not None:
            self.budget.end(self.job.place, self.job.id)

    @property
    def seconds(self) -> float:
        """How long it has run."""
        return time.monotonic() - self.began

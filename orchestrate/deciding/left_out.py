"""One judge for all workers of a run: which repeats are not needed, which comes next, and what that saves."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

from orchestrate.deciding.decisions import Decisions
from orchestrate.deciding.early_end import Cell, EarlyEnd, cell_of, whole_seconds
from orchestrate.planning.plan import Job, Plan
from results.schema import Record, Status


class LeftOut:
    """Takes in the records of a run, and says which repeats need not run. All callable from any thread.

    Args:
        plan: What will run; its `decide` says whether comparisons are to be decided.
    """

    def __init__(self, plan: Plan) -> None:
        self._early = EarlyEnd()
        self._decisions = None if plan.decide is None else Decisions(plan, plan.decide)
        self._seconds: defaultdict[Cell, list[float]] = defaultdict(list)
        self._spared: dict[str, Cell] = {}
        self._lock = threading.Lock()

    def add(self, job: Job, record: Record) -> list[str]:
        """Take in a repeat.

        Returns:
            The comparisons that it decided, in words.
        """
        with self._lock:
            if record.status is Status.OK:
                self._seconds[cell_of(job)].append(whole_seconds(record))
            self._early.add(job, record)
            decided = [] if self._decisions is None else self._decisions.add(job, record)
            return [question.text for question in decided]

    def spares(self, job: Job) -> bool:
        """Return whether a repeat that has not begun is not needed, and count it then."""
        with self._lock:
            if not self._why(job):
                return False
            self._spared[job.id] = cell_of(job)
            return True

    def among(self, jobs: Iterable[Job]) -> set[str]:
        """Return the ids of those repeats that are not needed."""
        return {job.id for job in jobs if self.spares(job)}

    def why(self, job: Job) -> str:
        """Say why a repeat is not needed; empty where it is."""
        with self._lock:
            return self._why(job)

    @property
    def ranks(self) -> bool:
        """Whether `rank` differs from the plan's order: comparisons are to be decided."""
        return self._decisions is not None

    def rank(self, job: Job) -> tuple[bool, int, float]:
        """Return what the repeats of a host are taken by: the lowest first, and of equals the first in the plan.

        What is not needed any more comes first, to be left out. Rounds stay in their order, so that drift of a host
        spreads over all cases. Within a round, the repeat whose comparison is known least comes first: if time or money
        ends, it was spent there.
        """
        with self._lock:
            width = 0.0 if self._decisions is None else self._decisions.width(job)
            return not self._why(job), job.origin.repeat, -width

    @property
    def answers(self) -> list[str]:
        """What became of each comparison that was to be decided, in words."""
        with self._lock:
            return [] if self._decisions is None else [question.text for question in self._decisions.questions]

    @property
    def spared(self) -> int:
        """Repeats that were not needed."""
        return len(self._spared)

    @property
    def saved_seconds(self) -> float:
        """Machine time of the steps and repeats that were not needed, by those of the same case that ran."""
        with self._lock:
            known = (self._seconds[cell] for cell in self._spared.values())
            return sum(fmean(seconds) for seconds in known if seconds) + self._early.steps_saved_seconds

    def _why(self, job: Job) -> str:
        return self._early.why_not(job) or ("" if self._decisions is None else self._decisions.why_not(job))

"""Which repeats are not needed any more: those of a case that is known as closely as `--target-ci` asks."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean

from orchestrate.planning.plan import Job
from results.schema import Record, Status
from results.stats import estimate

FEWEST_REPEATS = 6
"""Fewest repeats after which a case may end: to stop at the first narrow interval picks lucky ones, and the interval of
what ended after 3 covers 90 to 92 % where repeats vary by 2 to 3 %; after 6 it covers 93 to 95 %, by
`python -m tests.benchmarks.coverage`."""

Cell = tuple[str, str, str, str | None]
"""Fleet, host, case and variant: what is repeated."""


@dataclass
class _Known:
    """What the repeats of a cell have told so far.

    Attributes:
        rates: Samples per second of each.
        seconds: Duration of each repeat, start and warm-up included.
        steps_saved_seconds: What their steps that were not needed would have taken.
    """

    rates: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    steps_saved_seconds: float = 0.0


class EarlyEnd:
    """Keeps the results of a run's cases, and says which are known closely enough.

    A case on a host is known when the 95 % t-interval of its throughput over at least `FEWEST_REPEATS` repeats is
    within ± `Case.target_ci`. All callable from any thread.
    """

    def __init__(self) -> None:
        self._known: dict[Cell, _Known] = {}
        self._spared: dict[str, Cell] = {}
        self._lock = threading.Lock()

    def add(self, job: Job, record: Record) -> None:
        """Take in a repeat; only one with a number says anything."""
        measured = record.measurement
        if job.case.target_ci is None or record.status is not Status.OK or measured is None:
            return
        with self._lock:
            known = self._known.setdefault(_cell(job), _Known())
            known.rates.append(measured.samples_per_second)
            known.seconds.append(whole_seconds(record))
            left = max(0, job.case.num_steps - measured.num_steps)
            known.steps_saved_seconds += left * measured.seconds / measured.num_steps

    def spares(self, job: Job) -> bool:
        """Tell whether a repeat that has not begun is not needed, and count it then."""
        with self._lock:
            if half_width(self._rates(job)) > (job.case.target_ci or -1.0):
                return False
            self._spared[job.id] = _cell(job)
            return True

    def among(self, jobs: Iterable[Job]) -> set[str]:
        """Return the ids of those repeats that are not needed."""
        return {job.id for job in jobs if self.spares(job)}

    def why(self, job: Job) -> str:
        """Say how closely a case is known."""
        with self._lock:
            rates = self._rates(job)
        return (
            f"{job.case.name}: known to ± {half_width(rates):.1%} after {len(rates)} repeats "
            f"(asked: {job.case.target_ci:.1%})"
        )

    @property
    def spared(self) -> int:
        """Repeats that were not needed."""
        return len(self._spared)

    @property
    def saved_seconds(self) -> float:
        """Machine time of the steps and repeats that were not needed, by those of the same case that ran."""
        with self._lock:
            repeats = sum(fmean(self._known[cell].seconds) for cell in self._spared.values())
            return repeats + sum(known.steps_saved_seconds for known in self._known.values())

    def _rates(self, job: Job) -> list[float]:
        known = self._known.get(_cell(job))
        return [] if job.case.target_ci is None or known is None else known.rates


def half_width(rates: list[float]) -> float:
    """Return the half-width of the 95 % t-interval as a share of the mean; infinite with too few repeats."""
    if len(rates) < FEWEST_REPEATS:
        return float("inf")
    interval = estimate(rates).interval()
    return interval.half_width / interval.value


def _cell(job: Job) -> Cell:
    return job.origin.fleet, job.origin.host, job.case.name, job.origin.variant


def whole_seconds(record: Record) -> float:
    """Return how long a repeat took from its start to its record, in seconds."""
    began, ended = (datetime.fromisoformat(stamp) for stamp in (record.started_at, record.finished_at))
    return max(0.0, (ended - began).total_seconds())

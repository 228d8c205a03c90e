"""`--target-ci`: repeats of a case on a host are not needed once it is known as closely as was asked."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

from orchestrate.planning.plan import Job
from results.schema import Record, Status
from results.stats import estimate

FEWEST_REPEATS = 6
"""Fewest repeats after which a case may end: to stop at the first narrow interval picks lucky ones, and the interval of
what ended after 3 covers 90 to 92 % where repeats vary by 2 to 3 %; after 6 it covers 93 to 95 %, by
`python -m tests.benchmarks.coverage`."""

Cell = tuple[str, str, str, str | None]
"""Fleet, host, case and variant: what is repeated."""


class EarlyEnd:
    """Says which cases are known closely enough.

    A case on a host is known when the 95 % t-interval of its throughput over at least `FEWEST_REPEATS` repeats is
    within ± `Case.target_ci`. Not safe for threads: `LeftOut` is.
    """

    def __init__(self) -> None:
        self._rates: defaultdict[Cell, list[float]] = defaultdict(list)
        self.steps_saved_seconds = 0.0
        """What the steps that were not needed would have taken."""

    def add(self, job: Job, record: Record) -> None:
        """Take in a repeat; only one with a number says anything."""
        measured = record.measurement
        if job.case.target_ci is None or record.status is not Status.OK or measured is None:
            return
        self._rates[cell_of(job)].append(measured.samples_per_second)
        left = max(0, job.case.num_steps - measured.num_steps)
        self.steps_saved_seconds += left * measured.seconds / measured.num_steps

    def why_not(self, job: Job) -> str:
        """Say why a repeat is not needed; empty where it is."""
        target, rates = job.case.target_ci, self._rates[cell_of(job)]
        if target is None or half_width(rates) > target:
            return ""
        return f"{job.case.name}: known to ± {half_width(rates):.1%} after {len(rates)} repeats (asked: {target:.1%})"


def half_width(rates: list[float]) -> float:
    """Return the half-width of the 95 % t-interval as a share of the mean; infinite with too few repeats."""
    if len(rates) < FEWEST_REPEATS:
        return float("inf")
    interval = estimate(rates).interval()
    return interval.half_width / interval.value


def cell_of(job: Job) -> Cell:
    """Return what a repeat repeats."""
    return job.origin.fleet, job.origin.host, job.case.name, job.origin.variant


def whole_seconds(record: Record) -> float:
    """Return how long a repeat took from its start to its record, in seconds."""
    began, ended = (datetime.fromisoformat(stamp) for stamp in (record.started_at, record.finished_at))
    return max(0.0, (ended - began).total_seconds())

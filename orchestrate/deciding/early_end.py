"""`--target-ci`: repeats of a case on a host are not needed once it is known as closely as was asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from orchestrate.planning.plan import Job
from results.compare.sequential import narrow_enough
from results.schema import Record, Status
from results.stats import t_interval

Cell = tuple[str, str, str, str | None]
"""Fleet, host, case and variant: what is repeated."""


class EarlyEnd:
    """Says which cases are known closely enough.

    A case on a host is known when the 95 % t-interval of its throughput is within ± `Case.target_ci`, and well within
    where repeats are few (`results.compare.sequential.SHARES`). Not safe for threads: `LeftOut` is.
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
        if target is None or not known(rates, target):
            return ""
        interval = t_interval(rates)
        width = interval.half_width / interval.value
        return f"{job.case.name}: known to ± {width:.1%} after {len(rates)} repeats (target: {target:.1%})"


def known(rates: Sequence[float], target: float) -> bool:
    """Return whether repeats of a case on a host, in samples per second, give its throughput within ± a share of it."""
    return len(rates) > 1 and narrow_enough(t_interval(rates), len(rates) - 1, target)


def cell_of(job: Job) -> Cell:
    """Return what a repeat repeats."""
    return job.origin.fleet, job.origin.host, job.case.name, job.origin.variant


def whole_seconds(record: Record) -> float:
    """Return how long a repeat took from its start to its record, in seconds."""
    began, ended = (datetime.fromisoformat(stamp) for stamp in (record.started_at, record.finished_at))
    return max(0.0, (ended - began).total_seconds())

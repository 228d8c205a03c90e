"""`--stop-early`: skips the repeats of a case that no comparison between fleets needs any more.

An interim analysis uses the first N repeats of every host, whenever they ended. The result follows from the records
alone, so `resume` and `status` obtain the same. Repeats are never added to a plan, so the option never increases the
cost.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean

from orchestrate.planning.plan import Job, Plan
from results.compare.sequential import InterimAnalysis, analyse
from results.schema import Case, Mode, Record, Status
from results.table.columns import Software, software_of
from results.table.fleets import FleetRate

NOTHING_TO_COMPARE = "--stop-early skips nothing: no two fleets of this plan measure the same case"


Key = tuple[str, Case, str | None]
"""Fleet, case and image variant."""


def _key(job: Job) -> Key:
    return job.origin.fleet, job.case, job.origin.variant


@dataclass
class Side:
    """The measurements of a case on a fleet with one image variant.

    Attributes:
        planned: Numbers of the planned repeats of each host, ascending; a queue counts as one host.
        ended: Repeats with a record, by host and number: the machine, and throughput in samples per second; None: no
            measurement.
        prices: USD per GPU-hour of each machine with a price.
        seconds: Durations of successful repeats, from start to record.
    """

    planned: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[tuple[str, int], tuple[str, float] | None] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)
    software: Software = field(default_factory=Software)
    unit: str = ""
    seconds: list[float] = field(default_factory=list)

    def add(self, job: Job, record: Record) -> None:
        """Add a repeat."""
        place, origin = (job.origin.host, job.origin.repeat), record.origin or job.origin  # a queue's names the node
        self.ended[place] = None
        if record.status is not Status.OK or record.measurement is None:
            return
        self.ended[place] = origin.host, record.measurement.samples_per_second
        self.software, self.unit = software_of(record) or Software(), record.measurement.unit
        began, ended = (datetime.fromisoformat(stamp) for stamp in (record.started_at, record.finished_at))
        self.seconds.append(max(0.0, (ended - began).total_seconds()))
        if job.origin.usd_per_gpu_hour is not None:
            self.prices[origin.host] = job.origin.usd_per_gpu_hour

    def first(self, repeats: int) -> list[tuple[str, int]]:
        """Return host and number of the first repeats of each host, or of all planned ones."""
        return [(host, number) for host, numbers in self.planned.items() for number in numbers[:repeats]]

    def rate(self, key: Key, repeats: int) -> FleetRate:
        """Return the throughput of the first repeats of each host."""
        rates: dict[str, dict[str, list[float]]] = {}
        for host, value in filter(None, map(self.ended.__getitem__, self.first(repeats))):
            rates.setdefault(host, {"": []})[""].append(value)
        return FleetRate(*key[:2], self.software, rates, unit=self.unit, prices=self.prices)


@dataclass
class PlannedComparison:
    """Two fleets that measure the same case.

    Attributes:
        repeats: Number per host in the last interim analysis.
        found: Its result; decided, if it has a text.
    """

    keys: tuple[Key, Key]
    repeats: int = 0
    found: InterimAnalysis = field(default_factory=InterimAnalysis)

    @property
    def text(self) -> str:
        """The result in words, or its current precision."""
        (a, case, _), (b, *_) = self.keys
        if self.found.text:
            return f"{case.name}: {self.found.text}"
        width = "not known yet" if math.isinf(self.found.width) else f"± {self.found.width:.1%}"
        return f"{case.name}: {a} / {b}: not decided: {width} after {self.repeats} repeats of each host"


class StopEarly:
    """Decides from the records of a run which repeats are not needed.

    Args:
        plan: The plan; without `stop_early`, every repeat is needed.
    """

    def __init__(self, plan: Plan) -> None:
        self._share = plan.stop_early
        self._sides: defaultdict[Key, Side] = defaultdict(Side)
        self._skipped: dict[str, Key] = {}
        for job in plan.jobs if self._share is not None else ():  # by round, so numbers ascend
            self._sides[_key(job)].planned.setdefault(job.origin.host, []).append(job.origin.repeat)
        self._most = max((job.origin.repeat for job in plan.jobs), default=0)
        self.comparisons = _comparisons(self._sides)

    def add(self, job: Job, record: Record) -> list[str]:
        """Add a repeat.

        Returns:
            The comparisons that it decided, in words.
        """
        if self._share is None:
            return []
        self._sides[_key(job)].add(job, record)
        waiting = [one for one in self._of(job) if not one.found.text]
        for comparison in waiting:
            self._analyse(comparison, self._share)
        return [comparison.text for comparison in waiting if comparison.found.text]

    def _of(self, job: Job) -> list[PlannedComparison]:
        return [comparison for comparison in self.comparisons if _key(job) in comparison.keys]

    def _analyse(self, comparison: PlannedComparison, share: float) -> None:
        """Analyse each new round until the comparison is decided."""
        sides = [self._sides[key] for key in comparison.keys]
        while not comparison.found.text and comparison.repeats < self._most:
            repeats = comparison.repeats + 1
            if not all(side.ended.keys() >= {*side.first(repeats)} for side in sides):
                return
            a, b = (side.rate(key, repeats) for side, key in zip(sides, comparison.keys, strict=True))
            comparison.found, comparison.repeats = analyse(a, b, share, repeats), repeats

    def skips(self, job: Job) -> str:
        """Return why a pending repeat is not needed, and count it as skipped; empty: it is needed."""
        comparisons = self._of(job)
        if not comparisons or any(not comparison.found.text for comparison in comparisons):
            return ""
        self._skipped[job.id] = _key(job)
        return "; ".join(comparison.text for comparison in comparisons)

    @property
    def answers(self) -> list[str]:
        """The result of each comparison, in words."""
        if self._share is not None and not self.comparisons:
            return [NOTHING_TO_COMPARE]
        return [comparison.text for comparison in self.comparisons]

    @property
    def skipped(self) -> int:
        """Number of skipped repeats."""
        return len(self._skipped)

    @property
    def saved_seconds(self) -> float:
        """Estimated machine time of the skipped repeats, from those of the same case that ran."""
        known = (self._sides[key].seconds for key in self._skipped.values())
        return sum(fmean(seconds) for seconds in known if seconds)


def _comparisons(keys: Iterable[Key]) -> list[PlannedComparison]:
    """Return a comparison for every case and pair of fleets, per variant if both have the same ones."""
    have = {*keys}
    return [
        PlannedComparison((one, two))
        for one, two in itertools.combinations(keys, 2)
        if one[1] == two[1]
        and one[0] != two[0]
        and one[1].mode is not Mode.DEVICE  # has no throughput
        and (one[2] == two[2] or not {(one[0], one[1], two[2]), (two[0], one[1], one[2])} & have)
    ]

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


@dataclass(frozen=True)
class FleetCase:
    """One side of a comparison: a case on a fleet with one image variant."""

    fleet: str
    case: Case
    variant: str | None

    @classmethod
    def of(cls, job: Job) -> FleetCase:
        """Return the side of a repeat."""
        return cls(job.origin.fleet, job.case, job.origin.variant)


@dataclass
class _Measured:
    """The measurements of a side.

    Attributes:
        planned: Numbers of the planned repeats of each host, ascending; a queue counts as one host.
        ended: Repeats with a record: the machine, and throughput in samples per second; None: no measurement.
        prices: USD per GPU-hour of each host with a price.
        seconds: Durations of successful repeats, from start to record.
    """

    planned: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, dict[int, tuple[str, float] | None]] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)
    software: Software = field(default_factory=Software)
    unit: str = ""
    seconds: list[float] = field(default_factory=list)

    def add(self, job: Job, record: Record) -> None:
        """Add a repeat."""
        number = record.measurement if record.status is Status.OK else None
        origin = record.origin or job.origin  # a queue's record names the node
        self.ended.setdefault(job.origin.host, {})[job.origin.repeat] = (
            None if number is None else (origin.host, number.samples_per_second)
        )
        if number is None:
            return
        self.software = software_of(record) or Software()
        self.unit = number.unit
        began, ended = (datetime.fromisoformat(stamp) for stamp in (record.started_at, record.finished_at))
        self.seconds.append(max(0.0, (ended - began).total_seconds()))
        if job.origin.usd_per_gpu_hour is not None:
            self.prices[origin.host] = job.origin.usd_per_gpu_hour

    def complete(self, repeats: int) -> bool:
        """Return whether all hosts have finished this number of repeats, or all planned ones."""
        return all(self.ended.get(host, {}).keys() >= set(numbers[:repeats]) for host, numbers in self.planned.items())

    def rate(self, side: FleetCase, repeats: int) -> FleetRate:
        """Return the throughput of the first repeats of each host."""
        rates: dict[str, dict[str, list[float]]] = {}
        for planned, numbers in self.planned.items():
            for number in numbers[:repeats]:
                if (found := self.ended[planned][number]) is not None:
                    host, value = found
                    rates.setdefault(host, {"": []})[""].append(value)
        return FleetRate(side.fleet, side.case, self.software, rates, unit=self.unit, prices=self.prices)


@dataclass
class PlannedComparison:
    """Two fleets that measure the same case.

    Attributes:
        repeats: Number per host in the last interim analysis.
        found: Its result.
    """

    sides: tuple[FleetCase, FleetCase]
    repeats: int = 0
    found: InterimAnalysis = field(default_factory=InterimAnalysis)

    @property
    def decided(self) -> bool:
        """Whether it needs no more repeats."""
        return self.found.reason is not None

    @property
    def text(self) -> str:
        """The result in words, or its current precision."""
        case = self.sides[0].case.name
        if self.decided:
            return f"{case}: {self.found.text}"
        names = " / ".join(side.fleet for side in self.sides)
        known = "not known yet" if math.isinf(self.found.width) else f"± {self.found.width:.1%}"
        return f"{case}: {names}: not decided: {known} after {self.repeats} repeats of each host"


class StopEarly:
    """Decides from the records of a run which repeats are not needed.

    Args:
        plan: The plan; without `stop_early`, every repeat is needed.
    """

    def __init__(self, plan: Plan) -> None:
        self._share = plan.stop_early
        self._sides: defaultdict[FleetCase, _Measured] = defaultdict(_Measured)
        self._skipped: dict[str, FleetCase] = {}
        for job in plan.jobs if self._share is not None else ():  # by round, so numbers ascend
            self._sides[FleetCase.of(job)].planned.setdefault(job.origin.host, []).append(job.origin.repeat)
        self._most = max((job.origin.repeat for job in plan.jobs), default=0)
        self.comparisons = _comparisons(self._sides)
        self._of_side = {side: [one for one in self.comparisons if side in one.sides] for side in self._sides}

    def add(self, job: Job, record: Record) -> list[str]:
        """Add a repeat.

        Returns:
            The comparisons that it decided, in words.
        """
        if self._share is None:
            return []
        side = FleetCase.of(job)
        self._sides[side].add(job, record)
        open_ones = [comparison for comparison in self._of_side[side] if not comparison.decided]
        return [comparison.text for comparison in open_ones if self._analysed(comparison, self._share)]

    def _analysed(self, comparison: PlannedComparison, share: float) -> bool:
        """Analyse each new round; return whether the comparison is decided."""
        a, b = comparison.sides
        while not comparison.decided and comparison.repeats < self._most:
            repeats = comparison.repeats + 1
            if not (self._sides[a].complete(repeats) and self._sides[b].complete(repeats)):
                break
            rates = self._sides[a].rate(a, repeats), self._sides[b].rate(b, repeats)
            comparison.found, comparison.repeats = analyse(*rates, share, repeats), repeats
        return comparison.decided

    def skips(self, job: Job) -> str:
        """Return why a pending repeat is not needed, and count it as skipped; empty: it is needed."""
        comparisons = self._of_side.get(FleetCase.of(job))
        if not comparisons or not all(comparison.decided for comparison in comparisons):
            return ""
        self._skipped[job.id] = FleetCase.of(job)
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
        known = (self._sides[side].seconds for side in self._skipped.values())
        return sum(fmean(seconds) for seconds in known if seconds)


def _comparisons(sides: Iterable[FleetCase]) -> list[PlannedComparison]:
    """Return a comparison for every case and pair of fleets, per variant if both have the same ones."""
    by_case: defaultdict[Case, list[FleetCase]] = defaultdict(list)
    for side in sides:
        if side.case.mode is not Mode.DEVICE:  # has no throughput
            by_case[side.case].append(side)
    found = []
    for group in by_case.values():
        have = {(side.fleet, side.variant) for side in group}
        found += [
            PlannedComparison((a, b))
            for a, b in itertools.combinations(group, 2)
            if a.fleet != b.fleet
            and (a.variant == b.variant or not {(a.fleet, b.variant), (b.fleet, a.variant)} & have)
        ]
    return found

"""`--stop-early`: skips the repeats of a case that no comparison between fleets needs any more.

An interim analysis uses the first N repeats of every host, whenever they ended. The result follows from the records
alone, so `resume` and `status` obtain the same. Repeats are never added to a plan, so the option never increases the
cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection
from typing import NamedTuple

from orchestrate.planning.plan import Job, Plan
from results.compare.sequential import InterimAnalysis, analyse
from results.schema import Case, Mode, Record, Status
from results.table.columns import Software, software_of
from results.table.comparable import grouped
from results.table.fleets import FleetRate

NOTHING_TO_COMPARE = "--stop-early skips nothing: no two fleets of this plan measure the same case"


class Key(NamedTuple):
    """What comparisons are about; fleets with different image variants are different sides."""

    fleet: str
    case: Case
    variant: str | None


def _key(job: Job) -> Key:
    return Key(job.origin.fleet, job.case, job.origin.variant)


class _Measured(NamedTuple):
    """What a comparison needs of a record; `host` is the machine, which a queue chooses."""

    host: str
    samples_per_second: float
    unit: str
    software: Software


class StopEarly:
    """Decides from the records of a run which repeats are not needed.

    Args:
        plan: The plan; without `stop_early`, every repeat is needed.
    """

    def __init__(self, plan: Plan) -> None:
        self._share = plan.stop_early
        compared = plan.jobs if self._share is not None else []
        self._jobs = grouped(((_key(job), job.origin.repeat), job) for job in compared)
        self._ended: dict[str, _Measured | None] = {}
        pairs = _comparisons({_key(job): None for job in compared})
        self._analyses = dict.fromkeys(pairs, (0, InterimAnalysis()))

    def add(self, job: Job, record: Record) -> list[str]:
        """Add a repeat.

        Returns:
            The comparisons that it decided, in words.
        """
        self._ended[job.id] = None
        if record.status is Status.OK and (measured := record.measurement) is not None:
            host, software = (record.origin or job.origin).host, software_of(record) or Software()
            self._ended[job.id] = _Measured(host, measured.samples_per_second, measured.unit, software)
        waiting = [pair for pair in self._pairs_of(job) if not self._analyses[pair][1].text]
        for pair in waiting:
            self._analyse(pair)
        return [self._words(pair) for pair in waiting if self._analyses[pair][1].text]

    def skips(self, job: Job) -> str:
        """Return why a pending repeat is not needed; empty: it is needed."""
        pairs = self._pairs_of(job)
        decided = all(self._analyses[pair][1].text for pair in pairs)
        return "; ".join(map(self._words, pairs)) if decided else ""

    @property
    def answers(self) -> list[str]:
        """The result of each comparison, in words."""
        return [*map(self._words, self._analyses)] or ([] if self._share is None else [NOTHING_TO_COMPARE])

    def _pairs_of(self, job: Job) -> list[tuple[Key, Key]]:
        return [pair for pair in self._analyses if _key(job) in pair]

    def _analyse(self, pair: tuple[Key, Key]) -> None:
        """Analyse each new round, once every host has ended it, until the comparison is decided."""
        assert self._share is not None, "otherwise nothing is compared"
        repeats, analysis = self._analyses[pair]
        while not analysis.text:
            jobs = [job for key in pair for job in self._jobs.get((key, repeats + 1), ())]
            if not jobs or any(job.id not in self._ended for job in jobs):
                break
            repeats += 1
            a, b = (self._rate(key, repeats) for key in pair)
            analysis = analyse(a, b, self._share, repeats)
        self._analyses[pair] = repeats, analysis

    def _rate(self, key: Key, repeats: int) -> FleetRate:
        """Return the throughput of a side in the first repeats of each host."""
        rates, prices = dict[str, dict[str, list[float]]](), dict[str, float]()
        software, unit = Software(), ""
        for job in (job for number in range(1, repeats + 1) for job in self._jobs.get((key, number), ())):
            if (measured := self._ended[job.id]) is not None:
                rates.setdefault(measured.host, {"": []})[""].append(measured.samples_per_second)
                software, unit = measured.software, measured.unit
                if job.origin.usd_per_gpu_hour is not None:
                    prices[measured.host] = job.origin.usd_per_gpu_hour
        return FleetRate(key.fleet, key.case, software, rates, unit=unit, prices=prices)

    def _words(self, pair: tuple[Key, Key]) -> str:
        """Return the result of a comparison, or its current precision."""
        (a, case, _), (b, *_) = pair
        repeats, analysis = self._analyses[pair]
        interval = analysis.interval
        width = f"± {interval.half_width / interval.value:.1%}" if interval else "not known yet"
        undecided = f"{a} / {b}: not decided: {width} after {repeats} repeats of each host"
        return f"{case.name}: {analysis.text or undecided}"


def _comparisons(keys: Collection[Key]) -> list[tuple[Key, Key]]:
    """Return every case and pair of fleets, per variant if both have the same ones."""

    def is_compared(one: Key, two: Key) -> bool:
        if one.case != two.case or one.fleet == two.fleet or one.case.mode is Mode.DEVICE:  # has no throughput
            return False
        swapped = one._replace(variant=two.variant), two._replace(variant=one.variant)
        return one.variant == two.variant or not any(key in keys for key in swapped)

    return [pair for pair in itertools.combinations(keys, 2) if is_compared(*pair)]

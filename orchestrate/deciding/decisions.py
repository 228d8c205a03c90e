"""`--decide`: repeats go on until the comparisons between fleets are decided.

What a look at a comparison sees are the first repeats of all hosts, as many of each, whenever they ended: so that the
answer follows from the records alone, and `resume` and `status` find the one that the run found.

Whether a second repeat of each host is worth its price depends on how much repeats vary, and one repeat does not show
that. So of the cases of two fleets that are open after the first round, one goes ahead (the pilot), and the others are
judged by how its repeats vary before they go on.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrate.planning.plan import Job, Plan
from results.compare.sequential import Look, look, spread_of_repeats
from results.schema import Case, Record, Status
from results.table.fleets import FleetRate
from results.table.software import Software, software_of


@dataclass(frozen=True)
class Side:
    """What is compared: a case on a fleet, from one image variant."""

    fleet: str
    case: Case
    variant: str | None

    @classmethod
    def of(cls, job: Job) -> Side:
        """Return what a repeat belongs to."""
        return cls(job.origin.fleet, job.case, job.origin.variant)


@dataclass
class _Measured:
    """What a side has measured.

    Attributes:
        planned: Numbers of the repeats of each host of the plan, ascending; a queue is one.
        ended: Those that have a record: which machine it was, and its throughput in samples per second; None: it gave
            no number.
        prices: USD per GPU-hour of each host that has a price.
    """

    planned: dict[str, list[int]] = field(default_factory=dict)
    ended: dict[str, dict[int, tuple[str, float] | None]] = field(default_factory=dict)
    prices: dict[str, float] = field(default_factory=dict)
    software: Software = field(default_factory=Software)
    unit: str = ""

    def complete(self, repeats: int) -> bool:
        """Return whether all hosts have finished this number of repeats, or all that were planned."""
        return all(self.ended.get(host, {}).keys() >= set(numbers[:repeats]) for host, numbers in self.planned.items())

    def rate(self, side: Side, repeats: int) -> FleetRate:
        """Return what the first repeats of each host gave."""
        rates: dict[str, dict[str, list[float]]] = {}
        for planned, numbers in self.planned.items():
            for number in numbers[:repeats]:
                if (found := self.ended[planned][number]) is not None:
                    host, value = found
                    rates.setdefault(host, {"": []})[""].append(value)
        return FleetRate(side.fleet, side.case, self.software, rates, unit=self.unit, prices=self.prices)


@dataclass
class Question:
    """A comparison that is to be decided.

    Attributes:
        sides: Two fleets; one where no other has the case: then its throughput is asked for.
        repeats: Of each host that the last look saw.
        found: What it found.
        waits: Whether the pilot is to show first how repeats vary.
    """

    sides: tuple[Side, ...]
    repeats: int = 0
    found: Look = field(default_factory=Look)
    waits: bool = False

    @property
    def decided(self) -> bool:
        """Whether it needs no more repeats."""
        return self.found.answer is not None

    @property
    def text(self) -> str:
        """The answer in words, or how far it is known."""
        case = self.sides[0].case.name
        if self.decided:
            return f"{case}: {self.found.why}"
        names = " / ".join(side.fleet for side in self.sides)
        known = "not known yet" if math.isinf(self.found.width) else f"± {self.found.width:.1%}"
        return f"{case}: {names}: not decided: {known} after {self.repeats} repeats of each host"

    @property
    def fleets(self) -> tuple[tuple[str, str | None], ...]:
        """What it compares in its case: other cases of the same show how their repeats vary."""
        return tuple((side.fleet, side.variant) for side in self.sides)


class Decisions:
    """Keeps what the fleets of a run measured, and says which comparisons are decided.

    Not safe for threads: `LeftOut` is.

    Args:
        plan: With what is asked for.
        share: Half-width of a ratio as a share of it.
    """

    def __init__(self, plan: Plan, share: float) -> None:
        self._sides: defaultdict[Side, _Measured] = defaultdict(_Measured)
        for job in plan.jobs:
            self._sides[Side.of(job)].planned.setdefault(job.origin.host, []).append(job.origin.repeat)
        for measured in self._sides.values():
            for numbers in measured.planned.values():
                numbers.sort()
        self._most = max((job.origin.repeat for job in plan.jobs), default=0)
        self._share = share
        self.questions = _questions(list(self._sides))
        self._by_side: defaultdict[Side, list[Question]] = defaultdict(list)
        for question in self.questions:
            for side in question.sides:
                self._by_side[side].append(question)
        self._by_fleets: defaultdict[object, list[Question]] = defaultdict(list)
        for question in self.questions:
            self._by_fleets[question.fleets].append(question)

    def add(self, job: Job, record: Record) -> list[Question]:
        """Take in a repeat.

        Returns:
            What it decided.
        """
        side = Side.of(job)
        measured = self._sides[side]
        number = record.measurement if record.status is Status.OK else None
        origin = record.origin or job.origin  # a queue's record names the node
        measured.ended.setdefault(job.origin.host, {})[job.origin.repeat] = (
            None if number is None else (origin.host, number.samples_per_second)
        )
        if number is not None:
            measured.software = software_of(record) or Software()
            measured.unit = number.unit
            if job.origin.usd_per_gpu_hour is not None:
                measured.prices[origin.host] = job.origin.usd_per_gpu_hour
        decided, asked = [], list(self._by_side[side])
        for question in asked:
            before = question.repeats
            if not question.decided and self._looked(question):
                decided.append(question)
            if question.repeats > before:
                asked += [other for other in self._by_fleets[question.fleets] if other.waits]
        return decided

    def why_not(self, job: Job) -> str:
        """Say why a repeat is not needed: all comparisons of its fleet and case are decided; empty where it is."""
        asked = self._by_side[Side.of(job)]
        return "; ".join(question.text for question in asked) if all(q.decided for q in asked) else ""

    def width(self, job: Job) -> float:
        """Return how closely the least known open comparison of a repeat is known.

        Returns:
            Infinite where none is known yet, and for a pilot that others wait for.
        """
        asked = [question for question in self._by_side[Side.of(job)] if not question.decided]
        return max((math.inf if self._leads(question) else question.found.width for question in asked), default=0.0)

    def rates(self, question: Question, repeats: int) -> list[FleetRate]:
        """Return what the first repeats of each host gave, of each side; all of them have ended."""
        return [self._sides[side].rate(side, repeats) for side in question.sides]

    def _looked(self, question: Question) -> bool:
        """Look as often as there are new rounds; return whether that decided it."""
        while not question.decided and question.repeats < self._most:
            repeats = question.repeats + 1
            if question.waits:
                if not self._judged(question):
                    break
                continue
            if not all(self._sides[side].complete(repeats) for side in question.sides):
                break
            question.found = self._look(question, repeats)
            question.repeats = repeats
            question.waits = repeats == 1 and not question.decided and question.found.interval is not None
        return question.decided

    def _look(self, question: Question, repeats: int, spread: float | None = None) -> Look:
        a, *b = self.rates(question, repeats)
        return look(a, b[0] if b else None, self._share, repeats, spread)

    def _judged(self, question: Question) -> bool:
        """Judge by the pilot's first two rounds whether a second one is of use; return whether it has run them.

        The pilot is the first one, in the plan's order, that its first look did not decide.
        """
        for other in self._by_fleets[question.fleets]:
            if other is question:
                break
            if other.repeats == 0 or (other.repeats == 1 and not other.decided):
                return False
            if other.repeats > 1:
                question.found = self._look(question, 1, spread_of_repeats(self.rates(other, 2)))
                break
        question.waits = False
        return True

    def _leads(self, question: Question) -> bool:
        """Return whether others wait for the second round of this one."""
        undecided = question.repeats == 1 and not question.waits
        return undecided and any(other.waits for other in self._by_fleets[question.fleets])


def _questions(sides: Iterable[Side]) -> list[Question]:
    """Return every pair of fleets that have a case; where both have it from the same variants, each by itself."""
    by_case: defaultdict[Case, list[Side]] = defaultdict(list)
    for side in sides:
        by_case[side.case].append(side)
    found = []
    for group in by_case.values():
        have = {(side.fleet, side.variant) for side in group}
        pairs = [
            (a, b)
            for a, b in itertools.combinations(group, 2)
            if a.fleet != b.fleet
            and (a.variant == b.variant or not {(a.fleet, b.variant), (b.fleet, a.variant)} & have)
        ]
        paired = {side for pair in pairs for side in pair}
        found += [Question(pair) for pair in pairs]
        found += [Question((side,)) for side in group if side not in paired]
    return found

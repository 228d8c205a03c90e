"""The answer over many cases: one ratio for each kind of work, because unlike kinds have no common mean.

Training and inference, precisions, and numbers of GPUs ask different things of a GPU: a mean over them would answer a
question that nobody has. So the geometric mean is taken within each kind, and the kinds stand next to each other.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.compare.cost import price_sentence
from results.compare.pairs import THRESHOLD, Comparison, Mark, geometric_mean
from results.digits import with_interval
from results.schema import Communication, Device, Mode, Precision
from results.stats import Interval, divided
from results.table.columns import SOFTWARE_COLUMNS, Software
from results.table.comparable import count_text, mode_text
from results.table.fleets import FleetRate


@dataclass(frozen=True)
class _Kind:
    """A kind of work; of the software what is to have answers of its own."""

    mode: Mode
    precision: Precision
    device: Device
    num_gpus: int
    num_hosts: int
    communication: Communication
    software: Software


@dataclass(frozen=True)
class Answer:
    """How fast side `a` is against side `b` in all cases of one kind.

    Attributes:
        a: What the first side is called: a fleet, or the one machine of it that was measured.
        b: Likewise the second side.
        kind: In words, e.g. `training, fp16, 4 GPUs`.
        found: The comparisons that have an interval.
        ratio: Their geometric mean.
        prices: Price of a's GPU over that of b's; None where one is not known.
    """

    a: str
    b: str
    kind: str
    found: tuple[Comparison, ...]
    ratio: Interval
    prices: float | None

    @property
    def mark(self) -> Mark:
        """Which side is faster beyond doubt, and by more than a hundredth."""
        if self.ratio.contains(1.0) or abs(self.ratio.value - 1) < THRESHOLD:
            return Mark.SAME
        return Mark.FASTER if self.ratio.value > 1 else Mark.SLOWER

    @property
    def cases(self) -> str:
        """What the ratio is made of."""
        return f"geometric mean of {len(self.found)} cases" if len(self.found) > 1 else "one case"

    @property
    def per_dollar(self) -> Interval | None:
        """Samples per dollar of a over those of b; None without prices."""
        return None if self.prices is None else divided(self.ratio, self.prices)


def answers(found: Sequence[Comparison], by: Sequence[str] = ()) -> list[Answer]:
    """Return an answer for each kind of work that has one, in the order of the cases.

    Args:
        found: Comparisons of two sides.
        by: Columns of the software that pairs of one case differ in: each software has answers of its own.
    """
    groups: dict[_Kind, list[Comparison]] = {}
    for item in found:
        if item.interval is not None:
            groups.setdefault(_kind(item.a, by), []).append(item)
    several = {name for name in by if len({item.a.named(name) for item in found}) > 1}
    made = []
    for group in groups.values():
        ratio = geometric_mean(group)
        if ratio is not None:
            made.append(_answer(group, ratio, [name for name in SOFTWARE_COLUMNS if name in several]))
    return made


def answer_lines(found: Sequence[Comparison], by: Sequence[str] = (), *, baseline: bool = False) -> list[str]:
    """Say in sentences which side is faster, by how much, and which gives more for a dollar; the first says it all.

    Args:
        found: Comparisons of two sides.
        by: See `answers`.
        baseline: Whether the second side is the first at another time: then prices say nothing.
    """
    made = answers(found, by)
    if not made:
        return []
    if baseline:
        made = [replace(item, b=f"{item.b} in the baseline", prices=None) for item in made]
    lines = [_summary(made)] if len(made) > 1 else []
    for item in made:
        lines.append(_speed_line(item))
        if item.prices is not None:
            lines.append(f"{_price_line(item)} ({item.kind})." if len(made) > 1 else f"{_price_line(item)}.")
    if not baseline and all(item.prices is None for item in made):
        asked = "set usd_per_gpu_hour in hosts.yml to compare samples per dollar"
        lines.append(f"{_price_line(made[0])}; {asked}." if len(made) == 1 else f"No prices: {asked}.")
    return lines


def _kind(rate: FleetRate, by: Sequence[str]) -> _Kind:
    case = rate.case
    return _Kind(
        mode=case.mode,
        precision=case.precision,
        device=case.device,
        num_gpus=case.num_gpus,
        num_hosts=case.num_hosts,
        communication=case.communication,
        software=rate.software.only(by),
    )


def _answer(group: Sequence[Comparison], ratio: Interval, software: Sequence[str]) -> Answer:
    first = group[0].a
    words = [mode_text(first.case.mode), str(first.case.precision), count_text(first)]
    words += [f"{name} {first.named(name)}" for name in software]
    left, right = [item.a for item in group], [item.b for item in group]
    prices = _price(left), _price(right)
    asked = prices[0] / prices[1] if prices[0] and prices[1] else None
    return Answer(_subject(left), _subject(right), ", ".join(words), tuple(group), ratio, asked)


def _subject(sides: Sequence[FleetRate]) -> str:
    hosts = {host for side in sides for host in side.rates}
    return sides[0].fleet if len(hosts) > 1 else sides[0].subject


def _price(sides: Sequence[FleetRate]) -> float | None:
    """Return the mean price of the hosts that measured any of the cases."""
    known = {host: price for side in sides for host, price in side.prices.items() if host in side.rates}
    return statistics.fmean(known.values()) if known else None


def _summary(made: Sequence[Answer]) -> str:
    """Say what holds for all kinds of work, from the least to the largest ratio."""
    a, b = made[0].a, made[0].b
    low, high = min(made, key=lambda item: item.ratio.value), max(made, key=lambda item: item.ratio.value)
    least, most = f"{low.ratio.value:.2f} ×", f"{high.ratio.value:.2f} ×"
    span = f"{least} ({low.kind}) to {most} ({high.kind})" if least != most else least
    kinds = "both kinds of work" if len(made) == 2 else f"all {len(made)} kinds of work"
    marks = {item.mark for item in made}
    if marks == {Mark.FASTER}:
        return f"{a} is faster than {b} in {kinds}: {span}."
    if marks == {Mark.SLOWER}:
        return f"{a} is slower than {b} in {kinds}: {span}."
    if marks == {Mark.SAME}:
        either = "either kind of work" if len(made) == 2 else f"any of {len(made)} kinds of work"
        return f"No significant difference between {a} and {b} in {either}: {span}."
    return f"Which of {a} and {b} is faster depends on the kind of work: {span}."


def _speed_line(item: Answer) -> str:
    detail = f"{item.kind}; {item.cases}, 95 % interval"
    if item.mark is Mark.SAME:
        return (
            f"No significant difference in speed: {item.a} is {with_interval(item.ratio)} × as fast as {item.b} "
            f"({detail})."
        )
    return f"{item.a} is {with_interval(item.ratio)} × as fast as {item.b} ({detail})."


def _price_line(item: Answer) -> str:
    return price_sentence(item.a, item.b, item.ratio, item.prices)

"""Summarises a comparison of many cases: one geometric mean per kind of work.

Training, inference, precisions and numbers of GPUs make different demands on a GPU, so a mean over them is meaningless.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from results.compare.decide import decide
from results.compare.pairs import (
    MEANINGS,
    Comparison,
    Mark,
    case_label,
    compare_pair,
    geometric_mean,
    levels_of,
    log_ratios,
    mark_of,
    unchecked,
)
from results.digits import significant, with_interval
from results.stats import Interval, divided, inverse, outlying
from results.table.cells import warned
from results.table.columns import CASE_COLUMNS, SOFTWARE_COLUMNS, Value
from results.table.comparable import count_text, mode_text
from results.table.fleets import TOLERANCE, FleetRate, Outlier, log_means, outlier_of
from results.text import enumerated


@dataclass(frozen=True)
class Answer:
    """Ratio of the throughputs of sides `a` and `b` over all cases of one kind.

    Attributes:
        a: Name of the first side: a fleet, or its only measured machine.
        b: Likewise the second side.
        kind: Kind of work, e.g. `training, fp16, 4 GPUs`.
        found: Comparisons that have an interval.
        ratio: Their geometric mean.
        prices: Price of a's GPU over that of b's, each the mean over its hosts; None: unknown.
        averaged: Whether hosts of a side have different prices.
        outliers: Hosts that differ from the rest of their fleet.
        without: Comparisons without these hosts; empty if there are none.
    """

    a: str
    b: str
    kind: str
    found: tuple[Comparison, ...]
    ratio: Interval
    prices: float | None
    averaged: bool = False
    outliers: tuple[Outlier, ...] = ()
    without: tuple[Comparison, ...] = ()

    @property
    def mark(self) -> Mark:
        """Which side is significantly faster, and by more than 1 %."""
        return mark_of(self.ratio.value, self.ratio)

    @property
    def cases(self) -> str:
        """Description of the cases behind the ratio."""
        return f"geometric mean of {len(self.found)} cases" if len(self.found) > 1 else "one case"

    @property
    def per_dollar(self) -> Interval | None:
        """Samples per dollar of a over those of b; None without prices."""
        return None if self.prices is None else divided(self.ratio, self.prices)


def answers(found: Sequence[Comparison], by: Sequence[str] = ()) -> list[Answer]:
    """Return an answer for each kind of work with an interval, in the order of the cases.

    Args:
        found: Comparisons of two sides.
        by: Software columns in which pairs of one case differ; each value has its own answers.
    """
    groups: dict[object, list[Comparison]] = {}
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
    """Return sentences with the ratios of throughput and of samples per dollar, starting with a summary.

    Args:
        found: Comparisons of two sides.
        by: See `answers`.
        baseline: Whether the second side is the first at another time, so that prices do not matter.
    """
    made = answers(found, by)
    if not made:
        return []
    itself = baseline or all(one.paired for item in made for one in item.found)
    if itself:
        later = " in the baseline" if baseline else ""
        made = [replace(item, b=f"{item.b}{later}", prices=None) for item in made]
    lines = [_summary(made)] if len(made) > 1 else []
    for item in made:
        lines += [_speed_line(item), *_outlier_lines(item)]
        if item.prices is not None:
            lines.append(f"{_price_line(item)} ({item.kind})." if len(made) > 1 else f"{_price_line(item)}.")
    if not itself and all(item.prices is None for item in made):
        asked = "set usd_per_gpu_hour in hosts.yml to compare samples per dollar"
        lines.append(f"{_price_line(made[0])}; {asked}." if len(made) == 1 else f"No prices: {asked}.")
    return lines


def leading_lines(found: Sequence[Comparison]) -> list[str]:
    """Return the first of `answer_lines`, and those about outliers."""
    made = answers(found)
    first = [_summary(made)] if len(made) > 1 else [_speed_line(item) for item in made]
    return [*first, *(line for item in made for line in _outlier_lines(item))]


def unknown_line(a: str, b: str, found: Sequence[Comparison]) -> str:
    """Return why there is no answer.

    Args:
        a: Name of the first side.
        b: Name of the second side.
        found: Their comparisons, for which there are no `answers`.
    """
    if any(item.interval is not None for item in found):
        return f"{a} and {b}: no hosts or rounds measured several cases, so there is no mean: see each ratio."
    ratios = sorted(item.value for item in found if item.value is not None)
    if not ratios:
        kind = "comparable" if any(item.mark is Mark.NOT_COMPARABLE for item in found) else "measured"
        return f"{a} and {b} have no {kind} case in common, so it is unknown which is faster."
    span = " to ".join(dict.fromkeys(significant(ratio) for ratio in (ratios[0], ratios[-1])))
    return (
        f"{a} is {span} × as fast as {b}, from one repeat on a side: without an interval, this may be chance. "
        "Measure at least 2 repeats, better 3."
    )


def lost_lines(found: Sequence[Comparison], sides: Sequence[FleetRate]) -> list[str]:
    """Return a line for each host on which repeats of the first side alone failed; see `unchecked_lines`."""
    return [
        f"{item.a.fleet}/{host}, {case_label(sides, item.a)}: {why}"
        for item in found
        for host, why in item.lost.items()
    ]


def unchecked_lines(
    found: Sequence[Comparison], missing: Sequence[FleetRate], sides: Sequence[FleetRate], by: Sequence[str] = ()
) -> list[str]:
    """Return a line for each case of the second side in which a loss would not be seen, with what to do.

    Args:
        found: Comparisons of two sides.
        missing: Cases without a counterpart on the first side.
        sides: Rates of both sides, among which the name of a case is unique.
        by: Software columns by which cases were paired.
    """
    paired = f", or leave out --by {','.join(by)} to compare different software" if by else ""
    again = f"measure it again with the same settings{paired}"
    lines = [
        f"{rate.fleet}, {case_label(sides, rate)}: not measured on the other side; {again}"
        for rate in missing
        if rate.rates
    ]
    for item in unchecked(found):
        todo = "at least 2 repeats on each side" if item.mark is Mark.UNKNOWN else "both sides with the same tfbench"
        lines.append(f"{item.b.fleet}, {case_label(sides, item.b)}: {item.reason}; measure {todo}")
    return lines


def _kind(rate: FleetRate, by: Sequence[str]) -> tuple[object, ...]:
    """Return the kind of work of a case, and the software columns `by`."""
    case = rate.case
    of_case = (case.mode, case.precision, case.device, case.num_gpus, case.num_hosts, case.communication)
    return (*of_case, rate.software.only(by))


def _answer(group: Sequence[Comparison], ratio: Interval, software: Sequence[str]) -> Answer:
    first = group[0].a
    words = [mode_text(first.case.mode), str(first.case.precision), count_text(first)]
    words += [f"{name} {first.named(name)}" for name in software]
    left, right = [item.a for item in group], [item.b for item in group]
    prices = _prices(left), _prices(right)
    outliers, without = _without_outliers(group)
    return Answer(
        a=_subject(left),
        b=_subject(right),
        kind=", ".join(words),
        found=tuple(group),
        ratio=ratio,
        prices=statistics.fmean(prices[0]) / statistics.fmean(prices[1]) if all(prices) else None,
        averaged=any(len(set(of_side)) > 1 for of_side in prices),
        outliers=outliers,
        without=without,
    )


def _without_outliers(group: Sequence[Comparison]) -> tuple[tuple[Outlier, ...], tuple[Comparison, ...]]:
    """Find hosts that differ from the rest of their fleet over all cases, and compare without them."""
    found: list[Outlier] = []
    rest = tuple(group)
    while True:
        by_side = (
            [[log_ratios(item) for item in rest]]
            if all(item.paired for item in rest)
            else [[log_means(item.a) for item in rest], [log_means(item.b) for item in rest]]
        )
        host = outlying([levels_of(of_side) or {} for of_side in by_side], TOLERANCE)
        if host is None:
            return tuple(found), rest if found else ()
        found.append(outlier_of([rest[0].a, rest[0].b][host.side], host))
        rest = tuple(_without(item, host.name, host.side, paired=len(by_side) == 1) for item in rest)


def _without(item: Comparison, host: str, side: int, *, paired: bool) -> Comparison:
    a, b = (
        rate.only([name for name in rate.rates if name != host], "outlier") if paired or side == index else rate
        for index, rate in enumerate((item.a, item.b))
    )
    return compare_pair(a, b)


def _subject(sides: Sequence[FleetRate]) -> str:
    hosts = {host for side in sides for host in side.rates}
    return sides[0].fleet if len(hosts) > 1 else sides[0].subject


def _prices(sides: Sequence[FleetRate]) -> list[float]:
    """Return the prices of the hosts that measured any of the cases."""
    return [*{host: price for side in sides for host, price in side.prices.items() if host in side.rates}.values()]


def _summary(made: Sequence[Answer]) -> str:
    """Return a sentence over all kinds of work, with the smallest and the largest ratio."""
    a, b = made[0].a, made[0].b
    low, high = min(made, key=lambda item: item.ratio.value), max(made, key=lambda item: item.ratio.value)
    least, most = f"{low.ratio.value:.2f} ×", f"{high.ratio.value:.2f} ×"
    span = f"{least} ({low.kind}) to {most} ({high.kind})" if least != most else least
    kinds = f"each of {len(made)} kinds of work"
    directions = [0 if item.ratio.contains(1.0) else 1 if item.ratio.value > 1 else -1 for item in made]
    if not any(directions):
        return f"No significant difference between {a} and {b} in {kinds}: {span}."
    if {1, -1} <= set(directions):
        return f"Which of {a} and {b} is faster depends on the kind of work: {span}."
    word = "faster" if 1 in directions else "slower"
    same = directions.count(0)
    where = kinds if not same else f"{len(made) - same} of {len(made)} kinds of work"
    return f"{a} is {word} than {b} in {where}: {span}."


WHOSE = {"these two machines": "These two machines: ", "this machine": "This machine: "}
"""Start of the sentence if the interval is about machines, not fleets."""


def _speed_line(item: Answer) -> str:
    """Return the sentence with the ratio of throughput and its interval."""
    covers = item.found[0].covers
    ratio = f"{item.a} is {with_interval(item.ratio)} × as fast as {item.b}"
    if item.mark is Mark.SMALL:
        ratio += f", less than 1 % {'faster' if item.ratio.value > 1 else 'slower'}"
    if item.mark is Mark.SAME:
        ratio = f"no significant difference in speed: {ratio}"
    text = f"{WHOSE.get(covers, '')}{ratio} ({item.kind}; {item.cases}, 95 % interval)"
    if covers not in ("the fleets", "this machine"):
        text += "; to compare the fleets, measure at least 2 hosts of each"
    return f"{text[0].upper()}{text[1:]}." if item.mark is Mark.SAME else f"{text}."


def _outlier_lines(item: Answer) -> list[str]:
    """Return the sentence about outliers, with the ratio with and without them."""
    ratio = geometric_mean(item.without)
    if ratio is None:
        return []
    it = "it" if len(item.outliers) == 1 else "them"
    found = enumerated([outlier.difference for outlier in item.outliers])
    return [
        f"{found}: {with_interval(ratio)} × without {it}, {with_interval(item.ratio)} × with {it} ({item.kind}). "
        "Check cooling, power limit and neighbours."
    ]


def _price_line(item: Answer) -> str:
    """Return the sentence with the break-even price ratio and the ratio of samples per dollar."""
    worth = f"{item.a} is worth up to {with_interval(item.ratio)} × the price of {item.b}"
    gain = item.per_dollar
    if gain is None or item.prices is None:
        return worth
    worth += f"; it costs {item.prices:.2f} × as much{', on average over the hosts' if item.averaged else ''}"
    ratios = {item.a: item.ratio, item.b: inverse(item.ratio)}
    winner = decide({item.a: (item.prices,), item.b: (1.0,)}, lambda a, _: ratios[a]).winner
    if winner is not None:
        by = gain if winner == item.a else inverse(gain)
        return f"{worth}: {winner} gives {with_interval(by)} × the samples per dollar"
    if gain.contains(1.0):
        return f"{worth}: no significant difference in samples per dollar"
    return f"{worth}: samples per dollar differ by less than 1 %"


def comparison_row(item: Comparison, sides: Sequence[FleetRate]) -> dict[str, Value]:
    """Return a comparison as a row of `Runs.compare`.

    Args:
        item: The comparison.
        sides: Both sides of all comparisons, among which the name of the case is unique.
    """
    gain = item.per_dollar
    low, high = ends(item.interval)
    gain_low, gain_high = ends(gain if item.interval else None)
    warnings = [f"{code} ({', '.join(hosts)})" for code, hosts in warned((item.a, item.b)).items()]
    return {
        "case": case_label(sides, item.a),
        **{name: item.a.named(name) for name in CASE_COLUMNS},
        "a_samples_per_second": item.a.mean,
        "b_samples_per_second": item.b.mean,
        "ratio": item.value,
        "ci95_low": low,
        "ci95_high": high,
        "result": MEANINGS[item.mark],
        "reason": item.reason or None,
        "differs": ", ".join(item.differs) or None,
        "warnings": "; ".join(warnings) or None,
        "ratio_per_usd": gain.value if gain else None,
        "ratio_per_usd_ci95_low": gain_low,
        "ratio_per_usd_ci95_high": gain_high,
    }


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    """Return both ends of an interval; None without one."""
    return (interval.low, interval.high) if interval else (None, None)

"""Summarises a comparison of many cases: one geometric mean per kind of work.

Training, inference, precisions and numbers of GPUs make different demands on a GPU, so a mean over them is meaningless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from results.compare.comparison import MEANINGS, Comparison, Mark, compare_pair, geometric_mean, levels_of, log_ratios
from results.compare.decide import decide
from results.stats import Interval, inverse, outlying
from results.table.cell_text import value_text, warned
from results.table.columns import CASE_COLUMNS, Value
from results.table.comparable import case_label, differing, grouped, setting_text
from results.table.fleets import TOLERANCE, FleetRate, log_means, outlier_text
from results.text import significant, with_interval


class Answer(NamedTuple):
    """Ratio of the throughputs of sides `a` and `b` over all cases of one kind.

    Attributes:
        kind: Kind of work, e.g. `training, fp16, 4 GPUs`.
        found: Comparisons that have an interval.
        ratio: Their geometric mean.
    """

    kind: str
    found: Sequence[Comparison]
    ratio: Interval


KIND_COLUMNS = ("mode", "precision", "num_gpus", "communication")
"""Columns of the case that make a kind of work."""


def answers(found: Sequence[Comparison], by: Sequence[str] = ()) -> list[Answer]:
    """Return an answer for each kind of work with an interval, in the order of the cases.

    Args:
        found: Comparisons of two sides.
        by: Software columns in which pairs of one case differ; each value has its own answers.
    """
    several = differing([item.a for item in found], by)
    hidden = [name for name in CASE_COLUMNS if name not in KIND_COLUMNS]
    groups = grouped(
        (", ".join([setting_text(item.a, without=hidden), *(f"{name} {item.a.named(name)}" for name in several)]), item)
        for item in found
        if item.interval is not None
    )
    means = ((kind, group, geometric_mean(group)) for kind, group in groups.items())
    return [Answer(kind, group, ratio) for kind, group, ratio in means if ratio is not None]


def answer_lines(
    found: Sequence[Comparison], by: Sequence[str] = (), *, baseline: bool = False, prices: bool = True
) -> list[str]:
    """Return the ratios of throughput in a sentence, outliers, and which side gives more samples per dollar.

    Args:
        found: Comparisons of two sides.
        by: See `answers`.
        baseline: Whether the second side is the first at another time, so that prices do not matter.
        prices: Whether to say what is cheaper.
    """
    known = [item for item in found if item.interval is not None]
    if not known:
        return []
    lines = [_speed_sentence(known, by, baseline=baseline)]
    lines += [line for item in answers(found, by) if (line := _outlier_line(item))]
    itself = baseline or all(item.paired for item in known)
    return [*lines, _price_sentence(known)] if prices and not itself else lines


def _speed_sentence(known: Sequence[Comparison], by: Sequence[str], *, baseline: bool) -> str:
    """Return how many times as fast side `a` is as side `b`, from the case with the smallest ratio to the largest.

    Args:
        known: Comparisons with an interval.
        by: Software columns in which pairs of one case differ.
        baseline: See `answer_lines`.
    """
    sides = [side for item in known for side in (item.a, item.b)]
    a, b = known[0].a.fleet, "in the baseline" if baseline else known[0].b.fleet
    low, high = min(known, key=_value), max(known, key=_value)
    least, most = significant(_value(low)), significant(_value(high))
    if len(known) == 1:
        times = f"{value_text(low.value, low.interval)} times as fast as {b} ({_named(low, sides, by)})"
    elif least == most:
        times = f"{least} times as fast as {b} in each of {len(known)} cases"
    else:
        times = f"{least} ({_named(low, sides, by)}) to {most} times ({_named(high, sides, by)}) as fast as {b}"
    marks = Counter(item.mark for item in known)
    clear = marks[Mark.FASTER] + marks[Mark.SLOWER]
    ratio = f"{a} is {times}"
    if not clear:
        above = " above 1 %" if marks[Mark.SMALL] else ""
        ratio = f"No significant difference{above} in speed: {ratio}"
    elif marks[Mark.FASTER] and marks[Mark.SLOWER]:
        ratio = f"Which is faster depends on the case: {ratio}"
    elif clear < len(known):
        ratio += f", a clear difference in {clear} of {len(known)} cases"
    return f"{'; '.join(filter(None, (ratio, known[0].covers)))}."


def _named(item: Comparison, sides: Sequence[FleetRate], by: Sequence[str]) -> str:
    software = [f"{name} {item.a.named(name)}" for name in by if len({side.named(name) for side in sides}) > 1]
    return ", ".join([case_label(item.a, sides), *software])


def _value(item: Comparison) -> float:
    assert item.value is not None, "it has an interval"
    return item.value


def _price_sentence(known: Sequence[Comparison]) -> str:
    """Return which side gives more samples per dollar, or which prices are missing."""
    a, b = known[0].a, known[0].b
    gains = [gain for item in known if (gain := item.per_dollar) is not None]
    if not gains:
        names = f"{a.fleet} and {b.fleet}"
        return f"Without both prices, no samples per dollar: set usd_per_gpu_hour of {names} in hosts.yml."
    wins = Counter(_cheaper(gain, a.fleet, b.fleet) for gain in gains).most_common()
    where = "" if len(gains) == 1 else f" in each of {len(gains)} cases"
    if len(wins) > 1:
        parts = ", ".join(f"{winner or 'neither'} in {number}" for winner, number in wins)
        answer = f"Which gives more samples per dollar depends on the case ({parts})"
    elif winner := wins[0][0]:
        answer = f"Rent {winner}, which gives more samples per dollar{where}"
    else:
        answer = f"No difference above 1 % in samples per dollar{where}"
    prices = f"{a.usd_per_gpu_hour:g} ({a.fleet}) and {b.usd_per_gpu_hour:g} ({b.fleet}) USD per GPU-hour"
    return f"{answer}, at {prices}."


def _cheaper(gain: Interval, a: str, b: str) -> str:
    """Return the side that gives significantly more samples per dollar; empty: neither."""
    ratios = {a: gain, b: inverse(gain)}
    best, _ = decide({a: (1.0,), b: (1.0,)}, lambda name, _: ratios[name])
    return best[0] if len(best) == 1 else ""


def unknown_line(a: str, b: str, found: Sequence[Comparison]) -> str:
    """Return why there is no answer.

    Args:
        a: Name of the first side.
        b: Name of the second side.
        found: Their comparisons, for which there are no `answers`.
    """
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
        f"{item.a.fleet}/{host}, {case_label(item.a, sides)}: {why}"
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
    places = [(rate, f"not measured on the other side; {again}") for rate in missing if rate.rates]
    for item in found:
        if item.mark is Mark.UNKNOWN:
            places.append((item.b, f"{item.reason}; measure at least 2 repeats on each side"))
        elif item.mark is Mark.NOT_COMPARABLE and (item.b.rates or not item.b.failures):  # several softwares: neither
            places.append((item.b, f"{item.reason}; measure both sides with the same tfbench"))
    return [f"{rate.fleet}, {case_label(rate, sides)}: {what}" for rate, what in places]


def _outlier_line(answer: Answer) -> str:
    """Return the sentence about the host that differs most from the rest of its fleet; empty: none does."""
    outlier, rest = without_outlier(answer.found)
    ratio = geometric_mean(rest)
    if not outlier or ratio is None:
        return ""
    both = f"{with_interval(ratio)} × without it, {with_interval(answer.ratio)} × with it"
    return f"{outlier}: {both} ({answer.kind}). Check cooling, power limit and neighbours."


def without_outlier(found: Sequence[Comparison]) -> tuple[str, Sequence[Comparison]]:
    """Describe the host that differs most from the rest of its fleet over all cases, and compare without it.

    Returns:
        Its description, or an empty text and the same comparisons.
    """
    paired = all(item.paired for item in found)
    sides = [[item.a for item in found], [item.b for item in found]]
    by_host = [[log_means(rate) for rate in side] for side in sides]
    logarithms = [[log_ratios(item.a, item.b) for item in found]] if paired else by_host
    worst = outlying([levels_of(of_side) or {} for of_side in logarithms], TOLERANCE)
    if worst is None:
        return "", found
    index, host, difference = worst

    def others(side: FleetRate, *, affected: bool) -> FleetRate:
        return side.only([name for name in side.rates if name != host], "outlier") if affected or paired else side

    kept = [compare_pair(others(item.a, affected=index == 0), others(item.b, affected=index == 1)) for item in found]
    return outlier_text(sides[index][0], host, difference), kept


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
        "case": case_label(item.a, sides),
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

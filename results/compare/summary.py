"""Summarises a comparison of many cases: one geometric mean per kind of work.

Training, inference, precisions and numbers of GPUs make different demands on a GPU, so a mean over them is meaningless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from results.compare.comparison import Comparison, Mark, log_ratios, mean_ratio
from results.compare.decide import cheaper
from results.stats import Interval
from results.table.columns import CASE_COLUMNS, COLUMNS, NUMBER, TEXT, Value
from results.table.comparable import case_labels, differing, grouped, setting_text
from results.table.fleets import FleetRate, odd_hosts, warned
from results.text import significant, with_interval

KIND_COLUMNS = ("mode", "precision", "num_gpus", "communication")
"""Columns of the case that make a kind of work."""


def means_of_kinds(found: Sequence[Comparison]) -> dict[str, tuple[Interval, int]]:
    """Return the geometric mean of each kind of work with an interval, and its number of cases.

    Args:
        found: Comparisons of two sides.

    Returns:
        By kind, in the order of the cases, e.g. `training, fp16, 4 GPUs`.
    """
    hidden = [name for name in CASE_COLUMNS if name not in KIND_COLUMNS]
    kinds = grouped((setting_text(item.a.case, without=hidden), item) for item in certain(found))
    return {kind: (mean, len(of)) for kind, of in kinds.items() if (mean := mean_ratio(of)) is not None}


def certain(found: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons whose ratio has an interval."""
    return [item for item in found if item.ratio and item.ratio.known]


def answer_lines(
    found: Sequence[Comparison], by: Sequence[str] = (), *, baseline: bool = False, prices: bool = True
) -> list[str]:
    """Return the ratios of throughput in a sentence, outliers, and which side gives more samples per dollar.

    Args:
        found: Comparisons of two sides.
        by: Software columns in which pairs of one case differ.
        baseline: Whether the second side is the first at another time, so that prices do not matter.
        prices: Whether to say what is cheaper.
    """
    known = certain(found)
    if not known:
        return []
    paired = all(item.paired for item in known)
    hosts = [(side.fleet, side.log_means) for item in known for side in (item.a, item.b)]
    if paired:
        hosts = [(item.a.fleet, log_ratios(item.a, item.b)) for item in known]
    lines = [_speed_sentence(known, by, baseline=baseline), *(f"{line}." for line in odd_hosts(grouped(hosts)))]
    return [*lines, _price_sentence(known)] if prices and not (baseline or paired) else lines


def _speed_sentence(known: Sequence[Comparison], by: Sequence[str], *, baseline: bool) -> str:
    """Return how many times as fast side `a` is as side `b`, from the case with the smallest ratio to the largest.

    Args:
        known: Comparisons with an interval.
        by: Software columns in which pairs of one case differ.
        baseline: See `answer_lines`.
    """
    labels, several = case_labels(item.a.case for item in known), differing([item.a.software for item in known], by)

    def named(item: Comparison) -> str:
        return ", ".join([labels[item.a.case], *(f"{name} {item.a.named(name)}" for name in several)])

    a, b = known[0].a.fleet, "in the baseline" if baseline else known[0].b.fleet
    ratios = [item.ratio.value for item in known if item.ratio]
    low, high = (known[ratios.index(end(ratios))] for end in (min, max))
    least, most = (significant(end(ratios)) for end in (min, max))
    if len(known) == 1:
        times = f"{with_interval(low.ratio)} times as fast as {b} ({named(low)})"
    elif least == most:
        times = f"{least} times as fast as {b} in each of {len(known)} cases"
    else:
        times = f"{least} ({named(low)}) to {most} times ({named(high)}) as fast as {b}"
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


def _price_sentence(known: Sequence[Comparison]) -> str:
    """Return which side gives more samples per dollar, or which prices are missing."""
    a, b = known[0].a, known[0].b
    gains = [item.per_dollar for item in known if item.per_dollar]
    if not gains:
        names = f"{a.fleet} and {b.fleet}"
        return f"Without both prices, no samples per dollar: set usd_per_gpu_hour of {names} in hosts.yml."
    wins = Counter(("neither", a.fleet, b.fleet)[cheaper(gain)] for gain in gains).most_common()
    where = "" if len(gains) == 1 else f" in each of {len(gains)} cases"
    if len(wins) > 1:
        parts = ", ".join(f"{winner} in {number}" for winner, number in wins)
        answer = f"Which gives more samples per dollar depends on the case ({parts})"
    elif any(map(cheaper, gains)):
        answer = f"Rent {wins[0][0]}, which gives more samples per dollar{where}"
    else:
        answer = f"No difference above 1 % in samples per dollar{where}"
    prices = f"{a.usd_per_gpu_hour:g} ({a.fleet}) and {b.usd_per_gpu_hour:g} ({b.fleet}) USD per GPU-hour"
    return f"{answer}, at {prices}."


def unknown_line(a: str, b: str, found: Sequence[Comparison]) -> str:
    """Return why there is no answer.

    Args:
        a: Name of the first side.
        b: Name of the second side.
        found: Their comparisons, none of which has an interval.
    """
    ratios = sorted(item.ratio.value for item in found if item.ratio)
    if not ratios:
        kind = "comparable" if any(item.mark is Mark.NOT_COMPARABLE for item in found) else "measured"
        return f"{a} and {b} have no {kind} case in common, so it is unknown which is faster."
    span = " to ".join(dict.fromkeys(significant(ratio) for ratio in (ratios[0], ratios[-1])))
    return (
        f"{a} is {span} × as fast as {b}, from one repeat on a side: without an interval, this may be chance. "
        "Measure at least 2 repeats, better 3."
    )


def lost_lines(found: Sequence[Comparison]) -> list[str]:
    """Return a line for each host on which repeats of the first side alone failed; see `unchecked_lines`."""
    labels = case_labels(item.a.case for item in found)
    return [f"{item.a.fleet}/{host}, {labels[item.a.case]}: {why}" for item in found for host, why in item.lost.items()]


def unchecked_lines(
    found: Sequence[Comparison], missing: Sequence[FleetRate] = (), by: Sequence[str] = ()
) -> list[str]:
    """Return a line for each case of the second side in which a loss would not be seen, with what to do.

    Args:
        found: Comparisons of two sides.
        missing: Cases without a counterpart on the first side.
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
    labels = case_labels([*(item.b.case for item in found), *(rate.case for rate in missing)])
    return [f"{rate.fleet}, {labels[rate.case]}: {what}" for rate, what in places]


COMPARISON_COLUMNS: dict[str, str] = {
    "case": TEXT,
    **{name: COLUMNS[name].dtype for name in CASE_COLUMNS},
    **dict.fromkeys(("a_samples_per_second", "b_samples_per_second", "ratio", "ci95_low", "ci95_high"), NUMBER),
    **dict.fromkeys(("result", "reason", "differs", "warnings"), TEXT),
    **dict.fromkeys(("ratio_per_usd", "ratio_per_usd_ci95_low", "ratio_per_usd_ci95_high"), NUMBER),
}
"""Columns of `comparison_rows` and their pandas types."""


def comparison_rows(found: Sequence[Comparison]) -> list[dict[str, Value]]:
    """Return comparisons as rows of `Runs.compare`."""
    labels, rows = case_labels(item.a.case for item in found), []
    for item in found:
        ratio, gain = item.ratio, item.per_dollar
        warnings = [f"{code} ({', '.join(hosts)})" for code, hosts in warned((item.a, item.b)).items()]
        texts = (str(item.mark), item.reason, ", ".join(item.differs), "; ".join(warnings))
        cells = [
            *(labels[item.a.case], *map(item.a.named, CASE_COLUMNS)),
            *(item.a.mean, item.b.mean, ratio.value if ratio else None, *ends(ratio)),
            *(text or None for text in texts),
            *(gain.value if gain else None, *ends(gain)),
        ]
        rows.append(dict(zip(COMPARISON_COLUMNS, cells, strict=True)))
    return rows


def ends(interval: Interval | None) -> tuple[float | None, float | None]:
    """Return both ends of an interval; None if they are unknown."""
    return (interval.low, interval.high) if interval and interval.known else (None, None)

"""Finds numbers of one table that contradict each other: computed or copied ones, columns off by a factor, bad scaling.

Exact multiples also occur by chance, more often with fewer digits. So the probability of each pair is computed, and
only more hits than chance explains are reported. Two different GPUs cannot have exactly the same ratio, or the same
numbers, in several cells. A noisy copy has a ratio near 1 in all cells, while the specifications of the GPUs suggest
another one.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, compress, pairwise, product
from operator import attrgetter

import numpy as np

from results.audit.claims import Claim, Finding, Severity, gpu_speeds
from results.compare.comparison import CEILING
from results.reference.gpus import gpu_numbers
from results.table.comparable import grouped

CHANCES = {Severity.IMPOSSIBLE: 1e-9, Severity.SUSPECT: 1e-5, Severity.NOTE: 1e-3}
"""Probability of as many exact numbers in an honest table, below which there is a finding; a file may have
100 tables."""

EFFICIENCY_SPREAD = 0.1
"""Range of honest scaling efficiencies of one table: about 90 to 100 %."""

OCTAVES = 6
"""Range of ratios between networks or precisions: about six powers of two."""

ROUNDING_SLACK = 1.05
"""Margin for comparing sums of two rounding errors."""

VARYING = {"gpus": "num_gpus", "precision": "precision", "network": "model"}
"""What differs between claims that may be exact multiples, by the end of the rule's name."""

RATIO_RANGE, COUNT_RANGE = 0.1, 0.05
"""Range of the ratios of two GPUs, in natural logarithms, between networks and precisions, and between GPU counts of
one of these. Smallest published standard deviation between six networks: 0.031; a tenth of the counts differ by 0.026.
"""

MOST_DECIMALS = 2
"""Maximum number of decimals of a factor that people multiply by."""

NOISE = 0.06
"""Largest spread of the cells' ratios of a noisy copy; noise of 3 % on both sides gives 0.042."""

NOISY_CELLS = 4
"""Minimum number of shared cells of a noisy copy."""

NOT_TWINS = 0.2
"""Difference between specifications, in natural logarithms, from which equal throughput is unexpected: 22 %."""

UNKNOWN_NEAR = 0.1
"""Probability that two GPUs of unknown specification have equal median throughput: ratios range over a factor of 3."""

HONEST_SPREAD = 0.10
"""Typical spread of the ratios of two different GPUs over networks and precisions; published: 0.05 to 0.3."""

SURPRISE = 0.12
"""Standard deviation of a GPU's median ratio from that of its specification; FP16, the larger one."""

OFF = 0.5
"""Deviation of a GPU, in natural logarithms, from its specification and the other GPUs of the table.

Honest medians deviated by at most 0.25; doubling is 0.69. With a normal law of standard deviation 0.12 the
probability of 0.5 in an honest column is 3e-5.
"""

OFF_CELL = 0.2
"""Standard deviation of a cell around its GPU's median, due to builds without fast kernels for one network."""

OFF_SCALED = 0.2
"""Additional standard deviation of cells of several GPUs with switched NVLink."""

OFF_CHANCE = 3.0
"""Deviation in standard deviations from which a GPU is suspect."""

SUSPECT_EFFICIENCY, IMPOSSIBLE_EFFICIENCY = 1.12, 1.25
"""Efficiency above 1.05 is a note; published VGG16 runs reach 1.09 per step. Above 1.25 no cache, clock or noise
explains it."""

COLUMN_EFFICIENCY = {1: 0.58, 2: 0.39, 3: 0.29}
"""Smallest plausible scaling efficiency of the median network of a table, by number of doublings of the GPUs, up to 3.

Lowest published, of two cases and more: 0.627 from 4 to 8, 0.416 from 2 to 8 and 0.314 from 1 to 8 GPUs (RTX 3090
without peer access).
"""

SWITCHED_EFFICIENCY = {1: 0.58, 2: 0.5, 3: 0.5}
"""Likewise of GPUs with switched NVLink. Lowest published: 0.55, V100 from 1 to 8 GPUs, FP16."""

HEAVY = ("alexnet", "vgg")
"""Networks with many parameters for their work: without peer access two to four GPUs were no faster than one.

Alone they make a note, not a suspicion.
"""

OUT_OF_LINE = 0.62
"""Smallest scaling efficiency of a case relative to the other cases of its table with as many GPUs."""

GOOD_MEDIAN, GOOD_LEAST = 0.8, 0.7
"""Median and minimum efficiency of the other cases at which a case with bad scaling is suspect.

Without peer access or XLA, published cases of one table range from 0.22 to 0.8.
"""

FEWEST_CASES = 3
"""Number of other cases with good scaling at which bad scaling is suspect, for GPUs without switched NVLink."""

LIGHT = ("resnet", "inception", "googlenet")
"""Networks with few parameters for their work, which scale alike. Others may scale far worse."""

NO_GAIN = 1.1
"""Smallest plausible gain of the median network by more GPUs; below it the numbers are per GPU. Published: ≥ 1.26."""

SLOWER = 0.4
"""Smallest plausible ratio of throughput with more GPUs to that with fewer. Published: ≥ 0.81."""

OTHER_CASES = 3
"""Number of other cases with a GPU count at which a case without it is odd."""

FITS = 0.3
"""Largest difference in natural logarithms at which a case scales like the others of its table; a factor of 2: 0.69."""

TWO_VALUES = 1.25
"""Largest plausible ratio of two values for one case in a table; published repeats differ by up to 1.01."""

MOST_ALIKE = 500
"""Maximum number of claims that are paired with each other; more of one case are a log, not a table."""

Pair = tuple[Claim, Claim]


def by(claims: Iterable[Claim], *shared: str) -> list[list[Claim]]:
    """Return the groups of claims that share attributes, in order of appearance."""
    return [*grouped((attrgetter(*shared)(claim), claim) for claim in claims).values()]


def pairs(claims: Iterable[Claim], *shared: str, neighbours: bool = False) -> list[Pair]:
    """Return each two claims that share attributes, or only those that follow each other."""
    groups = [group for group in by(claims, *shared) if len(group) <= MOST_ALIKE]
    return [pair for group in groups for pair in (pairwise(group) if neighbours else combinations(group, 2))]


def above(value: float, limit: float, decimals: int = 2) -> str:
    """Format a value above a limit, with as many more decimals as it takes to see that."""
    return next(text for more in range(17) if float(text := f"{value:.{decimals + more}f}") > limit or more == 16)


def specified_ratios(low: Claim, high: Claim) -> list[float]:
    """Return the ratios of two GPUs' bandwidth and arithmetic; empty: unknown."""
    speeds = (gpu_speeds(claim.gpus, claim.precision, claim.strict) for claim in (low, high))
    return [ratio for one, other in zip(*speeds, strict=True) if not math.isnan(ratio := other / one)]


def chance_of_at_least(hits: int, chances: Iterable[float]) -> float:
    """Return the probability of at least N hits in independent trials with different probabilities.

    Source: Poisson binomial distribution, by convolution of the trials.
    """
    number_of_hits = functools.reduce(np.convolve, ([1.0 - chance, chance] for chance in chances), np.ones(1))
    return float(number_of_hits[hits:].sum())


def _unlikely(rule: str, chance: float, exact: Sequence[Pair], text: str) -> list[Finding]:
    """Return a finding about pairs if their exact numbers are improbable in an honest table."""
    severity = next((severity for severity, limit in CHANCES.items() if exact and chance < limit), None)
    message = f"{text} (chance of this in an honest table: {chance:.0e})"
    return [(rule, severity, chain(*exact), message)] if severity else []


def _multiples(claims: Sequence[Claim]) -> Iterator[Finding]:
    """Find exact multiples across GPU counts, precisions and networks."""
    by_count = sorted(claims, key=attrgetter("num_gpus"))
    for what, varying in VARYING.items():
        shared = {"group", *VARYING.values()} - {varying} | ({"batch"} if what == "gpus" else set())
        found = pairs(by_count, *sorted(shared), neighbours=what == "gpus")
        both = [(low, high) for low, high in found if getattr(low, varying) != getattr(high, varying)]
        parts = grouped((pair[0].group, pair) for pair in both).values()
        tables = [finding for part in parts for finding in _judged(what, part)]
        noted = all(severity is Severity.NOTE for _, severity, *_ in tables)
        yield from (noted and _judged(what, both)) or tables  # small tables may be enough together


def _multiple(low: Claim, high: Claim) -> tuple[bool, float]:
    """Return whether two claims are exact multiples, and the chance of that.

    Those of different GPU counts are proportional to the count; others are a power of two apart.
    """
    window = low.rounding + high.rounding
    if low.num_gpus != high.num_gpus:
        ratio, chance = high.per_gpu / low.per_gpu, 2 * window / EFFICIENCY_SPREAD
    else:
        ratio, chance = high.rate / low.rate, (OCTAVES + 1) * 2 * window / (OCTAVES * math.log(2))
        ratio /= 2.0 ** max(-OCTAVES, min(OCTAVES, round(math.log2(ratio))))
    return abs(ratio - 1) <= window * ROUNDING_SLACK, min(1.0, chance)


def _judged(varying: str, both: Sequence[Pair]) -> list[Finding]:
    """Return a finding if chance cannot explain the number of exact pairs.

    Each claim counts once, because of three exact multiples the third pair follows from the other two.
    """
    trials = [_multiple(*pair) for pair in both]
    hits = [*{pair[1]: pair for pair, (exact, _) in zip(both, trials, strict=True) if exact}.values()]
    if not hits:
        return []
    what, why = "pairs differ by exactly a power of two", "two measurements do not"
    if varying == "gpus":
        what, why = "GPU counts give exactly proportional throughput", "real scaling loses something"
    text = f"{len(hits)} of {len(both)} {what}, e.g. {hits[0][0]} and {hits[0][1]}: {why}"
    chance = chance_of_at_least(len(hits), (chance for _, chance in trials))
    return _unlikely(f"exact_multiple_of_{varying}", chance, hits, text)


def _copies(claims: Sequence[Claim]) -> Iterator[Finding]:
    """Find columns of a GPU that were copied from another one, or multiplied."""
    columns = by((claim for claim in claims if claim.gpu_text), "software", "gpu_text")
    tries = len(columns) * (len(columns) - 1) // 2
    by_cell = [(column[0], grouped(((claim.num_gpus, claim.kind), claim) for claim in column)) for column in columns]
    for (first, one), (second, other) in combinations(by_cell, 2):
        shared = [cell for cell in one if cell in other]  # a copy may have changed the software
        if shared and not _same_gpu(first, second):
            both = [min(product(one[cell], other[cell]), key=_unlikeness) for cell in shared]
            yield from _multiplied(both, tries) or _noisy(both)


def _unlikeness(pair: Pair) -> tuple[bool, float]:
    low, high = pair
    return low.batch != high.batch, abs(math.log(high.rate / low.rate))


def _same_gpu(first: Claim, second: Claim) -> bool:
    """Return whether two claims may be of the same GPU model; unknown names are compared by their model numbers."""
    if first.gpus and second.gpus:
        return bool({*first.gpus} & {*second.gpus})
    numbers = {gpu_numbers(claim.gpu_text) for claim in (first, second)}
    return len(numbers - {frozenset()}) < 2


def _multiplied(both: Sequence[Pair], tries: int) -> list[Finding]:
    """Find a GPU whose throughput is exactly a multiple of another's, in all cells or those of a precision or network.

    Every honest ratio is exact by chance in some cells, so the probability of the number of exact cells decides.
    """
    for shared in ("gpu_text", "precision", "model"):
        parts = grouped((getattr(pair[0], shared), pair) for pair in both).values()
        if found := [finding for part in parts for finding in _exact_multiple(part, tries * len(parts))]:
            return found
    return []


def _exact_multiple(both: Sequence[Pair], tries: int) -> list[Finding]:
    """Find a factor between two GPUs that fits more cells exactly than chance explains."""
    rates = np.array([[claim.rate for claim in pair] for pair in both])
    last_places = np.array([[claim.last_place for claim in pair] for pair in both])
    ratios = rates[:, 1] / rates[:, 0]
    ratio = float(np.sort(ratios)[len(both) // 2])
    if ratio < 1:
        return _exact_multiple([(high, low) for low, high in both], tries)
    digits = max(len(str(round(number)).rstrip("0")) for number in (rates / last_places).flat)
    # 400 beside numbers of one or two digits may be rounded to 10 or 100
    rounding = np.maximum(last_places, 10.0 ** (np.floor(np.log10(rates)) + 1 - digits)) / 2 / rates
    kinds = [(low.model, low.precision) for low, _ in both]
    spread = [COUNT_RANGE if kind in kinds[:i] else RATIO_RANGE for i, kind in enumerate(kinds)]
    best, factor, hits = math.inf, 1.0, np.zeros(len(both), bool)
    for decimals, window in product(range(MOST_DECIMALS + 1), rounding.T):  # of the GPU that was computed
        rounded = round(ratio, decimals)
        exact = np.abs(ratios / rounded - 1) <= window * ROUNDING_SLACK
        chances = (2 * window / spread).clip(max=1.0)
        # the cell that the factor fits; any ratio has a factor of many decimals
        fits = min(1.0, chances.min() * RATIO_RANGE * rounded * 10**decimals)
        chance = fits * chance_of_at_least(exact.sum() - 1, np.delete(chances, chances.argmin()))
        if exact.sum() > 1 and chance < best:
            best, factor, hits = chance, rounded, exact
    chance = min(1.0, best * 2 * (MOST_DECIMALS + 1) * tries) * _nearness(both, math.log(factor))
    found = [*compress(both, hits)]
    low, high = (found or both)[0]
    specified = specified_ratios(low, high)
    suggested = f"; their specifications suggest {min(specified):.2f} to {max(specified):.2f}" if specified else ""
    times = f"{factor:.3f} times " if factor != 1 else ""
    text = (
        f"{high.gpu_text} has exactly {times}the throughput of {low.gpu_text} in {len(found)} of {len(both)} cells, "
        f"e.g. {low} and {high.number}: two measurements do not{suggested}"
    )
    return _unlikely("exact_multiple_of_gpu_kind" if times else "copied_column", chance, found, text)


def _expected(both: Sequence[Pair]) -> float:
    """Return the median logarithm of the ratio expected by specification; NaN: it is unknown of a GPU."""
    return float(np.median([high.expected() - low.expected() for low, high in both]))


def _nearness(both: Sequence[Pair], ratio: float) -> float:
    """Return the probability that a ratio of two GPUs is as far from that of their specifications; 1: unknown.

    It assumes a normal law: the median ratio of two honest GPUs deviates by `SURPRISE` × √2.

    Args:
        both: Cells of one GPU and of the other.
        ratio: Natural logarithm of the ratio.
    """
    off = abs(ratio - _expected(both))
    return 1.0 if math.isnan(off) else math.erfc(off / SURPRISE / 2)


def _noisy(both: Sequence[Pair]) -> Iterator[Finding]:
    """Find GPUs of different specification with equal throughput in every cell."""
    from scipy.special import chdtr  # type: ignore[import-untyped]

    number, surprise = len(both), abs(_expected(both))
    ratios = np.log([low.rate / high.rate for low, high in both])
    spread, middle = ratios.std(), abs(np.median(ratios))
    unequal = spread > NOISE or middle > NOISE / 2 + spread / math.sqrt(number)
    if number < NOISY_CELLS or unequal or surprise < NOT_TWINS:
        return
    # The spread of honest ratios follows a chi-squared law.
    uniformity = float(chdtr(number - 1, number * (spread / HONEST_SPREAD) ** 2))
    chance = (UNKNOWN_NEAR if math.isnan(surprise) else _nearness(both, 0.0)) * uniformity
    # GPU counts of one network and precision are not independent: host or input may have been the bottleneck.
    several = len({(low.model, low.precision) for low, _ in both}) > 1
    low, high = both[0]
    expected = "" if math.isnan(surprise) else f", although their specifications suggest {math.exp(surprise):.2f}"
    message = (
        f"{high.gpu_text} and {low.gpu_text} are equally fast in all {number} cells (ratios "
        f"{math.exp(min(ratios)):.2f} to {math.exp(max(ratios)):.2f}){expected}: copied with noise? "
        f"(chance of this in an honest table: {chance:.0e})"
    )
    severity = Severity.SUSPECT if chance < 1e-3 and several else Severity.NOTE
    yield "noisy_copy", severity, chain(*both), message


def _off(claims: Sequence[Claim]) -> Iterator[Finding]:
    """Find GPUs whose column deviates by a factor from their specifications."""
    for (gpu, precision), column in grouped(_deviations(claims)).items():
        cells, offs, other_gpus = zip(*column, strict=True)
        middle = float(np.median(offs))
        if abs(middle) > OFF:
            scaled = [cell.switched for cell in cells if cell.num_gpus > 1]
            # scaling without switched NVLink differs by more than a factor of 2
            variance = OFF_SCALED**2 * bool(scaled) if all(scaled) else math.inf
            variance += SURPRISE**2 * (1 + 1 / min(other_gpus)) + OFF_CELL**2 / len(cells)
            certain = len(cells) > 1 and abs(middle) > OFF_CHANCE * math.sqrt(variance)
            way = "doubled, or copied from a faster GPU?" if middle > 0 else "halved, or copied from a slower GPU?"
            message = (
                f"{gpu} {precision}: {math.exp(middle):.2f} times as fast as its specification and the other GPUs of "
                f"this table suggest, in the median of {len(cells)} cells: {way}"
            )
            severity = Severity.SUSPECT if certain else Severity.NOTE
            yield "gpu_out_of_line", severity, cells, message


def _deviations(claims: Sequence[Claim]) -> Iterator[tuple[tuple[str, str], tuple[Claim, float, int]]]:
    """Yield by GPU and precision: a claim, the logarithm by which it is off, and the number of GPUs compared with."""
    known = [claim for claim in claims if not math.isnan(claim.expected() + claim.expected(ieee=True))]
    ladders = by(known, "group", "model", "precision", "strict")
    fewest = [by(sorted(of, key=attrgetter("num_gpus")), "num_gpus")[0] for of in ladders]
    for peers in by(chain(*fewest), "software", "num_gpus", "kind"):
        # by how much each exceeds its specification: with fp32 as TF32, and IEEE
        surpluses = ([math.log(claim.per_gpu) - claim.expected(ieee=ieee) for ieee in (False, True)] for claim in peers)
        of_gpus = grouped((claim.gpus, (claim, surplus)) for claim, surplus in zip(peers, surpluses, strict=True))
        for gpus, own in of_gpus.items() if len(of_gpus) > 1 else ():
            usual = np.median([surplus for of in of_gpus if of != gpus for _, surplus in of_gpus[of]], axis=0)
            for claim, surplus in own:
                off = min(np.subtract(surplus, usual), key=abs)
                yield (claim.gpu_text, claim.precision), (claim, float(off), len(of_gpus) - 1)


def _scaling(claims: Sequence[Claim]) -> Iterator[Finding]:
    """Find throughputs that contradict those of other GPU counts of the same case."""
    ladders = [*map(_one_per_count, by(claims, "group", "kind"))]
    steps = [step for ladder in ladders for step in pairwise(ladder)]
    doubled = [(low, high) for low, high in steps if high.num_gpus >= 2 * low.num_gpus]
    yield from _superlinear(claims, doubled)
    yield from _columns(doubled)
    for of_group in grouped((ladder[0].group, ladder) for ladder in ladders if len(ladder) > 1).values():
        yield from _out_of_line(of_group)
        yield from _odd_counts(of_group)
    for low, high in steps:
        if high.rate < SLOWER * low.rate:
            text = f"{high.name}: {high.number}, but {low.num_gpus} of the same GPUs reach {low.number} (row {low.row})"
            yield "slower_with_more_gpus", Severity.SUSPECT, [low, high], text
    for values in by(claims, "group", "kind", "batch", "num_gpus"):
        low, high = (choose(values, key=attrgetter("rate")) for choose in (min, max))
        if high.rate > TWO_VALUES * low.rate:
            text = f"{high.name}: {low.number} and {high.number} in one table, for one case"
            yield "two_values", Severity.SUSPECT, [low, high], text


def _one_per_count(series: Sequence[Claim]) -> list[Claim]:
    """Return one claim for each GPU count, in order: the one with the series' most common batch."""
    shared = Counter(claim.batch for claim in series)
    counts = by(sorted(series, key=attrgetter("num_gpus")), "num_gpus")
    return [max(alike, key=lambda claim: shared[claim.batch]) for alike in counts]


def _superlinear(claims: Sequence[Claim], doubled: Sequence[Pair]) -> Iterator[Finding]:
    """Compare each claim with the one-GPU claim of its batch; without one, with the next smaller count."""
    compared: dict[Claim, Claim] = {}
    for cells in by(claims, "group", "kind", "batch"):
        alone = [claim for claim in cells if claim.num_gpus == 1]
        if len(alone) == 1:
            compared |= {claim: alone[0] for claim in cells if claim.num_gpus > 1}
    for low, high in doubled:  # a larger batch may explain a higher throughput
        if not low.batch or not high.batch or high.batch <= low.batch:
            compared.setdefault(high, low)
    for many, one in compared.items():
        efficiency = many.per_gpu / one.per_gpu / (1 + one.rounding + many.rounding)
        # If two GPUs hardly gain over one, each further doubling may exceed linear scaling by as much.
        doublings = max(1.0, math.log2(many.num_gpus / one.num_gpus)) if one.num_gpus > 1 else 1.0
        limits = (IMPOSSIBLE_EFFICIENCY**doublings, SUSPECT_EFFICIENCY**doublings, CEILING)
        severity = next((severity for severity, most in zip(Severity, limits, strict=True) if efficiency > most), None)
        if severity is None:
            continue
        message = (
            f"{many.name}: {many.number} is {above(many.per_gpu / one.per_gpu, CEILING)} of "
            f"{many.num_gpus / one.num_gpus:g} × {one.number} (row {one.row}), more than {CEILING}: this number, "
            "its baseline or a number of GPUs is wrong"
        )
        yield "superlinear_scaling", severity, [many], message


def _columns(doubled: Sequence[Pair]) -> Iterator[Finding]:
    """Check each step between GPU counts by the median of all networks and precisions with both counts."""
    steps = grouped(((low.group, low.num_gpus, high.num_gpus), (low, high)) for low, high in doubled)
    for (_, few, many), step in steps.items():
        light = [(low, high) for low, high in step if low.switched or not low.model.startswith(HEAVY)]
        compared = light or step
        gain, more = np.median([high.rate / low.rate for low, high in compared]), many / few
        low, high = compared[0]
        least = (SWITCHED_EFFICIENCY if low.switched else COLUMN_EFFICIENCY)[min(3, round(math.log2(more)))]
        if gain < NO_GAIN or gain / more < least:
            rule, certain, why = "halved_scaling", len(light) > 1, "halved, or another number of GPUs?"
            if gain < NO_GAIN:
                rule, certain = "no_scaling", certain or (bool(light) and more > 2)
                why = "numbers of one GPU, not of all?"
            message = (
                f"{many} GPUs are {gain:.2f} times as fast as {few}, in the median of {len(compared)} cases, e.g. "
                f"{low} and ×{many} {high.number}: {why}"
            )
            severity = Severity.SUSPECT if certain else Severity.NOTE
            yield rule, severity, (claim for _, claim in step), message


def _out_of_line(ladders: Sequence[Sequence[Claim]]) -> Iterator[Finding]:
    """Find cases that scale far worse than the others of their table with at least half as many GPUs."""
    light = [ladder for ladder in ladders if ladder[0].num_gpus == 1 and ladder[0].model.startswith(LIGHT)]
    scaled = {claim: claim.per_gpu / ladder[0].per_gpu for ladder in light for claim in ladder[1:]}
    for cell, efficiency in scaled.items():
        of_others = [of for of in scaled if (of.model, of.precision) != (cell.model, cell.precision)]
        others = [of for of in of_others if 2 * of.num_gpus >= cell.num_gpus]
        if len(by(others, "model", "precision")) >= (1 if cell.switched else FEWEST_CASES):
            usual, least = np.median([scaled[of] for of in others]), min(scaled[of] for of in others)
            if least >= GOOD_LEAST and usual >= GOOD_MEDIAN and efficiency < OUT_OF_LINE * min(1.0, usual):
                message = (
                    f"{cell.name}: {cell.number} scales to {efficiency:.2f}, the other {len(others)} cells of this "
                    f"table to {usual:.2f}: halved, or another number of GPUs?"
                )
                yield "scaling_out_of_line", Severity.SUSPECT, [cell], message


def _odd_counts(ladders: Sequence[Sequence[Claim]]) -> Iterator[Finding]:
    """Find cases with a GPU count that is half or double that of all others, if that count also fits their scaling."""
    cases = [{claim.num_gpus: claim for claim in ladder} for ladder in ladders]
    for own in cases if len(cases) > OTHER_CASES else ():
        others = [case for case in cases if case is not own]
        shared = set.intersection(*map(set, others))
        base = min(own.keys() & shared, default=0)
        for odd, claim in own.items() if base else ():
            count = min({odd // 2, odd * 2} & shared - own.keys(), default=0)
            if count and not any(odd in other for other in others):
                usual = np.median([other[count].rate / other[base].rate for other in others])
                if abs(math.log(claim.rate / own[base].rate / usual)) < FITS:
                    text = (
                        f"{claim.name}: {claim.number} on {odd} GPUs, but all {len(others)} other cases of the table "
                        f"have {count} instead, and scale alike with that: another number of GPUs?"
                    )
                    yield "odd_gpu_count", Severity.SUSPECT, [claim], text


RULES = (_multiples, _copies, _off, _scaling)
"""Each is a function of all claims of a file."""

"""Finds numbers that were computed instead of measured: exact multiples, copies, and columns off by a factor.

Exact multiples also occur by chance, more often with fewer digits. So the probability of each pair is computed, and
only more hits than chance explains are reported. Two different GPUs cannot have exactly the same ratio, or the same
numbers, in several cells. A noisy copy has a ratio near 1 in all cells, while the specifications of the GPUs suggest
another one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter

import numpy as np

from results.audit.findings import Claim, Severity, TableFinding, pairs, specified_ratios
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

OF_GPUS = "exact_multiple_of_gpus"

MULTIPLES = {
    OF_GPUS: ("group", "model", "precision", "batch"),
    "exact_multiple_of_precision": ("group", "model", "num_gpus"),
    "exact_multiple_of_network": ("group", "precision", "num_gpus"),
}
"""What the claims of a pair share, by rule."""

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

Pair = tuple[Claim, Claim]


def chance_of_at_least(hits: int, chances: Iterable[float]) -> float:
    """Return the probability of at least N hits in independent trials with different probabilities.

    Source: Poisson binomial distribution, by convolution of the trials.
    """
    number_of_hits = functools.reduce(np.convolve, ([1.0 - chance, chance] for chance in chances), np.ones(1))
    return float(number_of_hits[hits:].sum())


def _severity(chance: float) -> Severity | None:
    """Return the severity of numbers with a probability in an honest table; None: it is no finding."""
    return next((severity for severity, limit in CHANCES.items() if chance < limit), None)


def multiple_findings(claims: Sequence[Claim]) -> Iterator[TableFinding]:
    """Find exact multiples across GPU counts, precisions and networks."""
    by_count = sorted(claims, key=attrgetter("num_gpus"))
    for rule, shared in MULTIPLES.items():
        both = [pair for pair in pairs(by_count, *shared, neighbours=rule == OF_GPUS) if _differ(*pair)]
        tables = [of for part in grouped((pair[0].group, pair) for pair in both).values() for of in _judged(rule, part)]
        noted = all(finding.severity is Severity.NOTE for finding in tables)
        together = [*_judged(rule, both)] if noted else []  # small tables may be enough together
        yield from together or tables


def _differ(low: Claim, high: Claim) -> bool:
    """Return whether two claims are of different GPU counts, networks or precisions."""
    return (low.num_gpus, low.model, low.precision) != (high.num_gpus, high.model, high.precision)


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


def _judged(rule: str, both: Sequence[Pair]) -> Iterator[TableFinding]:
    """Yield a finding if chance cannot explain the number of exact pairs.

    Each claim counts once, because of three exact multiples the third pair follows from the other two.
    """
    trials = [_multiple(*pair) for pair in both]
    hits = [*{pair[1]: pair for pair, (exact, _) in zip(both, trials, strict=True) if exact}.values()]
    chance = chance_of_at_least(len(hits), (chance for _, chance in trials))
    if severity := _severity(chance):
        first, second = hits[0]
        what, why = "pairs differ by exactly a power of two", "two measurements do not"
        if rule == OF_GPUS:
            what, why = "GPU counts give exactly proportional throughput", "real scaling loses something"
        message = (
            f"{len(hits)} of {len(both)} {what}, e.g. {first.name} {first.number} and {second.name} {second.number}: "
            f"{why} (chance of this in an honest table: {chance:.0e})"
        )
        yield TableFinding.of(rule, severity, itertools.chain(*hits), message)


def copy_findings(claims: Sequence[Claim]) -> Iterator[TableFinding]:
    """Find columns copied from another GPU or multiplied, and columns of a GPU that are off by a factor."""
    columns = grouped(((claim.software, claim.gpu_text), claim) for claim in claims if claim.gpu_text)
    tries = len(columns) * (len(columns) - 1) // 2
    by_cell = [(of[0], grouped(((claim.num_gpus, claim.kind), claim) for claim in of)) for of in columns.values()]
    for (first, one), (second, other) in itertools.combinations(by_cell, 2):
        shared = [cell for cell in one if cell in other]  # a copy may have changed the software
        if shared and not _same_gpu(first, second):
            both = [min(itertools.product(one[cell], other[cell]), key=_unlikeness) for cell in shared]
            yield from _multiplied(both, tries) or _noisy(both)
    yield from _off(claims)


def _unlikeness(pair: Pair) -> tuple[bool, float]:
    low, high = pair
    return low.batch != high.batch, abs(math.log(high.rate / low.rate))


def _same_gpu(first: Claim, second: Claim) -> bool:
    """Return whether two claims may be of the same GPU model; unknown names are compared by their model numbers."""
    if first.gpus and second.gpus:
        return bool({*first.gpus} & {*second.gpus})
    one, other = gpu_numbers(first.gpu_text), gpu_numbers(second.gpu_text)
    return not one or not other or one == other


def _multiplied(both: Sequence[Pair], tries: int) -> list[TableFinding]:
    """Find a GPU whose throughput is exactly a multiple of another's, in all cells or those of a precision or network.

    Every honest ratio is exact by chance in some cells, so the probability of the number of exact cells decides.
    """
    by_precision = grouped((pair[0].precision, pair) for pair in both).values()
    by_model = grouped((pair[0].model, pair) for pair in both).values()
    for parts in ([both], by_precision, by_model):
        found = [finding for part in parts for finding in _exact_multiple(part, tries * len(parts))]
        if found:
            return found
    return []


def _exact_multiple(both: Sequence[Pair], tries: int) -> Iterator[TableFinding]:
    """Find a factor between two GPUs that fits more cells exactly than chance explains."""
    rates = np.array([[claim.rate for claim in pair] for pair in both])
    last_places = np.array([[claim.last_place for claim in pair] for pair in both])
    ratio = float(np.sort(rates[:, 1] / rates[:, 0])[len(both) // 2])
    if ratio < 1:
        yield from _exact_multiple([(high, low) for low, high in both], tries)
        return
    digits = max(len(str(round(number)).rstrip("0")) for number in (rates / last_places).flat)
    # 400 beside numbers of one or two digits may be rounded to 10 or 100
    rounding = np.maximum(last_places, 10.0 ** (np.floor(np.log10(rates)) + 1 - digits)) / 2 / rates
    spread = np.full(len(both), COUNT_RANGE)
    kinds = [(low.model, low.precision) for low, _ in both]
    spread[[kinds.index(kind) for kind in {*kinds}]] = RATIO_RANGE
    trials = []
    for decimals, window in itertools.product(range(MOST_DECIMALS + 1), rounding.T):  # of the GPU that was computed
        factor = round(ratio, decimals)
        hits = np.abs(rates[:, 1] / rates[:, 0] / factor - 1) <= window * ROUNDING_SLACK
        chances = (2 * window / spread).clip(max=1.0)
        # the cell that the factor fits; any ratio has a factor of many decimals
        fits = min(1.0, chances.min() * RATIO_RANGE * factor * 10**decimals)
        if hits.sum() > 1:
            others = np.delete(chances, chances.argmin())
            trials.append((fits * chance_of_at_least(hits.sum() - 1, others), factor, hits))
    chance, factor, hits = min(trials, key=itemgetter(0), default=(math.inf, 1.0, ()))
    chance = min(1.0, chance * 2 * (MOST_DECIMALS + 1) * tries) * _nearness(both, math.log(factor))
    severity = _severity(chance)
    if trials and severity:
        exact = [*itertools.compress(both, hits)]
        low, high = exact[0]
        specified = specified_ratios(low, high)
        suggested = f"; their specifications suggest {min(specified):.2f} to {max(specified):.2f}" if specified else ""
        times = f"{factor:.3f} times " if factor != 1 else ""
        message = (
            f"{high.gpu_text} has exactly {times}the throughput of {low.gpu_text} in {len(exact)} of {len(both)} "
            f"cells, e.g. {low.name} {low.number} and {high.number}: two measurements do not{suggested} "
            f"(chance of this in an honest table: {chance:.0e})"
        )
        rule = "exact_multiple_of_gpu_kind" if factor != 1 else "copied_column"
        yield TableFinding.of(rule, severity, itertools.chain(*exact), message)


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


def _noisy(both: Sequence[Pair]) -> Iterator[TableFinding]:
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
    yield TableFinding.of("noisy_copy", severity, itertools.chain(*both), message)


def _off(claims: Sequence[Claim]) -> Iterator[TableFinding]:
    """Find GPUs whose column deviates by a factor from their specifications."""
    known = [claim for claim in claims if not math.isnan(claim.expected() + claim.expected(ieee=True))]
    ladders = grouped(((claim.group, claim.model, claim.precision, claim.strict), claim) for claim in known).values()
    fewest = [claim for of in ladders for claim in grouped((c.num_gpus, c) for c in of)[min(c.num_gpus for c in of)]]
    columns: dict[tuple[str, str], list[tuple[Claim, float, int]]] = {}  # claims, deviations, number of other GPUs
    for peers in grouped(((claim.software, claim.num_gpus, claim.kind), claim) for claim in fewest).values():
        of_gpus = grouped((claim.gpus, claim) for claim in peers)
        for gpus, own in of_gpus.items() if len(of_gpus) > 1 else ():
            others = [_surpluses(peer) for other, cells in of_gpus.items() if other != gpus for peer in cells]
            for cell in own:  # fp32 may be TF32
                surpluses = np.array(_surpluses(cell)) - np.median(others, axis=0)
                column = columns.setdefault((cell.gpu_text, cell.precision), [])
                column.append((cell, float(min(surpluses, key=abs)), len(of_gpus) - 1))
    for (gpu, precision), column in columns.items():
        cells, offs, numbers = zip(*column, strict=True)
        middle = float(np.median(offs))
        if abs(middle) > OFF:
            certain = len(cells) > 1 and abs(middle) > OFF_CHANCE * _doubt(cells, min(numbers))
            way = "doubled, or copied from a faster GPU?" if middle > 0 else "halved, or copied from a slower GPU?"
            message = (
                f"{gpu} {precision}: {math.exp(middle):.2f} times as fast as its specification and the other GPUs of "
                f"this table suggest, in the median of {len(cells)} cells: {way}"
            )
            severity = Severity.SUSPECT if certain else Severity.NOTE
            yield TableFinding.of("gpu_out_of_line", severity, cells, message)


def _surpluses(claim: Claim) -> list[float]:
    """Return by how much a throughput exceeds its specification, in natural logarithms: with fp32 as TF32, and IEEE."""
    return [math.log(claim.per_gpu) - claim.expected(ieee=ieee) for ieee in (False, True)]


def _doubt(cells: Sequence[Claim], other_gpus: int) -> float:
    """Return the standard deviation of the median surplus of an honest GPU, for the available cells and GPUs."""
    scaled = [cell.switched for cell in cells if cell.num_gpus > 1]
    if not all(scaled):
        return math.inf  # scaling without switched NVLink differs by more than a factor of 2
    scaling = OFF_SCALED if scaled else 0.0
    return math.sqrt(SURPRISE**2 * (1 + 1 / other_gpus) + OFF_CELL**2 / len(cells) + scaling**2)

"""Finds numbers that were computed instead of measured: exact multiples, copies, and columns off by a factor.

Exact multiples also occur by chance, more often with fewer digits. So the probability of each pair is computed, and
only more hits than chance explains are reported. Two different GPUs cannot have identical numbers in several cells, nor
exactly the same ratio. A noisy copy has a ratio near 1 in all cells, while the specifications of the GPUs suggest
another one.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from results.audit.findings import Claim, Claims, Severity, TableFinding, grouped, pairs, specified_ratios
from results.reference.gpus import gpu_numbers

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

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
    OF_GPUS: ["table", "model", "precision", "batch"],
    "exact_multiple_of_precision": ["table", "model", "num_gpus"],
    "exact_multiple_of_network": ["table", "precision", "num_gpus"],
}
"""What the claims of a pair share, by rule."""

TWIN_SPREAD = 0.04
"""Minimum difference in natural logarithms between cells of equal GPUs, due to different hosts and software."""

RATIO_RANGE, COUNT_RANGE = 0.1, 0.05
"""Range of the ratios of two GPUs, in natural logarithms, between networks and precisions, and between GPU counts of
one of these. Smallest published standard deviation between six networks: 0.031; a tenth of the counts differ by 0.026.
"""

MOST_DECIMALS = 2
"""Maximum number of decimals of a factor that people multiply by; another constant ratio is only a note."""

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

OFF = {Severity.SUSPECT: 0.5, Severity.NOTE: 0.4}
"""Deviation of a GPU, in natural logarithms, from its specification and the other GPUs of the table.

Honest medians deviated by at most 0.25; doubling is 0.69. With a normal law of standard deviation 0.12 the
probability of 0.5 in an honest column is 3e-5.
"""

OFF_CELL = 0.2
"""Standard deviation of a cell around its GPU's median, due to builds without fast kernels for one network."""

OFF_SCALED = 0.2
"""Additional standard deviation of cells of several GPUs with switched NVLink."""

OFF_LEAST = 2
"""Minimum number of a GPU's cells for a suspicion; one makes a note."""

OFF_CHANCE = 3.0
"""Deviation in standard deviations from which a GPU is suspect."""


def chance_of_at_least(hits: int, chances: Iterable[float]) -> float:
    """Return the probability of at least N hits in independent trials with different probabilities.

    Source: Poisson binomial distribution, by convolution of the trials.
    """
    below = np.zeros(hits + 1)  # probabilities of 0, 1, … hits; the last one includes all above
    below[0] = 1.0
    for chance in chances:
        more = chance * below
        below -= more
        below[1:] += more[:-1]
        below[-1] += more[-1]
    return float(below[hits])


def _severity(chance: float) -> Severity | None:
    """Return the severity of numbers with a probability in an honest table; None: it is no finding."""
    return next((severity for severity, limit in CHANCES.items() if chance < limit), None)


def multiple_findings(claims: Claims) -> Iterator[TableFinding]:
    """Find exact multiples across GPU counts, precisions and networks."""
    by_count = claims[np.argsort(claims.num_gpus, kind="stable")]
    for rule, keys in MULTIPLES.items():
        low, high, exact, chance = _multiples(rule, by_count, keys)
        parts = [*grouped(low.table).values()]
        tables = [found for part in parts for found in _judged(rule, low[part], high[part], exact[part], chance[part])]
        noted = all(finding.severity is Severity.NOTE for finding in tables)
        together = [*_judged(rule, low, high, exact, chance)] if noted else []  # small tables may be enough together
        yield from together or tables


def _multiples(rule: str, claims: Claims, keys: Sequence[str]) -> tuple[Claims, Claims, Booleans, Floats]:
    """Return the pairs that may be exact multiples, whether they are, and the chance of that.

    Those of GPU counts are neighbours and proportional to the count; others are a power of two apart.
    """
    low, high = pairs(claims, keys, itertools.pairwise) if rule == OF_GPUS else pairs(claims, keys)
    window = low.rounding + high.rounding
    if rule == OF_GPUS:
        chosen = low.num_gpus != high.num_gpus
        ratio, chance = high.per_gpu / low.per_gpu, 2 * window / EFFICIENCY_SPREAD
    else:
        chosen = (low.model != high.model) | (low.precision != high.precision)
        ratio, chance = high.rate / low.rate, (OCTAVES + 1) * 2 * window / (OCTAVES * math.log(2))
        ratio = ratio / 2.0 ** np.log2(ratio).round().clip(-OCTAVES, OCTAVES)
    exact = np.abs(ratio - 1) <= window * ROUNDING_SLACK
    return low[chosen], high[chosen], exact[chosen], chance.clip(max=1.0)[chosen]


def _judged(rule: str, low: Claims, high: Claims, exact: Booleans, chances: Floats) -> Iterator[TableFinding]:
    """Yield a finding if chance cannot explain the number of exact pairs.

    Each claim counts once, because of three exact multiples the third pair follows from the other two.
    """
    hits = [*{claim.claim: (one, claim) for one, claim in zip(low[exact], high[exact], strict=True)}.values()]
    chance = chance_of_at_least(len(hits), chances)
    if severity := _severity(chance):
        first, second = hits[0]
        what, why = "pairs differ by exactly a power of two", "two measurements do not"
        if rule == OF_GPUS:
            what, why = "GPU counts give exactly proportional throughput", "real scaling loses something"
        message = (
            f"{len(hits)} of {len(low)} {what}, e.g. {first.name} {first.number} and {second.name} {second.number}: "
            f"{why} (chance of this in an honest table: {chance:.0e})"
        )
        yield TableFinding.of(rule, severity, itertools.chain(*hits), message)


def copy_findings(claims: Claims) -> Iterator[TableFinding]:
    """Find columns copied from another GPU or multiplied, and columns of a GPU that are off by a factor."""
    named = claims[claims.gpu_text != ""]
    named = named[np.argsort(named.gpu_column, kind="stable")]
    number = len({*named.gpu_column})
    tries = number * (number - 1) // 2
    low, high = pairs(named, ["cell"])  # a copy may have changed the software
    nearest = _one_per_case(low, high, np.abs(np.log(high.rate / low.rate)))
    same_batch = _one_per_case(low, high, low.batch != high.batch)
    for gpus, cells in nearest.items():
        if not _same_gpu(low[cells[0]], high[cells[0]]):
            copied, of_batch = [*_copied(low[cells], high[cells], tries)], same_batch[gpus]
            yield from copied or [
                *_multiplied(low[of_batch], high[of_batch], tries),
                *_noisy(low[cells], high[cells]),
            ]
    yield from _off(claims)


def _one_per_case(low: Claims, high: Claims, distance: npt.NDArray[Any]) -> dict[tuple[int, ...], list[int]]:
    """Return the positions of the pairs of two GPUs, by these; if one has several per case, those least apart."""
    order = np.argsort(distance, kind="stable")
    of_case = grouped(low.gpu_column[order], high.gpu_column[order], low.cell[order])
    chosen = sorted(order[positions[0]] for (one, other, _), positions in of_case.items() if one != other)
    columns = grouped(low.gpu_column[chosen], high.gpu_column[chosen])
    return {gpus: [chosen[position] for position in positions] for gpus, positions in columns.items()}


def _same_gpu(first: Claim, second: Claim) -> bool:
    """Return whether two claims may be of the same GPU model; unknown names are compared by their model numbers."""
    if first.gpus and second.gpus:
        return bool({*first.gpus} & {*second.gpus})
    one, other = gpu_numbers(first.gpu_text), gpu_numbers(second.gpu_text)
    return not one or not other or one == other


def _expected(low: Claims, high: Claims) -> Floats:
    """Return the logarithms of the ratios expected by specification; 0, the most cautious, where one is unknown."""
    ratios: Floats = high.expected - low.expected
    return np.nan_to_num(ratios)


def _copied(low: Claims, high: Claims, tries: int) -> Iterator[TableFinding]:
    """Find a GPU with exactly the throughput of another."""
    equal = low.rate == high.rate
    rounding = np.maximum(low.rounding, high.rounding)
    chances = (rounding / np.abs(_expected(low, high)).clip(min=TWIN_SPREAD)).clip(max=1.0)
    chance = min(1.0, chance_of_at_least(equal.sum(), chances) * tries) if equal.sum() > 1 else 1.0
    if severity := _severity(chance):
        first, second = low[equal][0], high[equal][0]
        message = (
            f"{second.gpu_text} has exactly the throughput of {first.gpu_text} in {equal.sum()} of {len(low)} cells, "
            f"e.g. {first.name} {first.number}: copied from one GPU to the other (chance of this in an honest table: "
            f"{chance:.0e})"
        )
        yield TableFinding.of("copied_column", severity, [*low[equal], *high[equal]], message)


def _multiplied(low: Claims, high: Claims, tries: int) -> list[TableFinding]:
    """Find a GPU whose throughput is exactly a multiple of another's, in all cells or those of a precision or network.

    Every honest ratio is exact by chance in some cells, so the probability of the number of exact cells decides.
    """
    for parts in ([[*range(len(low))]], grouped(low.precision).values(), grouped(low.model).values()):
        of_parts = [[*_exact_multiple(low[part], high[part], tries * len(parts))] for part in parts]
        if any(of_parts):
            return [*itertools.chain(*of_parts)]
    return []


def _exact_multiple(low: Claims, high: Claims, tries: int) -> Iterator[TableFinding]:
    """Find a factor between two GPUs that fits more cells exactly than chance explains."""
    ratio = float(np.sort(high.rate / low.rate)[len(low) // 2])
    if ratio < 1:
        yield from _exact_multiple(high, low, tries)
        return
    factors = [(round(ratio, decimals), decimals) for decimals in range(MOST_DECIMALS + 1)] + [(ratio, None)]
    digits = max(low.digits.max(), high.digits.max())
    roundings = []
    for claims in (high, low):  # 400 beside numbers of one or two digits may be rounded to 10 or 100
        last_place = np.maximum(claims.last_place, 10.0 ** (np.floor(np.log10(claims.rate)) + 1 - digits))
        roundings.append(last_place / 2 / claims.rate)
    of_first_count = [positions[0] for positions in grouped(low.model, low.precision).values()]
    spread = np.full(len(low), COUNT_RANGE)
    spread[of_first_count] = RATIO_RANGE
    trials = []
    for factor, decimals in factors:
        for rounding in roundings if factor != 1 else ():  # of the GPU whose cells were computed
            window = rounding if decimals is not None else rounding + sum(roundings)
            hits = np.abs(high.rate / low.rate / factor - 1) <= window * ROUNDING_SLACK
            trials.append((_chance(hits.sum(), (2 * window / spread).clip(max=1.0), factor, decimals), hits, factor))
    if not trials:
        return
    chance, hits, factor = min(trials, key=operator.itemgetter(0))
    chance = min(1.0, chance * 2 * len(factors) * tries) * _nearness(low, high, math.log(factor))
    severity = _severity(chance)
    if severity is None or hits.sum() < 2:
        return
    first, second = low[hits][0], high[hits][0]
    specified = specified_ratios(first, second)
    suggested = f"; their specifications suggest {min(specified):.2f} to {max(specified):.2f}" if specified else ""
    message = (
        f"{second.gpu_text} has exactly {factor:.3f} times the throughput of {first.gpu_text} in {hits.sum()} "
        f"of {len(low)} cells, e.g. {first.name} {first.number} and {second.number}: two measurements do not"
        f"{suggested} (chance of this in an honest table: {chance:.0e})"
    )
    severity = severity if factor == round(factor, MOST_DECIMALS) else Severity.NOTE
    yield TableFinding.of("exact_multiple_of_gpu_kind", severity, [*low[hits], *high[hits]], message)


def _nearness(low: Claims, high: Claims, ratio: float) -> float:
    """Return the probability that a ratio of two GPUs is as far from that of their specifications; 1: unknown.

    It assumes a normal law: the median ratio of two honest GPUs deviates by `SURPRISE` × √2.

    Args:
        low: Cells of one GPU.
        high: The other GPU's.
        ratio: Natural logarithm of the ratio.
    """
    if not (all(low.gpus) and all(high.gpus)):
        return 1.0
    return math.erfc(abs(ratio - float(np.median(_expected(low, high)))) / SURPRISE / 2)


def _chance(hits: int, chances: Floats, factor: float, decimals: int | None) -> float:
    """Return the probability of as many exact multiples.

    Args:
        hits: Number of exact multiples.
        chances: Probability of each cell to be one.
        factor: The factor.
        decimals: Number of decimals of the factor; None: it is the ratio of one of the pairs.
    """
    if not hits:
        return 1.0
    least = chances.argmin()  # the cell that the factor fits; any ratio has a factor of many decimals
    fits = 1.0 if decimals is None else min(1.0, chances[least] * RATIO_RANGE * factor * 10**decimals)
    return float(fits * chance_of_at_least(hits - 1, np.delete(chances, least)))


def _noisy(low: Claims, high: Claims) -> Iterator[TableFinding]:
    """Find GPUs of different specification with equal throughput in every cell."""
    from scipy.special import chdtr  # type: ignore[import-untyped]

    number, known = len(low), all(low.gpus) and all(high.gpus)
    ratios = np.log(low.rate / high.rate)
    spread, surprise = ratios.std(), abs(np.median(_expected(low, high)))
    unequal = spread > NOISE or abs(np.median(ratios)) > NOISE / 2 + spread / math.sqrt(number)
    if number < NOISY_CELLS or unequal or (known and surprise < NOT_TWINS):
        return
    # The spread of honest ratios follows a chi-squared law.
    uniformity = float(chdtr(number - 1, number * (spread / HONEST_SPREAD) ** 2))
    chance = (_nearness(low, high, 0.0) if known else UNKNOWN_NEAR) * uniformity
    # GPU counts of one network and precision are not independent: host or input may have been the bottleneck.
    severity = Severity.SUSPECT if chance < 1e-3 and len(grouped(low.model, low.precision)) > 1 else Severity.NOTE
    expected = f", although their specifications suggest {math.exp(surprise):.2f}" if known else ""
    message = (
        f"{high[0].gpu_text} and {low[0].gpu_text} are equally fast in all {number} cells (ratios "
        f"{math.exp(min(ratios)):.2f} to {math.exp(max(ratios)):.2f}){expected}: copied with noise? "
        f"(chance of this in an honest table: {chance:.0e})"
    )
    yield TableFinding.of("noisy_copy", severity, [*low, *high], message)


def _off(claims: Claims) -> Iterator[TableFinding]:
    """Find GPUs whose column deviates by a factor from their specifications."""
    known = claims[~np.isnan(claims.expected + claims.expected_ieee)]
    ladders = [np.array(of) for of in grouped(known.table, known.model, known.precision, known.strict).values()]
    counts = known.num_gpus
    fewest = [claim for ladder in ladders for claim in ladder[counts[ladder] == counts[ladder].min()]]
    least = known[fewest]  # to exclude scaling
    surpluses = [np.log(least.per_gpu) - expected for expected in (least.expected, least.expected_ieee)]
    columns: dict[tuple[str, str], list[tuple[Claim, float, int]]] = {}  # claims, deviations, number of other GPUs
    for peers in grouped(least.software, least.cell).values():
        of_gpus = [[peers[position] for position in positions] for positions in grouped(least.gpus[peers]).values()]
        for own in of_gpus if len(of_gpus) > 1 else ():
            others = [*{*peers}.difference(own)]
            usual = [np.median(surplus[others]) for surplus in surpluses]
            for cell in own:  # fp32 may be TF32
                off = min((surplus[cell] - middle for surplus, middle in zip(surpluses, usual, strict=True)), key=abs)
                column = columns.setdefault((least.gpu_text[cell], least.precision[cell]), [])
                column.append((least[cell], off, len(of_gpus) - 1))
    for (gpu, precision), column in columns.items():
        cells, offs, numbers = zip(*column, strict=True)
        middle = float(np.median(offs))
        severity = next((severity for severity, limit in OFF.items() if abs(middle) > limit), None)
        if severity is None:
            continue
        certain = len(cells) >= OFF_LEAST and abs(middle) > OFF_CHANCE * _doubt(cells, min(numbers))
        way = "doubled, or copied from a faster GPU?" if middle > 0 else "halved, or copied from a slower GPU?"
        message = (
            f"{gpu} {precision}: {math.exp(middle):.2f} times as fast as its specification and the other GPUs of this "
            f"table suggest, in the median of {len(cells)} cells: {way}"
        )
        yield TableFinding.of("gpu_out_of_line", severity if certain else Severity.NOTE, cells, message)


def _doubt(cells: Sequence[Claim], other_gpus: int) -> float:
    """Return the standard deviation of the median surplus of an honest GPU, for the available cells and GPUs."""
    if any(cell.num_gpus > 1 and not cell.switched for cell in cells):
        return math.inf  # scaling without switched NVLink differs by more than a factor of 2
    scaling = OFF_SCALED if any(cell.num_gpus > 1 for cell in cells) else 0.0
    return math.sqrt(SURPRISE**2 * (1 + 1 / other_gpus) + OFF_CELL**2 / len(cells) + scaling**2)

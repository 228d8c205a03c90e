"""Finds columns of a GPU that are computed from another's: copied, with noise or not, multiplied, or off by a factor.

Two different GPUs cannot have identical numbers in several cells, nor exactly the same ratio. A noisy copy has a ratio
near 1 in all cells, while the specifications of the GPUs suggest another one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from results.audit.claims import Claim, grouped
from results.audit.patterns import ROUNDING_SLACK
from results.audit.scaling_audit import is_switched
from results.audit.series import (
    Severity,
    TableFinding,
    case_without_gpu,
    chance_of_at_least,
    expected_log_speed,
    same_gpu,
    specified_ratios,
)

Pair = tuple[Claim, Claim]

EXACT_CHANCES = {Severity.IMPOSSIBLE: 1e-9, Severity.SUSPECT: 1e-5, Severity.NOTE: 1e-3}
"""Probability of as many equal cells in an honest table, below which there is a finding."""

TWIN_SPREAD = 0.04
"""Minimum difference in natural logarithms between cells of equal GPUs, due to different hosts and software."""

MOST_GPUS = 500
"""Maximum number of GPU columns compared in pairs; a file with more is not a table of GPUs."""

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


def copy_findings(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find columns copied from another GPU, and columns of a GPU that are off by a factor."""
    gpus = _columns_of_gpus(claims)
    if len(gpus) > MOST_GPUS:
        gpus = {}
    pairs = len(gpus) * (len(gpus) - 1) // 2
    found = []
    for (_, first), (_, second) in itertools.combinations(gpus.items(), 2):
        if same_gpu(first[0], second[0]):
            continue
        shared = _shared(first, second)
        found += _exact(shared, pairs) or [*_multiples(_same_batches(first, second), pairs), *_noisy(shared)]
    copied = {row for finding in found if finding.severity is not Severity.NOTE for row in finding.rows}
    return [*found, *(finding for finding in _off(claims) if not copied.issuperset(finding.rows))]


def _columns_of_gpus(claims: Sequence[Claim]) -> dict[tuple[tuple[str, ...], str], list[Claim]]:
    return grouped([claim for claim in claims if claim.gpu_text], lambda claim: (claim.software, claim.gpu_text))


def _shared(first: Sequence[Claim], second: Sequence[Claim]) -> list[Pair]:
    """Return the pairs of cells of two GPUs; if a GPU has several per case, the closest ones."""
    return _paired(first, second, lambda one, other: abs(math.log(one.rate / other.rate)))


def _same_batches(first: Sequence[Claim], second: Sequence[Claim]) -> list[Pair]:
    """Return the pairs of cells of two GPUs; if a GPU has several per case, those of equal batch."""
    return _paired(first, second, lambda one, other: one.batch != other.batch)


def _paired(first: Sequence[Claim], second: Sequence[Claim], distance: Callable[[Claim, Claim], float]) -> list[Pair]:
    known = grouped(second, _cell)
    return [
        min(itertools.product(group, known[key]), key=lambda pair: distance(*pair))
        for key, group in grouped(first, _cell).items()
        if key in known
    ]


def _cell(claim: Claim) -> tuple[object, ...]:
    """Return what a pair of cells shares, without the software, which a copy may have changed too."""
    return case_without_gpu(claim)[1:]


def _exact(shared: Sequence[Pair], tries: int) -> list[TableFinding]:
    equal = [(first, second) for first, second in shared if first.rate == second.rate]
    chances = [min(1.0, max(a.rounding, b.rounding) / max(TWIN_SPREAD, abs(_expected_ratio(a, b)))) for a, b in shared]
    chance = min(1.0, chance_of_at_least(len(equal), chances) * max(1, tries))
    severity = next((level for level, limit in EXACT_CHANCES.items() if chance < limit), None)
    if severity is None or len(equal) < 2:
        return []
    first, second = equal[0]
    message = (
        f"{second.gpu_text} has exactly the throughput of {first.gpu_text} in {len(equal)} of {len(shared)} cells, "
        f"e.g. {first.name} {first.number}: copied from one GPU to the other (chance of this in an honest table: "
        f"{chance:.0e})"
    )
    return [TableFinding("copied_column", severity, _rows(equal), message)]


def _multiples(shared: Sequence[Pair], tries: int) -> list[TableFinding]:
    """Find a GPU whose throughput is exactly a multiple of another's, in all cells or those of a precision or network.

    Every honest ratio is exact by chance in some cells, so the probability of the number of exact cells decides.
    """
    by_precision = grouped(shared, lambda pair: pair[0].precision).values()
    by_network = grouped(shared, lambda pair: pair[0].model).values()
    for parts in ([shared], by_precision, by_network):
        found = [finding for part in parts if (finding := _multiple(part, tries * len(parts)))]
        if found:
            return found
    return []


NO_HITS: tuple[float, list[Pair], float] = (1.0, [], 1.0)


def _multiple(pairs: Sequence[Pair], tries: int) -> TableFinding | None:
    if not pairs:
        return None
    ratio = statistics.median_high(high.rate / low.rate for low, high in pairs)
    if ratio < 1:
        return _multiple([(high, low) for low, high in pairs], tries)
    factors = [(round(ratio, decimals), decimals) for decimals in range(MOST_DECIMALS + 1)] + [(ratio, None)]
    trials = [_trial(pairs, *factor, of_high=of_high) for factor in factors for of_high in (True, False)]
    chance, hits, factor = min(
        (trial for trial in trials if trial[2] != 1), key=lambda trial: trial[0], default=NO_HITS
    )
    chance = min(1.0, chance * len(trials) * tries) * _nearness(pairs, factor)
    severity = next((level for level, limit in EXACT_CHANCES.items() if chance < limit), None)
    if severity is None or len(hits) < 2:
        return None
    severity = severity if factor == round(factor, MOST_DECIMALS) else Severity.NOTE
    low, high = hits[0]
    message = (
        f"{high.gpu_text} has exactly {factor:.3f} times the throughput of {low.gpu_text} in {len(hits)} "
        f"of {len(pairs)} cells, e.g. {low.name} {low.number} and {high.number}: two measurements do not"
        f"{_specified(low, high)} (chance of this in an honest table: {chance:.0e})"
    )
    return TableFinding("exact_multiple_of_gpu_kind", severity, _rows(hits), message)


def _nearness(pairs: Sequence[Pair], ratio: float) -> float:
    """Return the probability that a ratio of two GPUs is as far from that of their specifications; 1: unknown.

    It assumes a normal law: the median ratio of two honest GPUs deviates by `SURPRISE` × √2.
    """
    if not all(low.gpus and high.gpus for low, high in pairs):
        return 1.0
    expected = statistics.median(_expected_ratio(high, low) for low, high in pairs)
    return math.erfc(abs(math.log(ratio) - expected) / SURPRISE / 2)


def _trial(
    pairs: Sequence[Pair], factor: float, decimals: int | None, *, of_high: bool
) -> tuple[float, list[Pair], float]:
    """Return the probability of as many exact multiples as there are, these, and the factor.

    Args:
        pairs: Cells of the slower and the faster GPU.
        factor: The factor.
        decimals: Number of decimals of the factor; None: it is the ratio of one of the pairs.
        of_high: Whether the cells of the faster GPU were computed and rounded, or those of the slower one.
    """
    digits = max(_digits(claim) for pair in pairs for claim in pair)
    hits: list[Pair] = []
    chances: list[float] = []
    cases: set[tuple[str, str]] = set()
    for low, high in pairs:
        roundings = [_last_place(claim, digits) / 2 / claim.rate for claim in (low, high)]
        window = roundings[of_high] + (sum(roundings) if decimals is None else 0.0)
        if abs(high.rate / low.rate / factor - 1) <= window * ROUNDING_SLACK:
            hits.append((low, high))
        case = (low.model, low.precision)
        chances.append(min(1.0, 2 * window / (COUNT_RANGE if case in cases else RATIO_RANGE)))
        cases.add(case)
    least = min(chances)  # of the cell that the factor fits; any ratio has a factor of many decimals
    fits = 1.0 if decimals is None else min(1.0, least * RATIO_RANGE * factor * 10**decimals)
    chances.remove(least)
    return (fits * chance_of_at_least(len(hits) - 1, chances) if hits else 1.0), hits, factor


def _last_place(claim: Claim, digits: int) -> float:
    """Return the unit of the last digit, in a table of numbers with at most N digits: 400 may be rounded to 100."""
    return max(claim.last_place, 10.0 ** (math.floor(math.log10(claim.rate)) + 1 - digits))


def _digits(claim: Claim) -> int:
    """Return the number of digits of a number without zeros at its end."""
    return len(str(round(claim.rate / claim.last_place)).rstrip("0"))


def _specified(low: Claim, high: Claim) -> str:
    """Return what the specifications of two GPUs suggest; empty: unknown."""
    ratios = specified_ratios(low, high)
    return f"; their specifications suggest {min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""


def _noisy(shared: Sequence[Pair]) -> list[TableFinding]:
    """Find GPUs of different specification with equal throughput in every cell.

    The probability assumes a normal law: the median ratio of two honest GPUs deviates by `SURPRISE` × √2.
    """
    if len(shared) < NOISY_CELLS:
        return []
    known = all(first.gpus and second.gpus for first, second in shared)
    ratios = [math.log(first.rate / second.rate) for first, second in shared]
    middle, spread = statistics.median(ratios), statistics.pstdev(ratios)
    surprise = abs(statistics.median(_expected_ratio(first, second) for first, second in shared))
    if spread > NOISE or abs(middle) > NOISE / 2 + spread / math.sqrt(len(shared)) or (known and surprise < NOT_TWINS):
        return []
    near = math.erfc(surprise / SURPRISE / 2) if known else UNKNOWN_NEAR
    chance = near * _uniformity(len(shared), spread)
    # GPU counts of one network and precision are not independent: host or input may have been the bottleneck.
    cases = {(claim.model, claim.precision) for claim, _ in shared}
    severity = Severity.SUSPECT if chance < 1e-3 and len(cases) > 1 else Severity.NOTE
    first, second = shared[0]
    expected = f", although their specifications suggest {math.exp(surprise):.2f}" if known else ""
    message = (
        f"{second.gpu_text} and {first.gpu_text} are equally fast in all {len(shared)} cells (ratios "
        f"{math.exp(min(ratios)):.2f} to {math.exp(max(ratios)):.2f}){expected}: copied with noise? "
        f"(chance of this in an honest table: {chance:.0e})"
    )
    return [TableFinding("noisy_copy", severity, _rows(shared), message)]


HONEST_SPREAD = 0.10
"""Typical spread of the ratios of two different GPUs over networks and precisions; published: 0.05 to 0.3."""


def _uniformity(cells: int, spread: float) -> float:
    """Return the probability of a spread up to `spread` if it is `HONEST_SPREAD`. Source: chi-squared law."""
    from scipy.special import chdtr  # type: ignore[import-untyped]

    return float(chdtr(cells - 1, cells * (spread / HONEST_SPREAD) ** 2))


def _expected_ratio(first: Claim, second: Claim) -> float:
    """Return the logarithm of the ratio expected by specification; 0, the most cautious, if one is unknown."""
    one, other = expected_log_speed(first), expected_log_speed(second)
    return one - other if one is not None and other is not None else 0.0


def _off(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find GPUs whose column deviates by a factor from their specifications."""
    surplus: dict[tuple[str, str], list[_Surplus]] = {}
    for group in grouped(_smallest_counts(claims), case_without_gpu).values():
        for claim in group:
            readings = [_surplus(claim, [reading(other) for other in group]) for reading in (_as_claimed, _as_ieee)]
            values = [value for value in readings if value is not None]
            if values:
                gpus = len({other.gpus for other in group if other.gpus != claim.gpus})
                cell = _Surplus(claim, min(values, key=abs), gpus)
                surplus.setdefault((claim.gpu_text, claim.precision), []).append(cell)
    return [finding for key, cells in surplus.items() for finding in _judged(*key, cells)]


def _surplus(claim: Claim, group: Sequence[Claim]) -> float | None:
    """Return the deviation of a GPU from that expected by the others of its group, in natural logarithms."""
    speeds = [(other, math.log(other.per_gpu) - known) for other in group
              if (known := expected_log_speed(other)) is not None]  # fmt: skip
    own = [speed for other, speed in speeds if other.row == claim.row and other.column == claim.column]
    others = [speed for other, speed in speeds if other.gpus != claim.gpus]
    return own[0] - statistics.median(others) if own and others else None


def _as_claimed(claim: Claim) -> Claim:
    return claim


def _as_ieee(claim: Claim) -> Claim:
    """Return an fp32 claim as one without TF32, which may have been on or off."""
    return dataclasses.replace(claim, strict=True) if claim.precision == "fp32" else claim


@dataclasses.dataclass(frozen=True)
class _Surplus:
    """Deviation of a cell from that expected by the other GPUs of its case.

    Attributes:
        value: Natural logarithm.
        gpus: Number of other GPUs.
    """

    claim: Claim
    value: float
    gpus: int


def _judged(gpu: str, precision: str, cells: Sequence[_Surplus]) -> list[TableFinding]:
    """Return a finding if the column of a GPU deviates too much."""
    middle = statistics.median(cell.value for cell in cells)
    severity = next((level for level, limit in OFF.items() if abs(middle) > limit), None)
    if severity is None:
        return []
    severity = severity if len(cells) >= OFF_LEAST and abs(middle) > OFF_CHANCE * _doubt(cells) else Severity.NOTE
    way = "doubled, or copied from a faster GPU?" if middle > 0 else "halved, or copied from a slower GPU?"
    message = (
        f"{gpu} {precision}: {math.exp(middle):.2f} times as fast as its specification and the other GPUs of this "
        f"table suggest, in the median of {len(cells)} cells: {way}"
    )
    return [TableFinding("gpu_out_of_line", severity, tuple(sorted({cell.claim.row for cell in cells})), message)]


def _doubt(cells: Sequence[_Surplus]) -> float:
    """Return the standard deviation of the median surplus of an honest GPU, for the available cells and GPUs."""
    others = min(cell.gpus for cell in cells)
    if any(cell.claim.count > 1 and not is_switched(cell.claim) for cell in cells):
        return math.inf  # scaling without switched NVLink differs by more than a factor of 2
    scaled = OFF_SCALED if any(cell.claim.count > 1 for cell in cells) else 0.0
    return math.sqrt(SURPRISE**2 * (1 + 1 / others) + OFF_CELL**2 / len(cells) + scaled**2)


def _smallest_counts(claims: Sequence[Claim]) -> list[Claim]:
    """Return the claims with the fewest GPUs of each series, to exclude scaling."""
    series = grouped(claims, lambda claim: (claim.group, claim.model, claim.precision, claim.strict))
    return [claim for group in series.values() for claim in group if claim.count == min(one.count for one in group)]


def _rows(pairs: Sequence[Pair]) -> tuple[int, ...]:
    return tuple(sorted({claim.row for pair in pairs for claim in pair}))

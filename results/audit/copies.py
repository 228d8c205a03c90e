"""Finds numbers that were computed instead of measured: exact multiples, copies, and columns off by a factor.

Exact multiples also occur by chance, more often with fewer digits. So the probability of each pair is computed, and
only more hits than chance explains are reported. Two different GPUs cannot have identical numbers in several cells, nor
exactly the same ratio. A noisy copy has a ratio near 1 in all cells, while the specifications of the GPUs suggest
another one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import numpy as np
import pandas as pd

from results.audit.findings import (
    CELL,
    CHANCES,
    Pair,
    Row,
    Severity,
    TableFinding,
    chance_of_at_least,
    claim_pairs,
    grouped,
    pairs,
    severity_below,
    specified_ratios,
)
from results.reference.gpus import gpu_numbers

EFFICIENCY_SPREAD = 0.1
"""Range of honest scaling efficiencies of one table: about 90 to 100 %."""

OCTAVES = 6
"""Range of ratios between networks or precisions: about six powers of two."""

ROUNDING_SLACK = 1.05
"""Margin for comparing sums of two rounding errors."""

OF_GPUS = "exact_multiple_of_gpus"

MULTIPLES = {
    OF_GPUS: ["model", "precision", "batch"],
    "exact_multiple_of_precision": ["model", "num_gpus"],
    "exact_multiple_of_network": ["precision", "num_gpus"],
}
"""What the claims of a pair share besides their table, by rule."""

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


def multiple_findings(claims: pd.DataFrame) -> list[TableFinding]:
    """Find exact multiples across GPU counts, precisions and networks."""
    by_count = claims.sort_values("num_gpus", kind="stable")
    found = []
    for rule, keys in MULTIPLES.items():
        both = _multiples(rule, by_count.assign(step=by_count.groupby(["table", *keys]).cumcount()), keys)
        tables = [table for _, table in both.groupby("table_low", sort=False)]
        findings = [finding for table in tables if (finding := _judged(rule, table))]
        if all(finding.severity is Severity.NOTE for finding in findings):
            # Small tables may be enough evidence only together.
            together = _judged(rule, both)
            findings = [together] if together else findings
        found += findings
    return found


def _multiples(rule: str, claims: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the pairs that may be exact multiples, whether they are, and the chance of that.

    Those of GPU counts are neighbours and proportional to the count; others are a power of two apart.
    """
    columns = ["table", "kind", "step", "num_gpus", "rate", "per_gpu", "rounding"]
    both = pairs(claims, ["table", *keys], columns)
    window = both.rounding_low + both.rounding_high
    if rule == OF_GPUS:
        chosen = (both.step_high == both.step_low + 1) & (both.num_gpus_low != both.num_gpus_high)
        ratio, chance = both.per_gpu_high / both.per_gpu_low, 2 * window / EFFICIENCY_SPREAD
    else:
        chosen = (both.step_low < both.step_high) & (both.kind_low != both.kind_high)
        ratio, chance = both.rate_high / both.rate_low, (OCTAVES + 1) * 2 * window / (OCTAVES * math.log(2))
        ratio = ratio / 2.0 ** np.log2(ratio).round().clip(-OCTAVES, OCTAVES)
    exact = (ratio - 1).abs() <= window * ROUNDING_SLACK
    return both.assign(exact=exact, chance=chance.clip(upper=1.0))[chosen]


def _judged(rule: str, both: pd.DataFrame) -> TableFinding | None:
    """Return a finding if chance cannot explain the number of exact pairs.

    Each claim counts once, because of three exact multiples the third pair follows from the other two.
    """
    hits = claim_pairs(both[both.exact].drop_duplicates("at_high", keep="last")) if both.exact.any() else []
    chance = chance_of_at_least(len(hits), [*both.chance])
    severity = severity_below(chance, CHANCES)
    if severity is None:
        return None
    low, high = hits[0]
    what, why = "pairs differ by exactly a power of two", "two measurements do not"
    if rule == OF_GPUS:
        what, why = "GPU counts give exactly proportional throughput", "real scaling loses something"
    message = (
        f"{len(hits)} of {len(both)} {what}, e.g. {low.name} {low.number} and {high.name} {high.number}: {why} "
        f"(chance of this in an honest table: {chance:.0e})"
    )
    return TableFinding.of(rule, severity, itertools.chain(*hits), message)


def copy_findings(claims: pd.DataFrame) -> list[TableFinding]:
    """Find columns copied from another GPU, and columns of a GPU that are off by a factor."""
    named = claims[claims.gpu_text != ""]
    named = named.assign(gpu=named.groupby(["software", "gpu_text"], sort=False).ngroup())
    number = named.gpu.nunique()
    # A copy may have changed the software too.
    both = pairs(named if number <= MOST_GPUS else named[:0], CELL, ["gpu", "rate", "batch"])
    both = both[both.gpu_low < both.gpu_high]
    found = []
    tries = number * (number - 1) // 2
    for shared, same_batch in zip(_paired(both, "rate"), _paired(both, "batch"), strict=True):
        if not _same_gpu(*shared[0]):
            exact = _exact(shared, tries)
            found += [exact] if exact else [*_exact_multiples(same_batch, tries), *_noisy(shared)]
    copied = {row for finding in found if finding.severity is not Severity.NOTE for row in finding.rows}
    return [*found, *(finding for finding in _off(claims) if not copied.issuperset(finding.rows))]


def _paired(both: pd.DataFrame, column: str) -> list[list[Pair]]:
    """Return the pairs of cells of each two GPUs; if a GPU has several per case, those closest in a column."""
    distance = abs(np.log(both.rate_high / both.rate_low)) if column == "rate" else both.batch_low != both.batch_high
    chosen = both.assign(distance=distance).sort_values("distance", kind="stable")
    chosen = chosen.drop_duplicates(["gpu_low", "gpu_high", "case"]).sort_index()
    return grouped(chosen, ["gpu_low", "gpu_high"])


def _same_gpu(first: Row, second: Row) -> bool:
    """Return whether two claims may be of the same GPU model; unknown names are compared by their model numbers."""
    if first.gpus and second.gpus:
        return bool({*first.gpus} & {*second.gpus})
    one, other = gpu_numbers(first.gpu_text), gpu_numbers(second.gpu_text)
    return not one or not other or one == other


def _expected_ratio(low: Row, high: Row) -> float:
    """Return the logarithm of the ratio expected by specification; 0, the most cautious, if one is unknown."""
    ratio = math.log(high.per_gpu / low.per_gpu) - high.surplus + low.surplus
    return 0.0 if math.isnan(ratio) else ratio


def _exact(shared: Sequence[Pair], tries: int) -> TableFinding | None:
    equal = [(low, high) for low, high in shared if low.rate == high.rate]
    chances = [
        min(1.0, max(low.rounding, high.rounding) / max(TWIN_SPREAD, abs(_expected_ratio(low, high))))
        for low, high in shared
    ]
    chance = min(1.0, chance_of_at_least(len(equal), chances) * max(1, tries))
    severity = severity_below(chance, CHANCES)
    if severity is None or len(equal) < 2:
        return None
    first, second = equal[0]
    message = (
        f"{second.gpu_text} has exactly the throughput of {first.gpu_text} in {len(equal)} of {len(shared)} cells, "
        f"e.g. {first.name} {first.number}: copied from one GPU to the other (chance of this in an honest table: "
        f"{chance:.0e})"
    )
    return TableFinding.of("copied_column", severity, itertools.chain(*equal), message)


def _exact_multiples(shared: Sequence[Pair], tries: int) -> list[TableFinding]:
    """Find a GPU whose throughput is exactly a multiple of another's, in all cells or those of a precision or network.

    Every honest ratio is exact by chance in some cells, so the probability of the number of exact cells decides.
    """
    for key in (lambda _: "", lambda pair: pair[0].precision, lambda pair: pair[0].model):
        parts = [[*part] for _, part in itertools.groupby(sorted(shared, key=key), key)]
        found = [finding for part in parts if (finding := _exact_multiple(part, tries * len(parts)))]
        if found:
            return found
    return []


def _exact_multiple(both: Sequence[Pair], tries: int) -> TableFinding | None:
    ratio = statistics.median_high(high.rate / low.rate for low, high in both)
    if ratio < 1:
        return _exact_multiple([(high, low) for low, high in both], tries)
    factors = [(round(ratio, decimals), decimals) for decimals in range(MOST_DECIMALS + 1)] + [(ratio, None)]
    trials = [
        (*_trial(both, factor, decimals, of_high=of_high), factor)
        for factor, decimals in factors
        for of_high in (True, False)
        if factor != 1
    ]
    if not trials:
        return None
    chance, hits, factor = min(trials, key=lambda trial: trial[0])
    chance = min(1.0, chance * 2 * len(factors) * tries) * _nearness(both, math.log(factor))
    severity = severity_below(chance, CHANCES)
    if severity is None or len(hits) < 2:
        return None
    low, high = hits[0]
    specified = specified_ratios(low, high)
    suggested = f"; their specifications suggest {min(specified):.2f} to {max(specified):.2f}" if specified else ""
    message = (
        f"{high.gpu_text} has exactly {factor:.3f} times the throughput of {low.gpu_text} in {len(hits)} "
        f"of {len(both)} cells, e.g. {low.name} {low.number} and {high.number}: two measurements do not"
        f"{suggested} (chance of this in an honest table: {chance:.0e})"
    )
    severity = severity if factor == round(factor, MOST_DECIMALS) else Severity.NOTE
    return TableFinding.of("exact_multiple_of_gpu_kind", severity, itertools.chain(*hits), message)


def _nearness(both: Sequence[Pair], ratio: float) -> float:
    """Return the probability that a ratio of two GPUs is as far from that of their specifications; 1: unknown.

    It assumes a normal law: the median ratio of two honest GPUs deviates by `SURPRISE` × √2.

    Args:
        both: Their cells.
        ratio: Natural logarithm of the ratio.
    """
    if not all(low.gpus and high.gpus for low, high in both):
        return 1.0
    return math.erfc(abs(ratio - statistics.median(itertools.starmap(_expected_ratio, both))) / SURPRISE / 2)


def _trial(both: Sequence[Pair], factor: float, decimals: int | None, *, of_high: bool) -> tuple[float, list[Pair]]:
    """Return the probability of as many exact multiples as there are, and these.

    Args:
        both: Cells of the slower and the faster GPU.
        factor: The factor.
        decimals: Number of decimals of the factor; None: it is the ratio of one of the pairs.
        of_high: Whether the cells of the faster GPU were computed and rounded, or those of the slower one.
    """
    digits = max(len(str(round(claim.rate / claim.last_place)).rstrip("0")) for pair in both for claim in pair)
    hits: list[Pair] = []
    chances: list[float] = []
    cases: set[tuple[str, str]] = set()
    for low, high in both:
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
    return (fits * chance_of_at_least(len(hits) - 1, chances) if hits else 1.0), hits


def _last_place(claim: Row, digits: int) -> float:
    """Return the unit of the last digit, in a table of numbers with at most N digits: 400 may be rounded to 100."""
    return float(max(claim.last_place, 10.0 ** (math.floor(math.log10(claim.rate)) + 1 - digits)))


def _noisy(shared: Sequence[Pair]) -> list[TableFinding]:
    """Find GPUs of different specification with equal throughput in every cell."""
    from scipy.special import chdtr  # type: ignore[import-untyped]

    number, known = len(shared), all(low.gpus and high.gpus for low, high in shared)
    ratios = [math.log(low.rate / high.rate) for low, high in shared]
    middle, spread = statistics.median(ratios), statistics.pstdev(ratios)
    surprise = abs(statistics.median(itertools.starmap(_expected_ratio, shared)))
    unequal = spread > NOISE or abs(middle) > NOISE / 2 + spread / math.sqrt(number)
    if number < NOISY_CELLS or unequal or (known and surprise < NOT_TWINS):
        return []
    # The spread of honest ratios follows a chi-squared law.
    uniformity = float(chdtr(number - 1, number * (spread / HONEST_SPREAD) ** 2))
    chance = (_nearness(shared, 0.0) if known else UNKNOWN_NEAR) * uniformity
    # GPU counts of one network and precision are not independent: host or input may have been the bottleneck.
    cases = {(low.model, low.precision) for low, _ in shared}
    severity = Severity.SUSPECT if chance < 1e-3 and len(cases) > 1 else Severity.NOTE
    first, second = shared[0]
    expected = f", although their specifications suggest {math.exp(surprise):.2f}" if known else ""
    message = (
        f"{second.gpu_text} and {first.gpu_text} are equally fast in all {number} cells (ratios "
        f"{math.exp(min(ratios)):.2f} to {math.exp(max(ratios)):.2f}){expected}: copied with noise? "
        f"(chance of this in an honest table: {chance:.0e})"
    )
    return [TableFinding.of("noisy_copy", severity, itertools.chain(*shared), message)]


def _off(claims: pd.DataFrame) -> list[TableFinding]:
    """Find GPUs whose column deviates by a factor from their specifications."""
    ladder = claims.groupby(["table", "kind", "strict"])
    least = claims[claims.num_gpus == ladder.num_gpus.transform("min")]  # to exclude scaling
    both = pairs(least, ["software", *CELL], ["gpus", "surplus", "surplus_ieee"])
    both = both[both.gpus_low != both.gpus_high]
    others = both.groupby("at_low").agg(
        others=("surplus_high", "median"), ieee=("surplus_ieee_high", "median"), other_gpus=("gpus_high", "nunique")
    )
    cells = least.join(others, on="at", how="inner")
    as_claimed, as_ieee = cells.surplus - cells.others, cells.surplus_ieee - cells.ieee  # fp32 may be TF32
    cells = cells.assign(off=as_claimed.where(~(as_ieee.abs() < as_claimed.abs()), as_ieee)).dropna(subset="off")
    found = []
    for (gpu, precision), column in cells.groupby(["gpu_text", "precision"], sort=False):
        middle = column.off.median()
        severity = next((severity for severity, limit in OFF.items() if abs(middle) > limit), None)
        if severity is None:
            continue
        certain = len(column) >= OFF_LEAST and abs(middle) > OFF_CHANCE * _doubt(column)
        way = "doubled, or copied from a faster GPU?" if middle > 0 else "halved, or copied from a slower GPU?"
        message = (
            f"{gpu} {precision}: {math.exp(middle):.2f} times as fast as its specification and the other GPUs of this "
            f"table suggest, in the median of {len(column)} cells: {way}"
        )
        severity = severity if certain else Severity.NOTE
        found.append(TableFinding.of("gpu_out_of_line", severity, column.claim, message))
    return found


def _doubt(column: pd.DataFrame) -> float:
    """Return the standard deviation of the median surplus of an honest GPU, for the available cells and GPUs."""
    scaled = column.num_gpus > 1
    if (scaled & ~column.switched).any():
        return math.inf  # scaling without switched NVLink differs by more than a factor of 2
    scaling = OFF_SCALED if scaled.any() else 0.0
    return math.sqrt(SURPRISE**2 * (1 + 1 / column.other_gpus.min()) + OFF_CELL**2 / len(column) + scaling**2)

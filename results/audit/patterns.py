"""Finds numbers that were computed instead of measured: exact multiples of each other.

Exact multiples also occur by chance, more often with fewer digits. So the probability of each pair is computed, and
only more hits than chance explains are reported.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from results.audit.claims import Claim, grouped
from results.audit.series import Severity, TableFinding, chance_of_at_least

CHANCES = {Severity.IMPOSSIBLE: 1e-9, Severity.SUSPECT: 1e-5, Severity.NOTE: 1e-3}
"""Probability of as many exact pairs in an honest table, below which there is a finding; a file may have 100 tables."""

EFFICIENCY_SPREAD = 0.1
"""Range of honest scaling efficiencies of one table: about 90 to 100 %."""

OCTAVES = 6.0
"""Range of ratios between networks or precisions: about six powers of two."""

ROUNDING_SLACK = 1.05
"""Margin for comparing sums of two rounding errors."""

OF_GPUS = "exact_multiple_of_gpus"

RULES = {
    OF_GPUS: attrgetter("model", "precision", "batch"),
    "exact_multiple_of_precision": attrgetter("model", "count"),
    "exact_multiple_of_network": attrgetter("precision", "count"),
}
"""Attributes shared by the claims of a pair, by rule."""


@dataclass(frozen=True)
class _Pair:
    """Two claims, whether they are exact multiples, and the probability of that."""

    low: Claim
    high: Claim
    exact: bool
    chance: float


def pattern_findings(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find exact multiples across GPU counts, precisions and networks."""
    tables = grouped(sorted(claims, key=attrgetter("count")), attrgetter("group")).values()
    found = []
    for rule in RULES:
        of_tables = [_pairs(rule, table) for table in tables]
        findings = [finding for pairs in of_tables for finding in _judged(rule, pairs)]
        if all(finding.severity is Severity.NOTE for finding in findings):
            # Small tables may be enough evidence only together.
            findings = _judged(rule, [*itertools.chain(*of_tables)]) or findings
        found += findings
    return found


def _pairs(rule: str, table: Sequence[Claim]) -> list[_Pair]:
    """Return the pairs that may be exact multiples: proportional to the GPU count, or a power of two apart."""
    found = []
    for series in grouped(table, RULES[rule]).values():
        for low, high in itertools.pairwise(series) if rule == OF_GPUS else itertools.combinations(series, 2):
            window = low.rounding + high.rounding
            if rule == OF_GPUS and low.count != high.count:
                exact, chance = _is_equal(high.per_gpu / low.per_gpu, window), 2 * window / EFFICIENCY_SPREAD
            elif rule != OF_GPUS and (low.model, low.precision) != (high.model, high.precision):
                exact = _is_octave(high.rate / low.rate, window)
                chance = (OCTAVES + 1) * 2 * window / (OCTAVES * math.log(2))
            else:
                continue
            found.append(_Pair(low, high, exact, min(1.0, chance)))
    return found


def _judged(rule: str, pairs: Sequence[_Pair]) -> list[TableFinding]:
    """Return a finding if chance cannot explain the number of exact pairs.

    Each claim counts once, because of three exact multiples the third pair follows from the other two.
    """
    hits = [*{id(pair.high): pair for pair in pairs if pair.exact}.values()]
    chance = chance_of_at_least(len(hits), [pair.chance for pair in pairs])
    severity = next((level for level, limit in CHANCES.items() if chance < limit), None)
    if not hits or severity is None:
        return []
    low, high = hits[0].low, hits[0].high
    what, why = "pairs differ by exactly a power of two", "two measurements do not"
    if rule == OF_GPUS:
        what, why = "GPU counts give exactly proportional throughput", "real scaling loses something"
    message = (
        f"{len(hits)} of {len(pairs)} {what}, e.g. {low.name} {low.number} and {high.name} {high.number}: {why} "
        f"(chance of this in an honest table: {chance:.0e})"
    )
    rows = {claim.row for pair in hits for claim in (pair.low, pair.high)}
    return [TableFinding(rule, severity, tuple(sorted(rows)), message)]


def _is_equal(ratio: float, window: float) -> bool:
    return abs(ratio - 1) <= window * ROUNDING_SLACK


def _is_octave(ratio: float, window: float) -> bool:
    """Return whether a ratio is a power of two within the relative error `window`."""
    exponent = round(math.log2(ratio))
    return abs(exponent) <= OCTAVES and _is_equal(ratio / 2.0**exponent, window)

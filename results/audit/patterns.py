"""Numbers that were not measured betray themselves: exact multiples of one another.

A doubling that is exact to the last written digit happens by chance, more often the fewer digits there are. So every
pair that could be exact is counted, with its chance, and only more hits than chance can give are reported.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from results.audit.claims import Claim
from results.audit.series import Severity, TableFinding

CHANCES = {Severity.IMPOSSIBLE: 1e-9, Severity.SUSPECT: 1e-5, Severity.NOTE: 1e-3}
"""Chance of as many exact pairs in an honest table, below which a finding is made; a file may hold 100 tables."""

EFFICIENCY_SPREAD = 0.1
"""Honest scaling efficiencies of one table spread over about this: 90 to 100 %."""

OCTAVES = 6.0
"""Ratios between networks or precisions spread over about six powers of two."""

FEW_BASES_SHARE = 0.9
"""Share of cells explained by few base numbers, above which a whole table is suspect."""

ROUNDING_SLACK = 1.05
"""Sums of two rounding errors are compared with this in hand."""


def pattern_findings(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find exact multiples across GPU counts, precisions and networks, and tables made of few numbers."""
    tables: dict[Hashable, list[Claim]] = defaultdict(list)
    for claim in claims:
        tables[claim.group].append(claim)
    found = [finding for table in tables.values() for finding in _few_bases(table)]
    for rule, pairs in RULES.items():
        of_tables = [pairs(table) for table in tables.values()]
        findings = [finding for exact in of_tables for finding in _judged(rule, exact)]
        if all(finding.severity is Severity.NOTE for finding in findings):
            # Tables of a few cells each say too little by themselves, and together may say enough.
            together = Exact(
                [hit for one in of_tables for hit in one.hits], [p for one in of_tables for p in one.chances]
            )
            findings = _judged(rule, together) or findings
        found += findings
    return found


@dataclass(frozen=True)
class Exact:
    """Pairs that are exact multiples, and the chance of each pair that could have been."""

    hits: list[tuple[Claim, Claim]]
    chances: list[float]


def _scaling_pairs(table: Sequence[Claim]) -> Exact:
    """Find N GPUs that are exactly N times as fast as one."""
    found = Exact([], [])
    for series in _series(table, lambda claim: (claim.model, claim.precision, claim.batch)):
        for low, high in itertools.combinations(sorted(series, key=lambda claim: claim.count), 2):
            if low.count == high.count:
                continue
            expected = low.rate * high.count / low.count
            window = low.rounding + high.rounding
            found.chances.append(min(1.0, 2 * window / EFFICIENCY_SPREAD))
            if abs(high.rate / expected - 1) <= window * ROUNDING_SLACK:
                found.hits.append((low, high))
    return found


def _precision_pairs(table: Sequence[Claim]) -> Exact:
    return _octave_pairs(table, lambda claim: (claim.model, claim.count))


def _network_pairs(table: Sequence[Claim]) -> Exact:
    return _octave_pairs(table, lambda claim: (claim.precision, claim.count))


def _octave_pairs(table: Sequence[Claim], key: Callable[[Claim], Hashable]) -> Exact:
    """Find throughputs that are equal or a power of two apart, where only a precision or network differs."""
    found = Exact([], [])
    for series in _series(table, key):
        for first, second in itertools.combinations(series, 2):
            if (first.model, first.precision) == (second.model, second.precision):
                continue
            window = first.rounding + second.rounding
            found.chances.append(min(1.0, (OCTAVES + 1) * 2 * window / (OCTAVES * math.log(2))))
            if _is_octave(first.rate / second.rate, window):
                found.hits.append((first, second))
    return found


RULES: dict[str, Callable[[Sequence[Claim]], Exact]] = {
    "exact_multiple_of_gpus": _scaling_pairs,
    "exact_multiple_of_precision": _precision_pairs,
    "exact_multiple_of_network": _network_pairs,
}


def _judged(rule: str, exact: Exact) -> list[TableFinding]:
    """Report hits when chance cannot explain their number."""
    chance = chance_of_at_least(len(exact.hits), exact.chances)
    severity = next((level for level, limit in CHANCES.items() if chance < limit), None)
    if not exact.hits or severity is None:
        return []
    first, second = exact.hits[0]
    rows = sorted({claim.row for pair in exact.hits for claim in pair})
    what, why = "pairs differ by exactly a power of two", "two measurements do not"
    if rule == "exact_multiple_of_gpus":
        what, why = "GPU counts give exactly proportional throughput", "real scaling loses something"
    message = (
        f"{len(exact.hits)} of {len(exact.chances)} {what}, e.g. {first.name} {first.rate:g} and {second.name} "
        f"{second.rate:g}: {why} (chance of this in an honest table: {chance:.0e})"
    )
    return [TableFinding(rule, severity, tuple(rows), message)]


def _few_bases(table: Sequence[Claim]) -> list[TableFinding]:
    """Find a table whose numbers are nearly all a power of two times one of very few."""
    cells = {claim.row: claim for claim in table}
    settings = {(claim.model, claim.precision) for claim in table}
    if len(settings) < 4 or len(table) < 12:
        return []
    groups: list[list[Claim]] = []
    for claim in table:
        for group in groups:
            if any(_is_octave(claim.rate / other.rate, claim.rounding + other.rounding) for other in group):
                group.append(claim)
                break
        else:
            groups.append([claim])
    large = [group for group in groups if len(group) >= 4]
    explained = sum(map(len, large))
    if explained < FEW_BASES_SHARE * len(table) or len(large) > len(settings) // 2:
        return []
    bases = ", ".join(f"{max(group, key=lambda claim: claim.rate).rate:g}" for group in large)
    odd = [claim for group in groups if group not in large for claim in group]
    rest = f"; {', '.join(f'{claim.name} {claim.rate:g}' for claim in odd)} stands apart" if odd else ""
    message = (
        f"{explained} of {len(table)} numbers are a power of two times one of {bases}, for {len(settings)} networks "
        f"and precisions: the table was made, not measured{rest}"
    )
    return [TableFinding("few_base_numbers", Severity.IMPOSSIBLE, tuple(sorted(cells)), message)]


def _series(table: Iterable[Claim], key: Callable[[Claim], Hashable]) -> list[list[Claim]]:
    found: dict[Hashable, list[Claim]] = defaultdict(list)
    for claim in table:
        found[key(claim)].append(claim)
    return list(found.values())


def _is_octave(ratio: float, window: float) -> bool:
    """Return whether a ratio is a power of two to within `window`, relative."""
    exponent = round(math.log2(ratio))
    return abs(exponent) <= OCTAVES and abs(ratio / 2.0**exponent - 1) <= window * ROUNDING_SLACK


def chance_of_at_least(hits: int, chances: Sequence[float]) -> float:
    """Bound the chance of so many hits in independent trials.

    Source: Chernoff bound for sums of independent Bernoulli trials, 1952.
    """
    expected = math.fsum(chances)
    if hits <= expected:
        return 1.0
    if expected == 0:
        return 0.0
    return math.exp(hits - expected + hits * math.log(expected / hits))

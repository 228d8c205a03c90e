"""Finds implausible scaling: superlinear, none, or off by a factor of 2 from one GPU count to the next."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from results.audit.claims import Claim, grouped
from results.audit.series import Severity, TableFinding, above, case_without_count, ladders
from results.compare.scaling import CEILING
from results.reference.gpus import specifications

SUSPECT_EFFICIENCY, IMPOSSIBLE_EFFICIENCY = 1.12, 1.25
"""Efficiency above 1.05 is a note; published VGG16 runs reach 1.09 per step. Above 1.25 no cache, clock or noise
explains it."""

COLUMN_EFFICIENCY = {1: 0.58, 2: 0.39}
"""Smallest plausible scaling efficiency of the median network of a table, by number of doublings of the GPUs.

Lowest published, of two cases and more: 0.627, from 4 to 8, and 0.416, from 2 to 8 GPUs (RTX 3090 without peer access).
"""

MANY_DOUBLINGS = 0.29
"""Likewise for three or more doublings. Lowest published: 0.314, from 1 to 8 of the same GPUs."""

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


SWITCHED = 300.0
"""GB/s of NVLink in both directions from which NVLink connects all GPUs of a host.

Bridges between two GPUs have 100 to 112.
"""

SWITCHED_EFFICIENCY = {1: 0.58}
"""`COLUMN_EFFICIENCY` of GPUs with switched NVLink."""

SWITCHED_MANY = 0.5
"""`MANY_DOUBLINGS` of such GPUs, for two or more doublings. Lowest published: 0.55, V100 from 1 to 8 GPUs, FP16."""


def scaling_findings(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find throughputs that contradict those of other GPU counts of the same case."""
    series = ladders(claims)
    columns = _columns(series)
    flagged = {row for finding in columns for row in finding.rows if finding.severity is not Severity.NOTE}
    single = [finding for finding in _out_of_line(series) if not flagged.issuperset(finding.rows)]
    others = [*_superlinear(claims, series), *columns, *single, *_slower(series), *_two_values(claims)]
    flagged = {row for finding in others for row in finding.rows if finding.severity is not Severity.NOTE}
    return [*others, *(finding for finding in _odd_counts(series) if not flagged.issuperset(finding.rows))]


def _superlinear(claims: Sequence[Claim], series: Sequence[Sequence[Claim]]) -> list[TableFinding]:
    """Compare each claim with the one-GPU claim of its batch; without one, with the next smaller count of its series.

    If one case of a GPU and count is impossible, notes on its other cases become suspicions, because they share the
    host of the baseline or the number of GPUs.
    """
    found, judged = [], set()
    for group in grouped(claims, lambda claim: (case_without_count(claim), claim.batch)).values():
        ones = [claim for claim in group if claim.count == 1]
        for claim in group:
            if claim.count > 1 and len(ones) == 1:
                judged.add(id(claim))
                found += _above_linear(ones[0], claim)
    for ladder in series:
        for low, high in itertools.pairwise(ladder):
            if id(high) not in judged and high.count >= 2 * low.count and _batches_fit(low, high):
                found += _above_linear(low, high)
    hosts = {claim.row: (claim.group, claim.count) for claim in claims}
    wrong = {hosts[finding.rows[0]] for finding in found if finding.severity is Severity.IMPOSSIBLE}
    return [
        replace(finding, severity=Severity.SUSPECT)
        if finding.severity is Severity.NOTE and hosts[finding.rows[0]] in wrong
        else finding
        for finding in found
    ]


def _above_linear(low: Claim, high: Claim) -> list[TableFinding]:
    efficiency, slack = high.per_gpu / low.per_gpu, 1 + low.rounding + high.rounding
    if efficiency <= CEILING * slack:
        return []
    severity = Severity.NOTE
    # If two GPUs hardly gain over one, each further doubling may exceed linear scaling by as much.
    doublings = max(1.0, math.log2(high.count / low.count)) if low.count > 1 else 1.0
    if efficiency > SUSPECT_EFFICIENCY**doublings * slack:
        severity = Severity.IMPOSSIBLE if efficiency > IMPOSSIBLE_EFFICIENCY**doublings * slack else Severity.SUSPECT
    message = (
        f"{high.name}: {high.number} is {above(efficiency, CEILING)} of {high.count / low.count:g} × {low.number} "
        f"(row {low.row}), more than {CEILING}: this number, its baseline or a number of GPUs is wrong"
    )
    return [TableFinding("superlinear_scaling", severity, (high.row,), message)]


def _batches_fit(low: Claim, high: Claim) -> bool:
    """Return whether the batch cannot explain a higher throughput."""
    return low.batch is None or high.batch is None or high.batch <= low.batch


def _columns(series: Sequence[Sequence[Claim]]) -> list[TableFinding]:
    """Check each step between GPU counts by the median of all networks and precisions with both counts."""
    steps: dict[tuple[tuple[str, ...], int, int], list[tuple[Claim, Claim]]] = defaultdict(list)
    for ladder in series:
        for low, high in itertools.pairwise(ladder):
            if high.count >= 2 * low.count:
                steps[(low.group, low.count, high.count)].append((low, high))
    found = []
    for (_, low_count, high_count), every in steps.items():
        switched = is_switched(every[0][0])
        light = [pair for pair in every if switched or not pair[0].model.startswith(HEAVY)]
        pairs = light or every
        gain = statistics.median(high.rate / low.rate for low, high in pairs)
        more = high_count / low_count
        rows = tuple(sorted({high.row for _, high in every}))
        example = f"e.g. {pairs[0][0].name} {pairs[0][0].number} and ×{high_count} {pairs[0][1].number}"
        severity = Severity.SUSPECT if len(light) > 1 else Severity.NOTE
        if gain < NO_GAIN:
            what = f"{high_count} GPUs are {gain:.2f} times as fast as {low_count}, in the median of {len(pairs)} cases"
            message = f"{what}, {example}: numbers of one GPU, not of all?"
            severity = Severity.SUSPECT if light and more > 2 else severity
            found.append(TableFinding("no_scaling", severity, rows, message))
        elif gain / more < _least_kept(round(math.log2(more)), switched):
            what = f"from {low_count} to {high_count} GPUs {gain / more:.0%} of the throughput is kept".replace(
                "%", " %"
            )
            message = f"{what}, in the median of {len(pairs)} cases, {example}: halved, or another number of GPUs?"
            found.append(TableFinding("halved_scaling", severity, rows, message))
    return found


def is_switched(claim: Claim) -> bool:
    """Return whether all GPUs that a claim may refer to have switched NVLink."""
    known = specifications()
    return bool(claim.gpus) and all(known[gpu].get("nvlink_both_directions", 0.0) >= SWITCHED for gpu in claim.gpus)


def _least_kept(doublings: int, switched: bool) -> float:
    """Return the smallest plausible scaling efficiency of a column."""
    if switched:
        return SWITCHED_EFFICIENCY.get(doublings, SWITCHED_MANY)
    return COLUMN_EFFICIENCY.get(doublings, MANY_DOUBLINGS)


def _out_of_line(series: Sequence[Sequence[Claim]]) -> list[TableFinding]:
    """Find cases that scale far worse than the others of their table with at least half as many GPUs."""
    reached: dict[tuple[str, ...], list[tuple[Claim, float]]] = defaultdict(list)
    for ladder in series:
        if ladder[0].count == 1 and ladder[0].model.startswith(LIGHT):
            reached[ladder[0].group] += [(high, high.per_gpu / ladder[0].per_gpu) for high in ladder[1:]]
    found = []
    for cells in reached.values():
        for claim, efficiency in cells:
            case = (claim.model, claim.precision)
            compared = [
                (other, value)
                for other, value in cells
                if (other.model, other.precision) != case and 2 * other.count >= claim.count
            ]
            others = [value for _, value in compared]
            needed = 1 if is_switched(claim) else FEWEST_CASES
            if len({(other.model, other.precision) for other, _ in compared}) < needed:
                continue
            if min(others) < GOOD_LEAST or statistics.median(others) < GOOD_MEDIAN:
                continue
            if efficiency < OUT_OF_LINE * min(1.0, statistics.median(others)):
                message = (
                    f"{claim.name}: {claim.number} scales to {efficiency:.2f}, the other {len(others)} cells of this "
                    f"table to {statistics.median(others):.2f}: halved, or another number of GPUs?"
                )
                found.append(TableFinding("scaling_out_of_line", Severity.SUSPECT, (claim.row,), message))
    return found


def _slower(series: Sequence[Sequence[Claim]]) -> list[TableFinding]:
    found = []
    for low, high in (pair for ladder in series for pair in itertools.pairwise(ladder)):
        if high.rate < SLOWER * low.rate:
            text = f"{high.name}: {high.number}, but {low.count} of the same GPUs reach {low.number} (row {low.row})"
            found.append(TableFinding("slower_with_more_gpus", Severity.SUSPECT, (low.row, high.row), text))
    return found


def _odd_counts(series: Sequence[Sequence[Claim]]) -> list[TableFinding]:
    """Find cases with a GPU count that is half or double that of all others.

    It is suspect if the count of the others also fits their scaling.
    """
    found = []
    for table in grouped(series, lambda ladder: ladder[0].group).values():
        cases = [{claim.count: claim for claim in ladder} for ladder in table]
        for case in cases if len(cases) > OTHER_CASES else []:
            others = [other for other in cases if other is not case]
            shared = set.intersection(*(set(other) for other in others))
            base = min(shared & case.keys(), default=0)
            for count in case.keys() - set[int]().union(*others):
                instead = next((n for n in (count // 2, count * 2) if n in shared and n not in case), 0)
                if not base or not instead:
                    continue
                usual = statistics.median(other[instead].rate / other[base].rate for other in others)
                claim = case[count]
                if abs(math.log(claim.rate / case[base].rate / usual)) < FITS:
                    text = (
                        f"{claim.name}: {claim.number} on {count} GPUs, but all {len(others)} other cases of the table "
                        f"have {instead} instead, and scale alike with that: another number of GPUs?"
                    )
                    found.append(TableFinding("odd_gpu_count", Severity.SUSPECT, (claim.row,), text))
    return found


def _two_values(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find cases of one table that have two values far apart: a number of GPUs, or a name, is wrong."""
    found = []
    same = grouped(claims, lambda claim: (case_without_count(claim), claim.batch, claim.count))
    for group in same.values():
        low, high = min(group, key=lambda claim: claim.rate), max(group, key=lambda claim: claim.rate)
        if high.rate > TWO_VALUES * low.rate:
            message = f"{high.name}: {low.number} and {high.number} in one table, for one case"
            found.append(TableFinding("two_values", Severity.SUSPECT, tuple(sorted({low.row, high.row})), message))
    return found

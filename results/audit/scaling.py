"""Finds implausible scaling: superlinear, none, or off by a factor of 2 from one GPU count to the next."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from results.audit.findings import Claim, Claims, Severity, TableFinding, above, grouped, pairs
from results.compare.comparison import CEILING

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


def scaling_findings(claims: Claims) -> Iterator[TableFinding]:
    """Find throughputs that contradict those of other GPU counts of the same case."""
    chosen = _one_per_count(claims)
    low, high = pairs(chosen, ["series"], itertools.pairwise)
    doubled = high.num_gpus >= 2 * low.num_gpus
    yield from _superlinear(claims, low[doubled], high[doubled])
    yield from _columns(low[doubled], high[doubled])
    yield from _out_of_line(chosen)
    yield from _slower(low, high)
    yield from _two_values(claims)
    yield from _odd_counts(chosen[np.isin(chosen.series, low.series)])


def _one_per_count(claims: Claims) -> Claims:
    """Return one claim for each GPU count of a series, in order: the one with the series' most common batch."""
    like_it = Counter(zip(claims.series, claims.batch, strict=True))
    shared = np.array([like_it[claim.series, claim.batch] for claim in claims])
    ordered = claims[np.lexsort((-shared, claims.num_gpus, claims.series))]
    return ordered[[group[0] for group in grouped(ordered.series, ordered.num_gpus).values()]]


def _superlinear(claims: Claims, low: Claims, high: Claims) -> Iterator[TableFinding]:
    """Compare each claim with the one-GPU claim of its batch; without one, with the next smaller count of its series.

    If one case of a GPU and count is impossible, notes on its other cases become suspicions, because they share the
    host of the baseline or the number of GPUs.
    """
    by_count = claims[np.argsort(claims.num_gpus, kind="stable")]
    compared: list[tuple[Claim, Claim]] = []
    for positions in grouped(by_count.series, by_count.batch).values():
        cells = by_count[positions]
        alone = len(cells) > 1 and cells.num_gpus[0] == 1 < cells.num_gpus[1]
        compared += [(cells[0], cell) for cell in cells[1:]] if alone else []
    known = {high.claim for _, high in compared}
    # A larger batch may explain a higher throughput.
    fit = (low.batch == 0) | (high.batch == 0) | (high.batch <= low.batch)
    compared += [pair for pair in zip(low[fit], high[fit], strict=True) if pair[1].claim not in known]
    beyond = [(severity, *pair) for pair in compared if (severity := _above_linear(*pair))]
    wrong = {(high.table, high.num_gpus) for severity, _, high in beyond if severity is Severity.IMPOSSIBLE}
    for severity, one, many in beyond:
        if severity is Severity.NOTE and (many.table, many.num_gpus) in wrong:
            severity = Severity.SUSPECT
        message = (
            f"{many.name}: {many.number} is {above(many.per_gpu / one.per_gpu, CEILING)} of "
            f"{many.num_gpus / one.num_gpus:g} × {one.number} (row {one.row}), more than {CEILING}: this number, its "
            "baseline or a number of GPUs is wrong"
        )
        yield TableFinding.of("superlinear_scaling", severity, [many], message)


def _above_linear(low: Claim, high: Claim) -> Severity | None:
    """Return how severely a claim exceeds linear scaling."""
    efficiency = high.per_gpu / low.per_gpu / (1 + low.rounding + high.rounding)
    # If two GPUs hardly gain over one, each further doubling may exceed linear scaling by as much.
    doublings = max(1.0, math.log2(high.num_gpus / low.num_gpus)) if low.num_gpus > 1 else 1.0
    if efficiency > IMPOSSIBLE_EFFICIENCY**doublings:
        return Severity.IMPOSSIBLE
    if efficiency > SUSPECT_EFFICIENCY**doublings:
        return Severity.SUSPECT
    return Severity.NOTE if efficiency > CEILING else None


def _columns(low: Claims, high: Claims) -> Iterator[TableFinding]:
    """Check each step between GPU counts by the median of all networks and precisions with both counts."""
    for (_, few, many), step in grouped(low.table, low.num_gpus, high.num_gpus).items():
        light = [pair for pair in step if low.switched[pair] or not low.model[pair].startswith(HEAVY)]
        compared = light or step
        gain, more = np.median(high.rate[compared] / low.rate[compared]), many / few
        first, last = low[compared[0]], high[compared[0]]
        example = f"in the median of {len(compared)} cases, e.g. {first.name} {first.number} and ×{many} {last.number}"
        least = SWITCHED_EFFICIENCY if first.switched else COLUMN_EFFICIENCY
        rule, certain = "halved_scaling", len(light) > 1
        if gain < NO_GAIN:
            rule, certain = "no_scaling", certain or (bool(light) and more > 2)
            what = f"{many} GPUs are {gain:.2f} times as fast as {few}, {example}: numbers of one GPU, not of all?"
        elif gain / more < least[min(3, round(math.log2(more)))]:
            kept = f"{gain / more * 100:.0f} % of the throughput is kept"
            what = f"from {few} to {many} GPUs {kept}, {example}: halved, or another number of GPUs?"
        else:
            continue
        yield TableFinding.of(rule, Severity.SUSPECT if certain else Severity.NOTE, high[step], what)


def _out_of_line(chosen: Claims) -> Iterator[TableFinding]:
    """Find cases that scale far worse than the others of their table with at least half as many GPUs."""
    ones = {claim.series: claim.per_gpu for claim in chosen if claim.num_gpus == 1}
    scaled = [claim.num_gpus > 1 and claim.series in ones and claim.model.startswith(LIGHT) for claim in chosen]
    cells = chosen[np.array(scaled, dtype=bool)]
    efficiencies = np.array([cell.per_gpu / ones[cell.series] for cell in cells])
    for cell, efficiency in zip(cells, efficiencies, strict=True):
        other = (cells.model != cell.model) | (cells.precision != cell.precision)
        other &= (cells.table == cell.table) & (2 * cells.num_gpus >= cell.num_gpus)
        kinds, others = {*zip(cells.model[other], cells.precision[other], strict=True)}, efficiencies[other]
        if len(kinds) < (1 if cell.switched else FEWEST_CASES):
            continue
        usual = np.median(others)
        good = others.min() >= GOOD_LEAST and usual >= GOOD_MEDIAN
        if good and efficiency < OUT_OF_LINE * min(1.0, usual):
            message = (
                f"{cell.name}: {cell.number} scales to {efficiency:.2f}, the other {len(others)} cells of this table "
                f"to {usual:.2f}: halved, or another number of GPUs?"
            )
            yield TableFinding.of("scaling_out_of_line", Severity.SUSPECT, [cell], message)


def _slower(low: Claims, high: Claims) -> Iterator[TableFinding]:
    slower = high.rate < SLOWER * low.rate
    for few, many in zip(low[slower], high[slower], strict=True):
        text = f"{many.name}: {many.number}, but {few.num_gpus} of the same GPUs reach {few.number} (row {few.row})"
        yield TableFinding.of("slower_with_more_gpus", Severity.SUSPECT, [few, many], text)


def _odd_counts(chosen: Claims) -> Iterator[TableFinding]:
    """Find cases with a GPU count that is half or double that of all others.

    It is suspect if the count of the others also fits their scaling.
    """
    for positions in grouped(chosen.table).values():
        table = chosen[positions]
        cases, counts = len({*table.series}), Counter(table.num_gpus)
        for claim in table if cases > OTHER_CASES else ():
            own, others = table[table.series == claim.series], table[table.series != claim.series]
            shared = [count for count, cells in Counter(others.num_gpus).items() if cells == cases - 1]
            base = min({*own.num_gpus} & {*shared}, default=0)
            instead = {claim.num_gpus // 2, claim.num_gpus * 2} & {*shared} - {*own.num_gpus}
            if counts[claim.num_gpus] > 1 or not base or not instead:
                continue
            count = min(instead)
            usual = np.median(others.rate[others.num_gpus == count] / others.rate[others.num_gpus == base])
            if abs(math.log(claim.rate / own.rate[own.num_gpus == base][0] / usual)) < FITS:
                text = (
                    f"{claim.name}: {claim.number} on {claim.num_gpus} GPUs, but all {cases - 1} other cases of the "
                    f"table have {count} instead, and scale alike with that: another number of GPUs?"
                )
                yield TableFinding.of("odd_gpu_count", Severity.SUSPECT, [claim], text)


def _two_values(claims: Claims) -> Iterator[TableFinding]:
    """Find cases of one table that have two values far apart: a number of GPUs, or a name, is wrong."""
    for positions in grouped(claims.series, claims.batch, claims.num_gpus).values():
        low, *_, high = claims[sorted([positions[0], *positions], key=lambda position: claims.rate[position])]
        if high.rate > TWO_VALUES * low.rate:
            message = f"{high.name}: {low.number} and {high.number} in one table, for one case"
            yield TableFinding.of("two_values", Severity.SUSPECT, [low, high], message)

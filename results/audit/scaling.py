"""Finds implausible scaling: superlinear, none, or off by a factor of 2 from one GPU count to the next."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter

import numpy as np

from results.audit.findings import Claim, Severity, TableFinding, above
from results.compare.comparison import CEILING
from results.table.comparable import grouped

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

Pair = tuple[Claim, Claim]


def scaling_findings(claims: Sequence[Claim]) -> Iterator[TableFinding]:
    """Find throughputs that contradict those of other GPU counts of the same case."""
    series = [*map(_one_per_count, grouped(((claim.group, claim.kind), claim) for claim in claims).values())]
    steps = [step for ladder in series for step in itertools.pairwise(ladder)]
    doubled = [(low, high) for low, high in steps if high.num_gpus >= 2 * low.num_gpus]
    yield from _superlinear(claims, doubled)
    yield from _columns(doubled)
    for ladders in grouped((ladder[0].group, ladder) for ladder in series if len(ladder) > 1).values():
        yield from _out_of_line(ladders)
        yield from _odd_counts(ladders)
    for low, high in steps:
        if high.rate < SLOWER * low.rate:
            text = f"{high.name}: {high.number}, but {low.num_gpus} of the same GPUs reach {low.number} (row {low.row})"
            yield TableFinding.of("slower_with_more_gpus", Severity.SUSPECT, [low, high], text)
    for values in grouped(((claim.group, claim.kind, claim.batch, claim.num_gpus), claim) for claim in claims).values():
        low, high = (choose(values, key=attrgetter("rate")) for choose in (min, max))
        if high.rate > TWO_VALUES * low.rate:
            text = f"{high.name}: {low.number} and {high.number} in one table, for one case"
            yield TableFinding.of("two_values", Severity.SUSPECT, [low, high], text)


def _one_per_count(series: Sequence[Claim]) -> list[Claim]:
    """Return one claim for each GPU count, in order: the one with the series' most common batch."""
    shared = Counter(claim.batch for claim in series)
    counts = grouped((claim.num_gpus, claim) for claim in sorted(series, key=attrgetter("num_gpus")))
    return [max(alike, key=lambda claim: shared[claim.batch]) for alike in counts.values()]


def _superlinear(claims: Sequence[Claim], doubled: Sequence[Pair]) -> Iterator[TableFinding]:
    """Compare each claim with the one-GPU claim of its batch; without one, with the next smaller count."""
    compared: dict[Claim, Claim] = {}
    for cells in grouped(((claim.group, claim.kind, claim.batch), claim) for claim in claims).values():
        alone = [claim for claim in cells if claim.num_gpus == 1]
        if len(alone) == 1:
            compared |= {claim: alone[0] for claim in cells if claim.num_gpus > 1}
    for low, high in doubled:  # a larger batch may explain a higher throughput
        if not low.batch or not high.batch or high.batch <= low.batch:
            compared.setdefault(high, low)
    for many, one in compared.items():
        if severity := _above_linear(one, many):
            message = (
                f"{many.name}: {many.number} is {above(many.per_gpu / one.per_gpu, CEILING)} of "
                f"{many.num_gpus / one.num_gpus:g} × {one.number} (row {one.row}), more than {CEILING}: this number, "
                "its baseline or a number of GPUs is wrong"
            )
            yield TableFinding.of("superlinear_scaling", severity, [many], message)


def _above_linear(low: Claim, high: Claim) -> Severity | None:
    """Return how severely a claim exceeds linear scaling."""
    efficiency = high.per_gpu / low.per_gpu / (1 + low.rounding + high.rounding)
    # If two GPUs hardly gain over one, each further doubling may exceed linear scaling by as much.
    doublings = max(1.0, math.log2(high.num_gpus / low.num_gpus)) if low.num_gpus > 1 else 1.0
    limits = {Severity.IMPOSSIBLE: IMPOSSIBLE_EFFICIENCY**doublings, Severity.SUSPECT: SUSPECT_EFFICIENCY**doublings}
    return next((kind for kind, most in (limits | {Severity.NOTE: CEILING}).items() if efficiency > most), None)


def _columns(doubled: Sequence[Pair]) -> Iterator[TableFinding]:
    """Check each step between GPU counts by the median of all networks and precisions with both counts."""
    steps = grouped(((low.group, low.num_gpus, high.num_gpus), (low, high)) for low, high in doubled)
    for (_, few, many), step in steps.items():
        light = [(low, high) for low, high in step if low.switched or not low.model.startswith(HEAVY)]
        compared = light or step
        gain, more = np.median([high.rate / low.rate for low, high in compared]), many / few
        low, high = compared[0]
        example = f"in the median of {len(compared)} cases, e.g. {low.name} {low.number} and ×{many} {high.number}"
        least = SWITCHED_EFFICIENCY if low.switched else COLUMN_EFFICIENCY
        rule, certain = "halved_scaling", len(light) > 1
        if gain < NO_GAIN:
            rule, certain = "no_scaling", certain or (bool(light) and more > 2)
            what = f"{many} GPUs are {gain:.2f} times as fast as {few}, {example}: numbers of one GPU, not of all?"
        elif gain / more < least[min(3, round(math.log2(more)))]:
            kept = f"{gain / more * 100:.0f} % of the throughput is kept"
            what = f"from {few} to {many} GPUs {kept}, {example}: halved, or another number of GPUs?"
        else:
            continue
        severity = Severity.SUSPECT if certain else Severity.NOTE
        yield TableFinding.of(rule, severity, (claim for _, claim in step), what)


def _out_of_line(ladders: Sequence[Sequence[Claim]]) -> Iterator[TableFinding]:
    """Find cases that scale far worse than the others of their table with at least half as many GPUs."""
    scaled = [
        (claim, claim.per_gpu / ladder[0].per_gpu)
        for ladder in ladders
        for claim in ladder[1:]
        if ladder[0].num_gpus == 1 and claim.model.startswith(LIGHT)
    ]
    for cell, efficiency in scaled:
        kind = cell.model, cell.precision
        others = [(o, e) for o, e in scaled if (o.model, o.precision) != kind and 2 * o.num_gpus >= cell.num_gpus]
        if len({(other.model, other.precision) for other, _ in others}) < (1 if cell.switched else FEWEST_CASES):
            continue
        usual, least = np.median([other for _, other in others]), min(other for _, other in others)
        if least >= GOOD_LEAST and usual >= GOOD_MEDIAN and efficiency < OUT_OF_LINE * min(1.0, usual):
            message = (
                f"{cell.name}: {cell.number} scales to {efficiency:.2f}, the other {len(others)} cells of this table "
                f"to {usual:.2f}: halved, or another number of GPUs?"
            )
            yield TableFinding.of("scaling_out_of_line", Severity.SUSPECT, [cell], message)


def _odd_counts(ladders: Sequence[Sequence[Claim]]) -> Iterator[TableFinding]:
    """Find cases with a GPU count that is half or double that of all others, if that count also fits their scaling."""
    cases = [{claim.num_gpus: claim for claim in ladder} for ladder in ladders]
    for own in cases if len(cases) > OTHER_CASES else ():
        others = [case for case in cases if case is not own]
        shared = set.intersection(*map(set, others))
        base = min(own.keys() & shared, default=0)
        for odd, claim in own.items() if base else ():
            count = min({odd // 2, odd * 2} & shared - own.keys(), default=0)
            if not count or any(odd in other for other in others):
                continue
            usual = np.median([other[count].rate / other[base].rate for other in others])
            if abs(math.log(claim.rate / own[base].rate / usual)) < FITS:
                text = (
                    f"{claim.name}: {claim.number} on {odd} GPUs, but all {len(others)} other cases of the table have "
                    f"{count} instead, and scale alike with that: another number of GPUs?"
                )
                yield TableFinding.of("odd_gpu_count", Severity.SUSPECT, [claim], text)

"""Finds implausible scaling: superlinear, none, or off by a factor of 2 from one GPU count to the next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import pandas as pd

from results.audit.findings import Pair, Row, Severity, TableFinding, above, claim_pairs, grouped, pairs
from results.compare.scaling import CEILING

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


def scaling_findings(claims: pd.DataFrame) -> list[TableFinding]:
    """Find throughputs that contradict those of other GPU counts of the same case."""
    chosen = _one_per_count(claims)
    chosen = chosen.assign(rung=chosen.groupby("series").cumcount())
    both = pairs(chosen, ["series"], ["series", "table", "model", "rung", "num_gpus", "batch", "rate"])
    steps = both[both.rung_high == both.rung_low + 1]
    columns = _columns(steps)
    single = _not_of(columns, _out_of_line(both[both.num_gpus_low == 1]))
    found = [*_superlinear(claims, steps), *columns, *single, *_slower(steps), *_two_values(claims)]
    return [*found, *_not_of(found, _odd_counts(chosen[chosen.series.isin(both.series_low)]))]


def _one_per_count(claims: pd.DataFrame) -> pd.DataFrame:
    """Return one claim for each GPU count of a series: the one with the series' most common batch."""
    usual = claims.groupby("series").batch.transform(lambda batches: statistics.mode(batches))
    chosen = claims.assign(odd=claims.batch != usual).sort_values("odd", kind="stable")
    return chosen.drop_duplicates(["series", "num_gpus"]).sort_values(["series", "num_gpus"])


def _not_of(known: Sequence[TableFinding], more: Sequence[TableFinding]) -> list[TableFinding]:
    """Return the findings with a row that no known one above a note has."""
    flagged = {row for finding in known for row in finding.rows if finding.severity is not Severity.NOTE}
    return [finding for finding in more if not flagged.issuperset(finding.rows)]


def _superlinear(claims: pd.DataFrame, steps: pd.DataFrame) -> list[TableFinding]:
    """Compare each claim with the one-GPU claim of its batch; without one, with the next smaller count of its series.

    If one case of a GPU and count is impossible, notes on its other cases become suspicions, because they share the
    host of the baseline or the number of GPUs.
    """
    ones = claims[claims.num_gpus == 1].drop_duplicates(["series", "batch"], keep=False)
    to_one = pairs(claims[claims.series.isin(ones.series)], ["series", "batch"], ["num_gpus"])
    to_one = to_one[to_one.at_low.isin(ones["at"]) & (to_one.num_gpus_high > 1)]
    # A larger batch may explain a higher throughput.
    fit = (steps.batch_low == 0) | (steps.batch_high == 0) | (steps.batch_high <= steps.batch_low)
    further = steps[fit & (steps.num_gpus_high >= 2 * steps.num_gpus_low) & ~steps.at_high.isin(to_one.at_high)]
    beyond = [
        (severity, pair) for pair in claim_pairs(pd.concat([to_one, further])) if (severity := _above_linear(*pair))
    ]
    wrong = {(high.group, high.num_gpus) for severity, (_, high) in beyond if severity is Severity.IMPOSSIBLE}
    found = []
    for severity, (low, high) in beyond:
        message = (
            f"{high.name}: {high.number} is {above(high.per_gpu / low.per_gpu, CEILING)} of "
            f"{high.num_gpus / low.num_gpus:g} × {low.number} (row {low.row}), more than {CEILING}: this number, its "
            "baseline or a number of GPUs is wrong"
        )
        if severity is Severity.NOTE and (high.group, high.num_gpus) in wrong:
            severity = Severity.SUSPECT
        found.append(TableFinding.of("superlinear_scaling", severity, [high], message))
    return found


def _above_linear(low: Row, high: Row) -> Severity | None:
    """Return how severely a claim exceeds linear scaling."""
    efficiency = high.per_gpu / low.per_gpu / (1 + low.rounding + high.rounding)
    # If two GPUs hardly gain over one, each further doubling may exceed linear scaling by as much.
    doublings = max(1.0, math.log2(high.num_gpus / low.num_gpus)) if low.num_gpus > 1 else 1.0
    if efficiency > IMPOSSIBLE_EFFICIENCY**doublings:
        return Severity.IMPOSSIBLE
    if efficiency > SUSPECT_EFFICIENCY**doublings:
        return Severity.SUSPECT
    return Severity.NOTE if efficiency > CEILING else None


def _columns(steps: pd.DataFrame) -> list[TableFinding]:
    """Check each step between GPU counts by the median of all networks and precisions with both counts."""
    doubled = steps[steps.num_gpus_high >= 2 * steps.num_gpus_low]
    tables = grouped(doubled, ["table_low", "num_gpus_low", "num_gpus_high"])
    return [finding for step in tables if (finding := _column(step))]


def _column(every: Sequence[Pair]) -> TableFinding | None:
    low, high = every[0]
    light = [pair for pair in every if low.switched or not pair[0].model.startswith(HEAVY)]
    compared = light or every
    gain, more = statistics.median(high.rate / low.rate for low, high in compared), high.num_gpus / low.num_gpus
    first, last = compared[0]
    example = (
        f"in the median of {len(compared)} cases, e.g. {first.name} {first.number} and ×{last.num_gpus} {last.number}"
    )
    severity = Severity.SUSPECT if len(light) > 1 else Severity.NOTE
    highs = [high for _, high in every]
    efficiency = SWITCHED_EFFICIENCY if low.switched else COLUMN_EFFICIENCY
    if gain < NO_GAIN:
        what = f"{high.num_gpus} GPUs are {gain:.2f} times as fast as {low.num_gpus}, {example}"
        severity = Severity.SUSPECT if light and more > 2 else severity
        return TableFinding.of("no_scaling", severity, highs, f"{what}: numbers of one GPU, not of all?")
    if gain / more < efficiency[min(3, round(math.log2(more)))]:
        kept = f"{gain / more * 100:.0f} % of the throughput is kept"
        what = f"from {low.num_gpus} to {high.num_gpus} GPUs {kept}, {example}: halved, or another number of GPUs?"
        return TableFinding.of("halved_scaling", severity, highs, what)
    return None


def _out_of_line(from_one: pd.DataFrame) -> list[TableFinding]:
    """Find cases that scale far worse than the others of their table with at least half as many GPUs."""
    found = []
    for table in grouped(from_one[from_one.model_low.str.startswith(LIGHT)], ["table_low"]):
        cells = [(high, high.per_gpu / low.per_gpu) for low, high in table]
        for claim, efficiency in cells:
            others = {
                other: value
                for other, value in cells
                if (other.model, other.precision) != (claim.model, claim.precision)
                and 2 * other.num_gpus >= claim.num_gpus
            }
            if len({(other.model, other.precision) for other in others}) < (1 if claim.switched else FEWEST_CASES):
                continue
            usual = statistics.median(others.values())
            good = min(others.values()) >= GOOD_LEAST and usual >= GOOD_MEDIAN
            if good and efficiency < OUT_OF_LINE * min(1.0, usual):
                message = (
                    f"{claim.name}: {claim.number} scales to {efficiency:.2f}, the other {len(others)} cells of this "
                    f"table to {usual:.2f}: halved, or another number of GPUs?"
                )
                found.append(TableFinding.of("scaling_out_of_line", Severity.SUSPECT, [claim], message))
    return found


def _slower(steps: pd.DataFrame) -> list[TableFinding]:
    text = "{1.name}: {1.number}, but {0.num_gpus} of the same GPUs reach {0.number} (row {0.row})"
    slower = claim_pairs(steps[steps.rate_high < SLOWER * steps.rate_low])
    return [TableFinding.of("slower_with_more_gpus", Severity.SUSPECT, pair, text.format(*pair)) for pair in slower]


def _odd_counts(chosen: pd.DataFrame) -> list[TableFinding]:
    """Find cases with a GPU count that is half or double that of all others.

    It is suspect if the count of the others also fits their scaling.
    """
    found = []
    for table in grouped(chosen, ["table"]):
        cases: dict[int, dict[int, Row]] = {}
        for claim in table:
            cases.setdefault(claim.series, {})[claim.num_gpus] = claim
        for number, case in cases.items() if len(cases) > OTHER_CASES else ():
            others = [other for key, other in cases.items() if key != number]
            shared = set.intersection(*map(set, others))
            base = min(shared & case.keys(), default=0)
            for count in case.keys() - set[int]().union(*others) if base else ():
                claim = case[count]
                instead = next((n for n in (count // 2, count * 2) if n in shared and n not in case), 0)
                usual = (
                    statistics.median(other[instead].rate / other[base].rate for other in others) if instead else 0.0
                )
                if usual and abs(math.log(claim.rate / case[base].rate / usual)) < FITS:
                    text = (
                        f"{claim.name}: {claim.number} on {count} GPUs, but all {len(others)} other cases of the table "
                        f"have {instead} instead, and scale alike with that: another number of GPUs?"
                    )
                    found.append(TableFinding.of("odd_gpu_count", Severity.SUSPECT, [claim], text))
    return found


def _two_values(claims: pd.DataFrame) -> list[TableFinding]:
    """Find cases of one table that have two values far apart: a number of GPUs, or a name, is wrong."""
    found = []
    case = ["series", "batch", "num_gpus"]
    repeated = claims[claims.duplicated(case, keep=False)].sort_values("rate", kind="stable")
    for low, *_, high in grouped(repeated, case):
        if high.rate > TWO_VALUES * low.rate:
            message = f"{high.name}: {low.number} and {high.number} in one table, for one case"
            found.append(TableFinding.of("two_values", Severity.SUSPECT, [low, high], message))
    return found

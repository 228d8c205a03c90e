"""Compares throughputs with trusted measurements of the same GPU."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from results.audit.claims import Claim, grouped, read_claims
from results.audit.series import Severity, TableFinding, specified_ratios
from results.reference import FOLDER, published
from results.reference.gpus import loosest_figures
from results.text import counted

FACTOR = 3.0
"""Largest plausible ratio to the fastest measurement of one GPU, network, precision and GPU count.

Published figures differ by a factor of 1.4 between frameworks (ResNet50, one A100) and of 2.6 with and without padding
(BERT-Large).
"""

SLOW_FACTOR = 4.0
"""Likewise to the slowest one: builds older than the GPU were up to 2.6 times slower (RTX 3090, 2020)."""

OFF_COLUMN = 0.5
"""Largest plausible deviation of a column from published measurements relative to the other columns, in natural
logarithms.

Software affects a whole table: builds without XLA reach 0.6 of published figures. A halved column deviates by 0.69.
"""

ENOUGH_OF_GPU = 4
"""Minimum number of networks in such a column: an early build (RTX 3090, TF 2.4.1) ran three of six at half speed."""


RATIO_NOTED = 0.2
"""Deviation of the ratio of two GPUs from published ones, in natural logarithms, for a note; a suspicion: `OFF_COLUMN`.

Published ratios differ by up to 0.36 between frameworks (RTX A6000 to RTX 3090, ResNet50 FP16: 1.01 and 1.45).
"""


def source_findings(claims: Sequence[Claim], reference: Sequence[Claim] | None = None) -> list[TableFinding]:
    """Find cells, columns and ratios of GPUs that are far from all trusted measurements.

    Args:
        claims: The claims to check.
        reference: Trusted claims; None: the published ones shipped with tfbench.
    """
    trusted = trusted_claims() if reference is None else reference
    training = [claim for claim in claims if claim.gpu and claim.mode == "train" and claim.image_size is None]
    measured = {case: [other.rate for other in others] for case, others in grouped(trusted, _case).items()}
    known = [claim for claim in training if _case(claim) in measured]
    far = [claim for claim in known if abs(_beyond(claim.rate, measured[_case(claim)], FACTOR, SLOW_FACTOR)) > 0]
    cells = [_far_cell(claim, measured[_case(claim)]) for claim in far]
    near = [(claim, _beyond(claim.rate, measured[_case(claim)])) for claim in known if claim not in far]
    return [*cells, *_off_columns([cell for cell in near if cell[0].count == 1]), *_off_ratios(training, trusted)]


def _beyond(value: float, measured: Sequence[float], above: float = 1.0, below: float = 1.0) -> float:
    """Return by how much a value is outside the range of measured ones, in natural logarithms; 0: it is inside.

    Args:
        value: A throughput or ratio.
        measured: Trusted ones.
        above: Factor that a value may exceed the largest by.
        below: Factor that the smallest may exceed a value by.
    """
    low, high = min(measured) / below, max(measured) * above
    return min(0.0, math.log(value / low)) + max(0.0, math.log(value / high))


def _far_cell(claim: Claim, measured: Sequence[float]) -> TableFinding:
    text = f"{claim.name} on {claim.gpu}: {claim.number}, published measurements are {_range(measured)}: too far apart"
    return TableFinding("sources_contradict", Severity.SUSPECT, (claim.row,), text)


def _range(values: Sequence[float], decimals: int = 10) -> str:
    return " to ".join(dict.fromkeys(f"{round(value, decimals):.10g}" for value in (min(values), max(values))))


def _off_columns(cells: Sequence[tuple[Claim, float]]) -> list[TableFinding]:
    """Find columns that deviate from all measurements, unlike the others of the table."""
    columns = grouped(cells, lambda cell: (cell[0].gpu or "", cell[0].precision))
    medians = {key: statistics.median(off for _, off in column) for key, column in columns.items()}
    found = []
    for key, column in columns.items():
        others = [median for other, median in medians.items() if other != key]
        apart = medians[key] - statistics.median(others) if others else 0.0
        networks = {claim.model for claim, _ in column}
        if len(networks) < ENOUGH_OF_GPU or min(abs(apart), abs(medians[key])) <= OFF_COLUMN:
            continue
        text = (
            f"{' '.join(key)}: {math.exp(medians[key]):.2f} times every published measurement of it in the median of "
            f"{len(column)} cells, unlike the other columns: {'halved?' if apart < 0 else 'doubled?'}"
        )
        rows = tuple(sorted({claim.row for claim, _ in column}))
        found.append(TableFinding("sources_contradict", Severity.SUSPECT, rows, text))
    return found


def _off_ratios(claims: Sequence[Claim], trusted: Sequence[Claim]) -> list[TableFinding]:
    """Find GPUs whose ratio no source has measured; of one GPU each, as scaling depends on the host."""
    published = _ratios(trusted)
    found = []
    for gpus, cases in _ratios(claims).items():
        known = {case: [ratio for _, ratio in of] for case, of in published.get(gpus, {}).items() if case in cases}
        cells = [(pair, ratio, _beyond(ratio, known[case])) for case in known for pair, ratio in cases[case]]
        if not cells:
            continue
        ratio, off = statistics.median(cell[1] for cell in cells), statistics.median(cell[2] for cell in cells)
        specified = specified_ratios(*cells[0][0])
        if abs(off) <= RATIO_NOTED or not specified or not _beyond(ratio, specified):
            continue
        text = (
            f"{gpus[1]} is {ratio:.2f} times as fast as {gpus[0]}, in the median of {counted(len(cells), 'cell')}; "
            f"published: {_range([*itertools.chain(*known.values())], 2)}, by specification {_range(specified, 2)}"
        )
        severity = Severity.SUSPECT if abs(off) > OFF_COLUMN and len(cells) > 1 else Severity.NOTE
        rows = tuple(sorted({claim.row for pair, _, _ in cells for claim in pair}))
        found.append(TableFinding("ratio_of_gpus", severity, rows, text))
    return found


Ratios = dict[tuple[str, str], dict[tuple[object, ...], list[tuple[tuple[Claim, Claim], float]]]]
"""Pairs of claims and their ratio, by two GPUs and case."""


def _ratios(claims: Sequence[Claim]) -> Ratios:
    """Return the ratios of GPUs in training on one GPU with the same software."""
    found: Ratios = defaultdict(lambda: defaultdict(list))
    ones = [claim for claim in claims if claim.gpu and claim.count == 1 and not _may_be_tf32(claim)]
    for group in grouped(ones, lambda claim: (claim.software, _case(claim)[1:])).values():
        best = {claim.gpu or "": claim for claim in sorted(group, key=lambda claim: claim.rate)}
        for low, high in itertools.combinations(sorted(best), 2):
            pair = best[low], best[high]
            found[low, high][_case(pair[0])[1:]].append((pair, pair[1].rate / pair[0].rate))
    return found


def _may_be_tf32(claim: Claim) -> bool:
    return claim.precision == "fp32" and not claim.strict and "tf32_tensor" in loosest_figures(claim.gpus)


@functools.cache
def trusted_claims() -> tuple[Claim, ...]:
    """Return the published measurements shipped with tfbench, without suspect ones."""
    suspect = {number for number, row in enumerate(published()) if row["suspect"]}
    return tuple(claim for claim in read_claims(FOLDER / "published.csv") if claim.row not in suspect)


def _case(claim: Claim) -> tuple[object, ...]:
    """Return what two sources must share; ResNet50 v1 and v1.5 differ in work by only 6 %."""
    return claim.gpu, claim.model.removesuffix("_v1.5"), claim.precision, claim.count, claim.mode

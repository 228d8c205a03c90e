"""Compares throughputs with trusted measurements of the same GPU."""

from __future__ import annotations

import functools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from results.audit.claims import Claim, grouped, read_claims
from results.audit.series import Severity, TableFinding
from results.reference import FOLDER, published

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


def source_findings(claims: Sequence[Claim], reference: Sequence[Claim] | None = None) -> list[TableFinding]:
    """Find cells and columns that are far from all trusted measurements of their GPU and case.

    Args:
        claims: The claims to check.
        reference: Trusted claims; None: the published ones shipped with tfbench.
    """
    trusted = trusted_claims() if reference is None else reference
    training = [claim for claim in claims if claim.mode == "train" and claim.image_size is None]
    measured = grouped(trusted, _case)
    found = []
    columns: dict[tuple[str, str], list[tuple[Claim, float]]] = defaultdict(list)
    for claim in training:
        known = [other.rate for other in measured.get(_case(claim), [])]
        if not claim.gpu or not known:
            continue
        low, high = min(known), max(known)
        if not low / SLOW_FACTOR <= claim.rate <= high * FACTOR:
            text = f"{claim.name} on {claim.gpu}: {claim.number}, published measurements are {low:.10g} to {high:.10g}"
            found.append(TableFinding("sources_contradict", Severity.SUSPECT, (claim.row,), f"{text}: too far apart"))
        elif claim.count == 1:
            beyond = min(0.0, math.log(claim.rate / low)) + max(0.0, math.log(claim.rate / high))
            columns[claim.gpu, claim.precision].append((claim, beyond))
    offs = {key: statistics.median(value for _, value in cells) for key, cells in columns.items()}
    for key, cells in columns.items():
        others = [off for other, off in offs.items() if other != key]
        apart = offs[key] - statistics.median(others) if others else 0.0
        if len({claim.model for claim, _ in cells}) >= ENOUGH_OF_GPU and min(abs(apart), abs(offs[key])) > OFF_COLUMN:
            text = (
                f"{' '.join(key)}: {math.exp(offs[key]):.2f} times every published measurement of it in the median of"
            )
            rows = tuple(sorted({claim.row for claim, _ in cells}))
            text = f"{text} {len(cells)} cells, unlike the other columns: {'halved?' if apart < 0 else 'doubled?'}"
            found.append(TableFinding("sources_contradict", Severity.SUSPECT, rows, text))
    return found


@functools.cache
def trusted_claims() -> tuple[Claim, ...]:
    """Return the published measurements shipped with tfbench, without suspect ones."""
    suspect = {number for number, row in enumerate(published()) if row["suspect"]}
    return tuple(claim for claim in read_claims(FOLDER / "published.csv") if claim.row not in suspect)


def _case(claim: Claim) -> tuple[object, ...]:
    """Return what two sources must share; ResNet50 v1 and v1.5 differ in work by only 6 %."""
    return claim.gpu, claim.model.removesuffix("_v1.5"), claim.precision, claim.count, claim.mode

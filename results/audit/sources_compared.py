"""Throughputs against trusted measurements: of the same GPU, and the ratios that the networks' work lets expect."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from results.audit.claims import Claim, read_claims
from results.audit.limits import EVEN, EVEN_KINDS, flop_ratio
from results.audit.series import Severity, TableFinding, grouped
from results.reference import FOLDER, published
from results.reference.networks import networks

FACTOR = 3.0
"""Claims above every measurement of one GPU, network, precision and GPU count by more contradict them.

Published figures differ by 1.4 between frameworks (ResNet50, one A100) and by 2.6 between one that skips padding and
one that does not (BERT-Large).
"""

SLOW_FACTOR = 4.0
"""Likewise below all of them: builds that do not know a new GPU yet were up to 2.6 times slower (RTX 3090, 2020)."""

OFF_COLUMN = 0.5
"""Natural logarithm by which a column may be off the published measurements of its GPU more than the other columns are.

Software moves a whole table: builds without XLA honestly have 0.6 of published figures. A halved column is off by 0.69.
"""

ENOUGH_OF_GPU = 4
"""Networks that such a column needs: an early build (RTX 3090, TF 2.4.1) ran three of six at half speed."""

SAME_WORK = 1.4
"""Networks whose FLOPs differ by less stand in either order in honest tables: Inception v4 and ResNet152."""

ENOUGH_NETWORKS = 5
"""Networks that a column needs before its ratios can show which two were exchanged."""

MARGIN_OF_FAMILY = 0.3
"""Natural logarithm by which the ratio of two networks of a family may be beyond those of their FLOPs and traffic.

No fit: e to this power is 1.35. ResNet152 needs 2.94 times the FLOPs and 2.14 times the traffic of ResNet50, so that
ratios of 1.6 to 4.0 are taken for honest. Between families the margin is that of `EVEN`.
"""

Column = dict[str, Claim]
"""The networks of one GPU, precision and number of GPUs."""

RatioRanges = Mapping[tuple[str, str], tuple[float, float]]
"""By two networks: the logarithms between which the ratio of their throughputs is expected."""


def source_findings(claims: Sequence[Claim], reference: Sequence[Claim] | None = None) -> list[TableFinding]:
    """Find claims that are far from every trusted measurement of their GPU, and networks that look exchanged.

    Args:
        claims: Those to judge.
        reference: Those to believe; None for the published ones that come with tfbench.
    """
    trusted = trusted_claims() if reference is None else reference
    training = [claim for claim in claims if claim.mode == "train" and claim.image_size is None]
    return [*_same_gpu(training, trusted), *_exchanged_networks(training)]


@functools.cache
def trusted_claims() -> tuple[Claim, ...]:
    """Return the published measurements that come with tfbench, without those that are marked suspect."""
    suspect = {number for number, row in enumerate(published()) if row["suspect"]}
    return tuple(claim for claim in read_claims(FOLDER / "published.csv") if claim.row not in suspect)


def _same_gpu(claims: Sequence[Claim], trusted: Sequence[Claim]) -> list[TableFinding]:
    """Find cells, and whole columns, that are beyond all measurements of their own GPU and case."""
    measured = grouped(trusted, _case)
    found = []
    columns: dict[tuple[str, str], list[tuple[Claim, float]]] = defaultdict(list)
    for claim in claims:
        known = [other.rate for other in measured.get(_case(claim), [])]
        if not claim.gpu or not known:
            continue
        low, high = min(known), max(known)
        if not low / SLOW_FACTOR <= claim.rate <= high * FACTOR:
            text = f"{claim.name} on {claim.gpu}: {claim.rate:g}, published measurements are {low:g} to {high:g}"
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


def _case(claim: Claim) -> tuple[object, ...]:
    """Return what two sources must share; ResNet50 v1 and v1.5 differ by 6 % in work, far less than the factor."""
    return claim.gpu, claim.model.removesuffix("_v1.5"), claim.precision, claim.count, claim.mode


def _exchanged_networks(claims: Sequence[Claim]) -> list[TableFinding]:
    """Find columns whose ratios of networks are what their work lets expect only when two networks are exchanged."""
    votes: dict[tuple[str, str], list[Column]] = defaultdict(list)
    for column in _columns(claims):
        ranges = _ranges_by_work(column)
        pairs = [
            (one, other)
            for one, other in ranges
            if not 1 / SAME_WORK < flop_ratio(one, other) < SAME_WORK
            and not _beyond(_exchanged(column, one, other), ranges)
        ]
        if len(column) >= ENOUGH_NETWORKS and pairs and _beyond(column, ranges):
            votes[max(pairs, key=lambda pair: abs(_log_ratio(column, pair)))].append(column)
    found = []
    for (one, other), columns in votes.items():
        example = f"e.g. {columns[0][one].rate:g} and {columns[0][other].rate:g}"
        where = f"{len(columns)} columns" if len(columns) > 1 else "one column"
        message = (
            f"{one} and {other} look swapped in {where}, {example}: all networks of the column agree with their FLOPs "
            "and memory traffic only if these two are swapped"
        )
        rows = tuple(sorted({column[model].row for column in columns for model in (one, other)}))
        found.append(TableFinding("networks_exchanged", Severity.SUSPECT, rows, message))
    return found


def _columns(claims: Sequence[Claim]) -> list[Column]:
    """Return the networks of each GPU, setting and precision on one GPU: scaling is another matter."""
    found = []
    single = [claim for claim in claims if claim.count == 1]
    for group in grouped(single, lambda claim: (claim.group, claim.precision, claim.strict)).values():
        column: Column = {}
        for claim in group:
            column.setdefault(claim.model, claim)
        found.append(column)
    return found


def _ranges_by_work(column: Column) -> RatioRanges:
    """Return the ranges of ratios of batch-normalised networks between what their FLOPs and their traffic let expect.

    A network runs into one bound or the other, or into both in turn, so that its time lies between the two. Where the
    traffic is not known, only networks of one family are compared, by FLOPs: they are built from the same layers.
    """
    known, found = networks(), {}
    kinds = {model: kind for model in column for kind in EVEN_KINDS if model.startswith(kind)}
    for one, other in itertools.combinations(sorted(kinds), 2):
        expected = [math.log(flop_ratio(one, other))]
        if all(model in known and known[model].elements_fused for model in (one, other)):
            expected.append(math.log(known[other].elements_unfused / known[one].elements_unfused))
        elif kinds[one] != kinds[other]:
            continue
        margin = MARGIN_OF_FAMILY if kinds[one] == kinds[other] else math.log(EVEN["fp32"])
        found[one, other] = min(expected) - margin, max(expected) + margin
    return found


def _log_ratio(column: Column, pair: tuple[str, str]) -> float:
    return math.log(column[pair[0]].rate / column[pair[1]].rate)


def _beyond(column: Column, ranges: RatioRanges) -> bool:
    """Return whether a ratio of two networks of a column is beyond its range."""
    return any(not low <= _log_ratio(column, pair) <= high for pair, (low, high) in ranges.items())


def _exchanged(column: Column, one: str, other: str) -> Column:
    """Return a column with the rates of two networks exchanged."""
    first, second = column[one], column[other]
    swapped = {one: dataclasses.replace(first, rate=second.rate), other: dataclasses.replace(second, rate=first.rate)}
    return {**column, **swapped}

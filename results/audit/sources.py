"""Compares throughputs with trusted measurements of the same GPU."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

from results.audit.claims import read_throughputs
from results.audit.findings import Claim, Severity, TableFinding, grouped, pairs, specified_ratios
from results.reference import FOLDER, published
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

Ranges = Mapping[Any, tuple[float, float]]
"""Least and greatest measured value, by what was measured."""


class Reference:
    """What trusted measurements say.

    Attributes:
        rates: Throughputs by GPU and `Claim.case`.
        ratios: Ratios of two GPUs by both and `Claim.case`; of one GPU each, as scaling depends on the host.
    """

    def __init__(self, trusted: Iterable[Claim]) -> None:
        known = [claim for claim in trusted if claim.gpu]
        self.rates = _ranges((_key(claim), claim.rate) for claim in known)
        self.ratios = _ranges((_key(*pair), _ratio(*pair)) for pair in _rivals(known))


def _ranges(values: Iterable[tuple[object, float]]) -> Ranges:
    of_each = grouped(values, itemgetter(0))
    return {key: (min(values)[1], max(values)[1]) for key, values in of_each.items()}


def _key(*claims: Claim) -> tuple[object, ...]:
    """Return what is compared with measurements of the same: GPUs and case."""
    return *(claim.gpu for claim in claims), claims[0].case


def _ratio(low: Claim, high: Claim) -> float:
    return high.rate / low.rate


def trusted_claims() -> list[Claim]:
    """Return the measurements shipped with tfbench: published ones, without suspect ones, and own ones."""
    claims, own = (read_throughputs(FOLDER / name).claims for name in ("published.csv", "measured.csv"))
    suspect = {number for number, row in enumerate(published()) if row["suspect"]}
    return [claim for claim in claims if claim.row not in suspect] + own


@functools.cache
def trusted_reference() -> Reference:
    """Return what `trusted_claims` say, computed once for all audits."""
    return Reference(trusted_claims())


def source_findings(claims: Sequence[Claim], reference: Reference) -> Iterator[TableFinding]:
    """Find cells, columns and ratios of GPUs that are far from all trusted measurements."""
    training = [claim for claim in claims if claim.gpu and claim.mode == "train" and not claim.image_size]
    single = []
    for claim in training:
        least, most = reference.rates.get(_key(claim), (0.0, math.inf))
        if not least / SLOW_FACTOR <= claim.rate <= most * FACTOR:
            measured = _text(least, most, decimals=10)
            text = f"{claim.name} on {claim.gpu}: {claim.number}, measured elsewhere: {measured}: too far apart"
            yield TableFinding.of("sources_contradict", Severity.SUSPECT, [claim], text)
        elif least and claim.num_gpus == 1:
            single.append((claim, _outside(claim.rate, least, most)))
    yield from _off_columns(single)
    yield from _off_ratios(training, reference.ratios)


def _text(least: float, most: float, decimals: int = 2) -> str:
    return " to ".join(dict.fromkeys(f"{round(value, decimals):.10g}" for value in (least, most)))


def _outside(value: float, least: float, most: float) -> float:
    """Return by how much a value is outside the range of measured ones, in natural logarithms; 0: it is inside."""
    return math.log(value / min(max(value, least), most))


def _off_columns(single: Sequence[tuple[Claim, float]]) -> Iterator[TableFinding]:
    """Find columns of a GPU and precision that deviate from all measurements, unlike the others of the table."""
    columns = grouped(single, lambda cell: (cell[0].gpu, cell[0].precision))
    medians = {name: statistics.median(off for _, off in column) for name, column in columns.items()}
    for name, column in columns.items():
        middle, others = medians[name], [median for other, median in medians.items() if other != name]
        apart = middle - statistics.median(others) if others else 0.0
        if len({claim.model for claim, _ in column}) >= ENOUGH_OF_GPU and min(abs(apart), abs(middle)) > OFF_COLUMN:
            text = (
                f"{' '.join(name)}: {math.exp(middle):.2f} times every published measurement of it in the median of "
                f"{len(column)} cells, unlike the other columns: {'halved?' if apart < 0 else 'doubled?'}"
            )
            yield TableFinding.of("sources_contradict", Severity.SUSPECT, [claim for claim, _ in column], text)


def _off_ratios(claims: Sequence[Claim], measured: Ranges) -> Iterator[TableFinding]:
    """Find GPUs whose ratio no source has measured."""
    known = [pair for pair in _rivals(claims) if _key(*pair) in measured]
    for (one, other), cells in grouped(known, lambda pair: (pair[0].gpu, pair[1].gpu)).items():
        ratio = statistics.median(_ratio(*pair) for pair in cells)
        off = abs(statistics.median(_outside(_ratio(*pair), *measured[_key(*pair)]) for pair in cells))
        specified = specified_ratios(*cells[0])
        if off > RATIO_NOTED and specified and not min(specified) <= ratio <= max(specified):
            least, most = zip(*(measured[_key(*pair)] for pair in cells), strict=True)
            text = (
                f"{other} is {ratio:.2f} times as fast as {one}, in the median of {counted(len(cells), 'cell')}; "
                f"published: {_text(min(least), max(most))}, by specification "
                f"{_text(min(specified), max(specified))}"
            )
            severity = Severity.SUSPECT if off > OFF_COLUMN and len(cells) > 1 else Severity.NOTE
            yield TableFinding.of("ratio_of_gpus", severity, itertools.chain(*cells), text)


def _rivals(claims: Iterable[Claim]) -> list[tuple[Claim, Claim]]:
    """Return the pairs of two GPUs' fastest claims of one case of one GPU with the same software, in order of names."""
    # fp32 that may be TF32 is left out
    ones = [claim for claim in claims if claim.num_gpus == 1 and not claim.expected(ieee=True) < claim.expected()]
    best = grouped(ones, attrgetter("gpu", "software", "case")).values()
    fastest = [max(of, key=attrgetter("rate")) for of in best]
    return pairs(sorted(fastest, key=attrgetter("gpu")), "software", "case")

"""Compares throughputs with trusted measurements of the same GPU."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from results.audit.claims import read_claims
from results.audit.findings import (
    CASE,
    Claim,
    Claims,
    Severity,
    TableFinding,
    grouped,
    pairs,
    specified_ratios,
    with_facts,
)
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


Ranges = Mapping[tuple[Any, ...], tuple[float, float]]
"""Least and greatest measured value, by what was measured."""


@dataclass(frozen=True)
class Reference:
    """What trusted measurements say, computed once for all audits.

    Attributes:
        rates: Throughputs by GPU and `CASE`.
        ratios: Ratios of two GPUs by both and `CASE`; of one GPU each, as scaling depends on the host.
    """

    rates: Ranges
    ratios: Ranges

    @classmethod
    def of(cls, trusted: pd.DataFrame) -> Reference:
        """Return the reference of trusted claims."""
        claims = with_facts(trusted)
        claims = claims[claims.gpu != ""]
        low, high = _rivals(claims)
        ratios, gpus_and_cases = high.rate / low.rate, grouped(low.gpu, *(high[name] for name in ("gpu", *CASE)))
        return cls(
            {key: _range(claims.rate[of]) for key, of in grouped(*(claims[name] for name in ("gpu", *CASE))).items()},
            {key: _range(ratios[of]) for key, of in gpus_and_cases.items()},
        )


def trusted_claims() -> pd.DataFrame:
    """Return the measurements shipped with tfbench: published ones, without suspect ones, and own ones."""
    claims, own = (read_claims(FOLDER / name) for name in ("published.csv", "measured.csv"))
    suspect = [number for number, row in enumerate(published()) if row["suspect"]]
    return pd.concat([claims[~claims.row.isin(suspect)], own], ignore_index=True)


@functools.cache
def trusted_reference() -> Reference:
    """Return what `trusted_claims` say."""
    return Reference.of(trusted_claims())


def source_findings(claims: Claims, reference: Reference) -> Iterator[TableFinding]:
    """Find cells, columns and ratios of GPUs that are far from all trusted measurements."""
    training = claims[(claims.gpu != "") & (claims.mode == "train") & (claims.image_size == 0)]
    columns: dict[tuple[str, str], list[tuple[Claim, float]]] = {}
    for claim in training:
        measured = reference.rates.get((claim.gpu, *(claim[name] for name in CASE)))
        if measured and not measured[0] / SLOW_FACTOR <= claim.rate <= measured[1] * FACTOR:
            text = f"{claim.name} on {claim.gpu}: {claim.number}, measured elsewhere: {_text(measured)}: too far apart"
            yield TableFinding.of("sources_contradict", Severity.SUSPECT, [claim], text)
        elif measured and claim.num_gpus == 1:
            column = columns.setdefault((claim.gpu, claim.precision), [])
            column.append((claim, _outside(claim.rate, measured)))
    yield from _off_columns(columns)
    yield from _off_ratios(training, reference.ratios)


def _range(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)


def _text(measured: tuple[float, float], decimals: int = 10) -> str:
    return " to ".join(dict.fromkeys(f"{round(value, decimals):.10g}" for value in measured))


def _outside(value: float, measured: tuple[float, float]) -> float:
    """Return by how much a value is outside the range of measured ones, in natural logarithms; 0: it is inside."""
    least, most = measured
    return math.log(value / min(max(value, least), most))


def _off_columns(columns: Mapping[tuple[str, str], Sequence[tuple[Claim, float]]]) -> Iterator[TableFinding]:
    """Find columns of a GPU and precision that deviate from all measurements, unlike the others of the table."""
    medians = {name: statistics.median(off for _, off in column) for name, column in columns.items()}
    for name, column in columns.items():
        middle, others = medians[name], [median for other, median in medians.items() if other != name]
        apart = middle - statistics.median(others) if others else 0.0
        networks = {claim.model for claim, _ in column}
        if len(networks) >= ENOUGH_OF_GPU and min(abs(apart), abs(middle)) > OFF_COLUMN:
            text = (
                f"{' '.join(name)}: {math.exp(middle):.2f} times every published measurement of it in the median of "
                f"{len(column)} cells, unlike the other columns: {'halved?' if apart < 0 else 'doubled?'}"
            )
            yield TableFinding.of("sources_contradict", Severity.SUSPECT, [claim for claim, _ in column], text)


def _off_ratios(claims: Claims, measured: Ranges) -> Iterator[TableFinding]:
    """Find GPUs whose ratio no source has measured."""
    low, high = _rivals(claims)
    ratios, keys = high.rate / low.rate, [*zip(low.gpu, *(high[name] for name in ("gpu", *CASE)), strict=True)]
    known = [pair for pair, key in enumerate(keys) if key in measured]
    for gpus, of in grouped(low.gpu[known], high.gpu[known]).items():
        cells = [known[position] for position in of]
        ratio = float(np.median(ratios[cells]))
        off = statistics.median(_outside(ratios[cell], measured[keys[cell]]) for cell in cells)
        specified = specified_ratios(low[cells[0]], high[cells[0]])
        if abs(off) <= RATIO_NOTED or not specified or min(specified) <= ratio <= max(specified):
            continue
        published = _range([*itertools.chain(*(measured[keys[cell]] for cell in cells))])
        text = (
            f"{gpus[1]} is {ratio:.2f} times as fast as {gpus[0]}, in the median of {counted(len(cells), 'cell')}; "
            f"published: {_text(published, 2)}, by specification {_text(_range(specified), 2)}"
        )
        severity = Severity.SUSPECT if abs(off) > OFF_COLUMN and len(cells) > 1 else Severity.NOTE
        yield TableFinding.of("ratio_of_gpus", severity, [*low[cells], *high[cells]], text)


def _rivals(claims: Claims) -> tuple[Claims, Claims]:
    """Return the pairs of two GPUs' fastest claims of one case of one GPU with the same software, in order of names."""
    may_be_tf32 = np.abs(claims.expected - claims.expected_ieee) > 0
    ones = claims[(claims.num_gpus == 1) & ~may_be_tf32]
    ones = ones[np.lexsort((ones.rate, ones.gpu.astype(str)))]
    same = ["software", *CASE]
    best = [of[-1] for of in grouped(ones.gpu, *(ones[name] for name in same)).values()]
    return pairs(ones[best], same)

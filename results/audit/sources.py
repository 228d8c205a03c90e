"""Compares throughputs with trusted measurements of the same GPU."""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pandas as pd

from results.audit.claims import read_claims
from results.audit.findings import Pair, Row, Severity, TableFinding, grouped, specified_ratios, with_facts
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


@functools.cache
def trusted_claims() -> pd.DataFrame:
    """Return the measurements shipped with tfbench, published (without suspect ones) and own, with facts."""
    claims, own = (read_claims(FOLDER / name) for name in ("published.csv", "measured.csv"))
    suspect = [number for number, row in enumerate(published()) if row["suspect"]]
    return with_facts(pd.concat([claims[~claims.row.isin(suspect)], own], ignore_index=True))


def source_findings(claims: pd.DataFrame, reference: pd.DataFrame) -> list[TableFinding]:
    """Find cells, columns and ratios of GPUs that are far from all trusted measurements.

    Args:
        claims: The claims to check, with facts.
        reference: Trusted claims, with facts.
    """
    trusted = reference[reference.gpu != ""]
    training = claims[(claims.gpu != "") & (claims["mode"] == "train") & (claims.image_size == 0)]
    if trusted.empty:
        return []
    ranges = trusted.groupby(["gpu", "case"]).rate.agg(["min", "max"]).reset_index()
    known = training.merge(ranges, on=["gpu", "case"])
    far = (known.rate > known["max"] * FACTOR) | (known.rate < known["min"] / SLOW_FACTOR)
    cells = [_far_cell(*cell) for cell in zip(*(known[far][name] for name in ("claim", "min", "max")), strict=True)]
    near = known[~far & (known.num_gpus == 1)]
    off = np.log(near.rate / near.rate.clip(near["min"], near["max"]))
    return [*cells, *_off_columns(near.assign(off=off)), *_off_ratios(training, trusted)]


def _far_cell(claim: Row, least: float, most: float) -> TableFinding:
    measured = f"measured elsewhere: {_range([least, most])}"
    text = f"{claim.name} on {claim.gpu}: {claim.number}, {measured}: too far apart"
    return TableFinding.of("sources_contradict", Severity.SUSPECT, [claim], text)


def _range(values: Sequence[float], decimals: int = 10) -> str:
    return " to ".join(dict.fromkeys(f"{round(value, decimals):.10g}" for value in (min(values), max(values))))


def _outside(value: float, measured: Sequence[float]) -> float:
    """Return by how much a value is outside the range of measured ones, in natural logarithms; 0: it is inside."""
    return math.log(value / min(max(value, min(measured)), max(measured)))


def _off_columns(cells: pd.DataFrame) -> list[TableFinding]:
    """Find columns that deviate from all measurements, unlike the others of the table."""
    columns = {(column[0].gpu, column[0].precision): column for column in grouped(cells, ["gpu", "precision"])}
    medians = cells.groupby(["gpu", "precision"], sort=False).off.median()
    found = []
    for name, own in columns.items():
        middle, others = medians[name], medians.drop([name])
        apart = middle - others.median() if len(others) else 0.0
        if len({claim.model for claim in own}) >= ENOUGH_OF_GPU and min(abs(apart), abs(middle)) > OFF_COLUMN:
            text = (
                f"{' '.join(name)}: {math.exp(middle):.2f} times every published measurement of it in the median of "
                f"{len(own)} cells, unlike the other columns: {'halved?' if apart < 0 else 'doubled?'}"
            )
            found.append(TableFinding.of("sources_contradict", Severity.SUSPECT, own, text))
    return found


def _off_ratios(claims: pd.DataFrame, trusted: pd.DataFrame) -> list[TableFinding]:
    """Find GPUs whose ratio no source has measured; of one GPU each, as scaling depends on the host."""
    published = _ratios(trusted)
    found = []
    for gpus, cases in _ratios(claims).items():
        known = {case: [*map(_ratio, of)] for case, of in published.get(gpus, {}).items() if case in cases}
        cells = [(pair, _outside(_ratio(pair), known[case])) for case in known for pair in cases[case]]
        specified = specified_ratios(*cells[0][0]) if cells else []
        if not specified:
            continue
        ratio, off = statistics.median(_ratio(pair) for pair, _ in cells), statistics.median(off for _, off in cells)
        if abs(off) <= RATIO_NOTED or not _outside(ratio, specified):
            continue
        text = (
            f"{gpus[1]} is {ratio:.2f} times as fast as {gpus[0]}, in the median of {counted(len(cells), 'cell')}; "
            f"published: {_range([*itertools.chain(*known.values())], 2)}, by specification {_range(specified, 2)}"
        )
        severity = Severity.SUSPECT if abs(off) > OFF_COLUMN and len(cells) > 1 else Severity.NOTE
        found.append(TableFinding.of("ratio_of_gpus", severity, itertools.chain(*(pair for pair, _ in cells)), text))
    return found


def _ratio(pair: Pair) -> float:
    return float(pair[1].rate / pair[0].rate)


def _ratios(claims: pd.DataFrame) -> dict[tuple[str, str], dict[tuple[object, ...], list[Pair]]]:
    """Return pairs of GPUs in training on one GPU with the same software, by their names and case."""
    may_be_tf32 = (claims.surplus - claims.surplus_ieee).abs() > 0
    ones = claims[(claims.num_gpus == 1) & ~may_be_tf32]
    found: dict[tuple[str, str], dict[tuple[object, ...], list[Pair]]] = defaultdict(lambda: defaultdict(list))
    for group in grouped(ones, ["software", "case"]):
        best = {claim.gpu: claim for claim in sorted(group, key=lambda claim: float(claim.rate))}
        for low, high in itertools.combinations(sorted(best), 2):
            found[low, high][group[0].case].append((best[low], best[high]))
    return found

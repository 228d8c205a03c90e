"""Findings, and what rules find them in: claims with facts, and pairs of these."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from results.reference.gpus import loosest_figures, specifications
from results.reference.networks import NetworkCost, networks
from results.schema.networks import NETWORKS

Claim = Any
"""A claim with facts, as a record: `claim.rate`."""

Claims = Any
"""Claims with facts, as an array of records: `claims.rate`, `claims[claims.rate > 1]`."""


class Severity(enum.StrEnum):
    """Severity of a finding."""

    IMPOSSIBLE = "impossible"  # no hardware or honest measurement gives this
    SUSPECT = "suspect"  # needs an explanation before the number is used
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class TableFinding:
    """A finding about a table.

    Attributes:
        rule: Stable name of the rule.
        rows: 0-based data rows.
        message: The numbers, and what was expected.
    """

    rule: str
    severity: Severity
    rows: tuple[int, ...]
    message: str

    @classmethod
    def of(cls, rule: str, severity: Severity, claims: Iterable[Claim], message: str) -> TableFinding:
        """Return a finding about claims."""
        return cls(rule, severity, tuple(sorted({int(claim.row) for claim in claims})), message)


CLAIM = [
    *("row", "column", "group", "software", "gpu_text", "gpus", "model", "precision", "strict", "batch", "num_gpus"),
    *("rate", "last_place", "mode", "image_size"),
]

SERIES = ["group", "model", "precision", "strict", "mode", "image_size"]
"""What the GPU counts of a scaling series share."""

CELL = ["model", "precision", "strict", "num_gpus", "mode", "image_size"]
"""What two GPUs must share to be compared; excludes the batch, which is often the largest that fits."""

CASE = ["network", "precision", "num_gpus", "mode"]
"""What two sources must share."""

BANDWIDTH_POWER, ARITHMETIC_POWER = 0.5, 0.3
"""Exponents of a GPU's bandwidth and arithmetic in its throughput.

Least absolute deviations over the training rows of published tables, within network, precision and source: between
(0.45, 0.30) and (0.70, 0.20) by table; medians of GPUs then deviate by 0.07 (FP32) and 0.12 (FP16), at most 0.25.
Their sum is below 1 because larger GPUs are harder to utilise.
"""

SWITCHED = 300.0
"""GB/s of NVLink in both directions from which NVLink connects all GPUs of a host.

Bridges between two GPUs have 100 to 112.
"""


def with_facts(claims: pd.DataFrame) -> Claims:
    """Add the columns that the rules compare.

    Returns:
        The claims (see `Reading`) as records, because their pairs are 50 times as fast as merged frames, with

        claim: number of the claim; `name` and `number`: as texts.
        gpu: the GPU, if only one has its name; empty: none or several.
        network: ResNet50 v1 and v1.5 are one, because they differ in work by only 6 %.
        table, series, cell: numbers of its group, and of its `SERIES` and `CELL`.
        gpu_column: number of its GPU's name and software.
        per_gpu: samples per second of one GPU; `rounding`: the largest relative rounding error.
        digits: number of digits without zeros at the end.
        bandwidth, arithmetic: of the GPU; NaN: unknown; `switched`: whether it has switched NVLink.
        expected: logarithm of the throughput expected by these, up to a constant; `expected_ieee`: if fp32 was without
            TF32.
    """
    claims = claims[CLAIM]
    kinds = [*zip(claims.gpus, claims.precision, claims.strict, strict=True)]
    speeds = np.array([gpu_speeds(*kind) for kind in kinds]).reshape(-1, 2)
    ieee = np.array([gpu_speeds(gpus, kind, strict or kind == "fp32") for gpus, kind, strict in kinds]).reshape(-1, 2)
    names = zip(claims.model, claims.precision, claims.num_gpus, strict=True)
    facts = claims.assign(
        claim=range(len(claims)),
        name=[" ".join(filter(None, (model, precision, f"×{count}"))) for model, precision, count in names],
        number=[f"{rate:.10g}" for rate in claims.rate],
        gpu=[gpus[0] if len(gpus) == 1 else "" for gpus in claims.gpus],
        network=[model.removesuffix("_v1.5") for model in claims.model],
        table=_numbers(claims, ["group"]),
        series=_numbers(claims, SERIES),
        cell=_numbers(claims, CELL),
        gpu_column=_numbers(claims, ["software", "gpu_text"]),
        per_gpu=claims.rate / claims.num_gpus,
        rounding=claims.last_place / 2 / claims.rate,
        digits=[len(str(round(number)).rstrip("0")) for number in claims.rate / claims.last_place],
        bandwidth=speeds[:, 0],
        arithmetic=speeds[:, 1],
        expected=np.log(speeds) @ (BANDWIDTH_POWER, ARITHMETIC_POWER),
        expected_ieee=np.log(ieee) @ (BANDWIDTH_POWER, ARITHMETIC_POWER),
        switched=[*map(_is_switched, claims.gpus)],
    )
    return facts.to_records(index=False)


def _numbers(claims: pd.DataFrame, keys: Sequence[str]) -> list[int]:
    """Return the same number for claims that share keys."""
    seen: dict[object, int] = {}
    return [seen.setdefault(values, len(seen)) for values in zip(*(claims[key] for key in keys), strict=True)]


@functools.cache
def gpu_speeds(gpus: tuple[str, ...], precision: str, strict: bool) -> tuple[float, float]:
    """Return the bandwidth and arithmetic of GPUs in a precision; NaN: unknown."""
    figures = loosest_figures(gpus)
    if precision in ("fp32", "tf32"):
        peak = figures.get("fp32") if strict else figures.get("tf32_tensor", figures.get("fp32"))
    else:  # GeForce GPUs halve the rate of FP32 accumulation, which affects networks less than the peak
        half = figures.get("fp16_tensor_fp32_accumulate", 0.0)
        peak = math.sqrt((figures.get("fp16_tensor_fp16_accumulate") or half) * half)
    return figures.get("memory_bandwidth") or math.nan, peak or math.nan


@functools.cache
def _is_switched(gpus: tuple[str, ...]) -> bool:
    """Return whether all GPUs that a name may refer to have switched NVLink."""
    return bool(gpus) and all(specifications()[gpu].get("nvlink_both_directions", 0.0) >= SWITCHED for gpu in gpus)


@functools.cache
def cost_of_unit(model: str) -> NetworkCost | None:
    """Return the cost of an image, sequence or token, whichever throughputs count, with the memory of a sequence."""
    network = networks().get(model)
    if network is None or model not in NETWORKS or NETWORKS[model].unit != "tokens":
        return network
    parts = ("flop_per_sample", "elements_unfused", "elements_fused")
    return dataclasses.replace(network, **{name: getattr(network, name) / network.size for name in parts})


def grouped(*keys: Iterable[Any]) -> dict[tuple[Any, ...], list[int]]:
    """Return the positions of equal values of columns, by these."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for position, values in enumerate(zip(*keys, strict=True)):
        found.setdefault(values, []).append(position)
    return found


MOST_ALIKE = 500
"""Maximum number of claims that are paired with each other; more of one case are a log, not a table."""


def _each_two(positions: list[int]) -> Iterable[tuple[int, ...]]:
    return itertools.combinations(positions, 2)


def pairs(
    claims: Claims,
    keys: Sequence[str],
    how: Callable[[list[int]], Iterable[tuple[int, ...]]] = _each_two,
) -> tuple[Claims, Claims]:
    """Return the first and the second claims of all pairs that share `keys`.

    Args:
        claims: Claims with facts.
        keys: Names of columns.
        how: Selects pairs of the positions of claims, e.g. `itertools.pairwise`; default: each pair once, in order.
    """
    groups = (group for group in grouped(*(claims[key] for key in keys)).values() if len(group) <= MOST_ALIKE)
    both = np.array([pair for group in groups for pair in how(group)], dtype=int).reshape(-1, 2)
    return claims[both[:, 0]], claims[both[:, 1]]


def above(value: float, limit: float, decimals: int = 2) -> str:
    """Format a value above a limit, with as many more decimals as it takes to see that."""
    return next(text for more in range(17) if float(text := f"{value:.{decimals + more}f}") > limit or more == 16)


def specified_ratios(low: Claim, high: Claim) -> list[float]:
    """Return the ratios of two GPUs' bandwidth and arithmetic; empty: unknown."""
    ratios = high.bandwidth / low.bandwidth, high.arithmetic / low.arithmetic
    return [ratio for ratio in ratios if not math.isnan(ratio)]

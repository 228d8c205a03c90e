"""Defines findings, and adds to claims what follows from them and from the specifications of GPUs and networks."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from results.reference.gpus import loosest_figures, specifications
from results.reference.networks import NetworkCost, networks
from results.schema.networks import NETWORKS

Row = Any
"""A row of a frame of claims, as a named tuple."""

Pair = tuple[Row, Row]


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
    def of(cls, rule: str, severity: Severity, claims: Iterable[Row], message: str) -> TableFinding:
        """Return a finding about claims."""
        return cls(rule, severity, tuple(sorted({int(claim.row) for claim in claims})), message)


CHANCES = {Severity.IMPOSSIBLE: 1e-9, Severity.SUSPECT: 1e-5, Severity.NOTE: 1e-3}
"""Probability of as many exact numbers in an honest table, below which there is a finding; a file may have
100 tables."""

CLAIM = [
    *("row", "column", "group", "software", "gpu_text", "gpus", "model", "precision", "strict", "batch", "num_gpus"),
    *("rate", "last_place", "mode", "image_size"),
]

SERIES = ["group", "model", "precision", "strict", "mode", "image_size"]
"""What the GPU counts of a scaling series share."""

CELL = ["model", "precision", "strict", "num_gpus", "mode", "image_size"]
"""What two GPUs must share to be compared; excludes the batch, which is often the largest that fits."""

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


def with_facts(claims: pd.DataFrame) -> pd.DataFrame:
    """Add the columns that the rules compare.

    Returns:
        The claims (see `Reading`) with

        at: number of the claim; `name` and `number`: as texts; `claim`: all columns as a named tuple.
        gpu: the GPU, if only one has its name; empty: none or several.
        case: what two sources must share; ResNet50 v1 and v1.5 differ in work by only 6 %.
        table, series, kind: numbers of its group, of its `SERIES`, and of its network and precision.
        per_gpu: samples per second of one GPU; `rounding`: the largest relative rounding error.
        bandwidth, arithmetic: of the GPU; NaN: unknown; `switched`: whether it has switched NVLink.
        surplus: logarithm of the throughput over that expected by these, up to a constant; `surplus_ieee`: if fp32 was
            without TF32.
    """
    claims = claims[CLAIM]
    kinds = [*zip(claims.gpus, claims.precision, claims.strict, strict=True)]
    speeds = np.array([gpu_speeds(*kind) for kind in kinds]).reshape(-1, 2)
    ieee = np.array([gpu_speeds(gpus, kind, strict or kind == "fp32") for gpus, kind, strict in kinds]).reshape(-1, 2)
    per_gpu = claims.rate / claims.num_gpus
    names = [*zip(claims.model, claims.precision, claims.num_gpus, strict=True)]
    models = claims.model.str.removesuffix("_v1.5")
    cases: list[Any] = [*zip(models, claims.precision, claims.num_gpus, claims["mode"], strict=True)]
    facts = claims.assign(
        at=range(len(claims)),
        name=[" ".join(filter(None, (model, precision, f"×{count}"))) for model, precision, count in names],
        number=[f"{rate:.10g}" for rate in claims.rate],
        gpu=[gpus[0] if len(gpus) == 1 else "" for gpus in claims.gpus],
        case=cases,
        table=claims.groupby("group", sort=False).ngroup(),
        series=claims.groupby(SERIES, sort=False).ngroup(),
        kind=claims.groupby(["model", "precision"], sort=False).ngroup(),
        per_gpu=per_gpu,
        rounding=claims.last_place / 2 / claims.rate,
        bandwidth=speeds[:, 0],
        arithmetic=speeds[:, 1],
        surplus=np.log(per_gpu) - np.log(speeds) @ (BANDWIDTH_POWER, ARITHMETIC_POWER),
        surplus_ieee=np.log(per_gpu) - np.log(ieee) @ (BANDWIDTH_POWER, ARITHMETIC_POWER),
        switched=[*map(_is_switched, claims.gpus)],
    )
    rows: list[Any] = [*facts.itertuples(index=False)]
    return facts.assign(claim=rows)


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


def grouped(claims: pd.DataFrame, keys: Sequence[str]) -> list[list[Row]]:
    """Return the claims, or pairs of them, of each group of a frame, in order."""
    groups = defaultdict(list)
    items = claims.claim if "claim" in claims else claim_pairs(claims)
    for number, item in zip(claims.groupby([*keys], sort=False).ngroup(), items, strict=True):
        groups[number].append(item)
    return [*groups.values()]


def pairs(claims: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> pd.DataFrame:
    """Return all ordered pairs of claims that share `keys`, with both claims' columns as `…_low` and `…_high`."""
    case = claims[["at", "claim", *columns]].assign(case=claims.groupby([*keys], sort=False).ngroup())
    both = case.sort_values("case", kind="stable").merge(case, on="case", suffixes=("_low", "_high"))
    return both[both.at_low != both.at_high]


def claim_pairs(both: pd.DataFrame) -> list[Pair]:
    """Return pairs of claims as named tuples."""
    return [*zip(both.claim_low, both.claim_high, strict=True)]


def severity_below(value: float, limits: Mapping[Severity, float]) -> Severity | None:
    """Return the worst severity whose limit a value is below; None: it is below none."""
    return next((severity for severity, limit in limits.items() if value < limit), None)


def chance_of_at_least(hits: int, chances: Sequence[float]) -> float:
    """Return the probability of at least N hits in independent trials with different probabilities.

    Source: Poisson binomial distribution, by convolution of the trials.
    """
    below = np.zeros(hits + 1)  # probabilities of 0, 1, … hits; the last one includes all above
    below[0] = 1.0
    for chance in chances:
        more = chance * below
        below -= more
        below[1:] += more[:-1]
        below[-1] += more[-1]
    return float(below[hits])


def above(value: float, limit: float, decimals: int = 2) -> str:
    """Format a value above a limit, with as many more decimals as it takes to see that."""
    return next(text for more in range(17) if float(text := f"{value:.{decimals + more}f}") > limit or more == 16)


def specified_ratios(low: Row, high: Row) -> list[float]:
    """Return the ratios of two GPUs' bandwidth and arithmetic; empty: unknown."""
    ratios = high.bandwidth / low.bandwidth, high.arithmetic / low.arithmetic
    return [ratio for ratio in ratios if not math.isnan(ratio)]

"""Defines findings, and groups claims into series: the GPU counts or the GPUs of a case."""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from results.audit.claims import Claim, grouped
from results.audit.texts import gpu_numbers
from results.reference.gpus import loosest_figures


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


BANDWIDTH_POWER, ARITHMETIC_POWER = 0.5, 0.3
"""Exponents of a GPU's bandwidth and arithmetic in its throughput.

Least absolute deviations over the training rows of published tables, within network, precision and source: between
(0.45, 0.30) and (0.70, 0.20) by table; medians of GPUs then deviate by 0.07 (FP32) and 0.12 (FP16), at most 0.25.
Their sum is below 1 because larger GPUs are harder to utilise.
"""


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


def case_without_count(claim: Claim) -> tuple[Hashable, ...]:
    """Return what the claims of a scaling series share."""
    return (claim.group, claim.model, claim.precision, claim.strict, claim.mode, claim.image_size)


def case_without_gpu(claim: Claim) -> tuple[Hashable, ...]:
    """Return what two GPUs must share to be compared; excludes the batch, which is often the largest that fits."""
    return (claim.software, claim.model, claim.precision, claim.strict, claim.count, claim.mode, claim.image_size)


def ladders(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Return the scaling series, sorted by GPU count, with one claim per count.

    If a count has several claims, the one with the most common batch of the series is used.
    """
    found = []
    for series in grouped(claims, case_without_count).values():
        usual = statistics.mode([claim.batch for claim in series])
        chosen: dict[int, Claim] = {}
        for claim in sorted(series, key=lambda claim: claim.batch != usual):
            chosen.setdefault(claim.count, claim)
        if len(chosen) > 1:
            found.append([chosen[count] for count in sorted(chosen)])
    return found


def expected_log_speed(claim: Claim) -> float | None:
    """Return the logarithm of the throughput expected of a GPU by specification, up to a constant.

    Returns:
        None: the GPU or its peak is unknown.
    """
    figures = loosest_figures(claim.gpus)
    bandwidth, peak = figures.get("memory_bandwidth"), _arithmetic(figures, claim)
    if not bandwidth or not peak:
        return None
    return BANDWIDTH_POWER * math.log(bandwidth) + ARITHMETIC_POWER * math.log(peak)


def specified_ratios(low: Claim, high: Claim) -> list[float]:
    """Return the ratios of two GPUs' bandwidth and arithmetic; empty: unknown."""
    one, other = loosest_figures(low.gpus), loosest_figures(high.gpus)
    figures = (
        (other.get("memory_bandwidth"), one.get("memory_bandwidth")),
        (_arithmetic(other, high), _arithmetic(one, low)),
    )
    return [above / below for above, below in figures if above and below]


def _arithmetic(figures: dict[str, float], claim: Claim) -> float | None:
    if claim.precision in ("fp32", "tf32"):
        return figures.get("fp32") if claim.strict else figures.get("tf32_tensor", figures.get("fp32"))
    full, half = figures.get("fp16_tensor_fp16_accumulate"), figures.get("fp16_tensor_fp32_accumulate")
    # GeForce GPUs halve the rate of FP32 accumulation, which affects networks less than the peak.
    return math.sqrt((full or half or 0) * half) if half else None


def same_gpu(first: Claim, second: Claim) -> bool:
    """Return whether two claims may be of the same GPU model; unknown names are compared by their model numbers."""
    if first.gpus and second.gpus:
        return bool(set(first.gpus) & set(second.gpus))
    one, other = gpu_numbers(first.gpu_text), gpu_numbers(second.gpu_text)
    return not one or not other or one == other

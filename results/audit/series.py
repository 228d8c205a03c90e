"""What an audit finds, and claims sorted into what should follow one law: the GPU counts or the GPUs of a case."""

from __future__ import annotations

import enum
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from results.audit.claims import Claim
from results.audit.texts import gpu_numbers
from results.reference.gpus import loosest_figures


class Severity(enum.StrEnum):
    """How bad a finding is."""

    IMPOSSIBLE = "impossible"  # no hardware, or no honest measurement, gives this
    SUSPECT = "suspect"  # an explanation is needed before the number is used
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class TableFinding:
    """One thing that is wrong with a table, or worth knowing.

    Attributes:
        rule: Name of the rule, stable.
        rows: 0-based data rows.
        message: The numbers, and what they should be.
    """

    rule: str
    severity: Severity
    rows: tuple[int, ...]
    message: str


BANDWIDTH_POWER, ARITHMETIC_POWER = 0.5, 0.3
"""How throughput of one GPU grows with its bandwidth and its arithmetic, other things equal.

Least absolute deviations over the training rows of published tables, within network, precision and source: between
(0.45, 0.30) and (0.70, 0.20) by table; medians of GPUs then scatter by 0.07 (FP32) and 0.12 (FP16), at most 0.25.
Their sum is below 1 because a larger GPU is harder to fill.
"""

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return claims, or series of them, by a key, in their order."""
    found: dict[Key, list[Item]] = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


def chance_of_at_least(hits: int, chances: Sequence[float]) -> float:
    """Return the chance of at least N hits in independent trials, each with its own chance.

    Source: Poisson binomial distribution, by convolution of the trials.
    """
    below = np.zeros(hits + 1)  # chances of 0, 1, … hits; the last one holds all above, too
    below[0] = 1.0
    for chance in chances:
        more = chance * below
        below -= more
        below[1:] += more[:-1]
        below[-1] += more[-1]
    return float(below[hits])


def case_without_count(claim: Claim) -> tuple[Hashable, ...]:
    """Return what the GPU counts of one scaling series share."""
    return (claim.group, claim.model, claim.precision, claim.strict, claim.mode, claim.image_size)


def case_without_gpu(claim: Claim) -> tuple[Hashable, ...]:
    """Return what two GPUs must share before they are compared; a batch often is as large as fits each."""
    return (claim.software, claim.model, claim.precision, claim.strict, claim.count, claim.mode, claim.image_size)


def ladders(claims: Sequence[Claim]) -> list[list[Claim]]:
    """Return the scaling series, each from few to many GPUs, with one claim per count.

    Where a count has several, the one of the batch that most of the series have is taken.
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
    """Return what a GPU's specification lets expect of one GPU, as a logarithm without a zero.

    Returns:
        None when the GPU or its peak is not known.
    """
    figures = loosest_figures(claim.gpus)
    bandwidth, peak = figures.get("memory_bandwidth"), _arithmetic(figures, claim)
    if not bandwidth or not peak:
        return None
    return BANDWIDTH_POWER * math.log(bandwidth) + ARITHMETIC_POWER * math.log(peak)


def _arithmetic(figures: dict[str, float], claim: Claim) -> float | None:
    if claim.precision in ("fp32", "tf32"):
        return figures.get("fp32") if claim.strict else figures.get("tf32_tensor", figures.get("fp32"))
    full, half = figures.get("fp16_tensor_fp16_accumulate"), figures.get("fp16_tensor_fp32_accumulate")
    # GeForce halves FP32 accumulation, and networks lose less by it than the peak does.
    return math.sqrt((full or half or 0) * half) if half else None


def same_gpu(first: Claim, second: Claim) -> bool:
    """Return whether two claims may be of one kind of GPU; names that are not known are compared by their numbers."""
    if first.gpus and second.gpus:
        return bool(set(first.gpus) & set(second.gpus))
    one, other = gpu_numbers(first.gpu_text), gpu_numbers(second.gpu_text)
    return not one or not other or one == other

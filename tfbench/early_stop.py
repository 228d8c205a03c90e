"""When enough steps have been timed: the interval of their mean, by batch means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from results.schema import FEWEST_STEPS, Case
from tfbench.timing import Enough

BATCHES = 10
T_QUANTILE = 2.2622
"""Of `BATCHES` - 1 degrees of freedom, two-sided 95 %."""

SHARE_OF_TARGET = 0.5
"""A repeat's own interval may take up so much of the asked one; the rest is for what differs between repeats."""


def relative_half_width(step_seconds: Sequence[float]) -> float:
    """Return the half-width of the 95 % interval of the mean step, as a share of the mean.

    Steps that follow each other are not independent, so that the spread of single steps would promise too much:
    the means of `BATCHES` equal batches of consecutive steps are nearly so. The oldest steps that fill no batch are
    left out.

    Args:
        step_seconds: At least `BATCHES` durations.

    Source: Law, Simulation Modeling and Analysis, 5th edition, section 9.5.3 (batch means).
    """
    size = len(step_seconds) // BATCHES
    used = step_seconds[len(step_seconds) - size * BATCHES :]
    means = [statistics.fmean(used[first : first + size]) for first in range(0, len(used), size)]
    return T_QUANTILE * statistics.stdev(means) / math.sqrt(BATCHES) / statistics.fmean(means)


def enough_for(case: Case) -> Enough:
    """Return what ends the timed steps of a case early; never where several hosts must take equally many."""
    target = case.target_ci
    if target is None or case.num_hosts > 1:
        return lambda _: False
    limit = target * SHARE_OF_TARGET

    def enough(step_seconds: Sequence[float]) -> bool:
        return len(step_seconds) >= FEWEST_STEPS and relative_half_width(step_seconds) <= limit

    return enough

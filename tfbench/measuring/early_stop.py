"""When enough steps have been timed: the interval of their mean, for steps that hang together.

Steps that follow each other are not independent: clocks, heat and other processes change slowly. How long such changes
last is estimated from the steps themselves, and where it cannot be, there is no interval and the steps go on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import mul

from results.schema import Case
from results.schema.progress import STEPS_PER_LINE
from tfbench.measuring.timing import Enough

FIRST_LOOK = 500
"""Fewest steps to judge by: a stall that begins at one step in 100 has then been seen with a probability of 99.3 %.

Source: 1 − 0.99⁵⁰⁰; Hanley and Lippman-Hand, If nothing goes wrong, is everything all right?, 1983, say it for 95 %.
"""

LOOK_GROWTH = 1.25
"""Each look is at so many times the steps of the last: who looks at every step stops at a lucky one."""

SAMPLES = 50
"""Steps for each unit of autocorrelation time × (kurtosis − 1), so that the variance itself is known to about 14 %."""

MOST_CORRELATED = 0.96
"""Correlation of consecutive steps above which there is no interval: one step is then worth less than a fiftieth of an
independent one, and a process in which the autocorrelation time seems short enough is a lucky one."""

BATCHES = 1000
"""Most means of consecutive steps that correlations are computed from, so that a look stays within milliseconds."""

LEAST_KURTOSIS = 3.0
"""Of normal steps: fewer extremes than theirs are chance."""

QUANTILE = statistics.NormalDist().inv_cdf(0.5 + 0.96 / 2)
"""Of 96 %: the looks take the rest, so that 95 % is left. Held to by `python -m tests.benchmarks.coverage`."""

SHARE_OF_TARGET = 0.5
"""A repeat's own interval may take up so much of the asked one; the rest is for what differs between repeats."""


def relative_half_width(step_seconds: Sequence[float]) -> float:
    """Return the half-width of the 95 % interval of the mean step, as a share of the mean.

    The variance of the mean is that of a step × the autocorrelation time τ / steps. Where steps are too few for either,
    measured in τ, or where rare slow steps make up the variance, the half-width is not known.

    Args:
        step_seconds: Durations in their order.

    Returns:
        Infinite where the steps do not say.

    Source: τ by the initial monotone sequence, Geyer, Practical Markov chain Monte Carlo, 1992; stopping at an
        effective number of samples: Gong and Flegal, A practical sequential stopping rule for high-dimensional
        Markov chain Monte Carlo, 2016. The relative variance of a sample variance is (kurtosis − 1) τ / steps.
    """
    count = len(step_seconds)
    mean = statistics.fmean(step_seconds)
    away = [seconds - mean for seconds in step_seconds]
    variance = math.fsum(map(mul, away, away)) / count
    if variance <= (1e-9 * mean) ** 2:
        return 0.0
    if _autocovariance(away, 1) > MOST_CORRELATED * variance:
        return math.inf
    kurtosis = max(math.fsum(value**4 for value in away) / count / variance**2, LEAST_KURTOSIS)
    longest = count / SAMPLES / (kurtosis - 1)
    time = _autocorrelation_time(away, variance, longest)
    if time > longest:
        return math.inf
    independent = count / time
    return _t_quantile(independent / 5) * math.sqrt(variance / independent) / mean


def enough_for(case: Case) -> Enough:
    """Return what ends the timed steps of a case early; never where several hosts must take equally many."""
    target = case.target_ci
    if target is None or case.num_hosts > 1:
        return lambda _: False
    limit = target * SHARE_OF_TARGET

    def enough(step_seconds: Sequence[float]) -> bool:
        return _is_look(len(step_seconds)) and relative_half_width(step_seconds) <= limit

    return enough


def _is_look(count: int) -> bool:
    """Return whether to judge after this number of steps: after `FIRST_LOOK`, then at growing intervals."""
    if count < FIRST_LOOK:
        return False
    number = round(math.log(count / FIRST_LOOK, LOOK_GROWTH))
    return count == int(FIRST_LOOK * LOOK_GROWTH**number) // STEPS_PER_LINE * STEPS_PER_LINE


def _autocorrelation_time(away: Sequence[float], variance: float, longest: float) -> float:
    """Return how many steps of one run say as much as one independent step; at least 1.

    Where steps are many, it is that of the means of short batches of them, whose sum over all lags is the same.

    Args:
        away: Steps less their mean.
        variance: Mean of their squares.
        longest: No more than this is of interest: the sum ends above it.
    """
    size = -(-len(away) // BATCHES)
    batches = [statistics.fmean(away[first : first + size]) for first in range(0, len(away) - size + 1, size)]
    total, last = -_autocovariance(batches, 0), math.inf
    for lag in range(0, len(batches) - 1, 2):
        pair = _autocovariance(batches, lag) + _autocovariance(batches, lag + 1)
        if pair <= 0:
            break
        last = min(last, pair)
        total += 2 * last
        if total * size > longest * variance:
            break
    return max(total * size / variance, 1.0)


def _autocovariance(values: Sequence[float], lag: int) -> float:
    """Return the mean product of values that lie `lag` apart; their mean is 0."""
    products: Iterator[float] = map(mul, values, islice(values, lag, None))
    return sum(products) / len(values)


def _t_quantile(degrees: float) -> float:
    """Return Student's quantile for `QUANTILE`, right to 0.1 % from 10 degrees of freedom on.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5, first two terms.
    """
    z = QUANTILE
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)

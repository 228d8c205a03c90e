"""Intervals for means and ratios of throughputs.

All intervals are two-sided, 95 % by default. What is repeated decides what an interval covers: repeats are
fresh processes on one host; where a fleet has several hosts, the hosts are what is repeated.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from results.errors import TooFewRepeats

Nested = dict[str, dict[str, list[float]]]
"""Values of repeats, by host and run."""

LEVEL = 0.95
"""Probability that an interval covers the true value."""

MIN_GROUPS = 3
"""Of two groups it is unknown which is the outlying one."""


@dataclass(frozen=True)
class Interval:
    """A value and how far it can be trusted.

    Attributes:
        value: The estimate.
        low: Lower end; `-inf` when the data set no bound.
        high: Upper end; `inf` when the data set no bound.
        level: Probability of covering the true value.
    """

    value: float
    low: float
    high: float
    level: float = LEVEL

    @property
    def half_width(self) -> float:
        """Larger distance from the value to an end."""
        return max(self.value - self.low, self.high - self.value)

    def contains(self, value: float) -> bool:
        """Return whether a value lies in the interval, ends included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Estimate:
    """A mean with what its uncertainty is made of.

    Attributes:
        mean: In the unit of the values.
        variance: Of the mean, not of one value; in that unit squared.
        degrees_of_freedom: Of `variance`.
    """

    mean: float
    variance: float
    degrees_of_freedom: float

    def half_width(self, level: float = LEVEL) -> float:
        """Return how far the t-interval of the mean reaches to each side. Source: Student 1908."""
        return t_quantile(self.degrees_of_freedom, level) * math.sqrt(self.variance)

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the t-interval of the mean."""
        half = self.half_width(level)
        return Interval(self.mean, self.mean - half, self.mean + half, level)


def t_quantile(degrees_of_freedom: float, level: float = LEVEL) -> float:
    """Return how many standard errors a two-sided interval reaches to each side.

    Args:
        degrees_of_freedom: Above 0; need not be whole.
        level: Between 0 and 1.
    """
    # scipy.special answers in a tenth of the import time of scipy.stats.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(degrees_of_freedom, 0.5 + level / 2))


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean that independent, equally distributed values come from.

    Raises:
        TooFewRepeats: Fewer than two values: one value has no known uncertainty.
    """
    if len(values) < 2:
        raise TooFewRepeats(f"an interval needs at least 2 values, {len(values)} came in")
    variance = statistics.variance(values) / len(values)
    return Estimate(statistics.fmean(values), variance, len(values) - 1)


def nested_estimate(values: Nested) -> Estimate | None:
    """Estimate the mean of the hosts' means, or of the runs' means of one host, or of the repeats of one run.

    With two groups or more, the groups' means are the independent values, so that the spread between hosts is in the
    interval (and that between repeats with it). With one group, only the spread between its values is known, and the
    interval is about that group alone. Groups count equally, however many values they have: a group's mean that is
    known less well makes the interval err on the wide side (Ibragimov and Müller 2010).

    Args:
        values: In one unit; no run is empty.

    Returns:
        None with one value or none, whose uncertainty is unknown.

    Source: Searle, Casella and McCulloch, Variance Components, 1992, chapter 3: in a balanced design the mean of all
        values has the variance of the groups' means over their number, with one degree of freedom less. Ibragimov
        and Müller, t-Statistic Based Correlation and Heterogeneity Robust Inference, 2010: at 95 % the t-interval of
        normal values of unequal variance, and so of heavy-tailed mixtures of them, never covers less than it says.
    """
    hosts = list(values.values())
    if len(hosts) > 1:
        level = [statistics.fmean(map(statistics.fmean, runs.values())) for runs in hosts]
    else:
        runs = [repeats for of_host in hosts for repeats in of_host.values()]
        level = [statistics.fmean(repeats) for repeats in runs] if len(runs) > 1 else [*chain.from_iterable(runs)]
    return estimate(level) if len(level) > 1 else None


def sum_of_estimates(parts: Sequence[Estimate], factors: Sequence[float], *, alike: bool = False) -> Estimate:
    """Return Σ factor × part for independent parts.

    Args:
        parts: Independent of each other.
        factors: One for each part.
        alike: Whether the values behind the parts vary for the same reasons, as hosts of two fleets do; the degrees of
            freedom are then on the cautious side, and of unequal numbers follow from variances drawn to each other (see
            `_shared_variances`).

    Source: degrees of freedom after Satterthwaite, An approximate distribution of estimates of variance components,
        1946.
    """
    variances = [factor**2 * part.variance for part, factor in zip(parts, factors, strict=True)]
    degrees = [part.degrees_of_freedom for part in parts]
    mean = math.fsum(factor * part.mean for part, factor in zip(parts, factors, strict=True))
    total = math.fsum(variances)
    if total == 0:
        return Estimate(mean, 0.0, min(degrees))
    shared = alike and len(set(degrees)) > 1 and not _spread_differently(variances, degrees)
    expected = _shared_variances(variances, degrees) if shared else variances
    spread = math.fsum(v**2 / d for v, d in zip(expected, degrees, strict=True))
    found = math.fsum(expected) ** 2 / spread
    if not alike:
        return Estimate(mean, total, found)
    found, fewest = min(found, _most_degrees(variances, degrees)), min(degrees)
    return Estimate(mean, total, fewest + CAUTION * (found - fewest))


CAUTION = 0.7
"""Share of the degrees of freedom above the fewest of a part that a sum is given: they are estimates themselves.

Chosen by simulation: sides of equal numbers, of which one spreads five times as much as the other, cover 94.8 to 96 %
with it and 92.9 to 94.8 % without, at intervals 7 % wider for three hosts a side.
"""


DIFFERENT_SPREADS = 0.25
"""Chance of variances so far apart, were they equal, below which they are not drawn to each other.

Chosen by simulation (`python -m tests.benchmarks.coverage`): without it two hosts against ten, of which the ten spread
five times as much, cover 99 %.
"""


def _most_degrees(variances: Sequence[float], degrees: Sequence[float]) -> float:
    """Return the most degrees of freedom that a sum may have where the part of fewest values is the least known one.

    Its variance is then most of the sum's, or seems so by chance. Satterthwaite's figure, itself an estimate, comes out
    too high where the few values happen to lie close together: of two hosts that spread five times as much as the three
    or five of the other side the interval covered 90 %. With the smaller number it covers 94 %.

    Source: Hsu, Contributions to the theory of Student's t-test as applied to the problem of two samples, 1938, and
        Mickey and Brown, Bounds on the distribution functions of the Behrens-Fisher statistic, 1966: with the smaller
        number of degrees an interval never covers less than it says.
    """
    least_known = max(range(len(variances)), key=variances.__getitem__)
    fewest = min(degrees)
    return fewest if degrees[least_known] == fewest < max(degrees) else math.inf


def _spread_differently(variances: Sequence[float], degrees: Sequence[float]) -> bool:
    """Return whether the largest and the smallest variance of means (of `degrees` + 1 values) differ beyond chance.

    Source: the two-sided F test of two variances, Fisher 1924.
    """
    from scipy.special import fdtrc

    of_values = sorted((v * (d + 1), d) for v, d in zip(variances, degrees, strict=True))
    (low, low_degrees), (high, high_degrees) = of_values[0], of_values[-1]
    return low == 0 or 2 * float(fdtrc(high_degrees, low_degrees, high / low)) < DIFFERENT_SPREADS


SHARED_DEGREES = 2.0
"""Degrees of freedom's worth of the variance of all parts that is added to each part's own."""


def _shared_variances(variances: Sequence[float], degrees: Sequence[float]) -> list[float]:
    """Return the variances of means with each drawn to what all have in common.

    Satterthwaite's degrees of freedom are computed from the variances as estimated. With two hosts these are off by far
    more than the fleets' true spreads differ, and the interval of two hosts against ten covers 90 %; with shared
    variances it covers 95 % (`python -m tests.benchmarks.coverage`). Sides of equal numbers do not need it.

    Args:
        variances: Of the parts' means, each of `degrees` + 1 values.
        degrees: Degrees of freedom of each.

    Source: Smyth, Linear models and empirical Bayes methods for assessing differential expression, 2004: a variance's
        posterior is the mean of its own and the common one, weighted by degrees of freedom.
    """
    of_values = [v * (d + 1) for v, d in zip(variances, degrees, strict=True)]
    common = math.fsum(v * d for v, d in zip(of_values, degrees, strict=True)) / math.fsum(degrees)
    return [
        (v * d + common * SHARED_DEGREES) / (d + SHARED_DEGREES) / (d + 1)
        for v, d in zip(of_values, degrees, strict=True)
    ]


def ratio_of_estimates(a: Estimate, b: Estimate, *, level: float = LEVEL, alike: bool = False) -> Interval:
    """Return mean(a) / mean(b) with Fieller's interval: all ratios r for which mean(a) − r mean(b) may be 0.

    The bound is open (`inf`) where b cannot be distinguished from 0.

    Args:
        a: Independent of `b`.
        b: Not 0.
        level: Probability of covering the true ratio.
        alike: Whether the relative spread of both has the same causes; see `sum_of_estimates`.

    Source: Fieller, Some problems in interval estimation, 1954; degrees of freedom of a − r b at the
        estimated r after Welch 1947 (Satterthwaite 1946).
    """
    ratio = a.mean / b.mean
    difference = sum_of_estimates([a, b], [1.0, -ratio], alike=alike)
    if difference.variance == 0:
        return Interval(ratio, ratio, ratio, level)
    squared_t = t_quantile(difference.degrees_of_freedom, level) ** 2
    # (mean(a) − r mean(b))² ≤ t² (var(a) + r² var(b)) is a quadratic in r: leading r² − 2 half r + constant
    # ≤ 0.
    leading = b.mean**2 - squared_t * b.variance
    half = a.mean * b.mean
    constant = a.mean**2 - squared_t * a.variance
    if leading <= 0:
        return Interval(ratio, -math.inf, math.inf, level)
    root = math.sqrt(max(half**2 - leading * constant, 0.0))
    return Interval(ratio, (half - root) / leading, (half + root) / leading, level)


def divided(interval: Interval, factor: float) -> Interval:
    """Return an interval over a known number above 0."""
    return Interval(interval.value / factor, interval.low / factor, interval.high / factor, interval.level)


def inverse(interval: Interval) -> Interval:
    """Return the interval of 1 / value, for a value above 0."""
    high = 1 / interval.low if interval.low > 0 else math.inf
    return Interval(1 / interval.value, 1 / interval.high, high, interval.level)


@dataclass(frozen=True)
class Outlying:
    """A group that differs from the others of its side.

    Attributes:
        side: Its index.
        name: Of the group.
        difference: From the mean of the others; its interval is where one more equal group would lie, around 0.
    """

    side: int
    name: str
    difference: Interval


def outlying(sides: Sequence[Mapping[str, float]], tolerance: float) -> Outlying | None:
    """Name the group that is furthest from the others of its side, if beyond chance and `tolerance`.

    Each value is compared with where one more value like the others of its side would lie. The spread is that of all
    sides without it, or of its own side where that is larger: among three, two others alone are too few. The level
    allows for looking at every value (Bonferroni).

    Args:
        sides: Values by group, e.g. by host; of a side with fewer than three, none can be named.
        tolerance: Smallest difference worth naming.

    Source: externally studentised residual, Beckman and Cook 1983; pooled variance as in the analysis of variance.
    """
    found = None
    looked_at = sum(len(side) for side in sides if len(side) >= MIN_GROUPS)
    for index, side in enumerate(sides):
        for name, own in side.items() if len(side) >= MIN_GROUPS else ():
            others = [value for other, value in side.items() if other != name]
            rest = [of.values() for i, of in enumerate(sides) if i != index and len(of) > 1]
            weighted = [(statistics.variance(values), len(values) - 1) for values in (others, *rest)]
            total = sum(d for _, d in weighted)
            variance = max(weighted[0][0], math.fsum(own_variance * d for own_variance, d in weighted) / total)
            half = t_quantile(total, 1 - (1 - LEVEL) / looked_at) * math.sqrt(variance * (1 + 1 / len(others)))
            difference = own - statistics.fmean(others)
            beyond = abs(difference) > max(half, tolerance)
            if beyond and (found is None or abs(difference) > abs(found.difference.value)):
                found = Outlying(index, name, Interval(difference, -half, half))
    return found

"""Confidence intervals for means and ratios of throughputs.

All intervals are two-sided, 95 % by default. For one host they cover the spread between repeats (fresh processes); for
a fleet of several hosts they cover the spread between hosts.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from results.errors import TooFewRepeats

Nested = dict[str, dict[str, list[float]]]
"""Values of repeats, by host and run."""

LEVEL = 0.95
"""Probability that an interval covers the true value."""

MIN_GROUPS = 3
"""With two groups, either could be the outlier."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval.

    Attributes:
        value: The estimate.
        low: Lower end; `-inf` if unbounded.
        high: Upper end; `inf` if unbounded.
        level: Probability of covering the true value.
    """

    value: float
    low: float
    high: float
    level: float = LEVEL

    @property
    def half_width(self) -> float:
        """The larger distance from the value to an end."""
        return max(self.value - self.low, self.high - self.value)

    def contains(self, value: float) -> bool:
        """Return whether a value lies within the interval, including its ends."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Estimate:
    """A mean and its uncertainty.

    Attributes:
        mean: In the unit of the values.
        variance: Variance of the mean, not of a value; in that unit squared.
        degrees_of_freedom: Of `variance`.
        components: Variance and degrees of freedom of parts that vary for different reasons, such as the runs of a
            machine and the repeats of a run; they add up to `variance`. Empty: there is one.
    """

    mean: float
    variance: float
    degrees_of_freedom: float
    components: tuple[tuple[float, float], ...] = ()

    def quantile(self, level: float = LEVEL) -> float:
        """Return half the width of the interval of the mean in standard errors.

        With several components it is the root of the mean of their squared t-quantiles, weighted by variance. That
        covers at least `level` for any true variances; Satterthwaite's degrees of freedom are too many if few values
        are close together by chance (coverage 89 % for a machine of 9 repeats against two hosts).

        Source: Student 1908; Banerjee, Approximate confidence interval for linear functions of means of k populations
            when the population variances are not equal, 1960.
        """
        if not self.components or not self.variance:
            return t_quantile(self.degrees_of_freedom, level)
        return math.sqrt(math.fsum(v * t_quantile(d, level) ** 2 for v, d in self.components) / self.variance)

    @property
    def logarithm(self) -> Estimate:
        """The logarithm of a mean above 0, to first order (delta method): its error is the relative error."""
        square = self.mean**2
        components = tuple((variance / square, degrees) for variance, degrees in self.components)
        return Estimate(math.log(self.mean), self.variance / square, self.degrees_of_freedom, components)

    def half_width(self, level: float = LEVEL) -> float:
        """Return half the width of the interval of the mean."""
        return self.quantile(level) * math.sqrt(self.variance)

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the t-interval of the mean."""
        half = self.half_width(level)
        return Interval(self.mean, self.mean - half, self.mean + half, level)


def _variance(values: Collection[float]) -> float:
    """Return the variance of at least two values; `statistics.variance` takes ten times as long."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


@functools.cache
def t_quantile(degrees_of_freedom: float, level: float = LEVEL) -> float:
    """Return half the width of a two-sided t-interval in standard errors.

    Args:
        degrees_of_freedom: Above 0; may be fractional.
        level: Between 0 and 1.
    """
    # scipy.special takes a tenth of the import time of scipy.stats.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(degrees_of_freedom, 0.5 + level / 2))


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean of independent, identically distributed values.

    Raises:
        TooFewRepeats: There are fewer than two values.
    """
    if len(values) < 2:
        raise TooFewRepeats(f"an interval needs at least 2 values. Received: {len(values)}")
    variance = _variance(values) / len(values)
    return Estimate(statistics.fmean(values), variance, len(values) - 1)


def host_means(values: Nested) -> dict[str, float]:
    """Return the mean over the means of each host's runs, by host."""
    return {host: statistics.fmean(map(statistics.fmean, runs.values())) for host, runs in values.items()}


def nested_estimate(values: Nested) -> Estimate | None:
    """Estimate the mean over hosts; for one host over its runs and their repeats.

    With at least two hosts, the hosts' means are the independent values, so the interval includes the spread between
    hosts (and that between repeats). With one host the interval describes that host alone; see `estimate_of_runs`.
    Hosts and runs have equal weight whatever their number of values: less certain means make the interval wider than
    necessary, never too narrow.

    Args:
        values: In one unit; no run is empty.

    Returns:
        None with fewer than two values.

    Source: Searle, Casella and McCulloch, Variance Components, 1992, chapter 3: in a balanced design the variance of
        the overall mean is that of the groups' means over their number n, with n − 1 degrees of freedom. Ibragimov
        and Müller, t-Statistic Based Correlation and Heterogeneity Robust Inference, 2010: at 95 % the t-interval is
        conservative for normal values of unequal variance, and so for heavy-tailed mixtures of them.
    """
    if len(values) == 1:
        return estimate_of_runs([*next(iter(values.values())).values()])
    return estimate([*host_means(values).values()]) if values else None


def estimate_of_runs(runs: Sequence[Sequence[float]]) -> Estimate | None:
    """Estimate the mean of a machine from the repeats of its runs; None with fewer than two values.

    Runs may differ by more than their repeats. The variance of the mean is that which the repeats explain, with all
    their degrees of freedom, plus what the means of the runs vary beyond it, with one fewer than there are runs. So
    a second run that is equal to the first makes the interval narrower.

    Args:
        runs: The repeats of each run, none empty.

    Source: analysis of variance with nested factors; Searle, Casella and McCulloch 1992, chapter 3 (a negative
        component is 0); Satterthwaite 1946.
    """
    if len(runs) == 1:
        return estimate(runs[0]) if len(runs[0]) > 1 else None
    of_runs = estimate([statistics.fmean(repeats) for repeats in runs])
    degrees = sum(len(repeats) - 1 for repeats in runs)
    if not degrees:
        return of_runs
    squares = math.fsum(_variance(repeats) * (len(repeats) - 1) for repeats in runs if len(repeats) > 1)
    of_repeats = squares / degrees * math.fsum(1 / len(repeats) for repeats in runs) / len(runs) ** 2
    beyond = max(of_runs.variance - of_repeats, 0.0)
    return _composed(of_runs.mean, [(of_repeats, degrees), (beyond, of_runs.degrees_of_freedom)])


def _composed(mean: float, components: Sequence[tuple[float, float]]) -> Estimate:
    """Return an estimate of several components. Source of the degrees of freedom: Satterthwaite 1946."""
    total = math.fsum(v for v, _ in components)
    spread = math.fsum(v**2 / d for v, d in components)
    return Estimate(mean, total, total**2 / spread if spread else min(d for _, d in components), (*components,))


def sum_of_estimates(parts: Sequence[Estimate], factors: Sequence[float], *, alike: bool = False) -> Estimate:
    """Return Σ factor × part for independent parts.

    Args:
        parts: Independent of each other.
        factors: One for each part.
        alike: Whether the parts vary for the same reasons, as hosts of two fleets do. The degrees of freedom are then
            conservative, and with unequal group sizes computed from shrunken variances (see `_shared_variances`).
            Otherwise, parts of unequal size are components of the sum.

    Source: degrees of freedom: Satterthwaite, An approximate distribution of estimates of variance components, 1946.
    """
    mean = math.fsum(factor * part.mean for part, factor in zip(parts, factors, strict=True))
    components = [
        (factor**2 * variance, degrees)
        for part, factor in zip(parts, factors, strict=True)
        for variance, degrees in part.components or [(part.variance, part.degrees_of_freedom)]
    ]
    if not alike and len({degrees for _, degrees in components}) > 1:
        return _composed(mean, components)
    variances = [factor**2 * part.variance for part, factor in zip(parts, factors, strict=True)]
    degrees = [part.degrees_of_freedom for part in parts]
    total = math.fsum(variances)
    if total == 0:
        return Estimate(mean, 0.0, min(degrees))
    shared = len(set(degrees)) > 1 and not _spread_differently(variances, degrees)
    expected = _shared_variances(variances, degrees) if shared else variances
    spread = math.fsum(v**2 / d for v, d in zip(expected, degrees, strict=True))
    found = math.fsum(expected) ** 2 / spread
    found, fewest = min(found, _most_degrees(variances, degrees)), min(degrees)
    return Estimate(mean, total, fewest + CAUTION * (found - fewest))


CAUTION = 0.7
"""Share of the estimated degrees of freedom above the smallest of the parts that a sum receives.

Chosen by simulation: for sides of equal size with a fivefold difference in spread, coverage is 94.8 to 96 % with it
and 92.9 to 94.8 % without; with three hosts per side, intervals are 7 % wider.
"""


DIFFERENT_SPREADS = 0.25
"""p-value of the F test below which variances are not shrunk towards each other.

Chosen by simulation (`python -m studies.coverage`): without it, coverage is 99 % for two hosts against ten
that spread five times as much.
"""


def _most_degrees(variances: Sequence[float], degrees: Sequence[float]) -> float:
    """Return an upper limit of a sum's degrees of freedom if the part with the fewest values has the largest variance.

    Satterthwaite's estimate is too high if the few values happen to lie close together: for two hosts that spread five
    times as much as the three or five of the other side, coverage was 90 %. With the smaller number it is 94 %.

    Source: Hsu, Contributions to the theory of Student's t-test as applied to the problem of two samples, 1938, and
        Mickey and Brown, Bounds on the distribution functions of the Behrens-Fisher statistic, 1966: an interval with
        the smaller number of degrees is conservative.
    """
    least_known = max(range(len(variances)), key=variances.__getitem__)
    fewest = min(degrees)
    return fewest if degrees[least_known] == fewest < max(degrees) else math.inf


def _spread_differently(variances: Sequence[float], degrees: Sequence[float]) -> bool:
    """Return whether the largest and smallest variance of means (of `degrees` + 1 values) differ significantly.

    Source: the two-sided F test of two variances, Fisher 1924.
    """
    from scipy.special import fdtrc

    of_values = sorted((v * (d + 1), d) for v, d in zip(variances, degrees, strict=True))
    (low, low_degrees), (high, high_degrees) = of_values[0], of_values[-1]
    return low == 0 or 2 * float(fdtrc(high_degrees, low_degrees, high / low)) < DIFFERENT_SPREADS


SHARED_DEGREES = 2.0
"""Weight of the pooled variance, in degrees of freedom."""


def _shared_variances(variances: Sequence[float], degrees: Sequence[float]) -> list[float]:
    """Shrink the variances of means towards the pooled variance.

    Satterthwaite's degrees of freedom depend on the estimated variances. With two hosts, their error is far larger than
    the difference between the fleets' true spreads, and coverage of two hosts against ten is 90 %; with shared
    variances it is 95 % (`python -m studies.coverage`). Sides of equal size do not need it.

    Args:
        variances: Of the parts' means, each of `degrees` + 1 values.
        degrees: Degrees of freedom of each.

    Source: Smyth, Linear models and empirical Bayes methods for assessing differential expression, 2004: the posterior
        variance is the mean of the part's own and the pooled one, weighted by degrees of freedom.
    """
    of_values = [v * (d + 1) for v, d in zip(variances, degrees, strict=True)]
    common = math.fsum(v * d for v, d in zip(of_values, degrees, strict=True)) / math.fsum(degrees)
    return [
        (v * d + common * SHARED_DEGREES) / (d + SHARED_DEGREES) / (d + 1)
        for v, d in zip(of_values, degrees, strict=True)
    ]


@functools.lru_cache(maxsize=100_000)  # a report asks for each ratio in its tables, its answer and its calculator
def ratio_of_estimates(a: Estimate, b: Estimate, *, level: float = LEVEL, alike: bool = False) -> Interval:
    """Return mean(a) / mean(b), with the interval of the difference of their logarithms.

    Args:
        a: Above 0; independent of `b`.
        b: Above 0.
        level: Probability of covering the true ratio.
        alike: Whether the relative spread of both has the same causes; see `sum_of_estimates`.
    """
    half = sum_of_estimates([a.logarithm, b.logarithm], [1.0, -1.0], alike=alike).half_width(level)
    ratio = a.mean / b.mean
    return Interval(ratio, ratio * math.exp(-half), ratio * math.exp(min(half, MAX_EXPONENT)), level)


def exponential(logarithm: Estimate) -> Interval:
    """Return the interval of a value from the estimate of its logarithm."""
    found = logarithm.interval()
    ends = (math.exp(min(value, MAX_EXPONENT)) for value in (found.value, found.low, found.high))
    return Interval(*ends)


MAX_EXPONENT = 700.0
"""exp of more is too large for a float."""


def divided(interval: Interval, factor: float) -> Interval:
    """Divide an interval by a known number above 0."""
    return Interval(interval.value / factor, interval.low / factor, interval.high / factor, interval.level)


def inverse(interval: Interval) -> Interval:
    """Return the interval of 1 / value, for a value above 0."""
    high = 1 / interval.low if interval.low > 0 else math.inf
    return Interval(1 / interval.value, 1 / interval.high, high, interval.level)


def outlying(sides: Sequence[Mapping[str, float]], tolerance: float) -> tuple[int, str, Interval] | None:
    """Return the group furthest from the others of its side, if significantly and by more than `tolerance`.

    Each value is compared with the prediction interval of the others of its side. The spread is pooled over all sides
    without the value, or that of its own side if larger: two others alone are too few. The level is corrected for
    testing every value (Bonferroni).

    Args:
        sides: Values by group, e.g. by host; sides with fewer than three groups have no outlier.
        tolerance: Smallest relevant difference.

    Returns:
        Index of its side, its name, and its difference from the mean of the others with the prediction interval around
        0; None: there is none.

    Source: externally studentised residual, Beckman and Cook 1983; pooled variance as in the analysis of variance.
    """
    found = None
    looked_at = sum(len(side) for side in sides if len(side) >= MIN_GROUPS)
    for index, side in enumerate(sides):
        for name, own in side.items() if len(side) >= MIN_GROUPS else ():
            others = [value for other, value in side.items() if other != name]
            rest = [of.values() for i, of in enumerate(sides) if i != index and len(of) > 1]
            weighted = [(_variance(values), len(values) - 1) for values in (others, *rest)]
            total = sum(d for _, d in weighted)
            variance = max(weighted[0][0], math.fsum(own_variance * d for own_variance, d in weighted) / total)
            half = t_quantile(total, 1 - (1 - LEVEL) / looked_at) * math.sqrt(variance * (1 + 1 / len(others)))
            difference = own - statistics.fmean(others)
            beyond = abs(difference) > max(half, tolerance)
            if beyond and (found is None or abs(difference) > abs(found[2].value)):
                found = index, name, Interval(difference, -half, half)
    return found

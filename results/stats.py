"""Confidence intervals for means and ratios of throughputs.

All intervals are two-sided, 95 % by default. For one host they cover the spread between repeats (fresh processes); for
a fleet of several hosts they cover the spread between hosts.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

Nested = dict[str, dict[str, list[float]]]
"""Values of repeats, by host and run."""

K = TypeVar("K")
"""A host, or a run and round of one."""

LEVEL = 0.95
"""Probability that an interval covers the true value."""

MIN_GROUPS = 3
"""With two groups, either could be the outlier."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval.

    Attributes:
        value: The estimate.
        low: Lower end; `-inf` if the uncertainty is unknown.
        high: Upper end; `inf` if the uncertainty is unknown.
        level: Probability of covering the true value.
    """

    value: float
    low: float = -math.inf
    high: float = math.inf
    level: float = LEVEL

    @property
    def known(self) -> bool:
        """Whether the uncertainty is known."""
        return math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """The larger distance from the value to an end."""
        return max(self.value - self.low, self.high - self.value)

    def contains(self, value: float) -> bool:
        """Return whether a value lies within the interval, including its ends."""
        return self.low <= value <= self.high

    def divided(self, factor: float) -> Interval:
        """Return the interval of the value divided by a known number above 0."""
        return Interval(self.value / factor, self.low / factor, self.high / factor, self.level)


@dataclass(frozen=True)
class Estimate:
    """A mean and its uncertainty.

    Attributes:
        mean: In the unit of the values.
        causes: Variance of the mean (not of a value; in that unit squared) and its degrees of freedom, for each
            independent cause, such as the runs of a machine and the repeats of a run.
        over: What the values are of: `hosts`, `runs` or `repeats`.
    """

    mean: float
    causes: tuple[tuple[float, float], ...]
    over: str = "repeats"

    @property
    def variance(self) -> float:
        """Variance of the mean: the sum over its causes."""
        return math.fsum(variance for variance, _ in self.causes)

    @property
    def degrees_of_freedom(self) -> float:
        """Of `variance`. Source: Satterthwaite 1946."""
        spread = math.fsum(variance**2 / degrees for variance, degrees in self.causes)
        return self.variance**2 / spread if spread else min(degrees for _, degrees in self.causes)

    @property
    def logarithm(self) -> Estimate:
        """The logarithm of a mean above 0, to first order (delta method): its error is the relative error."""
        causes = tuple((variance / self.mean**2, degrees) for variance, degrees in self.causes)
        return Estimate(math.log(self.mean), causes, self.over)

    def half_width(self, level: float = LEVEL) -> float:
        """Return half the width of the interval of the mean.

        Of several causes it is the root of the sum of their squares. That covers at least `level` for any true
        variances; Satterthwaite's degrees of freedom are too many if few values are close together by chance (coverage
        89 % for a machine of 9 repeats against two hosts).

        Source: Student 1908; Banerjee, Approximate confidence interval for linear functions of means of k populations
            when the population variances are not equal, 1960.
        """
        return math.sqrt(math.fsum(variance * t_quantile(degrees, level) ** 2 for variance, degrees in self.causes))

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the t-interval of the mean."""
        half = self.half_width(level)
        return Interval(self.mean, self.mean - half, self.mean + half, level)

    def exponential(self, level: float = LEVEL) -> Interval:
        """Return the interval of the value of which this is the logarithm."""
        found = self.interval(level)
        value, low, high = (math.exp(min(end, MAX_EXPONENT)) for end in (found.value, found.low, found.high))
        return Interval(value, low, high, level)


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


def estimate(values: Sequence[float], over: str = "repeats") -> Estimate:
    """Estimate the mean of independent, identically distributed values.

    Args:
        values: At least two.
        over: What they are of; see `Estimate`.
    """
    return Estimate(statistics.fmean(values), ((_variance(values) / len(values), len(values) - 1),), over)


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
    return estimate([*host_means(values).values()], "hosts") if values else None


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
    of_runs = estimate([statistics.fmean(repeats) for repeats in runs], "runs")
    degrees = sum(len(repeats) - 1 for repeats in runs)
    if not degrees:
        return of_runs
    squares = math.fsum(_variance(repeats) * (len(repeats) - 1) for repeats in runs if len(repeats) > 1)
    of_repeats = squares / degrees * math.fsum(1 / len(repeats) for repeats in runs) / len(runs) ** 2
    beyond = max(of_runs.variance - of_repeats, 0.0)
    return replace(of_runs, causes=((of_repeats, degrees), (beyond, of_runs.degrees_of_freedom)))


@functools.lru_cache(maxsize=100_000)  # a report asks for each ratio in its tables, its answer and its calculator
def difference_of(a: Estimate, b: Estimate) -> Estimate:
    """Return the difference of two independent estimates.

    If both are over the same, such as the hosts of two fleets, they vary for the same reasons and are one cause, with
    cautious degrees of freedom. Otherwise, parts of unequal size are causes of their own.

    Source: degrees of freedom: Satterthwaite, An approximate distribution of estimates of variance components, 1946.
    """
    whole = Estimate(a.mean - b.mean, (*a.causes, *b.causes), a.over)
    if a.over != b.over and len({degrees for _, degrees in whole.causes}) > 1:
        return whole
    joined = [(part.variance, part.degrees_of_freedom) for part in (a, b)]
    return replace(whole, causes=((whole.variance, _cautious_degrees(joined)),))


def _cautious_degrees(parts: Sequence[tuple[float, float]]) -> float:
    """Return the degrees of freedom of a sum, from the variance and the degrees of its parts.

    Satterthwaite's estimate is too high if few values happen to lie close together: for two hosts that spread five
    times as much as the three or five of the other side, coverage was 90 %. With the smaller number it is 94 %.

    Source: Hsu, Contributions to the theory of Student's t-test as applied to the problem of two samples, 1938, and
        Mickey and Brown, Bounds on the distribution functions of the Behrens-Fisher statistic, 1966: an interval with
        the smaller number of degrees is conservative.
    """
    fewest, most = (end(degrees for _, degrees in parts) for end in (min, max))
    variances = [variance for variance, _ in parts]
    if max(variances) == 0 or (fewest < most and parts[variances.index(max(variances))][1] == fewest):
        return fewest
    expected = parts if fewest == most or _spread_differently(parts) else _shared_variances(parts)
    found = Estimate(0.0, (*expected,)).degrees_of_freedom
    return fewest + CAUTION * (found - fewest)


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


def _spread_differently(parts: Sequence[tuple[float, float]]) -> bool:
    """Return whether the largest and smallest variance of means (of degrees + 1 values) differ significantly.

    Source: the two-sided F test of two variances, Fisher 1924.
    """
    from scipy.special import fdtrc

    of_values = sorted((variance * (degrees + 1), degrees) for variance, degrees in parts)
    (low, low_degrees), (high, high_degrees) = of_values[0], of_values[-1]
    return low == 0 or 2 * float(fdtrc(high_degrees, low_degrees, high / low)) < DIFFERENT_SPREADS


SHARED_DEGREES = 2.0
"""Weight of the pooled variance, in degrees of freedom."""


def _shared_variances(parts: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Shrink the variances of means (of degrees + 1 values) towards the pooled variance.

    Satterthwaite's degrees of freedom depend on the estimated variances. With two hosts, their error is far larger than
    the difference between the fleets' true spreads, and coverage of two hosts against ten is 90 %; with shared
    variances it is 95 % (`python -m studies.coverage`). Sides of equal size do not need it.

    Source: Smyth, Linear models and empirical Bayes methods for assessing differential expression, 2004: the posterior
        variance is the mean of the part's own and the pooled one, weighted by degrees of freedom.
    """
    common = math.fsum(v * (d + 1) * d for v, d in parts) / math.fsum(d for _, d in parts)
    return [((v * (d + 1) * d + common * SHARED_DEGREES) / (d + SHARED_DEGREES) / (d + 1), d) for v, d in parts]


def ratio_of_estimates(a: Estimate, b: Estimate, level: float = LEVEL) -> Interval:
    """Return mean(a) / mean(b), with the interval of the difference of their logarithms.

    Args:
        a: Above 0; independent of `b`.
        b: Above 0.
        level: Probability of covering the true ratio.
    """
    return difference_of(a.logarithm, b.logarithm).exponential(level)


MAX_EXPONENT = 700.0
"""exp of more is too large for a float."""


def outlying(sides: Mapping[str, Mapping[str, float]], tolerance: float) -> dict[str, tuple[str, Interval]]:
    """Return the group of each side that is furthest from the others, if significantly and by more than `tolerance`.

    Each value is compared with the prediction interval of the others of its side. The spread is pooled over all sides
    without the value, or that of its own side if larger: two others alone are too few. The level is corrected for
    testing every value (Bonferroni).

    Args:
        sides: Values by group, e.g. by host; sides with fewer than three groups have no outlier.
        tolerance: Smallest relevant difference.

    Returns:
        Its name, and its difference from the mean of the others with the prediction interval around 0, by side.

    Source: externally studentised residual, Beckman and Cook 1983; pooled variance as in the analysis of variance.
    """
    found: dict[str, tuple[str, Interval]] = {}
    looked_at = sum(len(side) for side in sides.values() if len(side) >= MIN_GROUPS)
    spreads = {of: (_variance(side.values()), len(side) - 1) for of, side in sides.items() if len(side) > 1}
    for of, side in sides.items():
        for name, own in side.items() if len(side) >= MIN_GROUPS else ():
            others = [value for other, value in side.items() if other != name]
            weighted = spreads | {of: (_variance(others), len(others) - 1)}
            total = sum(degrees for _, degrees in weighted.values())
            pooled = math.fsum(variance * degrees for variance, degrees in weighted.values()) / total
            error = math.sqrt(max(weighted[of][0], pooled) * (1 + 1 / len(others)))
            half = t_quantile(total, 1 - (1 - LEVEL) / looked_at) * error
            difference = own - statistics.fmean(others)
            if abs(difference) > max(half, tolerance, abs(found[of][1].value) if of in found else 0.0):
                found[of] = name, Interval(difference, -half, half)
    return found


def levels_of(by_case: Sequence[Mapping[K, float]]) -> dict[K, float] | None:
    """Return the mean over cases of each host, run or round, with missing values imputed.

    The spread of the means is then that between hosts, even if they measured different cases.

    Args:
        by_case: A value, such as the logarithm of throughput, by host, run or round; at least one for each case.

    Returns:
        None: there is only one, or they cannot be separated from cases, because some share no case with the others,
        directly or through a third one.

    Source: Yates, The analysis of replicated experiments when the field results are incomplete, 1933: fitted values of
        the least squares of host + case replace missing ones.
    """
    import numpy as np

    names = list(dict.fromkeys(name for values in by_case for name in values))
    if len(names) < 2:
        return None
    cells = np.array([[values.get(name, math.nan) for values in by_case] for name in names])
    hosts, cases = np.nonzero(~np.isnan(cells))
    if len(hosts) < cells.size:
        design = np.hstack([np.eye(len(names))[hosts], np.eye(len(by_case))[cases]])
        effects, _, rank, _ = np.linalg.lstsq(design, cells[hosts, cases], rcond=None)
        if rank < sum(cells.shape) - 1:
            return None
        cells = np.where(np.isnan(cells), np.add.outer(effects[: len(names)], effects[len(names) :]), cells)
    return dict(zip(names, map(float, cells.mean(axis=1)), strict=True))

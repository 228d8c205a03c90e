import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from results import stats
from tests.unit.results.factory import ratio_interval

RATES = [9800.0, 9812.0, 9826.0]


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_t_intervals_are_those_of_scipy(level):
    ours = stats.estimate(RATES).interval(level)
    ends = scipy.stats.t.interval(level, 2, loc=np.mean(RATES), scale=scipy.stats.sem(RATES))
    assert (ours.value, ours.low, ours.high) == pytest.approx((np.mean(RATES), *ends))
    for degrees in (1, 2.7, 30):
        assert stats.t_quantile(degrees, level) == pytest.approx(scipy.stats.t.ppf(0.5 + level / 2, degrees))


def test_the_interval_of_a_ratio_is_that_of_a_difference_of_logarithms():
    a, b = [0.190, 0.197, 0.188, 0.193], [0.100, 0.103, 0.098]
    ours = stats.ratio_of_estimates(stats.estimate(a), stats.estimate(b, "runs"))
    parts = [np.var(values, ddof=1) / len(values) / np.mean(values) ** 2 for values in (a, b)]
    half = math.sqrt(np.dot(scipy.stats.t.ppf(0.975, [3, 2]) ** 2, parts))  # Banerjee
    assert (ours.value, ours.low, ours.high) == pytest.approx(np.mean(a) / np.mean(b) * np.exp([0, -half, half]))


def test_a_ratio_is_as_exact_or_unknown_as_its_sides():
    exact, unknown = ratio_interval([193.7, 193.7], [100.0, 100.0]), ratio_interval([10.0, 11.0], [1.0, 30.0])
    assert exact.low == exact.value == exact.high == pytest.approx(1.937)
    assert 0 < unknown.low < 1e-4 and unknown.high > 1e4 and math.isfinite(unknown.high)


@settings(deadline=None)
@given(st.lists(st.floats(90, 110), min_size=2, max_size=6), st.lists(st.floats(90, 110), min_size=2, max_size=6))
def test_ratio_interval_holds_its_value_and_turns_over_with_its_sides(a, b):
    ours, turned = ratio_interval(a, b), ratio_interval(b, a)
    assert ours.low <= ours.value * (1 + 1e-9) and ours.value <= ours.high * (1 + 1e-9)
    assert 1 / turned.value == pytest.approx(ours.value)
    assert (1 / turned.high, 1 / turned.low) == pytest.approx((ours.low, ours.high), rel=1e-6)


def test_hosts_are_what_is_repeated_where_there_are_several():
    first, second = {"run": [100.0, 102.0]}, {"run": [110.0, 112.0], "again": [105.0, 105.0]}
    assert stats.nested_estimate({"a": first, "b": second}) == stats.estimate([101.0, 108.0], "hosts")
    assert stats.nested_estimate({"b": second}).mean == 108.0
    assert stats.nested_estimate({"a": first}) == stats.estimate([100.0, 102.0])
    assert stats.nested_estimate({"a": {"run": [100.0]}}) is None and stats.nested_estimate({}) is None


def test_runs_that_differ_are_as_uncertain_as_their_means():
    runs = {"first": [100.0, 100.01, 99.99], "second": [103.0, 103.01, 102.99]}
    half = stats.nested_estimate({"a": runs}).half_width()
    assert half == pytest.approx(stats.estimate([100.0, 103.0]).half_width(), rel=1e-4)


def test_a_group_is_held_against_where_one_more_of_its_side_would_lie():
    """The spread is that of all sides without it: three values a side, so 1 + 2 degrees of freedom, six looks."""
    side, other = {"a": 100.0, "b": 100.2, "c": 180.0}, {"x": 98.0, "y": 101.0, "z": 103.0}
    ((of, (name, difference)),) = stats.outlying({"one": side, "two": other}, 0.01).items()
    pooled = (np.var([100.0, 100.2], ddof=1) + 2 * np.var(list(other.values()), ddof=1)) / 3
    half = scipy.stats.t.ppf(1 - 0.05 / 6 / 2, 3) * math.sqrt(pooled * (1 + 1 / 2))
    assert (of, name) == ("one", "c")
    assert (difference.value, difference.high) == pytest.approx((180.0 - 100.1, half))
    assert stats.outlying({"one": {**side, "c": 100.1 + half * 0.99}, "two": other}, 0.01) == {}
    assert stats.outlying({"one": {"a": 100.0, "c": 180.0}, "two": other}, 0.01) == {}, "of two nobody knows"


def drawn(variances, degrees):
    """Smyth 2004, with two degrees of freedom's worth of the common variance."""
    own = variances * (degrees + 1)
    return (degrees * own + 2 * (degrees * own).sum() / degrees.sum()) / (degrees + 2) / (degrees + 1)


CRITICAL = scipy.special.fdtri(9, 2, 1 - 0.25 / 2)
"""Ratio of a variance of 10 values to one of 3 at which the two-sided F test gives 0.25."""


@pytest.mark.parametrize(
    ("variances", "degrees", "used"),
    [
        ((1.2, 0.7), (3, 2), drawn),
        ((0.99 * CRITICAL / 10, 1 / 3), (9, 2), drawn),
        ((1.01 * CRITICAL / 10, 1 / 3), (9, 2), lambda variances, _: variances),  # these surely differ
    ],
)
def test_degrees_of_freedom_follow_from_variances(variances, degrees, used):
    """Satterthwaite 1946; 0.7 of what it adds."""
    expected = used(np.array(variances), np.array(degrees))
    satterthwaite = expected.sum() ** 2 / (expected**2 / degrees).sum()
    parts = [stats.Estimate(1.0, (cause,)) for cause in zip(variances, degrees, strict=True)]
    found = stats.difference_of(*parts)
    assert found.degrees_of_freedom == pytest.approx(2 + 0.7 * (satterthwaite - 2))
    assert found.variance == pytest.approx(sum(variances))


@pytest.mark.parametrize(
    ("variances", "degrees", "found"),
    [
        ((1e-6, 1e-6), (2.0, 2.0), 2 + 0.7 * 2),  # equal numbers are on the cautious side
        ((1e-6, 1e-12), (1.0, 9.0), 1.0),  # sides that surely spread differently do not share a variance
    ],
)
def test_degrees_of_freedom_are_cautious_where_variances_are_not_shared(variances, degrees, found):
    parts = [stats.Estimate(1.0, (cause,)) for cause in zip(variances, degrees, strict=True)]
    assert stats.difference_of(*parts).degrees_of_freedom == pytest.approx(found, rel=1e-3)

"""When a repeat has timed enough steps."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest
import scipy

from results.schema import Case
from tfbench.measuring.early_stop import (
    FIRST_LOOK,
    QUANTILE,
    SHARE_OF_TARGET,
    _t_quantile,
    enough_for,
    relative_half_width,
)

CASE = Case(model="resnet50", num_steps=5000, target_ci=0.02)


def correlated(phi: float, cv: float, count: int, seed: int = 3) -> list[float]:
    """Steps of mean 1 of which each takes over `phi` of what the last one had."""
    draw = random.Random(seed)
    steps, state = [], draw.gauss(0, 1)
    for _ in range(count):
        state = phi * state + (1 - phi**2) ** 0.5 * draw.gauss(0, 1)
        steps.append(1 + cv * state)
    return steps


def test_the_interval_of_independent_steps_is_nearly_the_textbook_one():
    steps = correlated(0.0, 0.05, 2000)
    low, high = scipy.stats.t.interval(0.96, len(steps) - 1, loc=statistics.fmean(steps), scale=scipy.stats.sem(steps))
    assert relative_half_width(steps) == pytest.approx((high - low) / 2 / statistics.fmean(steps), rel=0.1)


def test_the_interval_of_correlated_steps_is_that_of_as_many_independent_ones_as_they_are_worth():
    steps = correlated(0.8, 0.05, 20_000)
    independent = len(steps) * (1 - 0.8) / (1 + 0.8)
    assert relative_half_width(steps) == pytest.approx(QUANTILE * 0.05 / independent**0.5, rel=0.1)


def test_the_quantile_is_that_of_scipy():
    for degrees in (20, 50, 1000):
        assert _t_quantile(degrees) == pytest.approx(scipy.stats.t.ppf(0.5 + 0.96 / 2, degrees), rel=1e-3)


def test_steady_steps_are_enough_at_the_first_look_and_noisy_ones_are_not():
    steady, noisy = correlated(0.0, 0.01, FIRST_LOOK), correlated(0.0, 0.3, FIRST_LOOK)
    enough = enough_for(CASE)
    assert enough(steady) and not enough(noisy)
    assert not enough(steady[:-10])
    assert relative_half_width(steady) <= CASE.target_ci * SHARE_OF_TARGET < relative_half_width(noisy)
    assert relative_half_width([0.25] * FIRST_LOOK) == 0.0


def test_few_looks_are_taken_and_the_steps_between_them_end_nothing():
    looks = [count for count in range(10, 5001, 10) if enough_for(CASE)([0.25] * count)]
    assert looks == [500, 620, 780, 970, 1220, 1520, 1900, 2380, 2980, 3720, 4650]


@pytest.mark.parametrize("phi", [0.9, 0.97])
def test_steps_that_hang_together_for_too_long_say_nothing_about_their_mean(phi):
    assert relative_half_width(correlated(phi, 0.01, 500)) == float("inf")


def test_steps_that_nearly_repeat_each_other_say_nothing_however_many_they_are():
    assert relative_half_width(correlated(0.97, 0.001, 20_000)) == float("inf")
    assert relative_half_width(correlated(0.94, 0.001, 20_000)) < 0.01


def test_rare_stalls_say_nothing_about_the_mean_until_many_were_seen():
    steps = correlated(0.0, 0.01, 1000)
    for first in (100, 450, 800):
        steps[first : first + 3] = [2.0, 2.0, 2.0]
    assert relative_half_width(steps) == float("inf")


@pytest.mark.parametrize("case", [dataclasses.replace(CASE, target_ci=None), dataclasses.replace(CASE, num_hosts=2)])
def test_never_without_a_target_and_never_where_hosts_must_agree(case):
    assert not enough_for(case)([1.0] * 500)

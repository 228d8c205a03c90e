"""When a repeat has timed enough steps."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest
from scipy import stats

from results.schema import FEWEST_STEPS, Case
from tfbench.early_stop import BATCHES, SHARE_OF_TARGET, enough_for, relative_half_width

CASE = Case(model="resnet50", num_steps=1000, target_ci=0.02)


def test_the_interval_is_the_textbook_one_of_batch_means():
    draw = random.Random(3)
    steps = [1.0 + draw.gauss(0, 0.05) for _ in range(83)]
    used = steps[3:]
    means = [statistics.fmean(used[first : first + 8]) for first in range(0, 80, 8)]
    low, high = stats.t.interval(0.95, BATCHES - 1, loc=statistics.fmean(means), scale=stats.sem(means))
    assert relative_half_width(steps) == pytest.approx((high - low) / 2 / statistics.fmean(means), rel=1e-4)


def test_steady_steps_are_enough_at_the_floor_and_noisy_ones_are_not():
    draw = random.Random(5)
    steady = [1.0 + draw.gauss(0, 0.001) for _ in range(FEWEST_STEPS)]
    noisy = [1.0 + draw.gauss(0, 0.3) for _ in range(FEWEST_STEPS)]
    enough = enough_for(CASE)
    assert enough(steady) and not enough(noisy)
    assert not enough(steady[:-1])
    assert relative_half_width(steady) <= CASE.target_ci * SHARE_OF_TARGET < relative_half_width(noisy)


def test_slow_waves_count_more_than_the_spread_of_single_steps_says():
    """Steps that follow each other are alike: the plain t-interval would promise far too much."""
    waves = [1.0 + 0.1 * (index // 20 % 2) for index in range(200)]
    naive = 1.96 * statistics.stdev(waves) / len(waves) ** 0.5 / statistics.fmean(waves)
    assert relative_half_width(waves) > 3 * naive


@pytest.mark.parametrize("case", [dataclasses.replace(CASE, target_ci=None), dataclasses.replace(CASE, num_hosts=2)])
def test_never_without_a_target_and_never_where_hosts_must_agree(case):
    assert not enough_for(case)([1.0] * 500)

"""Interim analyses of a comparison while repeats come in: when it is decided, and why."""

import math
from dataclasses import replace

import pytest

from results.compare.comparison import compare_pair
from results.compare.sequential import SINGLE_MACHINES_LEVEL, Reason, analyse, analysis_level
from results.schema import Case
from results.table.columns import Software
from results.table.fleets import FleetRate

CASE = Case(model="resnet50")
ASKED = 0.02


def side(name: str, *hosts: list[float], price: float | None = None, **software: object) -> FleetRate:
    """Return what the hosts of a fleet measured."""
    rates = {f"{name}{number}": {"": values} for number, values in enumerate(hosts) if values}
    prices = {} if price is None else dict.fromkeys(rates, price)
    return FleetRate(name, CASE, Software(**software), rates, unit="images", prices=prices)


STEADY = side("a", [1000.0], [1002.0], [999.0]), side("b", [80.0], [80.1], [79.9])


def test_all_analyses_together_spend_five_percent():
    spent = [1 - analysis_level(number) for number in range(1, 2000)]
    assert math.fsum(spent) == pytest.approx(0.05, rel=1e-3) and math.fsum(spent) < 0.05
    assert spent == sorted(spent, reverse=True) and spent[0] == pytest.approx(0.025)


def test_hosts_that_agree_decide_after_one_repeat_each():
    found = analyse(*STEADY, ASKED, 1)
    assert found.reason is Reason.KNOWN and found.interval is not None and found.interval.contains(12.5)
    assert found.interval.level == 0.95, "to stop at a narrow interval says nothing about the mean"
    assert found.text.startswith("a / b is known to ± ") and found.text.endswith("after 1 repeat of each host")
    assert "level" not in found.text, "95 % is not mentioned"


def test_two_single_machines_need_two_repeats_and_a_higher_level():
    assert analyse(side("a", [100.0]), side("b", [80.0]), ASKED, 1).reason is None
    single = side("a", [100.0, 100.01]), side("b", [80.0, 80.01])
    queues = side("a", [100.0], [100.01]), side("b", [80.0], [80.01])
    for pair in (single, queues):
        found = analyse(*pair, ASKED, 2)
        assert found.reason is Reason.KNOWN and found.interval is not None
        assert found.interval.level == SINGLE_MACHINES_LEVEL and " (level 96.5%) after 2 repeats" in found.text
        usual = compare_pair(*pair).interval
        assert usual is not None and found.interval.half_width > usual.half_width


def test_hosts_that_agree_better_than_their_repeats_are_not_trusted():
    lucky = side("a", [95.0, 105.0], [104.0, 96.1], [96.0, 104.1]), side("b", [80.0, 80.1], [79.9, 80.0], [80.1, 80.0])
    usual = compare_pair(*lucky).interval
    assert usual is not None and usual.half_width / usual.value < 0.005
    assert analyse(*lucky, ASKED, 2).reason is None
    steady = side("a", [99.4, 100.6], [100.6, 99.5], [99.5, 100.6]), lucky[1]
    assert analyse(*steady, ASKED, 2).reason is Reason.KNOWN


def test_a_price_decides_only_where_a_wider_interval_is_clear_of_it():
    a, b = side("a", [100.0], [103.0], [98.0]), side("b", [80.0], [82.0], [79.0])
    usual = compare_pair(a, b).interval
    assert usual is not None
    for price, reason in ((usual.low - 0.005, None), (usual.low - 0.1, Reason.PRICE)):
        first, second = (replace(one, prices=dict.fromkeys(one.rates, usd)) for one, usd in ((a, price), (b, 1.0)))
        found = analyse(first, second, ASKED, 1)
        assert found.reason is reason
    assert f"above its price ratio of {usual.low - 0.1:.2f}" in found.text


def test_noisy_repeats_go_on():
    noisy = side("a", [100.0, 108.0], [97.0, 109.0]), side("b", [80.0, 86.0], [78.0, 87.0])
    found = analyse(*noisy, ASKED, 2)
    assert found.reason is None and found.width > 0.02


def test_a_side_without_a_number_and_another_measurement_give_no_ratio():
    assert analyse(side("a"), STEADY[1], ASKED, 1).reason is None, "another repeat may succeed"
    failed = analyse(side("a"), STEADY[1], ASKED, 2)
    assert failed.reason is Reason.NO_RATIO and "no repeat on a succeeded (2 of each host)" in failed.text
    other = analyse(side("a", [100.0], [100.0], tf32=True), side("b", [80.0], [80.0], tf32=False), ASKED, 1)
    assert other.reason is Reason.NO_RATIO and "tf32" in other.text

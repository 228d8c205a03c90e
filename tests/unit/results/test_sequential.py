"""Looks at a comparison while repeats come in: when it is decided, and why."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from results.compare.pairs import compare_pair
from results.compare.sequential import LOOKS_LEVEL, Answer, look, look_level, spread_of_repeats
from results.schema import Case
from results.table.fleets import FleetRate
from results.table.software import Software

CASE = Case(model="resnet50")
ASKED = 0.02


def side(name: str, *hosts: list[float], price: float | None = None, **software: object) -> FleetRate:
    """Return what the hosts of a fleet measured."""
    rates = {f"{name}{number}": {"": values} for number, values in enumerate(hosts) if values}
    prices = {} if price is None else dict.fromkeys(rates, price)
    return FleetRate(name, CASE, Software(**software), rates, unit="images", prices=prices)  # type: ignore[arg-type]


STEADY = side("a", [100.0], [100.2], [99.9]), side("b", [80.0], [80.1], [79.9])
SPREAD = side("a", [100.0, 100.1], [104.0, 104.1], [97.0, 97.1]), side("b", [80.0, 80.1], [83.0, 83.1], [78.0, 78.1])


def test_the_looks_together_spend_five_percent_and_each_less_than_the_one_before():
    spent = [1 - look_level(number) for number in range(1, 2000)]
    assert math.fsum(spent) == pytest.approx(0.05, rel=1e-3) and math.fsum(spent) < 0.05
    assert spent == sorted(spent, reverse=True) and spent[0] == pytest.approx(0.025)


def test_hosts_that_agree_decide_after_one_repeat_each():
    found = look(*STEADY, ASKED, 1)
    assert found.answer is Answer.KNOWN and found.interval is not None and found.interval.contains(1.25)
    assert found.interval.level == 0.95, "to stop at a narrow interval says nothing about the mean"
    assert found.why.startswith("a / b is known to ± ") and "after 1 repeat of each host (target: 2.0%)" in found.why
    assert "level" not in found.why, "95 % is not said"


def test_one_host_a_side_needs_two_repeats_to_say_anything_and_is_reported_at_a_higher_level():
    assert look(side("a", [100.0]), side("b", [80.0]), ASKED, 1).answer is None
    found = look(side("a", [100.0, 100.01]), side("b", [80.0, 80.01]), ASKED, 2)
    assert found.answer is Answer.KNOWN and found.interval is not None and found.interval.level == LOOKS_LEVEL
    assert " (level 96.5%) after 2 repeats" in found.why
    usual = compare_pair(side("a", [100.0, 100.01]), side("b", [80.0, 80.01])).interval
    assert usual is not None and found.interval.half_width > usual.half_width


def test_hosts_that_agree_better_than_their_repeats_do_so_by_luck():
    lucky = side("a", [95.0, 105.0], [104.0, 96.1], [96.0, 104.1]), side("b", [80.0, 80.1], [79.9, 80.0], [80.1, 80.0])
    usual = compare_pair(*lucky).interval
    assert usual is not None and usual.half_width / usual.value < 0.005
    assert look(*lucky, ASKED, 2).answer is None
    steady = side("a", [99.9, 100.1], [100.2, 99.9], [99.9, 100.2]), lucky[1]
    assert look(*steady, ASKED, 2).answer is Answer.KNOWN


def test_one_machine_alone_needs_four_repeats_that_agree_well():
    rates = [100.0, 100.1, 99.9, 100.05]
    assert look(side("a", rates[:3]), None, ASKED, 3).answer is None
    assert look(side("a", rates), None, ASKED, 4).answer is Answer.KNOWN
    assert look(side("a", [100.0, 101.0, 99.0, 100.5]), None, ASKED, 4).answer is None, "± 1.4 % of the 2 % asked for"


def test_nodes_of_a_queue_that_come_one_by_one_are_as_lucky_as_repeats():
    assert look(side("a", [100.0], [100.1], [99.9]), None, ASKED, 3).answer is None, "a queue: three repeats"
    assert look(side("a", [100.0], [100.1], [99.9], [100.05]), None, ASKED, 4).answer is Answer.KNOWN
    found = look(side("a", [100.0], [100.01]), side("b", [80.0], [80.01]), ASKED, 2)
    assert found.interval is not None and found.interval.level == LOOKS_LEVEL


def test_to_be_sure_of_a_side_of_the_price_ratio_takes_more_than_the_usual_interval():
    a, b = side("a", [100.0], [103.0], [98.0]), side("b", [80.0], [82.0], [79.0])
    usual = compare_pair(a, b).interval
    assert usual is not None
    for price, answer in ((usual.low - 0.005, None), (usual.low - 0.1, Answer.SURE)):
        priced = (replace(one, prices=dict.fromkeys(one.rates, usd)) for one, usd in ((a, price), (b, 1.0)))
        assert look(*priced, ASKED, 1).answer is answer


def test_a_wide_interval_that_is_clear_of_the_price_ratio_decides_too():
    a, b = (side(rate.fleet, *([v for run in runs.values() for v in run] for runs in rate.rates.values()), price=price)
            for rate, price in zip(SPREAD, (1.0, 2.0), strict=True))  # fmt: skip
    found = look(a, b, ASKED, 2)
    assert found.answer is Answer.SURE and "above its price ratio of 0.50" in found.why
    near = look(a, side("b", [80.0, 80.1], [83.0, 83.1], [78.0, 78.1], price=0.8), ASKED, 2)
    assert near.answer is not Answer.SURE


def test_repeats_that_would_hardly_narrow_the_interval_are_not_run():
    once = (
        side(rate.fleet, *([v for run in runs.values() for v in run[:1]] for runs in rate.rates.values()))
        for rate in SPREAD
    )
    assert look(*once, ASKED, 1).answer is None, "one repeat does not show whether it is the hosts or the repeats"
    found = look(*SPREAD, ASKED, 2)
    assert found.answer is Answer.NO_USE and "the hosts of a fleet differ. To reach 2.0%, add hosts" in found.why


def test_how_repeats_of_another_case_vary_may_only_end_what_is_of_no_use():
    once = side("a", [100.0], [104.0], [97.0]), side("b", [80.0], [83.0], [78.0])
    assert look(*once, ASKED, 1, spread=0.0001**2).answer is Answer.NO_USE
    assert look(*once, ASKED, 1, spread=0.03**2).answer is None, "hosts may differ by chance of their repeats"
    assert look(*STEADY, ASKED, 1, spread=0.03**2).answer is Answer.KNOWN


def test_the_spread_of_repeats_is_pooled_over_hosts_as_a_share_of_each():
    pair = side("a", [99.0, 101.0], [100.0]), side("b", [50.0, 50.0])
    assert spread_of_repeats(pair) == pytest.approx((2 / 100**2 + 0) / 2)
    assert spread_of_repeats(STEADY) is None


def test_repeats_go_on_where_endless_ones_would_reach_what_was_asked():
    found = look(*SPREAD, ASKED, 2)
    assert found.width > 0.05
    assert look(*SPREAD, found.width * 0.9999, 2).answer is None
    assert look(*SPREAD, found.width * 0.99, 2).answer is Answer.NO_USE


def test_noisy_repeats_go_on():
    noisy = side("a", [100.0, 108.0], [97.0, 109.0]), side("b", [80.0, 86.0], [78.0, 87.0])
    found = look(*noisy, ASKED, 2)
    assert found.answer is None and found.width > 0.02


def test_a_side_without_a_number_and_another_measurement_give_no_ratio():
    assert look(side("a"), STEADY[1], ASKED, 1).answer is None, "another repeat may succeed"
    failed = look(side("a"), STEADY[1], ASKED, 2)
    assert failed.answer is Answer.NO_RATIO and "no repeat on a succeeded (2 of each host)" in failed.why
    other = look(side("a", [100.0], [100.0], tf32=True), side("b", [80.0], [80.0], tf32=False), ASKED, 1)
    assert other.answer is Answer.NO_RATIO and "tf32" in other.why


def test_a_case_of_one_fleet_alone_is_known_by_its_own_throughput():
    found = look(STEADY[0], None, ASKED, 1)
    assert found.answer is Answer.KNOWN and found.interval == STEADY[0].estimate.interval(LOOKS_LEVEL)
    assert look(SPREAD[0], None, ASKED, 2).answer is Answer.NO_USE

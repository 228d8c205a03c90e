"""Looks at a comparison while repeats come in: when it is decided, and why."""

from __future__ import annotations

import math

import pytest

from results.compare.sequential import Answer, look, look_level
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
    assert found.interval.level == pytest.approx(0.975)
    assert found.why.startswith("a / b is known to ± ") and "after 1 repeat of each host (asked: 2.0%)" in found.why


def test_one_host_a_side_needs_two_repeats_to_say_anything():
    assert look(side("a", [100.0]), side("b", [80.0]), ASKED, 1).answer is None
    assert look(side("a", [100.0, 100.01]), side("b", [80.0, 80.01]), ASKED, 2).answer is Answer.KNOWN


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
    assert look(STEADY[0], None, ASKED, 1).answer is Answer.KNOWN
    assert look(SPREAD[0], None, ASKED, 2).answer is Answer.NO_USE

"""A host that differs from its equal neighbours is named; ordinary spread is not."""

from __future__ import annotations

import random

from results.schema import Case, Precision
from results.table.columns import Software
from results.table.fleets import FleetRate, outliers


def fleet(*means: float) -> FleetRate:
    case = Case(model="resnet50", precision=Precision.FP16)
    rates = {f"host-{i}": {"run": [mean * 0.999, mean, mean * 1.001]} for i, mean in enumerate(means)}
    return FleetRate("a4000", case, Software(), rates)


def test_a_slow_host_among_equal_ones_is_named_with_its_figures():
    (found,) = outliers([fleet(100, 100.3, 99.8, 100.1, 88)])
    assert found.host == "host-4"
    assert str(found) == (
        "a4000/host-4 is 12.0% slower than the 4 other hosts of its fleet (resnet50, fp16); an equal host would lie "
        "within -1.3% to +1.4%. Look at its cooling, power limit and neighbours"
    )


def test_differences_that_are_certain_but_small_are_not_worth_a_word():
    assert outliers([fleet(100, 100.01, 99.99, 100, 102)]) == []


def test_a_fleet_of_equal_hosts_is_rarely_accused():
    chance = random.Random(7)
    fleets = [fleet(*(chance.gauss(100, 4) for _ in range(8))) for _ in range(1000)]
    accused = sum(bool(outliers([one])) for one in fleets)
    assert accused / 1000 < 0.07, "the level is 5 % for a whole fleet"
    assert accused > 10, "and the test is not so timid that it could never speak"

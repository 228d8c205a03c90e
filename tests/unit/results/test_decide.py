"""One decision about what to rent, in every command and in the analyses that may end a run early."""

import json
import math
import re
from dataclasses import replace

import pytest

import results.__main__ as program
from results.compare.comparison import compare_pair
from results.compare.decide import cheaper, decide, price_limits
from results.compare.sequential import SINGLE_MACHINES_LEVEL, analyse, analysis_level
from results.schema import Case
from results.stats import Interval
from results.table.columns import Software
from results.table.fleets import FleetRate
from tests.unit.results.factory import make_case, make_environment, rates_of, repeats, write_run

SLOW, FAST = (100.0, 101.0, 99.0), (160.0, 158.0, 159.0)


def records_at(ratio):
    """Make records of `fast` at `ratio` times the price of `slow`."""
    sides = (("slow", "RTX A4000", SLOW, 0.2), ("fast", "RTX A5000", FAST, 0.2 * ratio))
    for fleet, gpu, rates, usd in sides:
        machine = make_environment(gpus=1, gpu=f"NVIDIA {gpu}")
        case = make_case(device="gpu", precision="fp16")
        yield from repeats(*rates, fleet=fleet, host=fleet, case=case, environment=machine, usd_per_gpu_hour=usd)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("factor", [0.999, 1.001])
@pytest.mark.slow
def test_compare_recommend_and_report_decide_at_the_same_price(tmp_path, monkeypatch, capsys, number, factor):
    """Just below and just above both limits; the page's script has the limits themselves, see tests/real/browser."""
    monkeypatch.setenv("TFBENCH_RUNS_DIR", str(tmp_path))

    def ask(*arguments):
        assert program.main(["results", *arguments]) == 0
        return capsys.readouterr().out

    write_run(tmp_path / "first", records_at(1.0))
    page = tmp_path / "page.html"
    run = next((tmp_path / "first").iterdir())
    ask("report", str(run), f"--output={page}")
    data = json.loads(re.search(r'id="job-data">(.*?)</script>', page.read_text())[1])
    ((one, of_one),) = data[0]["limits"].items()
    ((low, high),) = of_one.values()
    limits = (low, high) if one == "fast" else (1 / high, 1 / low)
    run = write_run(tmp_path / "second", records_at(limits[number] * factor)).path
    winner = {(0, 0.999): "fast", (1, 1.001): "slow"}.get((number, factor))
    assert json.loads(ask("recommend", str(run), "--format=json"))["answers"][0]["winner"] == winner
    sentence = ask("recommend", str(run))
    assert ("no significant difference in samples per dollar between" in sentence) is (winner is None)
    compared = ask("compare", "fast", "slow", str(run))
    assert ("No difference above 1 % in samples per dollar" in compared) is (winner is None)
    assert winner is None or f"Rent {winner}, " in compared


def test_stopping_early_by_price_is_the_same_decision():
    (a, b) = sorted(rates_of(*records_at(1.0)), key=lambda rate: rate.fleet)
    bounds = analyse(a, b, 1e-6, 3).interval
    assert bounds is not None
    for ratio in (1.0, 1.3, 1.59, 1.9, 3.0):
        (a, b) = sorted(rates_of(*records_at(ratio)), key=lambda rate: rate.fleet)
        found = analyse(a, b, 1e-6, 3)
        if "its price ratio" in found.text:
            assert cheaper(found.interval, ratio) == (1 if "above its price ratio" in found.text else -1)
        else:
            assert ratio == 1.59


def test_less_than_one_percent_and_an_unknown_uncertainty_decide_nothing():
    assert price_limits(Interval(1.005, 1.004, 1.006)) == pytest.approx((1.005 / 1.01, 1.005 * 1.01))
    assert cheaper(Interval(1.5), 1e-9) == cheaper(Interval(1.5), 1e9) == 0
    assert decide({"a": (1.0,), "b": (1.0,)}, lambda *_: Interval(1.005, 1.004, 1.006)) == (["a", "b"], [])


def test_only_options_that_no_other_one_beats_are_the_best():
    rates = {"a": 100.0, "b": 98.0, "c": 60.0}
    found = decide(
        dict.fromkeys(rates, (1.0, 1.1)), lambda a, b: Interval(rates[a] / rates[b], *[rates[a] / rates[b]] * 2)
    )
    assert found == (["a", "b"], ["c"])


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


def test_two_single_machines_need_two_repeats_and_a_higher_level():
    assert analyse(side("a", [100.0]), side("b", [80.0]), ASKED, 1).text == ""
    single = side("a", [100.0, 100.01]), side("b", [80.0, 80.01])
    queues = side("a", [100.0], [100.01]), side("b", [80.0], [80.01])
    for pair in (single, queues):
        found = analyse(*pair, ASKED, 2)
        assert "is known to" in found.text and found.interval is not None
        assert found.interval.level == SINGLE_MACHINES_LEVEL and " (level 96.5%) after 2 repeats" in found.text
        usual = compare_pair(*pair).ratio
        assert usual is not None and found.interval.half_width > usual.half_width


def test_hosts_that_agree_better_than_their_repeats_are_not_trusted():
    lucky = side("a", [95.0, 105.0], [104.0, 96.1], [96.0, 104.1]), side("b", [80.0, 80.1], [79.9, 80.0], [80.1, 80.0])
    usual = compare_pair(*lucky).ratio
    assert usual is not None and usual.half_width / usual.value < 0.005
    assert analyse(*lucky, ASKED, 2).text == ""
    steady = side("a", [99.4, 100.6], [100.6, 99.5], [99.5, 100.6]), lucky[1]
    assert "is known to" in analyse(*steady, ASKED, 2).text


def test_a_price_decides_only_where_a_wider_interval_is_clear_of_it():
    a, b = side("a", [100.0], [103.0], [98.0]), side("b", [80.0], [82.0], [79.0])
    usual = compare_pair(a, b).ratio
    assert usual is not None
    for price, decided in ((usual.low - 0.005, False), (usual.low - 0.1, True)):
        first, second = (replace(one, prices=dict.fromkeys(one.rates, usd)) for one, usd in ((a, price), (b, 1.0)))
        found = analyse(first, second, ASKED, 1)
        assert ("its price ratio" in found.text) is decided
    assert f"above its price ratio of {usual.low - 0.1:.2f}" in found.text


def test_a_side_without_a_number_and_another_measurement_give_no_ratio():
    assert analyse(side("a"), STEADY[1], ASKED, 1).text == "", "another repeat may succeed"
    failed = analyse(side("a"), STEADY[1], ASKED, 2)
    assert "no repeat on a succeeded (2 of each host)" in failed.text
    other = analyse(side("a", [100.0], [100.0], tf32=True), side("b", [80.0], [80.0], tf32=False), ASKED, 1)
    assert "tf32 differ" in other.text

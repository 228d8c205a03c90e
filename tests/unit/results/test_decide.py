"""One decision about what to rent: every command changes its mind at the same price."""

import json
import re

import pytest

import results.__main__ as program
from results.compare.decide import decide, price_limits
from results.compare.sequential import Reason, analyse
from results.stats import Interval, inverse
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
    assert ("No significant difference in samples per dollar" in compared) is (winner is None)
    assert winner is None or f"Rent {winner}: " in compared


def test_stopping_early_by_price_is_the_same_decision():
    (a, b) = sorted(rates_of(*records_at(1.0)), key=lambda rate: rate.fleet)
    bounds = analyse(a, b, 1e-6, 3).interval
    assert bounds is not None
    for ratio in (1.0, 1.3, 1.59, 1.9, 3.0):
        (a, b) = sorted(rates_of(*records_at(ratio)), key=lambda rate: rate.fleet)
        found = analyse(a, b, 1e-6, 3)
        if found.reason is Reason.PRICE:
            ratios = {"a": found.interval, "b": inverse(found.interval)}
            winner = decide({"a": (ratio,), "b": (1.0,)}, lambda of, _, ratios=ratios: ratios[of]).winner
            assert winner == ("a" if "above its price ratio" in found.text else "b")
        else:
            assert ratio == 1.59


def test_less_than_one_percent_and_an_unknown_uncertainty_decide_nothing():
    assert price_limits(Interval(1.005, 1.004, 1.006)) == pytest.approx((1.005 / 1.01, 1.005 * 1.01))
    assert price_limits(None) == (0.0, float("inf"))
    assert decide({"a": (1.0,), "b": (1.0,)}, lambda *_: Interval(1.005, 1.004, 1.006)).winner is None


def test_only_options_that_no_other_one_beats_are_the_best():
    rates = {"a": 100.0, "b": 98.0, "c": 60.0}
    found = decide(
        dict.fromkeys(rates, (1.0, 1.1)), lambda a, b: Interval(rates[a] / rates[b], *[rates[a] / rates[b]] * 2)
    )
    assert (found.best, found.beaten, found.winner) == (("a", "b"), ("c",), None)

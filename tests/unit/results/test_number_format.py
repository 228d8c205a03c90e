import math
import random
import re
from decimal import Decimal

import pytest

from results.number_format import significant, with_interval
from results.stats import Interval
from results.table.cell_text import value_text


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (9812.4, 14.2, "9 812 ± 14"),
        (9812.4, 4.2, "9 812 ± 4"),
        (1.9412, 0.052, "1.94 ± 0.05"),
        (1.9412, 0.012, "1.941 ± 0.012"),
        (12.34, 0.29, "12.34 ± 0.29"),
        (123456.0, 1500.0, "123 500 ± 1 500"),
        (123456.0, 40000.0, "120 000 ± 40 000"),
        (0.5, 0.996, "0.5 ± 1.0"),
        (0.93, 3.3, "1 ± 3"),
        (1.5489, 66.9, "2 ± 70"),
        (0.31, 66.9, "0.3 ± 70"),
        (0.0, 66.9, "0 ± 70"),
        (9812.4, None, "9 812"),
        (11.23456, None, "11.23"),
        (5.0, 0.0, "5.000"),
        (0.0, None, "0"),
        (453.2, 5.7e-14, "453.2"),  # the rounding of three equal repeats
    ],
)
def test_the_digits_of_the_error_decide_the_digits_of_the_number(value, error, text):
    interval = None if error is None else Interval(value, value - error, value + error)
    assert value_text(value, interval).replace("\u00a0", " ") == text


def test_an_open_interval_is_not_written_as_a_number():
    assert with_interval(Interval(2.0, float("-inf"), float("inf"))) == "2.000 ± ?"


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (1.51, 1.078, 2.114, "1.51 (1.08–2.11)"),
        (1.5699, 1.5666, 1.5731, "1.570 ± 0.003"),
        (1.141, 1.1276, 1.1554, "1.141 ± 0.014"),  # less than a unit of the last place
        (5652.0, 5632.0, 5687.0, "5 652 (5 632–5 687)"),
        (1.5, 1.2, float("inf"), "1.500 (1.20–∞)"),
        (1.05, 1.004, 1.096, "1.050 ± 0.046"),  # significant: 1.05 ± 0.05 would include 1
        (1.05, 0.996, 1.104, "1.05 ± 0.05"),
        (0.97, 0.94, 0.9997, "0.9700 (0.9400–0.9997)"),
    ],
)
def test_an_interval_is_printed_with_both_ends_unless_its_sides_are_equal(value, low, high, text):
    assert with_interval(Interval(value, low, high)).replace("\u00a0", " ") == text


def test_a_printed_interval_includes_1_only_if_the_interval_does():
    noise = random.Random(1)
    for _ in range(2000):
        value, below, above = (math.exp(noise.gauss(mean, 1.0)) for mean in (0.0, -3.0, -3.0))
        interval = Interval(value, value - below, value + (above if noise.random() < 0.5 else below))
        ends = printed_ends(with_interval(interval))
        assert (ends[0] <= 1 <= ends[1]) == interval.contains(1.0), interval


def printed_ends(text: str) -> tuple[float, float]:
    text = text.replace("\u00a0", "")
    if found := re.fullmatch(r"[\d.]+ \((-?[\d.]+)–([\d.]+)\)", text):
        return float(found[1]), float(found[2])
    value, error = map(Decimal, text.split(" ± "))
    return float(value - error), float(value + error)


def test_significant_digits_are_written_without_exponent():
    assert [significant(value) for value in (1493.4, 0.01234, 26.61)] == ["1\u00a0493", "0.0123", "26.6"]

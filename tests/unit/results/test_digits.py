import pytest

from results.digits import significant, with_error, with_interval
from results.stats import Interval


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
    assert with_error(value, error).replace("\u00a0", " ") == text


def test_an_open_interval_is_not_written_as_a_number():
    assert with_interval(Interval(2.0, float("-inf"), float("inf"))) == "2.000 ± ?"


def test_significant_digits_are_written_without_exponent():
    assert [significant(value) for value in (1493.4, 0.01234, 26.61)] == ["1\u00a0493", "0.0123", "26.6"]

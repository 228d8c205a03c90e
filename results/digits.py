"""How numbers are written: the digits of the error decide the digits of the number."""

from __future__ import annotations

import math

from results.stats import Interval

GROUP_SPACE = "\u00a0"
"""Between thousands; does not break at the end of a line."""

DIGITS_WITHOUT_ERROR = 4
"""Significant digits of a number whose error is not known."""

FLOAT_NOISE = 1e-12
"""Error, relative to its number, that is rounding in the last bits and no scatter of measurements."""


def significant_place(error: float) -> int:
    """Return the last decimal place worth writing: 0 = ones, 1 = tenths, −1 = tens.

    An error that starts with 1 or 2 keeps two digits, any other keeps one: rounding changes it by 20 % at
    most.
    """
    exponent = math.floor(math.log10(error))
    leading = error / 10**exponent
    return -exponent + (1 if leading < 2.95 else 0)


def grouped(value: float, place: int = 0) -> str:
    """Write a number with spaces between thousands.

    Args:
        value: Finite.
        place: Last decimal place; a negative one rounds to tens, hundreds, …
    """
    return f"{round(value, place):,.{max(place, 0)}f}".replace(",", GROUP_SPACE)


def with_error(value: float, error: float | None) -> str:
    """Write `9 812 ± 14`; four significant digits where the error is not known, zero or the rounding of floats.

    A number that this would make 0 keeps its first digit: `2 ± 70`.
    """
    if error is None or not math.isfinite(error) or error <= abs(value) * FLOAT_NOISE:
        return significant(value, DIGITS_WITHOUT_ERROR)
    place = significant_place(error)
    number = grouped(value, place) if round(value, place) else significant(value, 1)
    return f"{number} ± {grouped(error, place)}"


def significant(value: float, digits: int = 3) -> str:
    """Write a number with `digits` significant digits, never with an exponent."""
    if value == 0:
        return "0"
    return grouped(value, max(digits - 1 - math.floor(math.log10(abs(value))), 0))


def with_interval(interval: Interval) -> str:
    """Write a value with the larger side of its interval as error."""
    if not math.isfinite(interval.half_width):
        return f"{with_error(interval.value, None)} ± ?"
    return with_error(interval.value, interval.half_width)

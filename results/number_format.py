"""Formats numbers with as many digits as their error allows."""

from __future__ import annotations

import math

from results.stats import Interval

GROUP_SPACE = "\u00a0"
"""Thousands separator: a no-break space."""

DIGITS_WITHOUT_ERROR = 4
"""Significant digits of a number with unknown error."""

MOST_PLACES = 9
"""Decimal places of a number, at most."""

FLOAT_NOISE = 1e-12
"""Relative errors up to this are floating-point rounding, not scatter of measurements."""


def significant_place(error: float) -> int:
    """Return the last significant decimal place: 0 = ones, 1 = tenths, −1 = tens.

    An error that starts with 1 or 2 keeps two digits, others keep one, so that rounding changes it by at most 20 %.
    """
    exponent = math.floor(math.log10(error))
    leading = error / 10**exponent
    return -exponent + (1 if leading < 2.95 else 0)


def grouped(value: float, place: int = 0) -> str:
    """Format a number with spaces between thousands.

    Args:
        value: A finite number.
        place: Last decimal place; negative: round to tens, hundreds, …
    """
    return f"{round(value, place):,.{max(place, 0)}f}".replace(",", GROUP_SPACE)


def significant(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits and without an exponent."""
    if value == 0:
        return "0"
    return grouped(value, max(digits - 1 - math.floor(math.log10(abs(value))), 0))


def with_interval(interval: Interval) -> str:
    """Format `1.570 ± 0.003`, or `1.51 (1.08–2.11)` if the sides of the interval differ by a unit of the last place.

    The printed range includes 1 only if the interval does, so that it never contradicts a significant ratio. A number
    has four digits if its error is zero or floating-point rounding; one that would round to 0 keeps its first digit:
    `2 ± 70`.
    """
    value, low, high, error = interval.value, interval.low, interval.high, interval.half_width
    if not math.isfinite(high) or error <= abs(value) * FLOAT_NOISE:
        open_end = "" if math.isfinite(high) else f" ({significant(low)}–∞)" if low > 0 else " ± ?"
        return f"{significant(value, DIGITS_WITHOUT_ERROR)}{open_end}"
    least = significant_place(error)
    for place in range(least, max(least, MOST_PLACES) + 1):
        middle, side = round(value, place), round(error, place)
        if side - min(high - value, value - low) < 10.0**-place:
            number = grouped(value, place) if middle else significant(value, 1)
            text, ends = (
                f"{number} ± {grouped(error, place)}",
                (round(middle - side, place), round(middle + side, place)),
            )
        else:
            two_digits = max(place, 1 - math.floor(math.log10(error)))
            ends = round(low, two_digits), round(high, two_digits)
            text = f"{grouped(value, two_digits)} ({grouped(low, two_digits)}–{grouped(high, two_digits)})"
        if (ends[0] <= 1 <= ends[1]) == interval.contains(1.0):
            break
    return text

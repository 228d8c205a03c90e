"""Makes texts of records and paths safe for terminals, files and spreadsheets, and formats numbers by their error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from results.stats import Interval

FORMULA_STARTS = "=+-@\t\r＝＋－＠"
"""First characters that spreadsheets parse as a formula, which may run a program. Source: OWASP, CSV Injection."""


def printable(text: str) -> str:
    """Replace control characters by spaces, so that a host's text cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character == "\u00a0" else " " for character in text)


def counted(number: int | str, noun: str) -> str:
    """Format a count: `1 GPU`, `4 GPUs`, `2×4 GPUs`."""
    return f"{number} {noun}{'' if str(number) == '1' else 's'}"


MOST_ENUMERATED = 8
"""Names in a sentence; the table below it has all."""


def shortened(names: Sequence[str], most: int = MOST_ENUMERATED) -> list[str]:
    """Return at most `most` names: of more, the first ones and the number of others."""
    return [*names] if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} others"]


def enumerated(names: Sequence[str], most: int = MOST_ENUMERATED) -> str:
    """Join names for a sentence, `shortened`: `a`, `a and b`, `a, b and c`."""
    names = shortened(names, most)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def path_text(path: Path) -> str:
    """Format a path as printable text: invalid UTF-8 as escapes, control characters as spaces."""
    return printable(str(path).encode("utf-8", "backslashreplace").decode("utf-8"))


def spreadsheet_text(text: str) -> str:
    """Prefix an apostrophe to a text that a spreadsheet would run as a formula, but not to a lone sign."""
    return f"'{text}" if len(text) > 1 and text[0] in FORMULA_STARTS else text


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


def with_interval(interval: Interval | None) -> str:
    """Format `1.570 ± 0.003`, or `1.51 (1.08–2.11)` if the sides of the interval differ by a unit of the last place.

    Empty for None; `1.570` if the uncertainty is unknown.

    The printed range includes 1 only if the interval does, so that it never contradicts a significant ratio. A number
    has four digits if its error is zero or floating-point rounding; one that would round to 0 keeps its first digit:
    `2 ± 70`.
    """
    if interval is None:
        return ""
    value, low, high, error = interval.value, interval.low, interval.high, interval.half_width
    if not interval.known or error <= abs(value) * FLOAT_NOISE:
        return significant(value, DIGITS_WITHOUT_ERROR)
    least = significant_place(error)
    for place in range(least, max(least, MOST_PLACES) + 1):
        middle, side = round(value, place), round(error, place)
        if side - min(high - value, value - low) < 10.0**-place:
            number = grouped(value, place) if middle else significant(value, 1)
            text = f"{number} ± {grouped(error, place)}"
            ends = round(middle - side, place), round(middle + side, place)
        else:
            two_digits = max(place, 1 - math.floor(math.log10(error)))
            ends = round(low, two_digits), round(high, two_digits)
            text = f"{grouped(value, two_digits)} ({grouped(low, two_digits)}–{grouped(high, two_digits)})"
        if (ends[0] <= 1 <= ends[1]) == interval.contains(1.0):
            break
    return text


def value_text(value: float | None, interval: Interval | None = None) -> str:
    """Format a number, with its interval if known; empty without a number."""
    return with_interval(interval if interval or value is None else Interval(value))

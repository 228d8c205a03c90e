"""Makes texts of records and paths safe for terminals, files and spreadsheets; standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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


def enumerated(names: Sequence[str]) -> str:
    """Join names for a sentence: `a`, `a and b`, `a, b and c`; of many, the first ones and the number of others."""
    if len(names) > MOST_ENUMERATED:
        names = [*names[: MOST_ENUMERATED - 1], f"{len(names) - MOST_ENUMERATED + 1} others"]
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def path_text(path: Path) -> str:
    """Format a path as printable text: invalid UTF-8 as escapes, control characters as spaces."""
    return printable(str(path).encode("utf-8", "backslashreplace").decode("utf-8"))


def spreadsheet_text(text: str) -> str:
    """Prefix an apostrophe to a text that a spreadsheet would run as a formula, but not to numbers or a lone sign."""
    if len(text) < 2 or text[0] not in FORMULA_STARTS or _is_number(text):
        return text
    return f"'{text}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

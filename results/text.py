"""Texts of records and paths, made safe for where they are shown: terminals, JSON and HTML files, spreadsheets.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FORMULA_STARTS = "=+-@\t\r＝＋－＠"
"""What a spreadsheet takes for the start of a formula, which may run a program. Source: OWASP, CSV Injection."""


def printable(text: str) -> str:
    """Replace control characters: a host's text must not move the cursor or colour the terminal."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() or character == "\u00a0" else " " for character in text)


def counted(number: int, noun: str) -> str:
    """Write a number of things: `1 GPU`, `4 GPUs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def enumerated(names: Sequence[str]) -> str:
    """Write names as a sentence lists them: `a`, `a and b`, `a, b and c`."""
    return " and ".join([*([", ".join(names[:-1])] if len(names) > 1 else []), *names[-1:]])


def path_text(path: Path) -> str:
    """Write a path as printable text: bytes that are not UTF-8 as escapes, control characters as spaces."""
    return printable(str(path).encode("utf-8", "backslashreplace").decode("utf-8"))


def spreadsheet_text(text: str) -> str:
    """Put an apostrophe before a text that a spreadsheet would run as a formula; numbers and a lone sign stay."""
    if len(text) < 2 or text[0] not in FORMULA_STARTS or _is_number(text):
        return text
    return f"'{text}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

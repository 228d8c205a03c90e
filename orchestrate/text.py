"""Text from elsewhere, made safe to print, to store and to quote.

Nothing that a host sends is trusted: terminal control sequences could rewrite the screen, and a line without an end
could fill the memory.
"""

from __future__ import annotations

import re
import unicodedata

MAX_LINE_LENGTH = 2_000
"""Longest line kept of a host's output, in characters."""

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # device control strings
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # control sequences: colours, cursor
    r"|\x1b."
)


def plain_text(text: str, limit: int = MAX_LINE_LENGTH) -> str:
    """Remove terminal control sequences and control characters, keep one line of at most `limit` characters.

    Also removes characters that reorder or hide others (Unicode categories Cc, Cf, Cs, Co, Zl, Zp).
    """
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text  # nearly every line: a fleet prints a few hundred of them a second
    text = _ESCAPES.sub("", text[: limit * 4])
    kept = "".join(
        " " if character in "\t\n\r\v\f" else character
        for character in text
        if character in "\t\n\r\v\f " or unicodedata.category(character) not in _HIDDEN
    )
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def shown(value: object, limit: int = 80) -> str:
    """Quote what came in, short enough for a message."""
    return plain_text(repr(value), limit)


def file_name_part(text: str) -> str:
    """Turn a name into letters, digits, dots, `-` and `_`; different names may become equal."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)

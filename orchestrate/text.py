"""Makes text from hosts safe to print, store and quote.

Nothing that a host sends is trusted: terminal control sequences could rewrite the screen, and an endless line could
fill the memory.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

MAX_LINE_LENGTH = 2_000
"""Maximum length of a line of a host's output, in characters."""

MAX_DEPTH = 64
"""Maximum nesting of a JSON document from a host, against stack exhaustion."""

MAX_VALUES = 100_000
"""Maximum number of values in a JSON document from a host: each takes some 80 bytes of memory, and may be one byte."""

MAX_DIGITS = 20
"""Maximum length of an integer in a JSON document from a host, in characters."""

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # operating system commands: titles, links, clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # device control strings
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # control sequences: colours, cursor
    r"|\x1b."
)


def plain_text(text: str, limit: int = MAX_LINE_LENGTH) -> str:
    """Return text as one line of at most `limit` characters, without control sequences and control characters.

    Also removes characters that reorder or hide others (Unicode categories Cc, Cf, Cs, Co, Zl, Zp).
    """
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text  # fast path for nearly every line: a fleet prints a few hundred per second
    text = _ESCAPES.sub("", text[: limit * 4])
    kept = "".join(
        " " if character in "\t\n\r\v\f" else character
        for character in text
        if character in "\t\n\r\v\f " or unicodedata.category(character) not in _HIDDEN
    )
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"


_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def plain_values(value: object, limit: int = MAX_LINE_LENGTH) -> Any:  # noqa: ANN401 (any JSON)
    """Return parsed JSON, all of whose texts are as `plain_text` makes them."""
    if isinstance(value, dict):
        return {plain_text(key, limit): plain_values(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [plain_values(item, limit) for item in value]
    return plain_text(value, limit) if isinstance(value, str) else value


def shown(value: object, limit: int = 80) -> str:
    """Return a value's `repr`, shortened for a message."""
    return plain_text(repr(value), limit)


def each(words: Iterable[str], *, numbered: bool = True) -> str:
    """Return equal texts once, with their number: `2 × RTX A4000, 1 × RTX A5000`."""
    return ", ".join(f"{number} × {text}" if numbered else text for text, number in Counter(words).items())


def whole_number(text: str) -> int | None:
    """Parse a host's whole number; None: invalid, e.g. `²`, or more digits than Python converts."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def file_name_part(text: str) -> str:
    """Replace all but letters, digits, dots, `-` and `_` in a name; results need not be unique."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text)


_EMPTY_LINES = re.compile(rb"\n{3,}")


class Lines:
    """Splits output into lines, in bounded memory.

    Consecutive empty lines become one, and of an overlong line only the end is kept.

    Attributes:
        taken: Bytes of output so far.
    """

    def __init__(self) -> None:
        self.taken = 0
        self._rest = b""
        self._was_empty = False

    def cut(self, chunk: bytes) -> Iterator[str]:
        """Yield the lines that a chunk of output completes."""
        data, start = _EMPTY_LINES.sub(b"\n\n", self._rest + chunk), 0
        self.taken += len(chunk)
        while (end := data.find(b"\n", start)) >= 0:
            empty = end == start
            if not (empty and self._was_empty):
                yield self._line(data[start:end])
            self._was_empty, start = empty, end + 1
        self._rest = data[max(start, len(data) - 4 * MAX_LINE_LENGTH) :]

    def end(self) -> Iterator[str]:
        """Yield the last line, if it has no line end."""
        if self._rest:
            yield self._line(self._rest)
            self._rest = b""

    @staticmethod
    def _line(data: bytes) -> str:
        return data[-4 * MAX_LINE_LENGTH :].decode("utf-8", "replace")


def read_json(text: str | bytes, limit: int, values: int = MAX_VALUES) -> Any:  # noqa: ANN401 (any JSON)
    """Parse JSON from a host, with limits on size, nesting, numbers and the number of values.

    Args:
        text: The document.
        limit: Maximum size in bytes or characters.
        values: Maximum number of values.

    Raises:
        ValueError: It is not JSON, or exceeds a limit.
    """
    if len(text) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    separators: tuple[Any, ...] = (b",", b"[", b"{") if isinstance(text, bytes) else (",", "[", "{")
    if sum(map(text.count, separators)) > values:
        raise ValueError(f"it has more than {values} values")
    try:
        document = json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
        _require_shallow(document, MAX_DEPTH)
    except RecursionError:
        raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep") from None
    return document


def _require_shallow(value: object, levels: int) -> None:
    if levels < 0:
        raise RecursionError
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_shallow(item, levels - 1)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(digits)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a finite number")
    return number

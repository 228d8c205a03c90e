"""Numbers as people write them: `3,524`, `3 524`, `1'250`, `1.029,62`, `453,5`, `2.3k`, `~450 ± 3 †`.

Which mark is the decimal one is decided by the numbers of the column, else of the table; where they leave it open the
number is refused with its two readings, never guessed.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

GROUP_MARKS = " '’\u00a0\u202f\u2009_"
"""Between thousands, and never a decimal mark."""

BLANK = {
    *("", "-", "--", "---", "–", "—", ".", "?", "x", "n/a", "na", "nan", "none", "null", "tbd", "oom", "out of memory"),
    *("fail", "failed", "error", "crash", "timeout", "unsupported", "not supported", "not tested", "skipped"),
}
"""Texts that say that there is no number; a zero says it too."""

FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6}

_UNIT = re.compile(
    r"(images?|imgs?|im|ims|pics?|samples?|seq(uence)?s?|sentences?|examples?|items?|frames?|f|tokens?)?\.?\s*"
    r"(/|per|p)\s*(seconds|second|secs|sec|s)\b\.?|fps|ips",
    re.IGNORECASE,
)
_NUMBER = re.compile(rf"(?P<digits>\d[\d.,{GROUP_MARKS}]*\d|\d)(?P<exponent>[eE][-+]?\d{{1,3}})?\s?(?P<factor>[kKM])?")
_MARKS = re.compile(r"[†‡§¶*^#⁰¹²³⁴⁵⁶⁷⁸⁹]+|\[[a-z0-9]{1,2}\](?=\s*$)|\([a-z]\)(?=\s*$)")
_ERROR = re.compile(r"\s*(?:±|\+/-|\+-|\\pm)\s*")
_ABOUT = re.compile(r"^(~|≈|∼|ca\.?|circa|about|approx\.?|around|roughly)\s*", re.IGNORECASE)


class Decimal(enum.Enum):
    """The decimal mark of a column."""

    POINT = "."
    COMMA = ","


@dataclass(frozen=True)
class Number:
    """A number that was read.

    Attributes:
        value: Finite.
        last_place: Unit of the last digit that was written.
    """

    value: float
    last_place: float


@dataclass(frozen=True)
class Refusal:
    """Why a cell is no number; `blank` where it says itself that it holds none."""

    reason: str
    blank: bool = False


def read_number(text: str, decimal: Decimal | None) -> Number | Refusal:
    """Read one cell.

    Args:
        text: As it stands in the table.
        decimal: The decimal mark of its column; None when its numbers leave that open.
    """
    core = _core(text)
    if isinstance(core, Refusal):
        return core
    digits, exponent, factor = core
    plain = _without_groups(digits, decimal)
    if isinstance(plain, Refusal):
        return plain
    scale = FACTORS.get(factor, 1.0) * 10.0 ** int(exponent[1:] or 0)
    value = float(plain) * scale
    if not math.isfinite(value):
        return Refusal("beyond every number")
    return Number(value, 10.0 ** -len(plain.partition(".")[2]) * scale)


def decimal_mark(texts: Iterable[str]) -> Decimal | None:
    """Decide which mark is the decimal one from all numbers of a column or a table; None when they leave it open.

    One number with both marks, or with other than three digits behind its only mark, decides. Else a column of
    thousands decides: one mark, in every number above 999 and in none below.
    """
    parts = [part for text in texts for part in _ERROR.split(text)]
    cores = [core[0] for core in map(_core, parts) if not isinstance(core, Refusal)]
    votes = {vote for vote in map(_vote, cores) if vote}
    if votes:
        return votes.pop() if len(votes) == 1 else None
    open_ones = [core for core in cores if "," in core or "." in core]
    marks = {"," if "," in core else "." for core in open_ones}
    rest = [core for core in cores if core not in open_ones]
    if len(marks) == 1 and rest and all(len(core) <= 3 for core in rest):
        return Decimal.POINT if marks == {","} else Decimal.COMMA
    return None


def is_unclear(text: str) -> bool:
    """Return whether a number reads as thousands or as a fraction, by itself."""
    core = _core(text)
    return not isinstance(core, Refusal) and _vote(core[0]) is None and ("," in core[0] or "." in core[0])


def _core(text: str) -> tuple[str, str, str] | Refusal:
    """Take digits, exponent and factor out of what stands around them in a cell."""
    cell = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text.replace("`", "").replace("\\", "")).strip()
    if cell.strip("*_~ ").lower() in BLANK or re.fullmatch(r"0+([.,]0*)?", cell):
        return Refusal("no number", blank=True)
    cell = _MARKS.sub(" ", cell.replace("~~", "")).strip(" !_")
    cell = _ABOUT.sub("", cell)
    cell = _ERROR.split(cell)[0]
    cell = _UNIT.sub(" ", re.sub(r"[(\[][^)\]]*[)\]]", " ", cell)).strip(" .:;")
    if cell.lower() in BLANK:
        return Refusal("no number", blank=True)
    if re.match(r"[<>≤≥]", cell):
        return Refusal("a bound, not a figure")
    if re.match(r"[-−]\s?\d", cell):
        return Refusal("below zero")
    match = _NUMBER.fullmatch(cell)
    if match is None:
        return Refusal(_why(cell))
    return match["digits"], match["exponent"] or "", match["factor"] or ""


def _why(cell: str) -> str:
    if re.fullmatch(r"[\d.,]+\s?%", cell):
        return "a percentage"
    if re.fullmatch(r"[\d.,' ]+\s?(-|–|to|\.\.\.?|…|/)\s?[\d.,' ]+", cell):
        return "two numbers"
    if re.fullmatch(r"[\d.,' ]+\s?(ms|s|sec|seconds?|min|minutes?|h|hours?|hrs?)\b.*", cell, re.IGNORECASE):
        return "a time, not a throughput"
    return "another unit" if re.match(r"[\d.,]+\s?\D", cell) else "no number"


def _vote(digits: str) -> Decimal | None:
    """Return the decimal mark that a number proves, None when it proves none."""
    points, commas = digits.count("."), digits.count(",")
    if points and commas:
        return Decimal.POINT if digits.rindex(".") > digits.rindex(",") else Decimal.COMMA
    if points + commas == 0:
        return None
    mark = "." if points else ","
    if points + commas > 1:
        return Decimal.COMMA if mark == "." else Decimal.POINT  # it groups thousands, so the other is the decimal one
    before, _, after = digits.partition(mark)
    grouped = any(group in before for group in GROUP_MARKS)
    if len(after) != 3 or len(before) > 3 or before.startswith("0") or grouped:
        return Decimal(mark)
    return None


def _without_groups(digits: str, decimal: Decimal | None) -> str | Refusal:
    """Return digits with a point, or why their marks make no sense."""
    own = _vote(digits)
    if own is None and decimal is None and ("," in digits or "." in digits):
        mark = "," if "," in digits else "."
        whole, fraction = digits.replace(mark, ""), digits.replace(mark, ".")
        return Refusal(f"either {whole} or {fraction}: nothing in the table shows which mark is the decimal one")
    mark = (own or decimal or Decimal.POINT).value
    whole, _, fraction = digits.partition(mark)
    groups = re.split(rf"[.,{GROUP_MARKS}]", whole)
    if len(groups) > 1 and not (1 <= len(groups[0]) <= 3 and all(len(group) == 3 for group in groups[1:])):
        return Refusal("its thousands are not groups of three digits")
    if not re.fullmatch(r"\d*", fraction):
        return Refusal("two decimal marks")
    return "".join(groups) + (f".{fraction}" if fraction else "")

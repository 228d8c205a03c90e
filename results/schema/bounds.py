"""Bounds of each field of a record: the range of its numbers, the format of its texts and times.

Standard library only, because this file also runs in every container. `results.runs.reading` rejects other values.
The ranges include every real record, and are narrow enough that means, variances and ratios are finite, so commands
need no further checks.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime

from results.schema.case import SETTINGS

MAX_TEXT_LENGTH = 20_000
"""Longest text in a field of a record, in characters."""

MAX_NAME_LENGTH = 500
"""Longest name, in characters; the longest in use are image references with registry and digest."""

MAX_LIST_LENGTH = 200_000
"""Longest list in a record: the steps of a repeat; a suite allows 100,000."""

MOST = 1_000_000
"""Largest count that suites and `hosts.yml` accept."""

CLOSEST_TO_ZERO = 1e-30
"""Smallest non-zero measured quantity. Variances of ratios divide by its fourth power and would exceed a float's range
with anything smaller."""


@dataclass(frozen=True)
class Bound:
    """The range of a number.

    Attributes:
        low: Smallest value.
        high: Largest value.
        unit: Unit of the number; `-`: none.
        reason: Why no real value is outside.
        closest_to_zero: Smallest absolute value other than 0.
    """

    low: float
    high: float
    unit: str
    reason: str
    closest_to_zero: float = CLOSEST_TO_ZERO

    def __str__(self) -> str:
        """Format the range for a message."""
        text = f"between {self.low:g} and {self.high:g}"
        return text if self.unit == "-" else f"{text} {self.unit}"


_COUNT = Bound(1, MOST, "-", "suites and hosts.yml accept no more")
_COUNT_OR_NONE = Bound(0, MOST, "-", "suites and hosts.yml accept no more")
_EXACT = Bound(0, 1e15, "-", "exact in a float, and in the 64 bits of a table's cell")
_LANES = Bound(0, 1024, "lanes", "PCIe has at most 32")
_SHARE = Bound(0, 1.001, "-", "part of a whole; 0.1 % for the rounding of sums of times")
_ANY_FLOAT32 = Bound(-3.5e38, 3.5e38, "-", "float32, in which losses are computed", closest_to_zero=0)
_ANY_RATIO = Bound(-1e84, 1e84, "-", "a ratio of two float32; shown, never computed with", closest_to_zero=0)

NUMBERS: dict[str, Bound] = {
    # counts set by a user or derived from these
    **dict.fromkeys(("batch_per_gpu", "num_gpus", "num_hosts", "image_size", "sequence_length", "repeat"), _COUNT),
    **dict.fromkeys(("devices", "version", "cpu_count", "steps_per_wait"), _COUNT),
    "num_steps": Bound(1, MAX_LIST_LENGTH, "steps", "each has an entry in step_seconds"),
    "mb": Bound(0, MOST, "MB", "a terabyte; no device has as much memory"),
    "usd_per_gpu_hour": Bound(1e-9, MOST, "USD/h", "a price of 0 or less makes every ratio of prices meaningless"),
    "replicas": Bound(1, 1e12, "-", "MOST GPUs of MOST hosts"),
    "global_batch": Bound(1, 1e15, "samples", _EXACT.reason),
    **dict.fromkeys(("samples", "parameters_trainable", "parameters_total"), _EXACT),
    # what a host reports
    **dict.fromkeys(("warmup_steps", "index", "place", "rank", "threads"), _COUNT_OR_NONE),
    "DeviceResult.gpu": _COUNT_OR_NONE,
    "files": Bound(0, 1e12, "files", "more than any file system holds"),
    "processes": Bound(0, 1e9, "-", "Linux counts to 2^22"),
    "cpu_limit": Bound(0, MOST, "CPUs", "may be fractional; no machine has as many"),
    "errors": Bound(0, 2**64, "-", "the driver counts in 64 bits"),
    "generation": Bound(0, 100, "-", "PCIe is at its seventh"),
    **dict.fromkeys(("width", "width_max"), _LANES),
    # what is measured
    "seconds": Bound(0, 1e9, "s", "30 years; a repeat is stopped after a day"),
    "samples_per_second": Bound(1e-9, 1e15, "samples/s", "at least a sample in 30 years"),
    "per_second": Bound(0, 1e24, "1/s", "bytes or operations; the fastest machine on earth reaches 1e19"),
    "per_sample": Bound(0, 1e24, "1/sample", "bytes or operations; GPT-4's training took 2e25 in all"),
    "bytes": Bound(0, 1e18, "bytes", "an exabyte; no host has as much memory"),
    "size": Bound(0, 1e18, "-", "rows, or bytes of an array in memory"),
    **dict.fromkeys(
        ("amount", "DeviceResult.value"), Bound(0, 1e30, "-", "operations or bytes, of a call or a second")
    ),
    "watts": Bound(0, 1e9, "W", "a large power station"),
    "joules": Bound(0, 1e18, "J", "a large power station for 30 years"),
    "celsius": Bound(-273.15, 1000, "°C", "from absolute zero to above silicon's working range"),
    "mhz": Bound(0, MOST, "MHz", "a terahertz"),
    **dict.fromkeys(("share", "GPUFacts.utilisation"), _SHARE),
    "utilisation": Bound(0, 1e9, "-", "above 1 where the measured peak was too low"),
    "step_ratio": Bound(0, 1e18, "-", "1e9 s over a nanosecond"),
    "step_cv": Bound(0, 450, "-", "not above the root of the number of steps, of which MAX_LIST_LENGTH are allowed"),
    "step_drift": Bound(-1, 1e18, "-", "a ratio of times minus 1", closest_to_zero=0),
    **dict.fromkeys(("loss_first", "loss_last"), _ANY_FLOAT32),
    # what is only shown
    **dict.fromkeys(("value", "limit"), _ANY_RATIO),
}
"""By `Class.field`, field, or suffix of the field's name (its unit); the longest match counts. Other settings of a case
have the range of their row in `case.py`."""

ANY_NUMBER = Bound(-1e18, 1e18, "-", "nothing is known about it")
"""Range of numbers not in the table; a test ensures that a record has none."""

NAMES = frozenset(
    {
        *("run_id", "fleet", "host", "launcher", "variant", "image", "image_digest"),
        *("model", "unit", "attention", "metric", "arithmetic", "code"),
    }
)
"""Fields with names: short, on one line, without characters that hide or reorder others. All other texts are output of
programs: long, any Unicode, and escaped when shown."""

TIMES = frozenset({"started_at", "finished_at"})
"""Fields with times in UTC, ISO 8601."""

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|\+00:00)")

FIRST_YEAR = 1970
"""The clock of a host without a battery starts in 1970; its measurements are still good."""

_REORDERING = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)))
"""Characters that change the text direction. Source: Unicode Technical Report 36, section 2.7."""

_HIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, surrogates, line and paragraph separators."""


def bound_of(kind: str, name: str) -> Bound:
    """Return the range of a number.

    Args:
        kind: Name of the dataclass.
        name: Name of the field.
    """
    if (own := NUMBERS.get(f"{kind}.{name}")) is not None:
        return own
    parts = name.split("_")
    endings = ("_".join(parts[i:]) for i in range(len(parts)))
    if (known := next((NUMBERS[ending] for ending in endings if ending in NUMBERS), None)) is not None:
        return known
    setting = SETTINGS.get(name) if kind == "Case" else None
    if setting is None or setting.least is None:
        return ANY_NUMBER
    return Bound(setting.least, MOST if setting.most is None else setting.most, setting.unit, _COUNT.reason)


def text_problem(name: str, value: str) -> str | None:
    """Return what is wrong with the text of a field; None: nothing.

    Args:
        name: Name of the field.
        value: The text received.
    """
    longest = MAX_NAME_LENGTH if name in NAMES else MAX_TEXT_LENGTH
    if len(value) > longest:
        return f"longer than {longest} characters"
    if name in TIMES:
        return None if _is_time(value) else "must be a time in UTC, e.g. 2026-11-01T10:00:00+00:00"
    if value.isascii() and value.isprintable():
        return None
    if any("\ud800" <= character <= "\udfff" for character in value):
        return "must be Unicode text, without halves of surrogate pairs"
    if name in NAMES and any(map(_is_hidden, value)):
        return "must be a name without control characters"
    return None


def _is_hidden(character: str) -> bool:
    """Return whether a character is a control, a separator, changes the text direction or is a noncharacter."""
    code = ord(character)
    return (
        unicodedata.category(character) in _HIDDEN
        or character in _REORDERING
        or code & 0xFFFE == 0xFFFE
        or 0xFDD0 <= code <= 0xFDEF
    )


def _is_time(value: str) -> bool:
    if not _TIME.fullmatch(value):
        return False
    try:
        return datetime.fromisoformat(value).year >= FIRST_YEAR
    except ValueError:  # e.g. 30 February
        return False

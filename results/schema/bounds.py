"""Types of the fields of a record, with the bounds of their values.

Standard library only, because this file also runs in every container. On the controller `results.runs.reading` has
pydantic check the bounds, through the method that pydantic calls on annotations. The ranges include every real record,
and are narrow enough that means, variances and ratios are finite, so commands need no further checks.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeVar, dataclass_transform

T = TypeVar("T")

MAX_LIST_LENGTH = 200_000
"""Longest list in a record: the steps of a repeat; a suite allows 100,000."""

MOST = 1_000_000
"""Largest count that suites and `hosts.yml` accept."""

MOST_SAMPLES = 1e15
"""Exact in a float, and in the 64 bits of a table's cell."""

CLOSEST_TO_ZERO = 1e-30
"""Smallest non-zero measured quantity. Variances of ratios divide by its fourth power and would exceed a float's range
with anything smaller."""


def _after(check: Callable[[T], T], schema: Any) -> Any:
    """Return pydantic's schema of a value that is checked after `schema`; written out: images have no pydantic."""
    return {"type": "function-after", "function": {"type": "no-info", "function": check}, "schema": schema}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class RecordPart:
    """Base class of a record and its parts, which are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


@dataclass(frozen=True)
class Range:
    """The range of a number.

    Attributes:
        low: Smallest value.
        high: Largest value.
        unit: Unit of the number; empty: none.
        closest_to_zero: Smallest absolute value other than 0.
    """

    low: float
    high: float
    unit: str = ""
    closest_to_zero: float = CLOSEST_TO_ZERO

    def __str__(self) -> str:
        """Format the range for a message."""
        return f"between {self.low:,.10g} and {self.high:,.10g} {self.unit}".strip()

    def __get_pydantic_core_schema__(self, source: type, handler: Any) -> Any:
        """Return pydantic's schema of a number in this range."""
        schema = {**handler(source), "strict": True, "ge": self.low, "le": self.high}
        if source is float:
            schema = _after(self._far_from_zero, schema)
        message = f"must be {'an integer' if source is int else 'a number'} {self}"
        return {
            "type": "custom-error",
            "schema": schema,
            "custom_error_type": "value",
            "custom_error_message": message,
        }

    def _far_from_zero(self, value: float) -> float:
        if value and abs(value) < self.closest_to_zero:
            raise ValueError("too close to 0")
        return value


@dataclass(frozen=True)
class Strictly:
    """A value that is never converted from another type, such as 1 to True.

    Attributes:
        longest: Most characters of a text, or entries of a list or object; None: it has no length.
        check: Returns the value, or raises ValueError; None: any is good.
    """

    longest: int | None = None
    check: Callable[[Any], Any] | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> Any:
        """Return pydantic's schema of such a value."""
        schema = {**handler(source), "strict": True, **({"max_length": self.longest} if self.longest else {})}
        return _after(self.check, schema) if self.check else schema


def _name(value: str) -> str:
    """Check that a name is on one line, without characters that are not shown or reorder others."""
    if not value.isprintable():
        raise ValueError("must be a name without control characters")
    return value


_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|\+00:00)")

FIRST_YEAR = 1970
"""The clock of a host without a battery starts in 1970; its measurements are still good."""


def _time(value: str) -> str:
    """Check that a text is a time in UTC, ISO 8601."""
    with contextlib.suppress(ValueError):  # e.g. 30 February
        if _TIME.fullmatch(value) and datetime.fromisoformat(value).year >= FIRST_YEAR:
            return value
    raise ValueError("must be a time in UTC, e.g. 2026-11-01T10:00:00+00:00")


Flag = Annotated[bool, Strictly()]
Text = Annotated[str, Strictly(20_000)]
"""Output of programs: long, any Unicode, and escaped when shown."""
Name = Annotated[str, Strictly(500, _name)]
"""The longest in use are image references with registry and digest."""
Time = Annotated[str, Strictly(50, _time)]
ListOf = Annotated[list[T], Strictly(MAX_LIST_LENGTH)]
Texts = Annotated[dict[Text, Text], Strictly(1000)]
"""An environment has about a dozen relevant variables."""

# Counts that a user sets or that follow from these, and what a host reports
Count = Annotated[int, Range(1, MOST)]
CountOrZero = Annotated[int, Range(0, MOST)]
Steps = Annotated[int, Range(1, MAX_LIST_LENGTH, "steps")]  # each has an entry in step_seconds
Replicas = Annotated[int, Range(1, 1e12)]  # MOST GPUs of MOST hosts
Batch = Annotated[int, Range(1, MOST_SAMPLES, "samples")]
Exact = Annotated[int, Range(0, MOST_SAMPLES)]
CPUs = Annotated[float, Range(0, MOST, "CPUs")]  # may be fractional
Errors = Annotated[int, Range(0, 2**64)]  # the driver counts in 64 bits
Price = Annotated[float, Range(1e-9, MOST, "USD/h")]  # a price of 0 makes ratios of prices meaningless

# What is measured
Seconds = Annotated[float, Range(0, 1e9, "s")]  # 30 years; a repeat is stopped after a day
SamplesPerSecond = Annotated[float, Range(1e-9, 1e15, "samples/s")]  # at least a sample in 30 years
PerSecond = Annotated[float, Range(0, 1e24, "1/s")]  # bytes or operations; the fastest machine on earth reaches 1e19
PerSample = Annotated[float, Range(0, 1e24, "1/sample")]  # GPT-4's training took 2e25 operations in all
Bytes = Annotated[int, Range(0, 1e18, "bytes")]  # an exabyte; no host has as much memory
Amount = Annotated[float, Range(CLOSEST_TO_ZERO, 1e30)]  # operations or bytes, of a call or a second
Watts = Annotated[float, Range(0, 1e9, "W")]  # a large power station
Joules = Annotated[float, Range(0, 1e18, "J")]  # a large power station for 30 years
Celsius = Annotated[float, Range(-273.15, 1000, "°C")]  # from absolute zero to above silicon's working range
Megahertz = Annotated[float, Range(0, MOST, "MHz")]
Share = Annotated[float, Range(0, 1.001)]  # 0.1 % for the rounding of sums of times
Drift = Annotated[float, Range(-1, 1e18, closest_to_zero=0)]  # a ratio of times minus 1
Ratio = Annotated[float, Range(0, 1e18)]  # 1e9 s over a nanosecond
Loss = Annotated[float, Range(-3.5e38, 3.5e38, closest_to_zero=0)]  # a float32
Shown = Annotated[float, Range(-1e84, 1e84, closest_to_zero=0)]  # a ratio of two float32, never computed with

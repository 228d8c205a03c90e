"""What an audit finds."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """How bad a finding is."""

    IMPOSSIBLE = "impossible"  # no hardware, or no honest measurement, gives this
    SUSPECT = "suspect"  # an explanation is needed before the number is used
    NOTE = "note"  # worth knowing


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a table, or worth knowing.

    Attributes:
        rule: Name of the rule, stable.
        rows: 0-based data rows.
        message: The numbers, and what they should be.
    """

    rule: str
    severity: Severity
    rows: tuple[int, ...]
    message: str

"""How the numbers of fleets are written into the cells of tables."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from results.digits import with_error, with_interval
from results.fleets import FleetRate
from results.stats import Interval
from results.text import spreadsheet_text

if TYPE_CHECKING:
    import pandas as pd

DIGEST_LENGTH = 19
"""Characters of `sha256:…` that are shown: 12 digits, as the engines do."""


def rate_text(rate: FleetRate) -> str:
    """Write a fleet's throughput; the statuses where it has none, a mark where some of its hosts have none."""
    if rate.mean is None:
        return ", ".join(dict.fromkeys(rate.failures.values()))
    interval = rate.interval
    text = with_interval(interval) if interval else with_error(rate.mean, None)
    return f"{text} †" if rate.failures else text


def missing_hosts(rates: Sequence[FleetRate]) -> list[str]:
    """Explain the mark of cells that lack hosts of their fleet."""
    missing = {f"{host} ({status})" for rate in rates if rate.rates for host, status in rate.failures.items()}
    return [f"† without {', '.join(sorted(missing))}"] if missing else []


def value_text(value: float | None, interval: Interval | None) -> str:
    """Write a number with its interval where it has one; empty without a number."""
    if value is None:
        return ""
    return with_interval(interval) if interval else with_error(value, None)


def table_csv(table: pd.DataFrame) -> str:
    """Write a table as CSV; a text that a spreadsheet would run as a formula gets an apostrophe in front."""
    texts = table.select_dtypes(include=["string", "object"]).columns
    safe = table.assign(**{name: table[name].map(spreadsheet_text, na_action="ignore") for name in texts})
    return safe.to_csv(index=False, lineterminator="\n")


def identity_text(column: str, value: Hashable) -> str:
    """Write a value of a software identity, `none` where it is not known."""
    if value is None:
        return "none"
    return str(value)[:DIGEST_LENGTH] if column == "image_digest" else str(value)

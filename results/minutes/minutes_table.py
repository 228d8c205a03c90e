"""Where the time of a run went, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from results.grid import Grid
from results.minutes.spent import KINDS, Spent, timed_share

MAX_ROWS = 200
"""Rows of cases up to which each has its own; of more, each host has one."""


def minutes_grid(rows: Sequence[Spent]) -> Grid | None:
    """Return a row for each host and case, the sum of each host with several, and that of all; None without any time.

    Args:
        rows: From `spent_in`.
    """
    rows = [row for row in rows if row.total > 0]
    if not rows:
        return None
    hosts = list(dict.fromkeys(row.host for row in rows))
    shown = list(rows) if len(rows) <= MAX_ROWS else [_sum(host, [r for r in rows if r.host == host]) for host in hosts]
    lines = [_line(row, row.case or "(host)") for row in shown]
    whole = _sum("", rows)
    if len(shown) > 1:
        lines.append(_line(whole, "all"))
    share = [f"{whole.seconds.get(kind, 0.0) / whole.total:.0%}" if whole.seconds.get(kind) else "" for kind in KINDS]
    lines.append(["", "share of all", "", *share, ""])
    return Grid(
        "Where the minutes went",
        ["host", "case", "repeats>", *(f"{kind}>" for kind in KINDS), "all>"],
        lines,
        [f"minutes:seconds; timed steps are {timed_share(rows):.0%} of what the hosts spent"],
    ).without_empty_columns()


def _sum(host: str, rows: Sequence[Spent]) -> Spent:
    total = Spent(host, "", sum(row.repeats for row in rows))
    for row in rows:
        for kind, seconds in row.seconds.items():
            total.seconds[kind] += seconds
    return total


def _line(row: Spent, case: str) -> list[str]:
    seconds = [row.seconds.get(kind, 0.0) for kind in KINDS]
    return [
        row.host,
        case,
        str(row.repeats or ""),
        *(_clock(value) if value >= 0.5 else "" for value in seconds),
        _clock(row.total),
    ]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"

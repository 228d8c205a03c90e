"""CPU time that other programs use on the CPUs of this process, by the kernel's counters."""

from __future__ import annotations

import math
import os
import re
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from tfbench.machine.host import cpu_limit, read_text

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
"""Unit of /proc/stat."""

CPU_USE_SECONDS = 0.5
"""Shortest interval over which the use of the CPUs is read before a measurement."""

STANDARD_ERRORS = 4.0
"""The kernel counts who runs at each tick, so that a short interval is a small sample; exceeded by 1 in 30,000."""

_USED = (0, 1, 2, 7)
"""Columns of /proc/stat: user, nice, system, and steal by other virtual machines. Interrupts may be ours."""


@dataclass(frozen=True, kw_only=True)
class CPUUse:
    """CPU time used since the start of the machine and of this process.

    Attributes:
        at: `time.perf_counter`.
        cpus: CPUs that this process may run on.
        all_seconds: Used by all programs on these CPUs.
        own_seconds: Used by this process and the processes that it started and that have ended.
    """

    at: float
    cpus: int
    all_seconds: float
    own_seconds: float


def read_cpu_use(root: Path = Path("/")) -> CPUUse:
    """Read the counters.

    Args:
        root: Parent of `proc`.
    """
    allowed = os.sched_getaffinity(0)
    rows = re.findall(r"^cpu(\d+) (.+)$", read_text(root / "proc/stat"), re.MULTILINE)
    ticks = [[int(text) for text in row.split()] for cpu, row in rows if int(cpu) in allowed]
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return CPUUse(
        at=time.perf_counter(),
        cpus=len(ticks),
        all_seconds=sum(row[column] for row in ticks for column in _USED) / TICKS_PER_SECOND,
        own_seconds=sum(part.ru_utime + part.ru_stime for part in own),
    )


def other_cpu_share_since(before: CPUUse) -> float | None:
    """Return `other_cpu_share` from a moment until now."""
    return other_cpu_share(before, read_cpu_use(), cpu_limit())


def other_cpu_share(before: CPUUse, after: CPUUse, limit: float) -> float | None:
    """Return the share of the CPUs of this process that other programs surely used over an interval.

    CPUs beyond the limit of a control group do not count: a process that may use 2 of 8 CPUs loses nothing if others
    use 6. The error of the kernel's ticks is subtracted.

    Args:
        before: At the start of the interval.
        after: At its end.
        limit: CPUs that this process may use; may be fractional.

    Returns:
        0 to 1; None: the kernel does not report it.
    """
    seconds, cpus = after.at - before.at, after.cpus
    used = after.all_seconds - before.all_seconds
    if seconds <= 0 or used <= 0:
        return None
    ticks = cpus * seconds * TICKS_PER_SECOND
    busy = min(1.0, used / (cpus * seconds))
    error = cpus * (STANDARD_ERRORS * math.sqrt(busy * (1 - busy) / ticks) + cpus / ticks)
    others = (used - (after.own_seconds - before.own_seconds)) / seconds - error
    return min(1.0, max(0.0, (others - (cpus - limit)) / limit))

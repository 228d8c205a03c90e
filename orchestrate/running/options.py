"""Options of a run, and its stop signal."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import anyio

from results.schema import Status

HOST_FAULTS = frozenset({Status.UNREACHABLE, Status.PULL_FAILED, Status.LOST})
"""Failures of a host rather than of a case."""

DROP_AFTER = 2
"""Consecutive faults after which a host is dropped; in a queue, per worker slot."""

AWAY = frozenset({Status.UNREACHABLE, Status.LOST})
"""Failures that a host and this machine's network can have caused."""

OFFLINE_SECONDS = 1800.0
"""How long hosts are kept while none answers.

Longer than most networks are away: a router restarts, a train leaves a tunnel, somebody logs in to a VPN again. Hosts
that are gone for good, or idle, then cost and delay no more than half an hour.
"""

CHECK_SECONDS = 0.1

QUEUED = "queued"
"""The state of a repeat that waits in a queue."""

TRIED_AGAIN = HOST_FAULTS | {Status.STOPPED}
"""Statuses that `resume` measures again; a failure of the benchmark itself is a result and is kept."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options for executing a plan.

    Attributes:
        max_parallel: Hosts that work at a time; None: all.
        fail_fast: Whether the first failure ends the run.
        max_usd: Limit of the run's cost; None: no limit.
        again: Statuses whose repeats are measured again when a run is resumed.
        offline_seconds: How long each host is kept, in all, while no host answers.
    """

    max_parallel: int | None = None
    fail_fast: bool = False
    max_usd: float | None = None
    again: frozenset[Status] = TRIED_AGAIN
    offline_seconds: float = OFFLINE_SECONDS


class Stop:
    """Stops a run from a signal handler or another thread: first gracefully, then at once.

    Attributes:
        launching: Set: no new repeats start.
        running: Set: running repeats are ended.
        asked: Whether the user wants it; otherwise a failure may be the cause.
    """

    def __init__(self) -> None:
        self.launching = threading.Event()
        self.running = threading.Event()
        self.asked = False

    async def wait(self, seconds: float) -> bool:
        """Wait for a stop, in the loop; return whether it came in time."""
        ends_at = time.monotonic() + seconds
        while not self.launching.is_set() and (left := ends_at - time.monotonic()) > 0:
            await anyio.sleep(min(left, CHECK_SECONDS))
        return self.launching.is_set()

    def ask(self) -> int:
        """Request a stop.

        Returns:
            1 for the first call: no new repeats start; 2 for later ones: running repeats are ended, too.
        """
        again, self.asked = self.asked, True
        self.launching.set()
        if again:
            self.running.set()
        return 2 if again else 1

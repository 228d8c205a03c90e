"""How a run is carried out, and how it is asked to stop."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from results.schema import Status

HOST_FAULTS = frozenset({Status.UNREACHABLE, Status.PULL_FAILED, Status.LOST})
"""Failures of a host rather than of a case."""

DROP_AFTER = 2
"""Consecutive faults after which a host is dropped; a queue after this many per worker slot."""

QUEUED = "queued"
"""The state of a repeat that waits in a queue."""

TRIED_AGAIN = HOST_FAULTS | {Status.STOPPED}
"""What `resume` measures again; a failure of the benchmark itself is a result and stays."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a plan is carried out.

    Attributes:
        max_parallel: Hosts that work at a time; None: all.
        fail_fast: The first failure ends the run.
        max_usd: The run ends before it costs more; None: no limit.
        again: Statuses whose repeats are measured again, when a run is resumed.
    """

    max_parallel: int | None = None
    fail_fast: bool = False
    max_usd: float | None = None
    again: frozenset[Status] = TRIED_AGAIN


class Stop:
    """Asks a run to stop, from a signal handler or another thread: first gently, then at once."""

    def __init__(self) -> None:
        self.launching = threading.Event()
        self.running = threading.Event()

    def ask(self) -> int:
        """Ask again.

        Returns:
            How often it was called. 1: no new repeats start; 2 or more: running ones are ended, too.
        """
        if not self.launching.is_set():
            self.launching.set()
            return 1
        self.running.set()
        return 2

"""How a run is stopped, and which failures it tries again."""

from __future__ import annotations

import threading
import time

import anyio

from results.schema import Status

HOST_FAULTS = frozenset({Status.UNREACHABLE, Status.PULL_FAILED, Status.LOST})
"""Failures of a host rather than of a case."""

DROP_AFTER = 2
"""Consecutive faults after which a host is dropped; in a queue, per worker slot."""

AWAY = frozenset({Status.UNREACHABLE, Status.LOST})
"""Failures that a host and this machine's network can have caused."""

CHECK_SECONDS = 0.1

QUEUED = "queued"
"""The state of a repeat that waits in a queue."""

PART_DONE = "done"
"""The last state of a part of a repeat on several hosts; the result is that of the first host."""

TRIED_AGAIN = HOST_FAULTS | {Status.STOPPED}
"""Statuses that `resume` measures again; a failure of the benchmark itself is a result and is kept."""


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

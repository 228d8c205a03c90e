"""Calls of launchers, in threads that may be abandoned, and the time limits of running repeats.

A run is a group of tasks in the loop. A launcher waits for its host in a worker thread, and its task waits no longer
than a limit by the controller's clock: no host can block a run.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import anyio
import anyio.abc

from orchestrate.errors import Lost
from results.schema import Status

CHECK_SECONDS = 0.25

END_AFTER_SECONDS = 2.0
"""Time for a repeat to end by itself after its limit and record the cause."""

STOP_SECONDS = 12.0
"""Longest wait for hosts after the second interrupt."""

T = TypeVar("T")


_UNLIMITED = anyio.CapacityLimiter(math.inf)


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, which is abandoned with this task."""
    return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=_UNLIMITED)


class Abandoned(Lost):
    """A host did not respond in time; its benchmark may still run."""


class Limited(Protocol):
    """Something that runs within limits."""

    def exceeded(self) -> str:
        """Return which limit it has exceeded, in words; empty: none."""

    def end(self, status: Status, cause: str) -> None:
        """End it, once, without waiting for its host."""


class Calls:
    """Limits the calls of a run, and ends repeats that take too long; belongs to the loop.

    Attributes:
        tasks: The tasks of the run.
        watched: The running repeats, or parts of them.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self.watched: list[Limited] = []
        self.tasks = tasks
        self._scopes: set[anyio.CancelScope] = set()
        self._last = math.inf
        self._reason: Exception = Abandoned("it did not answer in time")

    @contextlib.contextmanager
    def limit(self, ends_at: float) -> Iterator[anyio.CancelScope]:
        """Await no longer than until a deadline in the block; a thread that takes longer is abandoned.

        Args:
            ends_at: The deadline in monotonic seconds.

        Yields:
            The scope, whose deadline may be moved.

        Raises:
            Abandoned: It took too long.
        """
        with anyio.CancelScope(deadline=min(ends_at, self._last)) as scope:
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise self._reason

    async def keep_limits(self, stopped: Callable[[], bool]) -> None:
        """End repeats that exceed their limits, and all of them once the run is stopped.

        Args:
            stopped: Whether running repeats are to be ended.
        """
        while True:
            if stopped():
                self._abandon_after(STOP_SECONDS)
            for running in list(self.watched):
                if stopped():
                    running.end(Status.STOPPED, "stopped by the user")
                elif why := running.exceeded():
                    running.end(Status.TIMEOUT, why)
            await anyio.sleep(CHECK_SECONDS)

    def abandon_all(self, reason: Exception) -> None:
        """Stop waiting for hosts, for a reason of this machine; running repeats continue."""
        self._reason = reason
        self._abandon_after(0.0)

    def _abandon_after(self, seconds: float) -> None:
        self._last = min(self._last, time.monotonic() + seconds)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._last)

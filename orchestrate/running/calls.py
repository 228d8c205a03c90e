"""Calls of launchers, in threads that may be abandoned, and the time limits of running repeats.

A run is a group of tasks in the loop. A launcher waits for its host in a worker thread, and its task waits no longer
than a limit by the controller's clock: no host can block a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.abc

from orchestrate.errors import Lost
from orchestrate.planning.plan import Job
from results.schema import Status
from results.text import counted

CHECK_SECONDS = 0.25

END_AFTER_SECONDS = 2.0
"""Time for a repeat to end by itself after its limit and record the cause."""

MARGIN_SECONDS = 15.0
"""Time after its limit when a repeat is abandoned together with its host."""

QUEUE_MARGIN_SECONDS = 120.0
"""The same in a queue, which takes longer to end a job."""

STOP_SECONDS = 12.0
"""Longest wait for hosts after the second interrupt."""

T = TypeVar("T")


_UNLIMITED = anyio.CapacityLimiter(math.inf)


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, which is abandoned with this task."""
    return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=_UNLIMITED)


class Abandoned(Lost):
    """A host did not respond in time; its benchmark may still run."""


@dataclass
class Watched:
    """A running repeat.

    Attributes:
        stop: Ends it.
        timeout_seconds: Longest duration.
        silence_seconds: Longest time without a line of output.
        margin_seconds: From its limit to being abandoned.
        began: Monotonic seconds.
        stopped_for: Why it was ended, or None.
        waiting: Whether it waits in a queue, where no time counts.
        abandon_at: Monotonic seconds after which it is abandoned.
        scope: Of the call that follows it.
    """

    job: Job
    stop: Callable[[], Coroutine[Any, Any, None]]
    timeout_seconds: float
    silence_seconds: float
    margin_seconds: float = MARGIN_SECONDS
    began: float = field(default_factory=time.monotonic)
    last_line_at: float = field(default_factory=time.monotonic)
    stopped_for: tuple[Status, str] | None = None
    waiting: bool = False
    abandon_at: float = math.inf
    scope: anyio.CancelScope | None = None

    def wait(self) -> None:
        """Stop the clock, because the repeat waits in a queue."""
        self.waiting = True

    def run(self) -> None:
        """Start the clock from zero, because the repeat runs."""
        self.began = self.last_line_at = time.monotonic()
        self.waiting = False

    def note_output(self) -> None:
        """Record that a line of output was received."""
        self.last_line_at = time.monotonic()

    def exceeded(self) -> str:
        """Return which limit it has exceeded, in words; empty: none."""
        now = time.monotonic()
        if self.waiting:
            return ""
        if now > self.began + self.timeout_seconds + END_AFTER_SECONDS:
            return "took longer than timeout_minutes allows"
        if now - self.last_line_at > self.silence_seconds:
            return f"printed nothing for {counted(f'{self.silence_seconds / 60:g}', 'minute')}: it hangs"
        return ""


class Calls:
    """Makes the calls of a run, and ends repeats that take too long; belongs to the loop.

    Args:
        tasks: The tasks of the run.
    """

    def __init__(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks
        self._scopes: set[anyio.CancelScope] = set()
        self._watched: list[Watched] = []
        self._last = math.inf
        self._reason: Exception = Abandoned("it did not answer in time")

    async def call(self, function: Callable[[], T], ends_at: float, watched: Watched | None = None) -> T:
        """Call a function in a thread, and wait for it until a deadline.

        Args:
            function: The function; if it takes too long, its thread is abandoned.
            ends_at: The deadline in monotonic seconds.
            watched: Moves the deadline to its own.

        Raises:
            Abandoned: It took too long.
        """
        return await self.wait(lambda: in_thread(function), ends_at, watched)

    async def wait(self, work: Callable[[], Awaitable[T]], ends_at: float, watched: Watched | None = None) -> T:
        """Await something as `call` does."""
        scope = anyio.CancelScope(deadline=min(ends_at, self._last))
        if watched is not None:
            watched.scope = scope
        self._scopes.add(scope)
        try:
            with scope:
                return await work()
        finally:
            self._scopes.discard(scope)
        raise self._reason

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do something in a task of its own."""
        self._tasks.start_soon(work)

    def watch(self, watched: Watched) -> None:
        """Start watching a repeat."""
        self._watched.append(watched)

    def forget(self, watched: Watched) -> None:
        """Stop watching a repeat."""
        if watched in self._watched:
            self._watched.remove(watched)

    async def keep_limits(self, stopped: Callable[[], bool]) -> None:
        """End repeats that exceed their limits, and all of them once the run is stopped.

        Args:
            stopped: Whether running repeats are to be ended.
        """
        while True:
            if stopped():
                self._abandon_after(STOP_SECONDS)
            for watched in list(self._watched):
                if stopped():
                    self.end(watched, Status.STOPPED, "stopped by the user")
                elif why := watched.exceeded():
                    self.end(watched, Status.TIMEOUT, why)
            await anyio.sleep(CHECK_SECONDS)

    def end(self, watched: Watched, status: Status, cause: str) -> None:
        """End a repeat, without waiting for its host."""
        if watched.stopped_for is not None:
            return
        watched.stopped_for = (status, cause)
        watched.abandon_at = time.monotonic() + watched.margin_seconds - END_AFTER_SECONDS
        if watched.scope is not None:
            watched.scope.deadline = min(watched.scope.deadline, watched.abandon_at)
        self.start(partial(self._stop, watched))

    async def _stop(self, watched: Watched) -> None:
        while True:
            try:
                return await watched.stop()
            except RuntimeError:  # no more threads at the moment
                await anyio.sleep(CHECK_SECONDS)

    def abandon_all(self, reason: Exception) -> None:
        """Stop waiting for hosts, for a reason of this machine; running repeats continue."""
        self._reason = reason
        self._abandon_after(0.0)

    def _abandon_after(self, seconds: float) -> None:
        self._last = min(self._last, time.monotonic() + seconds)
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, self._last)

"""Time limits by the controller's clock: ends repeats that take too long, and abandons unresponsive hosts.

Every call of a launcher runs in its own daemon thread, and its caller waits no longer than the limit, so that no host
can block a run.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

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

S = TypeVar("S")
T = TypeVar("T")


class Abandoned(Lost):
    """A host did not respond in time; its benchmark may still run."""


@dataclass
class Watched:
    """A running repeat.

    Attributes:
        deadline: Monotonic seconds after which it is ended.
        silence_seconds: Longest time without a line of output.
        margin_seconds: From its limit to being abandoned.
        stopped_for: Why it was ended, or None.
        timeout_seconds: From its start to `deadline`.
        waiting: Whether it waits in a queue, where no time counts.
        abandon_at: Monotonic seconds after which it is abandoned.
    """

    job: Job
    stop: Callable[[], None]
    deadline: float
    silence_seconds: float
    margin_seconds: float = MARGIN_SECONDS
    last_line_at: float = field(default_factory=time.monotonic)
    stopped_for: tuple[Status, str] | None = None
    timeout_seconds: float = math.inf
    waiting: bool = False
    abandon_at: float = math.inf

    def wait(self) -> None:
        """Stop the clock, because the repeat waits in a queue."""
        self.waiting = True

    def run(self) -> None:
        """Start the clock from zero, because the repeat runs."""
        self.last_line_at = time.monotonic()
        self.deadline = self.last_line_at + self.timeout_seconds
        self.waiting = False

    def note_output(self) -> None:
        """Record that a line of output was received."""
        self.last_line_at = time.monotonic()

    def end(self, status: Status, cause: str) -> None:
        """End the repeat in a separate thread, so that an unresponsive host does not block the others."""
        if self.stopped_for is not None:
            return
        self.stopped_for = (status, cause)
        self.abandon_at = min(self.abandon_at, time.monotonic() + self.margin_seconds - END_AFTER_SECONDS)
        try:
            threading.Thread(target=self.stop, name=f"stop {self.job.id}", daemon=True).start()
        except RuntimeError:  # no more threads at the moment: the next look tries again
            self.stopped_for = None


class Watchdog:
    """Watches running repeats and calls of launchers from one thread; use as a context manager.

    Args:
        stop: Set to end all running repeats; None: they cannot be stopped.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self._stop = stop or threading.Event()
        self._watched: dict[str, Watched] = {}
        self._calls: dict[Future[Any], Callable[[], float]] = {}
        self._last = math.inf
        self._reason: Exception = Abandoned("it did not answer in time")
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        """Start watching."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching, without ending anything."""
        self._ended.set()
        self._thread.join()

    def call(self, function: Callable[[], T], until: Callable[[], float]) -> T:
        """Call a function in a daemon thread, and wait for it until a deadline that may change.

        Args:
            function: The function; if it takes too long, its thread is abandoned.
            until: Returns the deadline in monotonic seconds.

        Raises:
            Abandoned: It took too long.
        """
        answer: Future[T] = Future()
        with self._lock:
            self._calls[answer] = until
        threading.Thread(target=settle, args=(answer, function), daemon=True).start()
        try:
            return answer.result()
        finally:
            with self._lock:
                del self._calls[answer]

    def watch(
        self,
        job: Job,
        stop: Callable[[], None],
        *,
        timeout: float,
        silence: float,
        margin: float | None = None,
    ) -> Watched:
        """Start watching a repeat.

        Args:
            job: The repeat.
            stop: Ends it.
            timeout: Time limit in seconds, without the `END_AFTER_SECONDS` to end by itself.
            silence: Longest time without output, in seconds.
            margin: Seconds from its limit to being abandoned.
        """
        seconds = timeout + END_AFTER_SECONDS
        margin = MARGIN_SECONDS if margin is None else margin
        watched = Watched(job, stop, time.monotonic() + seconds, silence, margin, timeout_seconds=seconds)
        with self._lock:
            self._watched[job.id] = watched
        return watched

    def forget(self, job: Job) -> None:
        """Stop watching a repeat."""
        with self._lock:
            self._watched.pop(job.id, None)

    def stop_all(self, status: Status, cause: str) -> None:
        """End all running repeats, and wait at most `STOP_SECONDS` for hosts."""
        self._last = min(self._last, time.monotonic() + STOP_SECONDS)
        with self._lock:
            running = list(self._watched.values())
        for watched in running:
            watched.end(status, cause)

    def abandon_all(self, reason: Exception) -> None:
        """Stop waiting for hosts, for a reason of this machine; running repeats continue."""
        self._reason, self._last = reason, 0.0

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            now = time.monotonic()
            if self._stop.is_set():
                self.stop_all(Status.STOPPED, "stopped by the user")
            with self._lock:
                running, calls = list(self._watched.values()), list(self._calls.items())
            for watched in running:
                if watched.waiting:
                    continue
                if now > watched.deadline:
                    watched.end(Status.TIMEOUT, "took longer than timeout_minutes allows")
                elif now - watched.last_line_at > watched.silence_seconds:
                    minutes = counted(f"{watched.silence_seconds / 60:g}", "minute")
                    watched.end(Status.TIMEOUT, f"printed nothing for {minutes}: it hangs")
            for answer, until in calls:
                if now > min(until(), self._last):
                    with contextlib.suppress(InvalidStateError):
                        answer.set_exception(self._reason)


def side_by_side(work: Callable[[S], T], items: Sequence[S], at_a_time: int) -> list[T]:
    """Call a function for each item in daemon threads, for which an interrupt does not wait.

    Returns:
        The results, in the order of the items.
    """
    answers: list[Future[T]] = [Future() for _ in items]
    todo, lock = iter(zip(items, answers, strict=True)), threading.Lock()

    def take_turns() -> None:
        while True:
            with lock:
                item, answer = next(todo, (None, None))
            if answer is None:
                return
            settle(answer, lambda item=item: work(item))  # type: ignore[misc]

    for _ in range(min(at_a_time, len(items))):
        threading.Thread(target=take_turns, daemon=True).start()
    return [answer.result() for answer in answers]


def settle(answer: Future[T], function: Callable[[], T]) -> None:
    """Set the future to the function's result or error, unless its caller has stopped waiting."""
    with contextlib.suppress(InvalidStateError):
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  the caller handles it
            answer.set_exception(error)
        else:
            answer.set_result(result)

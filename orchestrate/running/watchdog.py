"""Ends what takes too long or has fallen silent, from one thread for all hosts."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrate.launchers.base import GRACE_SECONDS
from orchestrate.planning.plan import Job
from results.schema import Status

CHECK_SECONDS = 0.5


@dataclass
class Watched:
    """A running repeat.

    Attributes:
        deadline: Monotonic seconds after which it is ended.
        silence_seconds: Longest time without a line of output.
        stopped_for: Why it was ended; None: it was not.
        timeout_seconds: From its start to `deadline`.
        waiting: It waits in a queue: no time counts.
    """

    job: Job
    stop: Callable[[], None]
    deadline: float
    silence_seconds: float
    last_line_at: float = field(default_factory=time.monotonic)
    stopped_for: tuple[Status, str] | None = None
    timeout_seconds: float = math.inf
    waiting: bool = False

    def wait(self) -> None:
        """Stop to count: it waits in a queue."""
        self.waiting = True

    def run(self) -> None:
        """Begin to count, from nothing: it runs, for the first time or again."""
        self.last_line_at = time.monotonic()
        self.deadline = self.last_line_at + self.timeout_seconds
        self.waiting = False

    def heard(self) -> None:
        """Note a line of output."""
        self.last_line_at = time.monotonic()


class Watchdog:
    """Watches running repeats; use as a context manager."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        """Start watching."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching; nothing is ended by that."""
        self._ended.set()
        self._thread.join()

    def watch(self, job: Job, stop: Callable[[], None], *, timeout: float, silence: float) -> Watched:
        """Begin to watch a repeat.

        Args:
            job: The repeat.
            stop: Ends it.
            timeout: Seconds that it may take; it gets `GRACE_SECONDS` more to end by itself.
            silence: Seconds that it may print nothing.
        """
        seconds = timeout + GRACE_SECONDS
        watched = Watched(job, stop, time.monotonic() + seconds, silence, timeout_seconds=seconds)
        with self._lock:
            self._watched[job.id] = watched
        return watched

    def forget(self, job: Job) -> None:
        """End watching a repeat."""
        with self._lock:
            self._watched.pop(job.id, None)

    def stop_all(self, status: Status, cause: str) -> None:
        """End everything that runs."""
        with self._lock:
            running = list(self._watched.values())
        for watched in running:
            self._end(watched, status, cause)

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_SECONDS):
            now = time.monotonic()
            with self._lock:
                running = list(self._watched.values())
            for watched in running:
                if watched.waiting:
                    continue
                if now > watched.deadline:
                    self._end(watched, Status.TIMEOUT, "took longer than timeout_minutes allows")
                elif now - watched.last_line_at > watched.silence_seconds:
                    minutes = watched.silence_seconds / 60
                    self._end(watched, Status.TIMEOUT, f"printed nothing for {minutes:g} minutes: it hangs")

    def _end(self, watched: Watched, status: Status, cause: str) -> None:
        """End one repeat, in a thread of its own: a host that does not answer must not hold up the others."""
        if watched.stopped_for is None:
            watched.stopped_for = (status, cause)
            threading.Thread(target=watched.stop, name=f"stop {watched.job.id}", daemon=True).start()

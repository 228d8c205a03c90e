"""Polling of a queue by one thread for all waiting worker slots: the cost does not grow with the number of repeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from orchestrate.errors import HostError, Lost

PATIENCE_SECONDS = 600.0
"""How long queries may fail after one succeeded: jobs keep running, and a login host takes minutes to restart."""


class Poller:
    """Queries a queue at intervals while at least one thread waits.

    Args:
        name: Of the queue, for messages and the thread.
        query: Queries it once, and stores the answer for the worker slots.
        seconds: From the end of a query to the start of the next.
        patience_seconds: How long queries may fail before `wait` raises.

    Attributes:
        trouble: Why the last query failed; empty: it succeeded.
    """

    def __init__(
        self, name: str, query: Callable[[], None], seconds: float, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self.trouble = ""
        self._name = name
        self._query = query
        self._seconds = seconds
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)  # of the polling thread
        self._news = threading.Condition(self._lock)  # of waiting threads
        self._polls = self._waiting = 0
        self._hurry = self._closed = False
        self._failure: BaseException | None = None
        self._failing_since: float | None = None
        self._thread: threading.Thread | None = None

    def wait(self) -> None:
        """Wait for the end of the next query.

        Raises:
            Lost: Queries have failed for too long.
        """
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"poll {self._name}", daemon=True)
                self._thread.start()
            self._waiting += 1
            self._wanted.notify()
            before = self._polls
            self._news.wait_for(lambda: self._polls > before or self._closed)
            self._waiting -= 1
            failure = self._failure
        if isinstance(failure, HostError):
            raise Lost(f"{self._name} stopped responding: {failure.cause}") from failure
        if failure is not None:
            raise RuntimeError(f"polling {self._name} failed") from failure

    def hurry(self) -> None:
        """Query now instead of after the interval."""
        with self._lock:
            self._hurry = True
            self._wanted.notify()

    def close(self) -> None:
        """End the thread; later calls of `wait` return at once."""
        with self._lock:
            self._closed = True
            self._news.notify_all()
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._wanted.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._hurry = False
            failure = self._try()
            with self._lock:
                self._failure = failure
                self._polls += 1
                self._news.notify_all()
                self._wanted.wait_for(lambda: self._hurry or self._closed, self._seconds)

    def _try(self) -> BaseException | None:
        """Query once; return a host's error if errors have persisted, and any other exception at once."""
        try:
            self._query()
        except HostError as error:
            now = time.monotonic()
            self.trouble = error.cause
            self._failing_since = self._failing_since or now
            return error if now - self._failing_since >= self._patience_seconds else None
        except Exception as error:  # noqa: BLE001  a bug: waiting threads must not hang
            return error
        self._failing_since, self.trouble = None, ""
        return None

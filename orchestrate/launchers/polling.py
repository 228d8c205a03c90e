"""One thread that asks a queue, for all lanes that wait for it: what asking costs does not grow with the repeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from orchestrate.errors import HostError, Lost

PATIENCE_SECONDS = 600.0
"""How long a queue that once answered may be silent: its jobs go on, and a login host takes minutes to start again."""


class Poller:
    """Looks at a queue at intervals, as long as somebody waits.

    Args:
        name: Of the queue, for messages and the thread.
        look: Asks once, and leaves the answer where the lanes find it.
        seconds: From the end of a look to the next.
        patience_seconds: How long polls may fail before those who wait are notified.
    """

    def __init__(
        self, name: str, look: Callable[[], None], seconds: float, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._name = name
        self._look = look
        self._seconds = seconds
        self._patience_seconds = patience_seconds
        lock = threading.Lock()
        self._changed = threading.Condition(lock)  # of those who wait for the end of a look
        self._wanted = threading.Condition(lock)  # of the thread that looks: nobody who waits wakes the others
        self._waiting = 0
        self._looks = 0
        self._hurry = False
        self._closed = False
        self._failure: BaseException | None = None
        self._failing_since: float | None = None
        self._trouble = ""
        self._thread: threading.Thread | None = None

    def wait(self) -> None:
        """Wait for the end of the next look.

        Raises:
            Lost: The queue has been silent for too long.
        """
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"poll {self._name}", daemon=True)
                self._thread.start()
            seen = self._looks
            self._waiting += 1
            self._wanted.notify()
            try:
                self._changed.wait_for(lambda: self._looks > seen or self._closed)
            finally:
                self._waiting -= 1
            failure = self._failure
        if isinstance(failure, HostError):
            raise Lost(f"{self._name} stopped responding: {failure.cause}") from failure
        if failure is not None:
            raise RuntimeError(f"polling {self._name} failed") from failure

    @property
    def trouble(self) -> str:
        """Why the last look failed; empty: it did not."""
        return self._trouble

    def hurry(self) -> None:
        """Look again at once: there is something to do."""
        with self._changed:
            self._hurry = True
            self._wanted.notify()

    def close(self) -> None:
        """End the thread; nobody may wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._wanted.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._hurry = False
            failure = self._try()
            with self._changed:
                self._failure = failure
                self._looks += 1
                self._changed.notify_all()
                self._wanted.wait_for(lambda: self._hurry or self._closed, self._seconds)

    def _try(self) -> BaseException | None:
        """Look once; a failure counts when it has lasted, a bug counts at once."""
        try:
            self._look()
        except HostError as error:
            now = time.monotonic()
            self._trouble = error.cause
            self._failing_since = self._failing_since or now
            return error if now - self._failing_since >= self._patience_seconds else None
        except Exception as error:  # noqa: BLE001  a bug: those who wait must not wait for ever
            return error
        self._failing_since, self._trouble = None, ""
        return None

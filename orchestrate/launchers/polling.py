"""One thread that asks a queue, for all worker slots that wait: what asking costs does not grow with the repeats."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from orchestrate.errors import HostError, Lost

PATIENCE_SECONDS = 600.0
"""How long a queue that once answered may be silent: its jobs go on, and a login host takes minutes to start again."""


class Poller:
    """Looks at a queue at intervals, as long as somebody waits.

    Args:
        name: Of the queue, for messages and the thread.
        look: Asks once, and leaves the answer where the slots find it. It returns the keys of those whom the answer
            concerns; None: everybody.
        seconds: From the end of a look to the next.
        patience_seconds: How long polls may fail before those who wait are notified.
    """

    def __init__(
        self,
        name: str,
        look: Callable[[], Collection[str] | None],
        seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._name = name
        self._look = look
        self._seconds = seconds
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._wanted = threading.Condition(self._lock)  # of the thread that looks
        self._sleepers: dict[str, set[threading.Event]] = {}  # each has its own: who is woken wakes nobody else
        self._hurry = False
        self._closed = False
        self._failure: BaseException | None = None
        self._failing_since: float | None = None
        self._trouble = ""
        self._thread: threading.Thread | None = None

    def wait(self, key: str = "", seconds: float | None = None, has_news: Callable[[], bool] | None = None) -> None:
        """Wait for the end of the next look that concerns a key.

        Args:
            key: As `look` returns them.
            seconds: The longest to wait; None: for as long as it takes.
            has_news: Whether the caller has missed something since it saw the queue last; then nobody waits.

        Raises:
            Lost: The queue has been silent for too long.
        """
        woken = threading.Event()
        with self._lock:
            if self._closed or (has_news is not None and has_news()):
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"poll {self._name}", daemon=True)
                self._thread.start()
            self._sleepers.setdefault(key, set()).add(woken)
            self._wanted.notify()
        try:
            woken.wait(seconds)
        finally:
            with self._lock:
                self._sleepers[key].discard(woken)
                if not self._sleepers[key]:
                    del self._sleepers[key]
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
        with self._lock:
            self._hurry = True
            self._wanted.notify()

    def wake_all(self) -> None:
        """Wake all who wait, without a look."""
        with self._lock:
            self._wake(None)

    def close(self) -> None:
        """End the thread; nobody may wait any more."""
        with self._lock:
            self._closed = True
            self._wake(None)
            self._wanted.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._wanted.wait_for(lambda: self._sleepers or self._closed)
                if self._closed:
                    return
                self._hurry = False
            failure, keys = self._try()
            with self._lock:
                self._failure = failure
                self._wake(keys)
                if self._seconds:
                    self._wanted.wait_for(lambda: self._hurry or self._closed, self._seconds)

    def _wake(self, keys: Collection[str] | None) -> None:
        for key in list(self._sleepers) if keys is None else keys:
            for woken in self._sleepers.get(key, ()):
                woken.set()

    def _try(self) -> tuple[BaseException | None, Collection[str] | None]:
        """Look once; a failure counts when it has lasted, a bug counts at once. Either concerns everybody."""
        try:
            keys = self._look()
        except HostError as error:
            now = time.monotonic()
            self._trouble = error.cause
            self._failing_since = self._failing_since or now
            return (error if now - self._failing_since >= self._patience_seconds else None), None
        except Exception as error:  # noqa: BLE001  a bug: those who wait must not wait for ever
            return error, None
        self._failing_since, self._trouble = None, ""
        return None, keys

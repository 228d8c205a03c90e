"""Progress, stalls and concurrency limits of image pulls and transfers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_PULLS_PER_REGISTRY = 16
TRANSFER = "transfer"
"""Argument of `PullLimits.turn` for images that this machine sends to hosts."""

MAX_TRANSFERS = 4
"""Hosts at a time. One core compresses 110 to 130 MB/s of TensorFlow's library to 27 to 32 MB/s (measured): 4 streams
fill an uplink of 1 Gbit/s. More would delay the first hosts without starting the last one earlier.
"""

TURN_SECONDS = 600.0
"""Longest time for which one host keeps others waiting; then its pull or transfer continues next to theirs."""

STALL_SECONDS = 180.0
"""Longest time without a message: unpacking a layer of CUDA libraries reports nothing for a minute or two."""

DEADLINE_SECONDS = 3600.0
ATTEMPTS = 4

Progress = Callable[[int, int], None]
"""Receives the bytes downloaded and the bytes known to be needed."""


class PullLimits:
    """Concurrency limits and callbacks that the pulls of all hosts of a run share.

    Args:
        per_registry: Maximum number of concurrent pulls from one registry.
        transfers: Maximum number of hosts that this machine sends an image to at a time.
        notify: Receives a host's key and a message about a pull.
        progress: While hosts are probed, receives a host's key, an image and the bytes of `Progress`.
    """

    def __init__(
        self,
        per_registry: int = MAX_PULLS_PER_REGISTRY,
        notify: Callable[[str, str], None] = lambda host, message: None,
        *,
        transfers: int = MAX_TRANSFERS,
        progress: Callable[[str, str, int, int], None] = lambda host, image, done, total: None,
    ) -> None:
        self.notify = notify
        self.progress = progress
        self._per_registry = per_registry
        self._registries = {TRANSFER: threading.Semaphore(transfers)}

    @contextmanager
    def turn(self, registry: str) -> Iterator[Callable[[], None]]:
        """Hold one of the concurrent pulls of a registry, or one of the transfers (`TRANSFER`), for `TURN_SECONDS`.

        Yields:
            A function that gives the turn back before the end of the block.
        """
        semaphore = self._registries.setdefault(registry, threading.Semaphore(self._per_registry))
        semaphore.acquire()
        held = [semaphore]

        def give_back() -> None:
            with contextlib.suppress(IndexError):  # given back before
                held.pop().release()

        timer = threading.Timer(TURN_SECONDS, give_back)
        timer.daemon = True
        timer.start()
        try:
            yield give_back
        finally:
            timer.cancel()
            give_back()


class PullMeter:
    """Tracks the progress and the time limits of one pull.

    Args:
        on_progress: Receives the progress.
        on_retry: Receives the reason for a retry.
    """

    def __init__(
        self,
        on_progress: Progress,
        on_retry: Callable[[str], None] = lambda cause: None,
        *,
        stall_seconds: float = STALL_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
        attempts: int = ATTEMPTS,
    ) -> None:
        self.deadline_seconds = deadline_seconds
        self.attempts = attempts
        self.on_retry = on_retry
        self._on_progress = on_progress
        self.stall_seconds = stall_seconds
        self._deadline = time.monotonic() + deadline_seconds
        self._layers: dict[str, tuple[int, int]] = {}
        self._last_message_at = time.monotonic()

    def restart(self) -> None:
        """Reset the progress, which the engine reports again for each attempt."""
        self._layers.clear()
        self._last_message_at = time.monotonic()

    def seconds_left(self) -> float:
        """Return the time until the pull's deadline."""
        return self._deadline - time.monotonic()

    def stalled(self) -> str:
        """Return why the pull must be ended; empty: it may continue."""
        if self.seconds_left() <= 0:
            return f"not complete after {self.deadline_seconds / 60:g} minutes"
        silent = time.monotonic() - self._last_message_at >= self.stall_seconds
        return f"no progress for {self.stall_seconds:g} seconds" if silent else ""

    def note(self, message: dict[str, Any]) -> None:
        """Process a message of the engine's progress stream."""
        self._last_message_at = time.monotonic()
        detail = message.get("progressDetail")
        if message.get("status") != "Downloading" or not isinstance(detail, dict):
            return
        done, total = detail.get("current"), detail.get("total")
        if isinstance(done, int) and isinstance(total, int) and len(self._layers) < 1000:
            self._layers[str(message.get("id"))] = (done, total)
            self._on_progress(
                sum(done for done, _ in self._layers.values()), sum(total for _, total in self._layers.values())
            )

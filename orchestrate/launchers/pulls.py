"""Pulls and transfers: how far they are, whether they stall, and how many there are at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_PULLS_PER_REGISTRY = 16
TRANSFER = "transfer"
"""Of `PullLimits.turn`: images that this machine sends to hosts by itself."""

MAX_TRANSFERS = 4
"""Hosts at a time. One core compresses 110 to 130 MB/s of TensorFlow's library to 27 to 32 MB/s (measured): 4 streams
fill an uplink of 1 Gbit/s. With more, the last host would not start earlier, and the first ones later.
"""

STALL_SECONDS = 180.0
"""Longest time without any news: unpacking a layer of CUDA libraries is silent for a minute or two."""

DEADLINE_SECONDS = 3600.0
ATTEMPTS = 4

Progress = Callable[[int, int], None]
"""Receives bytes that are there and bytes that are known to be needed."""


class PullLimits:
    """What the pulls of all hosts of a run share: how many a registry gets at a time, and who is notified.

    Args:
        per_registry: Most pulls from one registry at a time.
        transfers: How many hosts this machine sends an image to at a time.
        notify: Receives a host's key and what its user should know about a pull.
        progress: Receives a host's key, an image, and how far it is, while hosts are probed: see `Progress`.
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
        self._lock = threading.Lock()
        self._registries = {TRANSFER: threading.Semaphore(transfers)}

    @contextmanager
    def turn(self, registry: str) -> Iterator[None]:
        """Wait for a turn at a registry, or for one of `TRANSFER`, and keep it."""
        with self._lock:
            semaphore = self._registries.setdefault(registry, threading.Semaphore(self._per_registry))
        with semaphore:
            yield


class PullMeter:
    """Watches one pull.

    Args:
        on_progress: Receives how far it is.
        on_retry: Receives why it is tried again.
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
        self._heard_at = time.monotonic()

    def restart(self) -> None:
        """Forget the progress of an earlier attempt: the engine reports it again."""
        self._layers.clear()
        self._heard_at = time.monotonic()

    def seconds_left(self) -> float:
        """Return how long the pull may still take."""
        return self._deadline - time.monotonic()

    def stalled(self) -> str:
        """Return why the wait timed out; empty if it did not."""
        if self.seconds_left() <= 0:
            return f"not complete after {self.deadline_seconds / 60:g} minutes"
        silent = time.monotonic() - self._heard_at >= self.stall_seconds
        return f"no progress for {self.stall_seconds:g} seconds" if silent else ""

    def note(self, message: dict[str, Any]) -> None:
        """Take in a message of the engine's stream."""
        self._heard_at = time.monotonic()
        detail = message.get("progressDetail")
        if message.get("status") != "Downloading" or not isinstance(detail, dict):
            return
        done, total = detail.get("current"), detail.get("total")
        if isinstance(done, int) and isinstance(total, int) and len(self._layers) < 1000:
            self._layers[str(message.get("id"))] = (done, total)
            self._on_progress(
                sum(done for done, _ in self._layers.values()), sum(total for _, total in self._layers.values())
            )

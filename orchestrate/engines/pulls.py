"""Limits of image pulls and transfers, and what reports their progress."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from orchestrate.events import EventBus, ImageProgress, Warned

MAX_PULLS_PER_REGISTRY = 16
TRANSFER = "transfer"
"""Argument of `PullLimits.turn` for images that this machine sends to hosts."""

MAX_TRANSFERS = 4
"""Hosts at a time. One core compresses 110 to 130 MB/s of TensorFlow's library to 27 to 32 MB/s (measured): 4 streams
fill an uplink of 1 Gbit/s. More would delay the first hosts without starting the last one earlier.
"""

STALL_SECONDS = 180.0
"""Longest time of a pull without a message: unpacking a layer of CUDA libraries reports nothing for a minute or two."""

DEADLINE_SECONDS = 3600.0
"""Longest time of a pull with all its attempts, and of an installation."""

ATTEMPTS = 4

FINAL_PULL_ERRORS = re.compile(
    "not found|unknown|unauthorized|denied|forbidden|no basic auth|authentication required|does not exist|"
    "invalid reference|no space",
    re.IGNORECASE,
)
"""In messages about failures that do not pass by themselves."""

Progress = Callable[[int, int], None]
"""Receives the bytes downloaded and the bytes known to be needed."""


class PullLimits:
    """What the pulls of all hosts of a run share: limits of concurrency, and the bus that they report to."""

    def __init__(self, bus: EventBus | None = None) -> None:
        self._bus = bus or EventBus()
        self._turns = {TRANSFER: threading.Semaphore(MAX_TRANSFERS)}

    def notify(self, host: str, message: str) -> None:
        """Report a message about a pull of a host, by its key."""
        self._bus.emit(Warned(host=host, message=message))

    def progress(self, host: str, image: str, done: int, total: int) -> None:
        """Report the bytes of `Progress`, while hosts are probed."""
        self._bus.emit(ImageProgress(host=host, image=image, done_bytes=done, total_bytes=total))

    def turn(self, registry: str) -> threading.Semaphore:
        """Return what is held during a pull from a registry, or while an image is sent (`TRANSFER`)."""
        return self._turns.setdefault(registry, threading.Semaphore(MAX_PULLS_PER_REGISTRY))

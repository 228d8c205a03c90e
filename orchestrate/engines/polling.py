"""Polling of a queue for all who follow its repeats: the cost does not grow with the number of repeats."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import anyio

from orchestrate.errors import HostError, Lost

PATIENCE_SECONDS = 600.0
"""How long queries may fail after one succeeded: jobs keep running, and a login host takes minutes to restart."""

CHECK_SECONDS = 0.1


class Poller:
    """Queries a queue at intervals while anybody waits; belongs to the loop.

    Args:
        name: Of the queue, for messages.
        query: Queries it once, and stores the answer.
        seconds: From the end of a query to the start of the next.
        patience_seconds: How long queries may fail before `wait` raises.

    Attributes:
        trouble: Why the last query failed; empty: it succeeded.
    """

    def __init__(
        self,
        name: str,
        query: Callable[[], Awaitable[None]],
        seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.trouble = ""
        self._name = name
        self._query = query
        self._seconds = seconds
        self._patience_seconds = patience_seconds
        self._asking: asyncio.Task[None] | None = None
        self._next_at = self._failing_since = 0.0
        self._closed = False

    async def wait(self) -> None:
        """Wait for the end of the next query.

        Raises:
            Lost: Queries have failed for too long, or the poller was closed.
        """
        if self._closed:
            raise Lost(f"{self._name} is no longer followed")
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        await asyncio.shield(self._asking)

    def hurry(self) -> None:
        """Query now instead of after the interval; callable from any thread."""
        self._next_at = 0.0

    def close(self) -> None:
        """Refuse later calls of `wait`."""
        self._closed = True

    async def _ask(self) -> None:
        while (left := self._next_at - time.monotonic()) > 0:
            await anyio.sleep(min(left, CHECK_SECONDS))
        try:
            await self._query()
        except HostError as error:
            if not self.trouble:
                self._failing_since = time.monotonic()
            self.trouble = error.cause
            if time.monotonic() - self._failing_since >= self._patience_seconds:
                raise Lost(f"{self._name} stopped responding: {error.cause}") from error
        else:
            self.trouble = ""
        finally:
            self._next_at = time.monotonic() + self._seconds

"""The event loop of this process, in a thread of its own: connections are its tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LOOPS: list[asyncio.AbstractEventLoop] = []
_LOCK = threading.Lock()


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop and return its result; not callable from the loop's own thread."""
    with _LOCK:
        if not _LOOPS:
            _LOOPS.append(asyncio.new_event_loop())
            threading.Thread(target=_LOOPS[0].run_forever, name="loop", daemon=True).start()
    if asyncio._get_running_loop() is _LOOPS[0]:
        raise RuntimeError("the loop would wait for itself")
    return asyncio.run_coroutine_threadsafe(work, _LOOPS[0]).result()

"""The event loop of this process, in a thread of its own: connections are its tasks."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop, started by the first caller: before there are other threads."""
    loop = asyncio.new_event_loop()
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):  # as later versions do: no thread for each child
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    # A task without an end: anyio's worker threads belong to it. They would else search all tasks for one at each call.
    forever = asyncio.Event().wait()
    threading.Thread(target=loop.run_until_complete, args=(forever,), name="loop", daemon=True).start()
    return loop


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop and return its result; not callable from the loop's own thread."""
    if asyncio._get_running_loop() is _loop():
        raise RuntimeError("the loop would wait for itself")
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()

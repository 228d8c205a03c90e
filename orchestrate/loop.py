"""The event loop of this process, in a thread of its own: connections are its tasks."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any, TypeVar

import anyio.to_thread

T = TypeVar("T")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop, started by the first caller: before there are other threads."""
    made = Future[asyncio.AbstractEventLoop]()
    threading.Thread(target=_serve, args=(made,), name="loop", daemon=True).start()
    return made.result()


def _serve(made: Future[asyncio.AbstractEventLoop]) -> None:
    """Make the loop and run it for ever, in its thread: no signal interrupts there."""
    try:
        loop = asyncio.new_event_loop()
    except OSError as error:  # e.g. too many open files
        made.set_exception(error)
        return
    if sys.version_info < (3, 12) and hasattr(os, "pidfd_open"):  # as later versions do: no thread for each child
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(loop)
        asyncio.set_child_watcher(watcher)
    made.set_result(loop)
    # A task without an end: anyio's worker threads belong to it. They would else search all tasks for one at each call.
    loop.run_until_complete(asyncio.Event().wait())


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop and return its result; not callable from the loop's own thread."""
    if asyncio._get_running_loop() is _loop():
        raise RuntimeError("the loop would wait for itself")
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


_UNLIMITED = anyio.CapacityLimiter(math.inf)


async def in_thread(function: Callable[[], T]) -> T:
    """Call a function in a thread, which is abandoned with this task."""
    return await anyio.to_thread.run_sync(function, abandon_on_cancel=True, limiter=_UNLIMITED)

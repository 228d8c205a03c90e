"""Queries hosts in parallel: their facts before a plan is made, and what they run. No host holds the others."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio

from orchestrate import loop
from orchestrate.engines.base import ImagePinner, Launcher
from orchestrate.errors import HostError, UserError
from orchestrate.events import Event, EventBus, HostChecked, ImageProgress
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.images import share_images
from orchestrate.running.context import CHECK_SECONDS, Late, MakeLauncher, in_thread
from orchestrate.running.session import CLOSE_SECONDS, PROBE_SECONDS
from orchestrate.text import plain_text

T = TypeVar("T")

MAX_PROBES = 64
"""Hosts queried at a time."""

LATE_SECONDS, DOWNLOAD_SECONDS = 60.0, 300.0
"""Once a host has answered, how long the plan waits for each of the others, and for one that reports a download."""


async def query_hosts(
    hosts: Sequence[Host], make: MakeLauncher, ask: Callable[[Host, Launcher], T], seconds: float
) -> dict[HostPlace, T | str]:
    """Query hosts in parallel with a time limit; return the answer of each, or the cause of its failure.

    Args:
        hosts: Hosts to query.
        make: Returns the launcher of a host.
        ask: Queries a host.
        seconds: Time limit.
    """
    turns = asyncio.Semaphore(MAX_PROBES)

    async def query(host: Host) -> T | str:
        async with turns:
            return await _answer(_query(host, make, ask, seconds))

    return dict(zip([host.place for host in hosts], await asyncio.gather(*map(query, hosts)), strict=True))


async def _answer(query: Awaitable[T]) -> T | str:
    """Return the answer of a host, or the cause of its failure."""
    try:
        return await query
    except HostError as error:
        return error.cause


async def _query(host: Host, make: MakeLauncher, ask: Callable[[Host, Launcher], T], seconds: float) -> T:
    """Connect to a host, query it, and disconnect.

    Raises:
        HostError: It failed in any way.
        UserError: A package is missing here.
    """
    try:
        with anyio.fail_after(seconds):
            launcher = await in_thread(partial(make, host))
            try:
                return await in_thread(partial(ask, host, launcher))
            finally:
                with contextlib.suppress(HostError), anyio.move_on_after(CLOSE_SECONDS, shield=True):
                    await in_thread(launcher.close)
    except (HostError, UserError):
        raise
    except TimeoutError:
        raise HostError("it did not answer in time") from None
    except Exception as error:
        raise HostError(plain_text(f"it cannot be queried: {error!r}", 300)) from error


def probe_hosts(
    hosts: Sequence[Host], make: MakeLauncher, bus: EventBus, late: Late | None = None
) -> dict[HostPlace, Facts | str]:
    """Probe all hosts in parallel; a host that takes much longer than the first does not hold the others.

    Args:
        hosts: Hosts to probe.
        make: Returns the launcher of a host.
        bus: Receives an event for each host.
        late: Receives the probes that continue; None: they are given up.

    Returns:
        Facts of each host, or why there are none.
    """
    facts = loop.wait_for(_probe(hosts, make, bus, late))
    shared = share_images(hosts, facts, read_variants())
    concerned = [host for host in hosts if host.place in shared]

    def with_image(host: Host, launcher: Launcher) -> Facts:
        known = facts[host.place]
        assert isinstance(known, Facts), "only hosts that answered share an image"
        return _with_image(known, shared[host.place], launcher)

    return {**facts, **loop.wait_for(query_hosts(concerned, make, with_image, DOWNLOAD_SECONDS))}


async def _probe(
    hosts: Sequence[Host], make: MakeLauncher, bus: EventBus, late: Late | None
) -> dict[HostPlace, Facts | str]:
    turns, first_at = asyncio.Semaphore(MAX_PROBES), math.inf
    downloads: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, ImageProgress):
            downloads[event.host] = time.monotonic()

    async def probe(host: Host) -> Facts | str:
        nonlocal first_at
        async with turns:
            began = now = time.monotonic()
            task = asyncio.create_task(_query(host, make, lambda _, launcher: launcher.probe(), PROBE_SECONDS))
            patience = LATE_SECONDS
            while not task.done() and now - max(began, first_at) < patience:
                await asyncio.wait([task], timeout=CHECK_SECONDS)
                now = time.monotonic()
                is_loading = now - downloads.get(host.key, -math.inf) < LATE_SECONDS
                patience = DOWNLOAD_SECONDS if is_loading else LATE_SECONDS
            answer: Facts | str = f"it has not answered after {now - began:.0f} s; others have"
            if task.done():
                answer = await _answer(task)
            elif late is None:
                task.cancel()
            else:
                late[host.place] = task
        problem, gpus = (answer, 0) if isinstance(answer, str) else (answer.problem, len(answer.gpus))
        if problem is None:
            first_at = min(first_at, now)
        bus.emit(HostChecked(host=host.key, problem=problem, gpus=gpus))
        return answer

    bus.subscribe(note)
    return dict(zip([host.place for host in hosts], await asyncio.gather(*map(probe, hosts)), strict=True))


def _with_image(facts: Facts, image: Image, launcher: Launcher) -> Facts:
    """Return a host's facts with the shared image, whose tag is resolved if possible."""
    if facts.images and facts.images[0].reference == image.reference:
        return dataclasses.replace(facts, images=(dataclasses.replace(facts.images[0], reason=image.reason),))
    return dataclasses.replace(facts, images=(launcher.pin(image) if isinstance(launcher, ImagePinner) else image,))

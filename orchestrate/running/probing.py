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
from orchestrate.engines.base import Launcher
from orchestrate.errors import HostError, UserError
from orchestrate.events import Event, EventBus, HostChecked, ImageProgress
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.loop import in_thread
from orchestrate.planning.facts import Facts
from orchestrate.planning.images import share_images
from orchestrate.text import plain_text

T = TypeVar("T")

MakeLauncher = Callable[[Host], Launcher]

MAX_QUERIES = 64
"""Hosts queried at a time."""

PROBE_SECONDS = 3600.0
"""Time limit of a probe, which may have to install a Python first, and wait for its turn."""

LATE_SECONDS, DOWNLOAD_SECONDS = 60.0, 300.0
"""Once a host has answered, how long the plan waits for each of the others, and for one that reports a download."""

CLOSE_SECONDS, LOOK_SECONDS = 5.0, 0.25


async def close(launcher: Launcher) -> None:
    """Disconnect from a host, also when the task is cancelled; benchmarks continue."""
    with contextlib.suppress(HostError), anyio.move_on_after(CLOSE_SECONDS, shield=True):
        await in_thread(launcher.close)


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
    return await _side_by_side(hosts, lambda host: _query(host, make, ask, seconds))


async def _side_by_side(hosts: Sequence[Host], work: Callable[[Host], Awaitable[T]]) -> dict[HostPlace, T]:
    turns = asyncio.Semaphore(MAX_QUERIES)

    async def work_in_turn(host: Host) -> T:
        async with turns:
            return await work(host)

    return dict(zip([host.place for host in hosts], await asyncio.gather(*map(work_in_turn, hosts)), strict=True))


async def _query(host: Host, make: MakeLauncher, ask: Callable[[Host, Launcher], T], seconds: float) -> T | str:
    """Connect to a host, query it, and disconnect; return the answer, or why it failed in any way.

    Raises:
        UserError: A package is missing here.
    """
    try:
        with anyio.fail_after(seconds):
            launcher = await in_thread(partial(make, host))
            try:
                return await in_thread(partial(ask, host, launcher))
            finally:
                await close(launcher)
    except HostError as error:
        return error.cause
    except UserError:
        raise
    except TimeoutError:
        return "it did not answer in time"
    except Exception as error:  # noqa: BLE001 (of any library)
        return plain_text(f"it cannot be queried: {error!r}", 300)


def probe_hosts(hosts: Sequence[Host], make: MakeLauncher, bus: EventBus) -> dict[HostPlace, Facts | str]:
    """Probe all hosts in parallel; a host that takes much longer than the first does not hold the others.

    Args:
        hosts: Hosts to probe.
        make: Returns the launcher of a host.
        bus: Receives an event for each host.

    Returns:
        Facts of each host, or why there are none.
    """
    facts = loop.wait_for(_probe(hosts, make, bus))
    shared = share_images(hosts, facts)

    def with_image(host: Host, launcher: Launcher) -> Facts:
        """Return a host's facts with the shared image, whose tag is resolved if possible."""
        known, image = facts[host.place], shared[host.place]
        assert isinstance(known, Facts), "only hosts that answered share an image"
        if known.images and known.images[0].reference == image.reference:
            return dataclasses.replace(known, images=(dataclasses.replace(known.images[0], reason=image.reason),))
        return dataclasses.replace(known, images=(launcher.pin(image),))

    concerned = [host for host in hosts if host.place in shared]
    return {**facts, **loop.wait_for(query_hosts(concerned, make, with_image, DOWNLOAD_SECONDS))}


async def _probe(hosts: Sequence[Host], make: MakeLauncher, bus: EventBus) -> dict[HostPlace, Facts | str]:
    first_at, reported = math.inf, dict[str, float]()

    def note(event: Event) -> None:
        if isinstance(event, ImageProgress):
            reported[event.host] = time.monotonic()

    def patience(host: Host) -> float:
        is_loading = time.monotonic() - reported.get(host.key, -math.inf) < LATE_SECONDS
        return DOWNLOAD_SECONDS if is_loading else LATE_SECONDS

    async def probe(host: Host) -> Facts | str:
        nonlocal first_at
        began = time.monotonic()
        asking = asyncio.create_task(_query(host, make, lambda _, launcher: launcher.probe(), PROBE_SECONDS))
        while not asking.done() and time.monotonic() - max(began, first_at) < patience(host):
            await asyncio.wait([asking], timeout=LOOK_SECONDS)
        took = time.monotonic() - began
        answer = await asking if asking.done() else f"it has not answered after {took:.0f} s; others have"
        asking.cancel()
        problem, gpus = (answer, 0) if isinstance(answer, str) else (answer.problem, len(answer.gpus))
        if problem is None:
            first_at = min(first_at, time.monotonic())
        bus.emit(HostChecked(host=host.key, problem=problem, gpus=gpus))
        return answer

    bus.subscribe(note)
    return await _side_by_side(hosts, probe)

"""The interface of launchers, which start benchmarks on a host.

A launcher belongs to one host. Calls come from worker threads, one at a time, except `follow`, which waits in the loop
while others come. A queue is polled once for all who follow its repeats.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import anyio

from orchestrate.errors import HostError, Lost
from orchestrate.events import EventBus, ImageProgress, Warned
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.plan import Job
from results.schema import Status

GRACE_SECONDS = 30.0
"""Time to wait beyond the benchmark's own limit, at which it ends and records the cause."""


class NotThere(HostError):
    """The engine or cluster has no such object."""


Progress = Callable[[int, int], None]
"""Receives the bytes downloaded and the bytes known to be needed."""

OutputLine = Callable[[str], None]
"""Receives each line of output, which is not trusted."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The state of a repeat in its queue.

    Attributes:
        waiting: Whether it waits for a machine; False: it runs on one.
        node: The machine; None: unknown.
        trouble: Why the queue cannot be queried now; the other fields are its last known state.
    """

    waiting: bool
    node: str | None = None
    trouble: str = ""


OnTurn = Callable[[Turn], None]
"""Receives the state of a repeat at every poll: time in a queue does not count."""


def always_running(turn: Turn) -> None:
    """Ignore turns: without a queue, a started repeat runs."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a benchmark ended, according to its engine rather than its log.

    Attributes:
        exit_code: Of the process, 128 + n for signal n; None: unknown.
        out_of_memory: Whether the kernel killed it at its memory limit.
        detail: The engine's message.
        failure: Why its queue ended it, as a status and a cause; None: it ended by itself.
        node: The machine assigned by a queue; None: the launcher's host.
        image_digest: Digest of the started image, if only the node resolved it.
        record: The benchmark's record, at most `MAX_RECORD_BYTES` + 1 bytes; None: it left none.
    """

    exit_code: int | None
    out_of_memory: bool = False
    detail: str = ""
    failure: tuple[Status, str] | None = None
    node: str | None = None
    image_digest: str | None = None
    record: bytes | None = None


class Launcher(Protocol):
    """Starts and follows benchmarks on one host."""

    def probe(self) -> Facts:
        """Probe the host, connecting first.

        Raises:
            HostError: The host does not answer, or rejects the request.
        """

    def pin(self, image: Image) -> Image:
        """Return the image with its digest, if it can be resolved, or with the reason why it is not available."""
        return image

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """Provide a job's image or packages on the host; fast if they exist.

        Raises:
            HostError: They are not available.
        """

    def start(self, job: Job) -> bool:
        """Start a benchmark under the job's name, or reattach to one that runs under that name.

        Returns:
            Whether it was reattached.

        Raises:
            HostError: It could not be started.
        """

    async def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """Wait in the loop until the benchmark has ended, and pass on its output, perhaps from a thread.

        Returns:
            How it ended, with its record.

        Raises:
            HostError: The host was lost for good.
            CancelledInQueue: It was cancelled in its queue before it started.
        """

    def stop(self, job: Job) -> None:
        """End a running benchmark, if any. Callable from any thread."""

    def remove(self, job: Job) -> None:
        """Remove everything that the benchmark left on the host."""

    def running(self, run_id: str) -> list[str]:
        """Return the job ids of a run that exist on the host, running or ended.

        Raises:
            HostError: It does not answer.
        """

    def close(self) -> None:
        """Disconnect from the host; benchmarks keep running."""


@runtime_checkable
class QueueLauncher(Launcher, Protocol):
    """Starts benchmarks through a queue that assigns machines; shared by all worker slots of a fleet.

    `start` ensures that a repeat is in the queue. All other calls may come from several worker slots at a time.
    """

    def submit(self, jobs: Sequence[Job]) -> None:
        """Submit repeats in order and in few requests, or reattach to those already in the queue.

        Raises:
            HostError: The queue does not answer, or rejects them.
        """

    def cancel_waiting(self, jobs: Sequence[Job]) -> None:
        """Cancel repeats that have not started, in few requests; running ones continue.

        `follow` raises `CancelledInQueue` for each of them.

        Raises:
            HostError: The queue does not answer.
        """

    def clear(self, jobs: Sequence[Job]) -> None:
        """End and remove repeats in any state, in few requests.

        Raises:
            HostError: The queue does not answer.
        """

    def manifests(self, jobs: Sequence[Job]) -> list[str]:
        """Return exactly what `submit` would submit for repeats that are not in the queue."""


PATIENCE_SECONDS = 600.0
"""How long queries may fail after one succeeded: jobs keep running, and a login host takes minutes to restart."""

CHECK_SECONDS = 0.1
AWAY_SECONDS = 2.0
"""Shortest interval after a query that failed."""


class Poller:
    """Queries a queue at intervals while anybody waits; belongs to the loop.

    Args:
        name: Of the queue, for messages.
        query: Queries it once, and stores the answer.
        seconds: From the end of a query to the start of the next.
        patience_seconds: How long queries may fail before `wait` raises.
        passing: Failures that may pass.

    Attributes:
        trouble: Why the last query failed; empty: it succeeded.
    """

    def __init__(
        self,
        name: str,
        query: Callable[[], Awaitable[None]],
        seconds: float,
        patience_seconds: float = PATIENCE_SECONDS,
        passing: type[HostError] = HostError,
    ) -> None:
        self.trouble = ""
        self._name = name
        self._query = query
        self._seconds = seconds
        self._patience_seconds = patience_seconds
        self._passing = passing
        self._asking: asyncio.Task[None] | None = None
        self._next_at = self._failing_since = 0.0

    async def wait(self) -> None:
        """Wait for the end of the next query.

        Raises:
            Lost: Queries have failed for too long.
            HostError: A query has failed for good.
        """
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
            self._asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())  # if nobody waits
        await asyncio.shield(self._asking)

    def hurry(self) -> None:
        """Query now instead of after the interval; callable from any thread."""
        self._next_at = 0.0

    async def _ask(self) -> None:
        while (left := self._next_at - time.monotonic()) > 0:
            await anyio.sleep(min(left, CHECK_SECONDS))
        try:
            await self._query()
        except self._passing as error:
            if not self.trouble:
                self._failing_since = time.monotonic()
            self.trouble = error.cause
            if time.monotonic() - self._failing_since >= self._patience_seconds:
                raise Lost(f"{self._name} stopped responding: {error.cause}") from error
        else:
            self.trouble = ""
        finally:
            self._next_at = time.monotonic() + (max(self._seconds, AWAY_SECONDS) if self.trouble else self._seconds)


# -- pulls -------------------------------------------------------------------------------------------------------

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

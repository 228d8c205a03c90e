"""What starts benchmarks on a host: one small interface, whatever stands behind it.

A launcher belongs to one host. `run.py` calls it from that host's own thread, but `stop`, which may come from the
watchdog or from Ctrl-C while `follow` waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from orchestrate.errors import HostError
from orchestrate.launchers.pulls import Progress
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.plan import Job
from results.schema import Status

GRACE_SECONDS = 30.0
"""How much longer than the benchmark's own limit we wait: it ends itself first, and writes why."""


class NotThere(HostError):
    """An engine or a cluster has no such object."""


OutputLine = Callable[[str], None]
"""Receives each line of output, already made safe to print."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Where a repeat stands in its queue.

    Attributes:
        waiting: It waits for a machine; False: it runs on one.
        node: The machine; None: it is not known.
        reason: Why it waits, in the queue's words.
        trouble: Why the queue cannot be queried now: the rest is its last known state.
    """

    waiting: bool
    node: str | None = None
    reason: str = ""
    trouble: str = ""


OnTurn = Callable[[Turn], None]
"""Called at every look with whether a repeat waits or runs: time in a queue counts for nothing."""


def always_running(turn: Turn) -> None:
    """Ignore turns: without a queue, what was started runs."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a started benchmark ended, as its engine reports, not as its log suggests.

    Attributes:
        exit_code: Of the process, 128 + n for signal n; None: it cannot be known.
        out_of_memory: The kernel killed it at its memory limit.
        detail: What the engine added, for a person.
        failure: Why its queue ended it, as a status and a cause; None: it ended by itself.
        node: The machine that a queue chose; None: the launcher's host.
        image_digest: What was started there, where only the node could know.
    """

    exit_code: int | None
    out_of_memory: bool = False
    detail: str = ""
    failure: tuple[Status, str] | None = None
    node: str | None = None
    image_digest: str | None = None


class Launcher(Protocol):
    """Starts, follows and collects benchmarks on one host."""

    def probe(self) -> Facts:
        """Probe the host, connecting first.

        Raises:
            HostError: It does not answer, or refuses.
        """

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """Bring what `job` starts from to the host; quick when it is there.

        Raises:
            HostError: It cannot be had.
        """

    def start(self, job: Job) -> bool:
        """Start a benchmark under the job's name, or reattach to what already runs under that name.

        Returns:
            True when it was reattached.

        Raises:
            HostError: It could not be started.
        """

    def follow(self, job: Job, on_line: OutputLine, on_turn: OnTurn = always_running) -> Ending:
        """Wait until the benchmark has ended, handing on its output.

        Raises:
            HostError: The host was lost for good.
            CancelledInQueue: It was taken out of its queue before it began.
        """

    def collect(self, job: Job) -> bytes | None:
        """Fetch the record that the benchmark wrote; at most `MAX_RECORD_BYTES` + 1 bytes.

        Returns:
            None: it wrote none.

        Raises:
            HostError: The host was lost for good.
        """

    def stop(self, job: Job) -> None:
        """End a running benchmark; nothing happens when there is none. Callable from any thread."""

    def remove(self, job: Job) -> None:
        """Remove what the benchmark left on the host; nothing happens when there is nothing."""

    def running(self, run_id: str) -> list[str]:
        """Return the job ids of a run that exist on the host, running or ended.

        Raises:
            HostError: It does not answer.
        """

    def close(self) -> None:
        """Disconnect from the host; benchmarks keep running."""


@runtime_checkable
class ImagePinner(Protocol):
    """Finds out what the tag of an image means now, where that is not known by itself."""

    def pin(self, image: Image) -> Image:
        """Return the image with its digest, or with why it cannot be had."""


@runtime_checkable
class QueueLauncher(Launcher, Protocol):
    """Starts benchmarks through a queue that chooses the machines; all worker slots of a fleet share one.

    `start` then means: have it in the queue. Every other call is made from several worker slots at a time.
    """

    def submit(self, jobs: Sequence[Job]) -> None:
        """Put repeats into the queue, in their order and in few requests; what is in it already is reattached.

        Raises:
            HostError: The queue does not answer, or refuses.
        """

    def cancel_waiting(self, jobs: Sequence[Job]) -> None:
        """Take out of the queue those that have not begun, in few requests; what runs goes on.

        `follow` raises `CancelledInQueue` for each of them that is followed.

        Raises:
            HostError: The queue does not answer.
        """

    def clear(self, jobs: Sequence[Job]) -> None:
        """End and remove repeats, running, waiting or ended, in few requests.

        Raises:
            HostError: The queue does not answer.
        """

    def manifests(self, jobs: Sequence[Job]) -> list[str]:
        """Return exactly what `submit` would hand in for repeats of which none is in the queue."""

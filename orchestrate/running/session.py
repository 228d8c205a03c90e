"""A session with a host during a run."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio

from orchestrate.engines.base import Launcher
from orchestrate.errors import HostError
from orchestrate.events import HostChecked, ImageProgress, ImageReady, JobState
from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Job
from orchestrate.running.context import Abandoned, RunContext, in_thread

REQUEST_SECONDS = 420.0
"""Time limit of a short request, unless `timeout_minutes` is shorter."""

PROBE_SECONDS = 3600.0
"""Time limit of a probe, which may have to install a Python first, and wait for its turn."""

PREPARE_SECONDS = 24 * 3600.0
"""Time limit for preparing one image; each pull has its own limit, but may wait for those of hundreds of hosts."""

CLOSE_SECONDS = 5.0

MARGIN_SECONDS = 15.0
"""Time after its limit when a repeat is abandoned together with its host."""

QUEUE_MARGIN_SECONDS = 120.0
"""The same in a queue, which takes longer to end a job."""

T = TypeVar("T")


@dataclass
class HostSession:
    """A connection to one host, until `close`.

    Attributes:
        entry: The host's part of the plan.
        launcher: Launcher of the host.
        run: State of the run.
        problem: Why the host cannot be used any more, or None.
    """

    entry: HostPlan
    launcher: Launcher
    run: RunContext
    problem: HostError | None = None

    @classmethod
    async def open(cls, entry: HostPlan, run: RunContext) -> HostSession:
        """Open a session; nothing is sent yet."""
        return cls(entry, await in_thread(partial(run.make, entry.host)), run)

    @property
    def host(self) -> Host:
        """The host."""
        return self.entry.host

    async def close(self) -> None:
        """Disconnect; running benchmarks continue."""
        with contextlib.suppress(HostError), anyio.move_on_after(CLOSE_SECONDS):
            await in_thread(self.launcher.close)

    @contextlib.contextmanager
    def limit(self, ends_at: float) -> Iterator[anyio.CancelScope]:
        """Wait for the host no longer than until a deadline in the block; see `Calls.limit`.

        Raises:
            Abandoned: It took longer; the host is not used any more.
        """
        began = time.monotonic()
        try:
            with self.run.calls.limit(ends_at) as scope:
                yield scope
        except Abandoned:
            waited = f"{time.monotonic() - began:.0f} s"
            error = Abandoned(f"the host did not respond in time; abandoned after {waited}")
            if self.host.queue is None:  # a job that does not end is not a fault of a queue's other machines
                self.problem = error
            raise error from None

    async def call(self, function: Callable[[], T], seconds: float | None = None) -> T:
        """Call the launcher with a time limit.

        Args:
            function: The call.
            seconds: Time limit; None: that of a short request.

        Raises:
            Abandoned: It took longer; the host is not used any more.
        """
        if seconds is None:
            seconds = min(REQUEST_SECONDS, self.host.timeout_minutes * 60) + MARGIN_SECONDS
        with self.limit(time.monotonic() + seconds):
            return await in_thread(function)

    async def probe_missing(self) -> Facts | None:
        """Probe a host whose first probe failed, or wait for one that continues; None: the plan has its facts.

        Raises:
            HostError: The probe failed, if it did not continue for the second time.
        """
        if self.entry.facts is not None:
            return None
        if (late := self.run.late.pop(self.host.place, None)) is None:
            facts = await self.call(self.launcher.probe, PROBE_SECONDS)
        else:
            with self.limit(time.monotonic() + PROBE_SECONDS):
                facts = await asyncio.shield(late)
        self.run.bus.emit(HostChecked(host=self.host.key, problem=None, gpus=len(facts.gpus)))
        return facts

    async def sweep(self, keep: Collection[str]) -> set[str]:
        """Remove what a dead controller or a lost repeat left on the host.

        Args:
            keep: Ids of the jobs that are left there.

        Returns:
            Ids of the run's other jobs on the host, running or ended.

        Raises:
            HostError: The host does not answer.
        """
        ended = {job.id: job for job in self.run.plan.jobs_on(self.host) if job.id not in keep}
        there = await self.call(lambda: self.launcher.running(self.run.plan.run_id))
        for leftover in [ended[job_id] for job_id in there if job_id in ended]:
            await self.call(partial(self.launcher.remove, leftover))
        return {job_id for job_id in there if job_id not in ended}

    async def prepare_images(self, jobs: Sequence[Job]) -> None:
        """Prepare the images of these repeats on the host, until the run is stopped.

        Raises:
            HostError: An image is not available.
        """
        for image, job in {job.origin.image: job for job in reversed(jobs)}.items():
            if self.run.stop.launching.is_set():
                return
            began = time.monotonic()
            progress = partial(self._report_progress, image or "")
            await self.call(partial(self.launcher.prepare, job, progress), PREPARE_SECONDS)
            if image is not None:
                took, digest = time.monotonic() - began, job.origin.image_digest
                self.run.bus.emit(ImageReady(host=self.host.key, image=image, digest=digest, seconds=took))

    def _report_progress(self, image: str, done: int, total: int) -> None:
        self.run.bus.emit(ImageProgress(host=self.host.key, image=image, done_bytes=done, total_bytes=total))

    def state(self, job: Job, state: str) -> None:
        """Report the new state of a repeat."""
        self.run.bus.emit(JobState(job=job.id, host=self.host.key, state=state))

    async def attempt(self, what: str, action: Awaitable[object]) -> None:
        """Await an action whose failure is only a warning."""
        try:
            await action
        except HostError as error:
            self.warn(f"could not {what}: {error.cause}")

    def warn(self, message: str) -> None:
        """Emit a warning about the host."""
        self.run.warn(message, self.host)

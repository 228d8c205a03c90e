"""A session with a host during a run, used by all workers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import anyio

from orchestrate.engines.base import Ending, Launcher, LoopFollower, OnTurn, Turn, always_running
from orchestrate.errors import HostError
from orchestrate.events import EventBus, ImageProgress, ImageReady, JobState, JobStep, Warned
from orchestrate.inventory.hosts import Host
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Job
from orchestrate.running.calls import MARGIN_SECONDS, QUEUE_MARGIN_SECONDS, Abandoned, Watched, in_thread
from orchestrate.running.context import RunContext, storing
from results.runs.store import RunFolder
from results.schema.progress import State, Step, parse_line

REQUEST_SECONDS = 420.0
"""Time limit of a short request, unless `timeout_minutes` is shorter."""

PROBE_SECONDS = 3600.0
"""Time limit of a probe, which may have to install a Python first, and wait for its turn."""

PREPARE_SECONDS = 24 * 3600.0
"""Time limit for preparing one image; each pull has its own limit, but may wait for those of hundreds of hosts."""

CLOSE_SECONDS = 5.0

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Maximum stored output of a repeat."""

STEP_SECONDS = 1.0
"""Minimum interval between step events of a repeat; fast networks print a line every few milliseconds."""

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """The ending, record and output of a benchmark.

    Attributes:
        payload: The record file as received, or None.
        last_line: Last line of its output, for a cause.
    """

    ending: Ending
    payload: bytes | None
    last_line: str


@dataclass
class HostSession:
    """A connection to one host, until `close`.

    Attributes:
        entry: The host's part of the plan.
        launcher: Launcher of the host.
        shared: State shared by the workers of a run.
        problem: Why the host cannot be used any more, or None.
    """

    entry: HostPlan
    launcher: Launcher
    shared: RunContext
    problem: HostError | None = None

    @classmethod
    async def open(cls, entry: HostPlan, shared: RunContext) -> HostSession:
        """Open a session; nothing is sent yet."""
        return cls(entry, await in_thread(partial(shared.make, entry.host)), shared)

    @property
    def host(self) -> Host:
        """The host."""
        return self.entry.host

    def count_cost(self) -> None:
        """Count the host's cost from now until `close`."""
        if self.shared.budget is not None:
            self.shared.budget.begin(self.host.place)

    async def close(self) -> None:
        """Disconnect; running benchmarks continue."""
        if self.shared.budget is not None:
            self.shared.budget.end(self.host.place)
        with contextlib.suppress(HostError), anyio.move_on_after(CLOSE_SECONDS):
            await in_thread(self.launcher.close)

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
        calls, ends_at = self.shared.calls, time.monotonic() + seconds
        return await self._until(lambda: calls.call(function, ends_at))

    async def _until(self, work: Callable[[], Awaitable[T]]) -> T:
        began = time.monotonic()
        try:
            return await work()
        except Abandoned:
            waited = f"{time.monotonic() - began:.0f} s"
            self.problem = Abandoned(f"the host did not respond in time; abandoned after {waited}")
            raise self.problem from None

    async def probe_missing(self) -> Facts | None:
        """Probe a host whose first probe failed, or wait for one that continues; None: the plan has its facts.

        Raises:
            HostError: The probe failed, if it did not continue for the second time.
        """
        if self.entry.facts is not None:
            return None
        late = self.shared.late.pop(self.host.place, None)
        if late is None:
            facts = await self.call(self.launcher.probe, PROBE_SECONDS)
        else:
            calls, ends_at = self.shared.calls, time.monotonic() + PROBE_SECONDS
            facts = await self._until(lambda: calls.wait(lambda: asyncio.shield(late), ends_at))
        if self.shared.budget is not None:
            self.shared.budget.found(dataclasses.replace(self.entry, facts=facts))
        return facts

    async def sweep(self, ours: Sequence[Job], todo: Collection[str]) -> list[str]:
        """Remove leftovers of a dead controller that belong to repeats with a record.

        Args:
            ours: All jobs of the run on this host; not empty.
            todo: Ids of those without a record.

        Returns:
            Ids of the run's other jobs on the host, running or ended.

        Raises:
            HostError: The host does not answer.
        """
        ended = {job.id: job for job in ours if job.id not in todo}
        there = await self.call(lambda: self.launcher.running(ours[0].origin.run_id))
        for leftover in [ended[job_id] for job_id in there if job_id in ended]:
            await self.call(lambda job=leftover: self.launcher.remove(job))  # type: ignore[misc]
        return [job_id for job_id in there if job_id not in ended]

    async def sweep_only(self, ours: Sequence[Job]) -> None:
        """Clean up a host of a resumed run that has nothing left to do; a failure is only a warning."""
        await self.attempt("look for leftovers", self.sweep(ours, ()))

    async def wait_for(self, part: Job) -> None:
        """Wait until a part of a multi-host job that a dead controller started has ended; its result stays there.

        Raises:
            HostError: The host was lost.
        """
        await self.start(part)
        await self.follow(part, self.watch(part), steps=False)

    async def prepare_images(self, jobs: Sequence[Job]) -> None:
        """Prepare the images of these repeats on the host, until the run is stopped.

        Raises:
            HostError: An image is not available.
        """
        key, emit = self.host.key, self.shared.bus.emit
        for image, job in {job.origin.image: job for job in reversed(jobs)}.items():
            if self.shared.stop.launching.is_set():
                return

            def on_progress(done: int, total: int, image: str = image or "") -> None:
                emit(ImageProgress(host=key, image=image, done_bytes=done, total_bytes=total))

            began = time.monotonic()
            await self.call(lambda job=job, report=on_progress: self.launcher.prepare(job, report), PREPARE_SECONDS)  # type: ignore[misc]
            if image is not None:
                took = time.monotonic() - began
                emit(ImageReady(host=key, image=image, digest=job.origin.image_digest, seconds=took))

    async def start(self, job: Job) -> bool:
        """Start a repeat, or reattach to a running one of that name; return whether it was reattached.

        Raises:
            HostError: It could not be started.
        """
        self.state(job, "launching")
        reattached = await self.call(lambda: self.launcher.start(job))
        if reattached:
            self.state(job, "reattached")
        return reattached

    def watch(self, job: Job) -> Watched:
        """Watch a repeat, to end it if it takes too long or prints nothing."""
        watched = Watched(
            job,
            lambda: self.stop(job),
            timeout_seconds=job.max_seconds or self.host.timeout_minutes * 60,
            silence_seconds=self.host.silence_minutes * 60,
            margin_seconds=MARGIN_SECONDS if self.host.queue is None else QUEUE_MARGIN_SECONDS,
        )
        self.shared.calls.watch(watched)
        return watched

    async def follow(
        self, job: Job, watched: Watched, on_turn: OnTurn = always_running, *, steps: bool = True
    ) -> Outcome:
        """Follow a started repeat to its end, collect its record and stop watching it.

        Args:
            job: The repeat.
            watched: Notified of its output.
            on_turn: Receives the reports of a queue.
            steps: False: another part of the same repeat reports steps.

        Raises:
            HostError: The host was lost for good.
        """
        shared, calls = self.shared, self.shared.calls

        def report(turn: Turn) -> None:
            output.require_open()
            anyio.from_thread.run_sync(on_turn, turn)

        try:
            with Output(job, self.host.key, shared.folder, shared.bus, watched, steps=steps) as output:
                if isinstance(self.launcher, LoopFollower):
                    in_loop = partial(self.launcher.follow_in_loop, job, output.take)
                    work = partial(calls.wait, in_loop, watched.abandon_at, watched)
                else:
                    follow = partial(self.launcher.follow, job, output.take, report)
                    work = partial(calls.call, follow, watched.abandon_at, watched)
                ending = await self._until(work)
                self.state(job, "collecting")
                return Outcome(ending, await self.call(lambda: self.launcher.collect(job)), output.last_line)
        finally:
            calls.forget(watched)

    async def stop(self, job: Job) -> None:
        """End a repeat; a failure is only a warning."""
        calls = self.shared.calls  # without a limit of its own: its repeat is abandoned
        await self.attempt(f"end {job.id}", calls.call(lambda: self.launcher.stop(job), math.inf))

    async def remove(self, job: Job) -> None:
        """Remove a repeat's leftovers; a failure is only a warning, because its record is stored."""
        await self.attempt(f"clean up after {job.id}", self.call(lambda: self.launcher.remove(job)))

    def state(self, job: Job, state: str) -> None:
        """Report the new state of a repeat."""
        self.shared.bus.emit(JobState(job=job.id, host=self.host.key, state=state))

    async def attempt(self, what: str, action: Awaitable[object]) -> None:
        """Await an action whose failure is only a warning."""
        try:
            await action
        except HostError as error:
            self.warn(f"could not {what}: {error.cause}")

    def warn(self, message: str) -> None:
        """Emit a warning about the host."""
        self.shared.bus.emit(Warned(host=self.host.key, message=message))


class Output:
    """Processes the output of one repeat.

    Args:
        job: The repeat.
        host: `Host.key`, for events.
        folder: Folder of its log.
        bus: Receives states and steps.
        watched: Notified of its output.
        steps: False: another part of the same repeat reports steps.

    Attributes:
        last_line: The last non-empty line, at most 200 characters.
    """

    def __init__(
        self, job: Job, host: str, folder: RunFolder, bus: EventBus, watched: Watched, *, steps: bool = True
    ) -> None:
        self._job = job
        self._host = host
        self._bus = bus
        self._watched = watched
        self._steps = steps
        self._next_step = 0.0
        self._folder = folder
        with storing(folder):
            folder.complete()  # git, which keeps no empty folders, may have copied it
            self._file = folder.log_path(job.id).open("wb", buffering=0)  # unbuffered, so that the log can be followed
        self._left = MAX_LOG_BYTES
        self.last_line = ""

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def require_open(self) -> None:
        """Raise if the repeat is no longer followed.

        Raises:
            Abandoned: Ends the thread of an abandoned call.
        """
        if self._file.closed:
            raise Abandoned("it is no longer followed")

    def take(self, line: str) -> None:
        """Process a line, without its end; raises as `require_open`."""
        self.require_open()
        self._watched.note_output()
        self._keep(line)
        match parse_line(line):
            case State(name):
                self._bus.emit(JobState(job=self._job.id, host=self._host, state=name))
            case Step() as step if self._steps and time.monotonic() >= self._next_step:
                self._next_step = time.monotonic() + STEP_SECONDS
                self._bus.emit(
                    JobStep(
                        job=self._job.id,
                        host=self._host,
                        step=step.phase_step,
                        samples_per_second=step.samples_per_second,
                        unit=step.unit,
                    )
                )

    def _keep(self, line: str) -> None:
        if line.strip():
            self.last_line = line[:200]
        if self._left <= 0:
            return
        data = f"{line}\n".encode("utf-8", "replace")
        self._left -= len(data)
        with storing(self._folder):
            self._file.write(data if self._left > 0 else b"tfbench: the rest of the output was not kept\n")

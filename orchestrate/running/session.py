"""What a run does on a host: a session with it, and the parts of repeats that run there, with their records."""

from __future__ import annotations

import dataclasses
import io
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import anyio

from orchestrate.engines.base import Launcher, Turn
from orchestrate.engines.invocation import max_seconds
from orchestrate.errors import Busy, CancelledInQueue, Gone, HostError, Lost, Unreachable
from orchestrate.events import ImageProgress, ImageReady, JobState, JobStep
from orchestrate.inventory.hosts import Host
from orchestrate.loop import in_thread
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import HostPlan, Job
from orchestrate.running import context
from orchestrate.running.context import Abandoned, RunContext, StorageFailed, storing
from orchestrate.running.judge import Attempt, failed_record, judge, now
from orchestrate.running.state import PART_DONE, QUEUED
from orchestrate.text import plain_text
from results.schema import Record, Status
from results.schema.progress import Step, parse_line
from results.text import counted

REQUEST_SECONDS = 420.0
"""Time limit of a short request, unless `timeout_minutes` is shorter."""

PREPARE_SECONDS = 24 * 3600.0
"""Time limit for preparing one image; each pull has its own limit, but may wait for those of hundreds of hosts."""

MARGIN_SECONDS = 15.0
"""Time after its limit when a repeat is abandoned together with its host."""

QUEUE_MARGIN_SECONDS = 120.0
"""The same in a queue, which takes longer to end a job."""

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Maximum stored output of a repeat."""

STEP_SECONDS = 1.0
"""Minimum interval between step events of a repeat; fast networks print a line every few milliseconds."""

BUSY_SECONDS = 1.0
"""Time between two attempts to start a part while another run measures on the machine."""

GRACE_SECONDS = 5.0
"""Time for the other parts to end by themselves after one has failed, so that their records have the cause."""

STOPPED = Status.STOPPED, "stopped by the user"

T = TypeVar("T")


@dataclasses.dataclass
class HostSession:
    """A connection to one host, until `close`.

    Attributes:
        entry: The host's part of the plan.
        launcher: Launcher of the host.
        run: The run.
        problem: Why the host cannot be used any more, or None.
        trouble: Why its queue cannot be queried at the moment; empty: it can.
    """

    entry: HostPlan
    launcher: Launcher
    run: RunContext
    problem: HostError | None = None
    trouble: str = ""

    @property
    def host(self) -> Host:
        """The host."""
        return self.entry.host

    async def until(self, deadline: Callable[[], float], work: Awaitable[T]) -> T:
        """Wait for the host no longer than until a deadline; a thread that takes longer is abandoned.

        Args:
            deadline: Returns the deadline in monotonic seconds; asked again and again, because it may come earlier.
            work: What is waited for.

        Raises:
            Abandoned: It took longer; the host is not used any more.
        """
        began, deadlines = time.monotonic(), self.run.deadlines
        with anyio.CancelScope(deadline=min(deadline(), self.run.ends_at)) as scope:
            deadlines[scope] = deadline
            try:
                return await work
            finally:
                del deadlines[scope]
        error = Abandoned(f"the host did not respond in time; abandoned after {time.monotonic() - began:.0f} s")
        if self.host.queue is None:  # a job that does not end is not a fault of a queue's other machines
            self.problem = error
        raise error

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
        ends_at = time.monotonic() + seconds
        return await self.until(lambda: ends_at, in_thread(function))

    async def sweep(self) -> list[Job]:
        """Remove what repeats with a record left on the host.

        Returns:
            The run's other jobs there, running or ended: of a dead controller, or a lost host.

        Raises:
            HostError: The host does not answer.
        """
        repeats = self.run.state.hosts[self.host.key].repeats
        there = {*await self.call(lambda: self.launcher.running(self.run.plan.run_id))}
        found = [job for job in self.run.plan.jobs_on(self.host) if job.id in there]
        for leftover in [job for job in found if repeats[job.id].status]:
            await self.call(partial(self.launcher.remove, leftover))
        return [job for job in found if not repeats[job.id].status]

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
        except (HostError, RuntimeError) as error:  # also: no more threads at the moment
            self.run.warn(f"could not {what}: {error}", self.host)


@dataclasses.dataclass(eq=False, kw_only=True)
class RunningPart(Attempt):
    """One host's part of a repeat: the whole repeat, unless several hosts train together.

    Its clock excludes time in a queue.

    Attributes:
        job: The part.
        session: Session with its host.
        over: Whether it does not run any more, or is not followed.
    """

    job: Job
    session: HostSession
    over: bool = False
    _turn: str = ""  # its state in a queue
    _runs_since: float = 0.0  # in monotonic seconds, as all that follow
    _last_line_at: float = 0.0
    _next_step_at: float = 0.0
    _abandon_at: float = math.inf
    _log: io.FileIO | None = None
    _log_left: int = 0

    # -- its life ------------------------------------------------------------------------------------------------------

    async def run(self, parts: Sequence[RunningPart]) -> None:
        """Start it once no other run measures on its machine, and follow it to its end; if it fails, end the others.

        Args:
            parts: All parts of its repeat, which run at once, because its ranks wait for each other.

        Raises:
            CancelledInQueue: It is the only part, and was cancelled before it started.
            StorageFailed: This machine could not store its output.
        """
        session, waits = self.session, False
        try:
            while True:
                try:
                    await self.start()
                    await self.follow()
                    break
                except Busy as error:
                    if not waits:
                        session.run.warn(f"{error.cause}: waiting until its repeat has ended", session.host)
                    waits = True
                if await session.run.stop.wait(BUSY_SECONDS) or any(part.has_failed for part in parts):
                    raise CancelledInQueue(self.job.id)
        except HostError as error:
            self.error = error
            if session.run.stop.running.is_set():
                self.stopped_for = self.stopped_for or STOPPED
        except CancelledInQueue:
            if len(parts) == 1:
                raise
            self.error = Unreachable("another run measured there")
        except StorageFailed:
            raise
        except Exception as error:  # noqa: BLE001  a bug: of this repeat, like any other failure
            self.error = HostError(session.run.report_bug(error, session.host))
        finally:
            self.over = True
        if self is not parts[0]:
            session.state(self.job, PART_DONE)
        if self.has_failed and len(parts) > 1:
            session.run.tasks.start_soon(self._end_others, parts)

    async def _end_others(self, parts: Sequence[RunningPart]) -> None:
        """End the other parts of its repeat, because it has failed, unless they end by themselves."""
        await anyio.sleep(GRACE_SECONDS)
        for part in parts:
            if not part.over:
                part.end(Status.LOST, self.how_failed)

    async def start(self) -> None:
        """Start it, or reattach to a running one of that name.

        Raises:
            HostError: It could not be started.
        """
        self.session.state(self.job, "launching")
        self.reattached = await self.session.call(partial(self.session.launcher.start, self.job))
        if self.reattached:
            self.session.state(self.job, "reattached")
        self._runs_since = self._last_line_at = time.monotonic()

    async def follow(self) -> None:
        """Follow it to its end; it is ended if it takes too long or prints nothing, or if the run is stopped.

        Raises:
            HostError: The host was lost for good.
        """
        launcher, run = self.session.launcher, self.session.run
        with storing(run.folder):
            run.folder.complete()  # git, which keeps no empty folders, may have copied it
            self._log = run.folder.log_path(self.job.id).open("wb", buffering=0)  # so that the log can be followed
        self._log_left = MAX_LOG_BYTES
        try:
            follow = launcher.follow(self.job, self.take_line, self.take_turn)
            self.ending = await self.session.until(self._keep_limits, follow)
        finally:
            self._log.close()

    async def _stop(self) -> None:
        """End it; a failure is only a warning, and takes no longer than until the part is abandoned."""
        stop = self.session.call(partial(self.session.launcher.stop, self.job), math.inf)
        await self.session.attempt(f"end {self.job.id}", stop)

    async def remove(self) -> None:
        """Remove its leftovers; a failure is only a warning, because its record is stored."""
        removal = self.session.call(partial(self.session.launcher.remove, self.job))
        await self.session.attempt(f"clean up after {self.job.id}", removal)

    @property
    def has_failed(self) -> bool:
        """Whether it is over and has failed."""
        return self.over and not (self.error is None and self.ending.exit_code == 0)

    @property
    def may_run(self) -> bool:
        """Whether it may still run, because its host was lost."""
        return isinstance(self.error, Unreachable | Lost) and not isinstance(self.error, Gone)

    @property
    def how_failed(self) -> str:
        """How it failed, in words."""
        key = self.session.host.key
        if self.error is not None:
            return f"{key}: {self.error.cause}"
        return f"the part on {key} ended with exit code {self.ending.exit_code}"

    # -- its limits ----------------------------------------------------------------------------------------------------

    def _keep_limits(self) -> float:
        """End it if it has exceeded a limit; return when it is abandoned."""
        if self.session.run.stop.running.is_set():
            self.end(*STOPPED)
        elif why := self.exceeded():
            self.end(Status.TIMEOUT, why)
        return self._abandon_at

    def exceeded(self) -> str:
        """Return which limit it has exceeded, in words; empty: none."""
        host, now = self.session.host, time.monotonic()
        if host.queue is not None and self._turn in ("", QUEUED):
            return ""
        if now > self._runs_since + max_seconds(self.job, host) + context.END_AFTER_SECONDS:
            return "took longer than timeout_minutes allows"
        if now - self._last_line_at > host.silence_minutes * 60:
            return f"printed nothing for {counted(f'{host.silence_minutes:g}', 'minute')}: it hangs"
        return ""

    def end(self, status: Status, cause: str) -> None:
        """End it, once, without waiting for its host; it is abandoned if that takes too long."""
        if self.stopped_for is not None:
            return
        self.stopped_for = (status, cause)
        margin = MARGIN_SECONDS if self.session.host.queue is None else QUEUE_MARGIN_SECONDS
        self._abandon_at = time.monotonic() + margin - context.END_AFTER_SECONDS
        self.session.run.tasks.start_soon(self._stop)

    def take_turn(self, turn: Turn) -> None:
        """Process a report of its queue."""
        state = QUEUED if turn.waiting else f"on {turn.node}" if turn.node else "running"
        if state != self._turn:
            self._turn = state
            self.session.state(self.job, state)
            if not turn.waiting:
                self._runs_since = self._last_line_at = time.monotonic()
                self.began, self.started_at = clock_seconds(), now()
        before, self.session.trouble = self.session.trouble, turn.trouble
        if turn.trouble and not before:
            message = f"the queue does not answer at the moment; its jobs continue: {turn.trouble}"
            self.session.run.warn(message, self.session.host)

    # -- its output ----------------------------------------------------------------------------------------------------

    def take_line(self, line: str) -> None:
        """Process a line of output, without its end, which is not trusted.

        Raises:
            Abandoned: Ends the thread of an abandoned call.
        """
        if self._log is None or self._log.closed:
            raise Abandoned("it is no longer followed")
        self._last_line_at, line = time.monotonic(), plain_text(line)
        if line.strip():
            self.last_line = line[:200]
        if self._log_left > 0:
            data = f"{line}\n".encode("utf-8", "replace")
            self._log_left -= len(data)
            with storing(self.session.run.folder):
                self._log.write(data if self._log_left > 0 else b"tfbench: the rest of the output was not kept\n")
        reports = self.job.member is None or self.job.member.rank == 0  # rank 0 reports for all
        match parse_line(line):
            case str(name):
                self.session.state(self.job, name)
            case Step() as step if reports and time.monotonic() >= self._next_step_at:
                self._next_step_at = time.monotonic() + STEP_SECONDS
                self.session.run.bus.emit(
                    JobStep(
                        job=self.job.id,
                        host=self.session.host.key,
                        step=step.phase_step,
                        samples_per_second=step.samples_per_second,
                        unit=step.unit,
                    )
                )


def judge_parts(job: Job, parts: Sequence[RunningPart]) -> Record:
    """Return the record of a repeat.

    Args:
        job: The repeat.
        parts: By rank; each is over.
    """
    chief = parts[0]
    record = judge(job, chief)
    if len(parts) == 1 or record.status is Status.OK:
        return _with_host_names(record, parts)
    for part in parts:
        if part.stopped_for is not None and part.stopped_for[0] is not Status.LOST:  # of another part
            return failed_record(job, *part.stopped_for, chief.started_at)
    for part in parts if record.status is Status.LOST else ():
        if part.ending.record is not None or part.ending.out_of_memory:
            own = judge(part.job, part)
            if own.status not in (Status.OK, Status.LOST, Status.STOPPED):
                return failed_record(job, own.status, f"{part.session.host.key}: {own.cause}", chief.started_at)
    if chief.error is None:
        return record
    causes = [chief.how_failed, *(part.how_failed for part in parts[1:] if part.has_failed)]
    return failed_record(job, record.status, "; ".join(causes[:2]), chief.started_at)


def _with_host_names(record: Record, parts: Sequence[RunningPart]) -> Record:
    """Replace the addresses of hosts by their names, because addresses are private."""
    if record.measurement is None:
        return record
    names = {part.job.member.rank: part.session.host.name for part in parts if part.job.member is not None}
    ranks = [dataclasses.replace(rank, host=names.get(rank.rank, rank.host)) for rank in record.measurement.ranks]
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, ranks=ranks))

"""A running part of a repeat: its clock and limits, its output, and how it ended; and the record of all parts."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import anyio

from orchestrate.engines.base import Ending, LoopFollower, Turn
from orchestrate.errors import HostError, Lost
from orchestrate.events import JobStep
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import Job
from orchestrate.running import context
from orchestrate.running.context import Abandoned, in_thread, storing
from orchestrate.running.judge import failed_record, judge, now
from orchestrate.running.session import MARGIN_SECONDS, QUEUE_MARGIN_SECONDS, HostSession
from orchestrate.running.state import QUEUED
from results.schema import Record, Status
from results.schema.progress import State, Step, parse_line
from results.text import counted

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Maximum stored output of a repeat."""

STEP_SECONDS = 1.0
"""Minimum interval between step events of a repeat; fast networks print a line every few milliseconds."""

CONTROLLER_REASONS = frozenset({Status.TIMEOUT, Status.STOPPED})
"""Reasons for which the controller ended a part, other than the failure of another part."""


class RunningPart:
    """One host's part of a repeat: the whole repeat, unless several hosts train together.

    Its clock excludes time in a queue.

    Args:
        job: The part.
        session: Session with its host.
        steps: False: another part of the same repeat reports steps.

    Attributes:
        began: When it started, in `clock_seconds`.
        started_at: The same in UTC, ISO 8601.
        stopped_for: Why the controller ended it, as a status and a cause, or None.
        reattached: Whether another controller started it.
        ending: How it ended; None: it has not, or its host was lost.
        payload: Its record file as received, or None.
        last_line: The last non-empty line of its output, at most 200 characters.
        error: Why its host failed.
        ended_at: Monotonic seconds; None: it runs.
        on_turn: Receives the reports of a queue, after `take_turn`.
    """

    def __init__(self, job: Job, session: HostSession, *, steps: bool = True) -> None:
        self.job = job
        self.session = session
        self.began, self.started_at = clock_seconds(), now()
        self.stopped_for: tuple[Status, str] | None = None
        self.reattached = False
        self.ending: Ending | None = None
        self.payload: bytes | None = None
        self.last_line = ""
        self.error: HostError | None = None
        self.ended_at: float | None = None
        self.on_turn: Callable[[Turn], None] = lambda turn: None
        self._waits = session.host.queue is not None
        self._turn: Turn | None = None
        self._runs_since = self._last_line_at = time.monotonic()
        self._abandon_at = math.inf
        self._following: anyio.CancelScope | None = None
        self._log: io.FileIO | None = None
        self._log_left = MAX_LOG_BYTES
        self._next_step = 0.0 if steps else math.inf

    # -- its life ------------------------------------------------------------------------------------------------------

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
        """Follow it to its end; it is ended if it takes too long or prints nothing.

        Raises:
            HostError: The host was lost for good.
        """
        launcher, watched = self.session.launcher, self.session.run.calls.watched
        watched.append(self)
        try:
            with self._open_log(), self.session.limit(self._abandon_at) as self._following:
                if isinstance(launcher, LoopFollower):
                    self.ending = await launcher.follow_in_loop(self.job, self.take_line, self.on_turn)
                else:
                    follow = partial(launcher.follow, self.job, self.take_line, self._report_turn)
                    self.ending = await in_thread(follow)
        finally:
            watched.remove(self)

    async def collect(self) -> None:
        """Fetch its record.

        Raises:
            HostError: The host was lost for good.
        """
        self.session.state(self.job, "collecting")
        self.payload = await self.session.call(partial(self.session.launcher.collect, self.job))

    async def _stop(self) -> None:
        """End it; a failure is only a warning."""
        while True:
            try:  # no limit of its own: the part is abandoned
                stop = self.session.call(partial(self.session.launcher.stop, self.job), math.inf)
                return await self.session.attempt(f"end {self.job.id}", stop)
            except RuntimeError:  # no more threads at the moment
                await anyio.sleep(context.CHECK_SECONDS)

    async def remove(self) -> None:
        """Remove its leftovers; a failure is only a warning, because its record is stored."""
        removal = self.session.call(partial(self.session.launcher.remove, self.job))
        await self.session.attempt(f"clean up after {self.job.id}", removal)

    # -- its limits ----------------------------------------------------------------------------------------------------

    def exceeded(self) -> str:
        """Return which limit it has exceeded, in words; empty: none."""
        host, now = self.session.host, time.monotonic()
        if self._waits:
            return ""
        if now > self._runs_since + (self.job.max_seconds or host.timeout_minutes * 60) + context.END_AFTER_SECONDS:
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
        if self._following is not None:
            self._following.deadline = min(self._following.deadline, self._abandon_at)
        self.session.run.start_soon(self._stop)

    def take_turn(self, turn: Turn) -> str | None:
        """Process a report of its queue.

        Returns:
            Its new state in a word; None: unchanged.
        """
        before, self._turn = self._turn, turn
        if turn.waiting:
            self._waits = True
            return QUEUED if before is None or not before.waiting else None
        if before is not None and not before.waiting and before.node == turn.node:
            return None
        self._waits, self._runs_since = False, time.monotonic()
        self._last_line_at = self._runs_since
        self.began, self.started_at = clock_seconds(), now()
        return f"on {turn.node}" if turn.node else "running"

    def _report_turn(self, turn: Turn) -> None:
        self._require_followed()
        anyio.from_thread.run_sync(self.on_turn, turn)

    # -- its output ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _open_log(self) -> Iterator[None]:
        folder = self.session.run.folder
        with storing(folder):
            folder.complete()  # git, which keeps no empty folders, may have copied it
            self._log = folder.log_path(self.job.id).open("wb", buffering=0)  # so that the log can be followed
        try:
            yield
        finally:
            self._log.close()

    def _require_followed(self) -> None:
        """Raise, to end the thread of an abandoned call, if it is no longer followed."""
        if self._log is None or self._log.closed:
            raise Abandoned("it is no longer followed")

    def take_line(self, line: str) -> None:
        """Process a line of output, without its end.

        Raises:
            Abandoned: Ends the thread of an abandoned call.
        """
        self._require_followed()
        self._last_line_at = time.monotonic()
        self._keep(line)
        match parse_line(line):
            case State(name):
                self.session.state(self.job, name)
            case Step() as step if time.monotonic() >= self._next_step:
                self._next_step = time.monotonic() + STEP_SECONDS
                self.session.run.bus.emit(
                    JobStep(
                        job=self.job.id,
                        host=self.session.host.key,
                        step=step.phase_step,
                        samples_per_second=step.samples_per_second,
                        unit=step.unit,
                    )
                )

    def _keep(self, line: str) -> None:
        if line.strip():
            self.last_line = line[:200]
        if self._log is None or self._log_left <= 0:
            return
        data = f"{line}\n".encode("utf-8", "replace")
        self._log_left -= len(data)
        with storing(self.session.run.folder):
            self._log.write(data if self._log_left > 0 else b"tfbench: the rest of the output was not kept\n")


def judge_parts(job: Job, parts: Sequence[RunningPart], *, stopped: bool) -> Record:
    """Return the record of a repeat.

    Args:
        job: The repeat.
        parts: By rank; each has ended or was abandoned.
        stopped: Whether the user has ended running repeats.
    """
    chief = parts[0]
    record = _judge_part(job, chief, stopped=stopped)
    if len(parts) == 1:
        return record
    if record.status is Status.OK:
        return _with_host_names(record, parts)
    for part in parts:
        if part.stopped_for is not None and part.stopped_for[0] in CONTROLLER_REASONS:
            return failed_record(job, *part.stopped_for, chief.started_at)
    for part in parts if record.status is Status.LOST else ():
        if part.payload is not None or (part.ending is not None and part.ending.out_of_memory):
            own = _judge_part(part.job, part, stopped=stopped)
            if own.status not in (Status.OK, Status.LOST, Status.STOPPED):
                return failed_record(job, own.status, f"{part.session.host.key}: {own.cause}", chief.started_at)
    if chief.error is None:
        return record
    causes = [how_failed(chief), *(how_failed(part) for part in parts[1:] if has_failed(part))]
    return failed_record(job, record.status, "; ".join(causes[:2]), chief.started_at)


def _judge_part(job: Job, part: RunningPart, *, stopped: bool) -> Record:
    error = part.error
    if error is None and part.ending is not None:
        return judge(
            job,
            part.ending,
            part.payload,
            started_at=part.started_at,
            stopped_for=part.stopped_for,
            last_line=part.last_line,
            observed_seconds=None if part.reattached else clock_seconds() - part.began,
        )
    error = error or Lost("")
    status, cause = error.status, error.cause
    if isinstance(error, Abandoned):  # the reason why it was ended says more
        if part.stopped_for is not None:
            status, cause = part.stopped_for[0], f"{part.stopped_for[1]}; {cause}"
        elif stopped:
            status, cause = Status.STOPPED, f"stopped by the user; {cause}"
    return failed_record(job, status, cause, part.started_at)


def has_failed(part: RunningPart) -> bool:
    """Return whether a part has ended with a failure."""
    ended_well = part.error is None and part.ending is not None and part.ending.exit_code == 0
    return part.ended_at is not None and not ended_well


def how_failed(part: RunningPart) -> str:
    """Return how a part failed, in words."""
    key, ending = part.session.host.key, part.ending
    if part.error is not None:
        return f"{key}: {part.error.cause}"
    return f"the part on {key} ended with exit code {ending and ending.exit_code}"


def _with_host_names(record: Record, parts: Sequence[RunningPart]) -> Record:
    """Replace the addresses of hosts by their names, because addresses are private."""
    if record.measurement is None:
        return record
    names = {part.job.member.rank: part.session.host.name for part in parts if part.job.member is not None}
    ranks = [dataclasses.replace(rank, host=names[rank.rank]) for rank in record.measurement.ranks]
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, ranks=ranks))

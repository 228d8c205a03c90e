"""A host while a run works on it: what every worker does with a host, whether alone or with others of its fleet."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrate.errors import HostError
from orchestrate.events import EventBus, ImageProgress, ImageReady, JobState, JobStep, Warned
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import Ending, Launcher, OnTurn, always_running
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Job
from orchestrate.running.shared import Shared
from orchestrate.running.watchdog import MARGIN_SECONDS, QUEUE_MARGIN_SECONDS, Abandoned, Watched
from results.runs.store import RunFolder
from results.schema.progress import State, Step, parse_line

ASK_SECONDS = 420.0
"""Longest answer of a host to a short request, or its `timeout_minutes` if those are shorter."""

PROBE_SECONDS = 3600.0
"""Longest probe: a host may have to get a Python first, and wait for its turn."""

PREPARE_SECONDS = 24 * 3600.0
"""Longest time to bring one image: each pull has limits of its own, and waits for its turn among hundreds of hosts."""

CLOSE_SECONDS = 5.0

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Most that is kept of a repeat's output."""

STEP_SECONDS = 1.0
"""Shortest time between two step events of a repeat: a fast network prints a line every few milliseconds."""

T = TypeVar("T")


@dataclass(frozen=True)
class Left:
    """What a benchmark left when it ended.

    Attributes:
        payload: The record file, as it came; None: there was none.
        last_line: Of its output, for a cause.
    """

    ending: Ending
    payload: bytes | None
    last_line: str


@dataclass
class HostSession:
    """A connection to one host, from its opening to `close`.

    Attributes:
        entry: The host's part of the plan.
        launcher: Of this host.
        shared: What the workers of a run share.
        problem: Why the host cannot be used any more; None: it can.
    """

    entry: HostPlan
    launcher: Launcher
    shared: Shared
    problem: HostError | None = None

    @property
    def host(self) -> Host:
        """The host."""
        return self.entry.host

    def count_cost(self) -> None:
        """Count what the host costs from now until `close`."""
        if self.shared.budget is not None:
            self.shared.budget.begin(self.host.place)

    def close(self) -> None:
        """Disconnect; what runs on the host continues."""
        if self.shared.budget is not None:
            self.shared.budget.end(self.host.place)
        with contextlib.suppress(HostError):
            self.call(self.launcher.close, CLOSE_SECONDS)

    def call(self, function: Callable[[], T], seconds: float | None = None) -> T:
        """Call the launcher, for a limited time.

        Args:
            function: The call.
            seconds: Longest time; None: of a short request.

        Raises:
            Abandoned: It took longer; the host is used no more.
        """
        if seconds is None:
            seconds = min(ASK_SECONDS, self.host.timeout_minutes * 60) + MARGIN_SECONDS
        deadline = time.monotonic() + seconds
        return self._until(function, lambda: deadline)

    def _until(self, function: Callable[[], T], until: Callable[[], float]) -> T:
        began = time.monotonic()
        try:
            return self.shared.watchdog.call(function, until)
        except Abandoned:
            waited = f"{time.monotonic() - began:.0f} s"
            self.problem = Abandoned(f"the host did not do in time what it was asked for; abandoned after {waited}")
            raise self.problem from None

    def learn(self) -> Facts | None:
        """Probe a host that did not answer before the run; None: the plan has its facts.

        Raises:
            HostError: It does not answer now either.
        """
        if self.entry.facts is not None:
            return None
        return self.call(self.launcher.probe, PROBE_SECONDS)

    def sweep(self, ours: Sequence[Job], todo: Collection[str]) -> None:
        """Remove what a controller that died left of repeats whose record is safe.

        Args:
            ours: Everything of the run that this host may hold; not empty.
            todo: Ids of those without a record.

        Raises:
            HostError: The host does not answer.
        """
        ended = {job.id: job for job in ours if job.id not in todo}
        for job_id in self.call(lambda: self.launcher.running(ours[0].origin.run_id)):
            if job_id in ended:
                leftover = ended[job_id]
                self.call(lambda job=leftover: self.launcher.remove(job))  # type: ignore[misc]

    def sweep_only(self, ours: Sequence[Job]) -> None:
        """Clean up where nothing is left to do, when a run is resumed; a failure is only a warning."""
        self.attempt("look for leftovers", lambda: self.sweep(ours, ()), in_time=False)

    def bring_images(self, jobs: Sequence[Job]) -> None:
        """Bring each image of these repeats to the host.

        Raises:
            HostError: An image is not available.
        """
        key, emit = self.host.key, self.shared.bus.emit
        for image, job in {job.origin.image: job for job in reversed(jobs)}.items():

            def on_progress(done: int, total: int, image: str = image or "") -> None:
                emit(ImageProgress(host=key, image=image, done_bytes=done, total_bytes=total))

            began = time.monotonic()
            self.call(lambda job=job, report=on_progress: self.launcher.prepare(job, report), PREPARE_SECONDS)  # type: ignore[misc]
            if image is not None:
                took = time.monotonic() - began
                emit(ImageReady(host=key, image=image, digest=job.origin.image_digest, seconds=took))

    def start(self, job: Job) -> bool:
        """Start a repeat, or reattach to what already runs under its name; return whether it was that.

        Raises:
            HostError: It could not be started.
        """
        self.state(job, "launching")
        reattached = self.call(lambda: self.launcher.start(job))
        if reattached:
            self.state(job, "reattached")
        return reattached

    def watch(self, job: Job) -> Watched:
        """Have the watchdog end a repeat that takes too long or falls silent."""
        return self.shared.watchdog.watch(
            job,
            lambda: self.stop(job),
            timeout=job.max_seconds or self.host.timeout_minutes * 60,
            silence=self.host.silence_minutes * 60,
            margin=MARGIN_SECONDS if self.host.queue is None else QUEUE_MARGIN_SECONDS,
        )

    def follow(self, job: Job, watched: Watched, on_turn: OnTurn = always_running, *, with_steps: bool = True) -> Left:
        """Follow a started repeat to its end, and fetch its record; it is watched no more then.

        Args:
            job: The repeat.
            watched: Notes that it is not silent.
            on_turn: Takes in what a queue reports.
            with_steps: False: another part of the same repeat reports them.

        Raises:
            HostError: The host was lost for good.
        """
        shared = self.shared
        try:
            with Output(job, self.host.key, shared.folder, shared.bus, watched, with_steps=with_steps) as output:
                follow = self.launcher.follow
                ending = self._until(lambda: follow(job, output.take, on_turn), lambda: watched.abandon_at)
                self.state(job, "collecting")
                return Left(ending, self.call(lambda: self.launcher.collect(job)), output.last_line)
        finally:
            shared.watchdog.forget(job)

    def stop(self, job: Job) -> None:
        """End a repeat; a failure is only a warning."""
        self.attempt(f"end {job.id}", lambda: self.launcher.stop(job), in_time=False)

    def remove(self, job: Job) -> None:
        """Clean up after a repeat; its record is safe already, so that a failure is only a warning."""
        self.attempt(f"clean up after {job.id}", lambda: self.launcher.remove(job))

    def state(self, job: Job, state: str) -> None:
        """Report that a repeat enters a phase."""
        self.shared.bus.emit(JobState(job=job.id, host=self.host.key, state=state))

    def attempt(self, what: str, action: Callable[[], None], *, in_time: bool = True) -> None:
        """Do something whose failure is only a warning; `in_time`: for as long as a short request may take."""
        try:
            if in_time:
                self.call(action)
            else:
                action()
        except HostError as error:
            self.warn(f"could not {what}: {error.cause}")

    def warn(self, message: str) -> None:
        """Warn about the host; the run goes on."""
        self.shared.bus.emit(Warned(host=self.host.key, message=message))


class Output:
    """Takes the lines of one repeat.

    Args:
        job: The repeat.
        host: `Host.key`, for events.
        folder: Has its log.
        bus: Gets states and steps.
        watched: Notes that it is not silent.
        with_steps: False: another part of the same repeat reports them.

    Attributes:
        last_line: That was not empty; at most 200 characters.
    """

    def __init__(
        self, job: Job, host: str, folder: RunFolder, bus: EventBus, watched: Watched, *, with_steps: bool = True
    ) -> None:
        self._job = job
        self._host = host
        self._bus = bus
        self._watched = watched
        self._with_steps = with_steps
        self._next_step = 0.0
        self._file = folder.log_path(job.id).open("wb", buffering=0)  # a line is there as soon as it came
        self._left = MAX_LOG_BYTES
        self.last_line = ""

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, line: str) -> None:
        """Take a line, without its end.

        Raises:
            Abandoned: The repeat is no longer followed, which ends the thread that was left behind.
        """
        if self._file.closed:
            raise Abandoned("it is no longer followed")
        self._watched.heard()
        self._keep(line)
        match parse_line(line):
            case State(name):
                self._bus.emit(JobState(job=self._job.id, host=self._host, state=name))
            case Step() as step if self._with_steps and time.monotonic() >= self._next_step:
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
        self._file.write(data if self._left > 0 else b"tfbench: the rest of the output was not kept\n")

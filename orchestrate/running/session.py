"""A host while a run works on it: what every worker does with a host, whether alone or with others of its fleet."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from orchestrate.errors import HostError
from orchestrate.events import ImageProgress, ImageReady, JobState, Warned
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import Ending, Launcher, OnTurn, always_running
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Job
from orchestrate.running.output import Output
from orchestrate.running.shared import Shared
from orchestrate.running.watchdog import Watched


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
        """Let go of the host; what runs there goes on."""
        if self.shared.budget is not None:
            self.shared.budget.end(self.host.place)
        self.launcher.close()

    def learn(self) -> Facts | None:
        """Ask a host that did not answer before the run; None: the plan has its facts.

        Raises:
            HostError: It does not answer now either.
        """
        if self.entry.facts is not None:
            return None
        return self.launcher.probe()

    def sweep(self, ours: Sequence[Job], todo: Collection[str]) -> None:
        """Remove what a controller that died left of repeats whose record is safe.

        Args:
            ours: Everything of the run that this host may hold; not empty.
            todo: Ids of those without a record.

        Raises:
            HostError: The host does not answer.
        """
        ended = {job.id: job for job in ours if job.id not in todo}
        for job_id in self.launcher.running(ours[0].origin.run_id):
            if job_id in ended:
                self.launcher.remove(ended[job_id])

    def sweep_only(self, ours: Sequence[Job]) -> None:
        """Clean up where nothing is left to do, when a run is resumed; a failure is only a warning."""
        self.attempt("look for leftovers", lambda: self.sweep(ours, ()))

    def bring_images(self, jobs: Sequence[Job]) -> None:
        """Bring each image of these repeats to the host.

        Raises:
            HostError: An image cannot be had.
        """
        key, emit = self.host.key, self.shared.bus.emit
        for image, job in {job.origin.image: job for job in reversed(jobs)}.items():

            def on_progress(done: int, total: int, image: str = image or "") -> None:
                emit(ImageProgress(host=key, image=image, done_bytes=done, total_bytes=total))

            began = time.monotonic()
            self.launcher.prepare(job, on_progress)
            if image is not None:
                took = time.monotonic() - began
                emit(ImageReady(host=key, image=image, digest=job.origin.image_digest, seconds=took))

    def start(self, job: Job) -> None:
        """Start a repeat, or adopt what already runs under its name.

        Raises:
            HostError: It could not be started.
        """
        self.state(job, "launching")
        if self.launcher.start(job):
            self.state(job, "adopted")

    def watch(self, job: Job) -> Watched:
        """Have the watchdog end a repeat that takes too long or falls silent."""
        return self.shared.watchdog.watch(
            job,
            lambda: self.stop(job),
            timeout=job.max_seconds or self.host.timeout_minutes * 60,
            silence=self.host.silence_minutes * 60,
        )

    def follow(self, job: Job, watched: Watched, on_turn: OnTurn = always_running, *, tells_steps: bool = True) -> Left:
        """Follow a started repeat to its end, and fetch its record; it is watched no more then.

        Args:
            job: The repeat.
            watched: Learns that it is not silent.
            on_turn: Takes in what a queue reports.
            tells_steps: False: another part of the same repeat does.

        Raises:
            HostError: The host was lost for good.
        """
        shared = self.shared
        try:
            with Output(job, self.host.key, shared.folder, shared.bus, watched, tells_steps=tells_steps) as output:
                ending = self.launcher.follow(job, output.take, on_turn)
                self.state(job, "collecting")
                return Left(ending, self.launcher.collect(job), output.last_line)
        finally:
            shared.watchdog.forget(job)

    def stop(self, job: Job) -> None:
        """End a repeat; a failure is only a warning."""
        self.attempt(f"end {job.id}", lambda: self.launcher.stop(job))

    def remove(self, job: Job) -> None:
        """Clean up after a repeat; its record is safe already, so that a failure is only a warning."""
        self.attempt(f"clean up after {job.id}", lambda: self.launcher.remove(job))

    def state(self, job: Job, state: str) -> None:
        """Report that a repeat enters a phase."""
        self.shared.bus.emit(JobState(job=job.id, host=self.host.key, state=state))

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Do something whose failure is only a warning."""
        try:
            action()
        except HostError as error:
            self.warn(f"could not {what}: {error.cause}")

    def warn(self, message: str) -> None:
        """Warn about the host; the run goes on."""
        self.shared.bus.emit(Warned(host=self.host.key, message=message))

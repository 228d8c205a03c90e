"""The work of one host: its repeats one after another, each from start to record; those of a queue side by side."""

from __future__ import annotations

import itertools
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from orchestrate.errors import HostError, Withdrawn
from orchestrate.events import HostLost, ImageProgress, ImageReady, JobState, Warned
from orchestrate.launchers.base import Launcher, QueueLauncher, Turn
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Job, learn
from orchestrate.running.attempt import Attempt
from orchestrate.running.judge import failed_record, judge, now
from orchestrate.running.output import Output
from orchestrate.running.retries import Retries
from orchestrate.running.shared import Shared, finish, spare
from results.schema import Record, Status


class HostWorker:
    """Works through the repeats of one host, in one thread."""

    def __init__(self, entry: HostPlan, jobs: list[Job], shared: Shared) -> None:
        self._entry = entry
        self._host = entry.host
        self._jobs = jobs
        self._folder = shared.folder
        self._make = shared.make
        self._bus = shared.bus
        self._stop = shared.stop
        self._watchdog = shared.watchdog
        self._budget = shared.budget
        self._shared = shared
        self._options = shared.options
        self._retries = Retries(shared)
        self._todo: deque[Job] = deque()
        self._lock = threading.Lock()
        self._withdrawn = False
        self._trouble = ""

    def work(self) -> None:
        """Run the host's repeats until they are done, the host is set aside, or the run is stopped."""
        if not self._entry.jobs or self._stop.launching.is_set():
            return
        launcher = self._make(self._host)
        if self._budget is not None and self._host.queue is None:
            self._budget.begin(self._host.key)
        try:
            if not self._jobs:
                self._sweep_only(launcher)
            elif self._ready(launcher):
                self._work_through(launcher)
        except Exception as error:  # noqa: BLE001  a bug: this host ends, the others must not
            self._tell_bug(error)
        finally:
            if self._budget is not None:
                self._budget.end(self._host.key)
            launcher.close()

    def _work_through(self, launcher: Launcher) -> None:
        """Run the repeats one after another; those of a queue in several lanes."""
        self._todo.extend(self._jobs)
        lanes = min(self._host.lanes, len(self._jobs))
        if not isinstance(launcher, QueueLauncher):
            self._work_lane(launcher)
        elif self._enqueue(launcher):
            with ThreadPoolExecutor(lanes, thread_name_prefix=self._host.key) as pool:
                working = [pool.submit(self._work_lane, launcher) for _ in range(lanes)]
            self._leave_nothing_waiting(launcher)
            for lane in working:
                lane.result()

    def _enqueue(self, launcher: QueueLauncher) -> bool:
        """Put what can be paid into the queue; a queue that refuses gives each repeat a record."""
        affordable = list(itertools.takewhile(self._affordable, self._todo))
        self._todo = deque(affordable)
        try:
            launcher.submit(affordable)
        except HostError as error:
            self._set_aside(error.status, error.cause, affordable)
            return False
        return True

    def _work_lane(self, launcher: Launcher) -> None:
        """Take repeats from the list until it is empty, the host is set aside, or the run is stopped."""
        queued = self._host.queue is not None
        while not self._stop.launching.is_set():
            with self._lock:
                job = self._todo.popleft() if self._todo else None
            if job is None or not (queued or self._affordable(job)):
                return
            if spare(job, self._host.key, self._shared):
                if isinstance(launcher, QueueLauncher):
                    self._try(f"take {job.id} back", lambda job=job: launcher.withdraw([job]))  # type: ignore[misc]
                continue
            record = self._retries.run(job, partial(self._run_once, launcher, job))
            if record is None:
                continue
            if self._options.fail_fast and record.status is not Status.OK:
                self._stop.launching.set()
            if self._retries.faults >= self._options.set_aside_after * self._host.lanes:
                self._give_up(launcher, record)

    def _give_up(self, launcher: Launcher, record: Record) -> None:
        """Set the host aside for the reason of its last failure."""
        with self._lock:
            left = list(self._todo)
            self._todo.clear()
            self._retries.faults = 0
        if not left:
            return
        self._set_aside(record.status, record.cause or "", left)
        if isinstance(launcher, QueueLauncher):
            self._try("take back what waits", lambda: launcher.clear(left))

    def _withdraw_when_stopped(self, launcher: QueueLauncher) -> None:
        """Take what waits out of the queue, once, when nothing new is to be started."""
        if not self._stop.launching.is_set():
            return
        with self._lock:
            before, self._withdrawn = self._withdrawn, True
        if not before:
            self._try("take back what waits", lambda: launcher.withdraw(self._jobs))

    def _leave_nothing_waiting(self, launcher: QueueLauncher) -> None:
        """Clear what no lane took when the run was stopped: the queue may have begun it as the last ones ended."""
        left = list(self._todo)
        if self._stop.launching.is_set() and left:
            self._try("take back what waits", lambda: launcher.clear(left))

    def _affordable(self, job: Job) -> bool:
        """Tell whether a repeat can end within the limit of cost."""
        meter = None if self._host.queue is None else job.id
        if self._budget is None or self._budget.allows(self._host.key, self._host.fleet, job.case.name, meter):
            return True
        self._warn(f"starts nothing more: the run has cost {self._budget.spent_usd():.2f} USD, near its limit")
        return False

    def _tell_bug(self, error: Exception) -> None:
        """Leave the traceback in the run's folder, and a record for everything that the host still had to do."""
        path = self._folder.path / f"traceback-{self._host.key}.txt"
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        left = [job for job in self._jobs if self._folder.read_record(job.id) is None]
        self._set_aside(Status.ERROR, f"a bug in tfbench: {error!r}. Traceback: {path}", left)

    def _ready(self, launcher: Launcher) -> bool:
        """Connect and bring the images; a host that cannot gives each of its repeats a record."""
        facts = self._entry.facts
        try:
            told = facts if facts is not None else launcher.probe()
            if facts is None:
                self._keep_facts(told)
                self._jobs = [learn(job, self._host, told) for job in self._jobs]
            self._finish_blocked()
            self._sweep(launcher)
            self._bring_images(launcher)
        except HostError as error:
            self._set_aside(error.status, error.cause, self._jobs)
            return False
        return True

    def _keep_facts(self, told: Facts) -> None:
        """Keep the raw facts of a host that could not be asked before the run."""
        if told.raw:
            self._folder.write_facts(self._host.key, told.raw)

    def _finish_blocked(self) -> None:
        """Write the records of what cannot run here, before anything is pulled for it."""
        for job in self._jobs:
            if job.blocked is not None:
                self._finish(job, failed_record(job, *job.blocked, now()), time.monotonic())
        self._jobs = [job for job in self._jobs if job.blocked is None]

    def _bring_images(self, launcher: Launcher) -> None:
        """Bring each image of this host's jobs to it."""
        firsts = {job.origin.image: job for job in reversed(self._jobs)}
        for image, job in firsts.items():
            launcher.prepare(job, lambda done, total, image=image: self._pulling(image, done, total))  # type: ignore[misc]
            if image is not None:
                self._bus.emit(ImageReady(host=self._host.key, image=image, digest=job.origin.image_digest))

    def _pulling(self, image: str | None, done_bytes: int, total_bytes: int) -> None:
        self._bus.emit(
            ImageProgress(host=self._host.key, image=image or "", done_bytes=done_bytes, total_bytes=total_bytes)
        )

    def _sweep(self, launcher: Launcher) -> None:
        """Remove what a controller that died left of repeats whose record is safe."""
        todo = {job.id for job in self._jobs}
        by_id = {job.id: job for job in self._entry.jobs}
        for job_id in launcher.running(self._entry.jobs[0].origin.run_id):
            if job_id in by_id and job_id not in todo:
                launcher.remove(by_id[job_id])

    def _sweep_only(self, launcher: Launcher) -> None:
        """Clean up on a host that has nothing left to do, when a run is resumed."""
        try:
            self._sweep(launcher)
        except HostError as error:
            self._warn(f"could not look for leftovers: {error.cause}")

    def _set_aside(self, status: Status, cause: str, jobs: list[Job]) -> None:
        """Give up on a host: its remaining repeats end with the reason."""
        self._bus.emit(HostLost(host=self._host.key, status=status, cause=cause))
        for job in jobs:
            self._finish(job, failed_record(job, status, cause, now()), time.monotonic())

    def _run_once(self, launcher: Launcher, job: Job) -> Record | None:
        """Run one repeat, from start to record.

        Returns:
            None: it was taken out of its queue before it began.
        """
        attempt = Attempt(job, self._host.key, None if self._host.queue is None else self._budget)
        ended = False
        try:
            record = self._measure(launcher, attempt)
            ended = True
        except Withdrawn:
            return None
        except HostError as error:
            record = failed_record(job, error.status, error.cause, attempt.started_at)
            ended = error.status is not Status.LOST  # what was lost may still run: `resume` and `stop` can find it
        finally:
            attempt.end()
        self._finish(job, record, attempt.began)
        if ended:
            self._remove(launcher, job)
        return record

    def _measure(self, launcher: Launcher, attempt: Attempt) -> Record:
        host, job = self._host, attempt.job
        self._state(job, "launching")
        adopted = launcher.start(job)
        if adopted:
            self._state(job, "adopted")
        watched = self._watchdog.watch(
            job,
            lambda: self._end(launcher, job),
            timeout=job.max_seconds or host.timeout_minutes * 60,
            silence=host.silence_minutes * 60,
        )

        def on_turn(turn: Turn) -> None:
            if (state := attempt.take(turn, watched)) is not None:
                self._state(job, state)
            self._tell_trouble(turn.trouble)
            if isinstance(launcher, QueueLauncher):
                self._withdraw_when_stopped(launcher)

        if host.queue is not None:
            watched.wait()
        try:
            with Output(job, host.key, self._folder, self._bus, watched) as output:
                ending = launcher.follow(job, output.take, on_turn)
                self._state(job, "collecting")
                payload = launcher.collect(job)
        finally:
            self._watchdog.forget(job)
        return judge(
            job,
            ending,
            payload,
            started_at=attempt.started_at,
            stopped_for=watched.stopped_for,
            last_line=output.last_line,
        )

    def _state(self, job: Job, state: str) -> None:
        self._bus.emit(JobState(job=job.id, host=self._host.key, state=state))

    def _finish(self, job: Job, record: Record, began: float) -> None:
        finish(job, record, self._host.key, time.monotonic() - began, self._shared)

    def _remove(self, launcher: Launcher, job: Job) -> None:
        """Clean up on the host; the record is safe already, so that a failure is only a warning."""
        self._try(f"clean up after {job.id}", lambda: launcher.remove(job))

    def _end(self, launcher: Launcher, job: Job) -> None:
        self._try(f"end {job.id}", lambda: launcher.stop(job))

    def _tell_trouble(self, trouble: str) -> None:
        """Warn once that the queue does not answer, and not again before it has."""
        with self._lock:
            before, self._trouble = self._trouble, trouble
        if trouble and not before:
            self._warn(f"the queue does not answer now, its jobs go on: {trouble}")

    def _try(self, what: str, action: Callable[[], None]) -> None:
        """Do something whose failure is only a warning."""
        try:
            action()
        except HostError as error:
            self._warn(f"could not {what}: {error.cause}")

    def _warn(self, message: str) -> None:
        self._bus.emit(Warned(host=self._host.key, message=message))

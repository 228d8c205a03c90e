"""Carries out a plan: hosts side by side, the repeats of a host one after another. Prints nothing.

Every repeat ends with exactly one record in the run's folder, whatever happens to its host; what has a record is
not run again, so that a run can be resumed after any interruption.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from orchestrate.errors import HostError, UserError
from orchestrate.events import (
    EventBus,
    HostChecked,
    RunFinished,
    RunStarted,
    Warned,
)
from orchestrate.inventory.hosts import Host, Place
from orchestrate.inventory.variants import read_variants
from orchestrate.launchers.base import ImagePinner, Launcher, QueueLauncher
from orchestrate.planning.budget import Budget
from orchestrate.planning.doubts import doubts, isolation_note, sending_note
from orchestrate.planning.durations import Durations
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.plan import Plan
from orchestrate.planning.shared_images import share_images
from orchestrate.planning.stop_early import StopEarly
from orchestrate.running.gang_worker import work_together
from orchestrate.running.options import Options, Stop
from orchestrate.running.queue_worker import QueueWorker
from orchestrate.running.shared import Shared, set_record_aside
from orchestrate.running.watchdog import Watchdog
from orchestrate.running.worker import HostWorker
from results.runs.store import RunFolder
from results.schema import Status

MAX_PROBES = 64
"""Hosts asked at a time before a plan is made."""

MakeLauncher = Callable[[Host], Launcher]


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        missing: Repeats without a record, because the run was stopped.
        spared: Repeats without a record, because they were not needed (`--stop-early`).
        answers: What became of each comparison, with `--stop-early`, in words.
    """

    ok: int
    failed: int
    missing: int
    spared: int = 0
    answers: tuple[str, ...] = ()


def probe_hosts(hosts: list[Host], make: MakeLauncher, bus: EventBus) -> dict[Place, Facts | str]:
    """Ask all hosts what they are, side by side.

    Args:
        hosts: Whom to ask.
        make: Gives a launcher for a host.
        bus: Receives each answer.

    Returns:
        Facts, or why it could not be asked.
    """
    keys = [host.key for host in hosts]
    pool = ThreadPoolExecutor(min(MAX_PROBES, len(hosts)), thread_name_prefix="probe")
    try:
        answers = pool.map(partial(_probe, bus=bus), keys, map(make, hosts))
        asked = dict(zip([host.place for host in hosts], answers, strict=True))
        shared = share_images(hosts, asked, read_variants())
        concerned = [host for host in hosts if host.place in shared]
        pinned = pool.map(lambda host: _with_image(host, asked[host.place], shared[host.place], make), concerned)
        return {**asked, **dict(zip([host.place for host in concerned], pinned, strict=True))}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C, a host that hangs is not waited for


def _probe(key: str, launcher: Launcher, bus: EventBus) -> Facts | str:
    """Ask the host of a launcher what it is, and let go of it; see `probe_hosts`."""
    try:
        facts = launcher.probe()
        bus.emit(HostChecked(host=key, problem=facts.problem, gpus=len(facts.gpus)))
        return facts
    except HostError as error:
        bus.emit(HostChecked(host=key, problem=error.cause))
        return error.cause
    finally:
        launcher.close()


def _with_image(host: Host, facts: Facts | str, image: Image, make: MakeLauncher) -> Facts | str:
    """Give a host another image than its own choice, and find out what its tag means there; or why it cannot."""
    if isinstance(facts, str):
        return facts
    if facts.images and facts.images[0].reference == image.reference:
        return dataclasses.replace(facts, images=(dataclasses.replace(facts.images[0], reason=image.reason),))
    launcher = make(host)
    try:
        return dataclasses.replace(facts, images=(launcher.pin(image) if isinstance(launcher, ImagePinner) else image,))
    except HostError as error:
        return error.cause
    finally:
        launcher.close()


def execute(
    plan: Plan,
    folder: RunFolder,
    make: MakeLauncher,
    bus: EventBus,
    stop: Stop,
    options: Options = Options(),  # noqa: B008 (frozen)
) -> Outcome:
    """Run every repeat of a plan that has no record yet.

    Records with a status of `options.again` are moved aside, into `superseded/`, and their repeats run once more.

    Args:
        plan: What to do.
        folder: Where records and logs go.
        make: Gives a launcher for a host.
        bus: Receives everything that happens.
        stop: Ends the run early.
        options: How.

    Raises:
        UserError: A limit of cost was given, but not every host has a price.
    """
    began = time.monotonic()
    budget = _budget(plan, folder, options)
    early = StopEarly(plan)
    done = _done_before(plan, folder, options, early)
    settled = done.keys() | early.among(job for job in plan.jobs if job.id not in done)
    total = len(plan.jobs)
    left = total - len(settled)
    bus.emit(RunStarted(run_id=plan.run_id, jobs=total, done=total - left, folder=str(folder.path)))
    if note := isolation_note(entry.host for entry in plan.hosts):
        bus.emit(Warned(host=None, message=note))
    if not done and (note := sending_note(entry.facts for entry in plan.hosts)):
        bus.emit(Warned(host=None, message=note))
    for entry in plan.hosts:
        for doubt in doubts(entry.host, entry.facts) if entry.facts else ():
            bus.emit(Warned(host=entry.host.key, message=doubt))
    with Watchdog() as watchdog, _StopWatcher(stop, watchdog):
        shared = Shared(folder, make, bus, stop, watchdog, budget, options, statuses=done, early=early)
        with ThreadPoolExecutor(options.max_parallel or len(plan.hosts), thread_name_prefix="host") as pool:
            workers = {}
            for entry in plan.hosts:
                todo = [job for job in entry.jobs if job.id not in settled]
                kind = HostWorker if entry.host.queue is None else QueueWorker
                workers[entry.host.place] = pool.submit(kind(entry, todo, shared).work)
            work_together(plan, workers, shared, settled)
        for worker in workers.values():
            worker.result()
    outcome = _outcome([shared.statuses.get(job.id) for job in plan.jobs], early)
    bus.emit(
        RunFinished(
            run_id=plan.run_id,
            ok=outcome.ok,
            failed=outcome.failed,
            missing=outcome.missing,
            spared=outcome.spared,
            saved_seconds=early.saved_seconds,
            seconds=time.monotonic() - began,
        )
    )
    return outcome


def count_records(plan: Plan, folder: RunFolder) -> Outcome:
    """Count how the repeats of a plan have ended so far."""
    early = StopEarly(plan)
    done = _done_before(plan, folder, Options(again=frozenset()), early)
    early.among(job for job in plan.jobs if job.id not in done)
    return _outcome([done.get(job.id) for job in plan.jobs], early)


def _outcome(statuses: Sequence[Status | None], early: StopEarly) -> Outcome:
    """Count how repeats have ended; None: one has no record, as those that were spared."""
    spared, answers = early.skipped, tuple(early.answers)
    ok, without = statuses.count(Status.OK), statuses.count(None)
    return Outcome(ok=ok, failed=len(statuses) - ok - without, missing=without - spared, spared=spared, answers=answers)


def _done_before(plan: Plan, folder: RunFolder, options: Options, early: StopEarly) -> dict[str, Status]:
    """Return the status of each repeat that has its result; what should be measured again is moved aside first.

    `early` learns the numbers.
    """
    done = {}
    for job in plan.jobs:
        record = folder.read_record(job.id)
        if record is not None and record.status in options.again:
            set_record_aside(folder, job)
        elif record is not None:
            done[job.id] = record.status
            early.add(job, record)
    return done


def _budget(plan: Plan, folder: RunFolder, options: Options) -> Budget | None:
    if options.max_usd is None:
        return None
    unpriced = [entry.host.key for entry in plan.hosts if entry.host.usd_per_gpu_hour is None]
    if unpriced:
        raise UserError(f"--max-cost needs a price for every host. Add usd_per_gpu_hour to: {', '.join(unpriced)}")
    return Budget(options.max_usd, plan.hosts, Durations.of(plan, folder.path.parent))


class _StopWatcher:
    """Ends what runs when the user asks for it a second time."""

    def __init__(self, stop: Stop, watchdog: Watchdog) -> None:
        self._stop = stop
        self._watchdog = watchdog
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="stop", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _wait(self) -> None:
        while not self._ended.wait(0.1):
            if self._stop.running.is_set():
                self._watchdog.stop_all(Status.STOPPED, "stopped by the user")
                if self._ended.wait(1.0):
                    return


def stop_run(plan: Plan, make: MakeLauncher, bus: EventBus) -> tuple[int, list[str]]:
    """End and remove everything on the hosts that carries the run's label.

    Returns:
        How many benchmarks were removed, and why hosts could not be asked.

    Raises:
        UserError: The plan holds nothing to stop.
    """
    if not plan.jobs:
        raise UserError(f"run {plan.run_id} has no repeats")
    removed, problems = 0, []
    for entry in plan.hosts:
        by_id = {job.id: job for job in plan.jobs_on(entry.host)}
        launcher = make(entry.host)
        try:
            found = [by_id[job_id] for job_id in launcher.running(plan.run_id) if job_id in by_id]
            if isinstance(launcher, QueueLauncher):
                launcher.clear(found)
                removed += len(found)
                continue
            for job in found:
                launcher.stop(job)
                launcher.remove(job)
                removed += 1
        except HostError as error:
            problems.append(f"{entry.host.key}: {error.cause}")
            bus.emit(Warned(host=entry.host.key, message=error.cause))
        finally:
            launcher.close()
    return removed, problems

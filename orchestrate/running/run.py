"""Executes a plan: hosts in parallel, the repeats of a host one after another. Prints nothing.

Every repeat ends with exactly one record in the run's folder, whatever happens to its host. A repeat with a record does
not run again, so that a run can be resumed after any interruption.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from orchestrate import loop
from orchestrate.engines.base import ImagePinner, Launcher, QueueLauncher
from orchestrate.engines.pulls import PullLimits
from orchestrate.errors import HostError, UserError
from orchestrate.events import (
    Event,
    EventBus,
    HostChecked,
    ImageProgress,
    RunFinished,
    RunStarted,
    Warned,
)
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.inventory.queues import SlurmQueue
from orchestrate.inventory.variants import read_variants
from orchestrate.planning.durations import Budget, Durations
from orchestrate.planning.facts import Facts, Image
from orchestrate.planning.host_warnings import (
    host_warnings,
    isolation_note,
    same_machine_notes,
    same_machines,
    sending_note,
)
from orchestrate.planning.images import share_images
from orchestrate.planning.plan import Plan
from orchestrate.running.calls import CHECK_SECONDS, Calls, in_thread
from orchestrate.running.context import Connectivity, Late, MakeLauncher, RunContext, storing, supersede_record
from orchestrate.running.multi_host import run_multi_host
from orchestrate.running.options import RunOptions, Stop
from orchestrate.running.session import CLOSE_SECONDS, PROBE_SECONDS
from orchestrate.running.state import Recorded, RunOutcome
from orchestrate.running.worker import HostWorker, QueueWorker
from orchestrate.text import plain_text
from results.runs.store import RunFolder
from results.schema import Status
from results.schema.record_json import NewerRecord

T = TypeVar("T")

MAX_PROBES = 64
"""Hosts probed at a time before a plan is made."""

LATE_SECONDS, DOWNLOAD_SECONDS = 60.0, 300.0
"""Once a host has answered, how long the plan waits for each of the others, and for one that reports a download."""

MAX_ASKED, ASK_SECONDS = 5, 30.0
"""Hosts asked, and longest wait, to see whether this machine has lost its network."""


def probe_hosts(
    hosts: list[Host], make: MakeLauncher, bus: EventBus, late: Late | None = None
) -> dict[HostPlace, Facts | str]:
    """Probe all hosts in parallel; a host that takes much longer than the first does not hold the others.

    Args:
        hosts: Hosts to probe.
        make: Returns the launcher of a host.
        bus: Receives an event for each host.
        late: Receives the probes that continue; None: they are given up.

    Returns:
        Facts of each host, or why there are none.
    """
    first_at = math.inf
    downloads: dict[str, float] = {}

    def note(event: Event) -> None:
        if isinstance(event, ImageProgress):
            downloads[event.host] = time.monotonic()

    def wait(host: Host, began: float) -> float:
        is_loading = time.monotonic() - downloads.get(host.key, -math.inf) < LATE_SECONDS
        return max(began, first_at) + (DOWNLOAD_SECONDS if is_loading else LATE_SECONDS)

    def report(host: Host, answer: Facts | str) -> None:
        nonlocal first_at
        problem, gpus = (answer, 0) if isinstance(answer, str) else (answer.problem, len(answer.gpus))
        if problem is None:
            first_at = min(first_at, time.monotonic())
        bus.emit(HostChecked(host=host.key, problem=problem, gpus=gpus))

    bus.subscribe(note)
    query = partial(query_hosts, make=make, wait=wait, late=late)
    facts = loop.wait_for(query(hosts, ask=lambda _, launcher: launcher.probe(), report=report))
    shared = share_images(hosts, facts, read_variants())
    concerned = [host for host in hosts if host.place in shared]

    def with_image(host: Host, launcher: Launcher) -> Facts:
        known = facts[host.place]
        assert isinstance(known, Facts), "only hosts that answered share an image"
        return _with_image(known, shared[host.place], launcher)

    first_at = time.monotonic()
    return {**facts, **loop.wait_for(query(concerned, ask=with_image))}


async def query_hosts(
    hosts: Sequence[Host],
    make: MakeLauncher,
    ask: Callable[[Host, Launcher], T],
    seconds: float | None = None,
    *,
    report: Callable[[Host, T | str], None] = lambda host, answer: None,
    wait: Callable[[Host, float], float] = lambda host, began: math.inf,
    late: dict[HostPlace, asyncio.Task[T]] | None = None,
) -> dict[HostPlace, T | str]:
    """Query hosts in parallel with a time limit; return the answer of each, or the cause of its failure.

    Args:
        hosts: Hosts to query.
        make: Returns the launcher of a host.
        ask: Queries a host.
        seconds: Time limit; None: that of a probe.
        report: Receives each answer at once.
        wait: Returns until when others wait for a host that was queried at a time, both in monotonic seconds.
        late: Receives the queries of hosts for which nobody waits any more.
    """
    turns = asyncio.Semaphore(MAX_PROBES)

    async def query(host: Host, began: float) -> T | str:
        limit = began + (PROBE_SECONDS if seconds is None else seconds)
        try:
            launcher = await in_thread(partial(make, host))
        except UserError:  # a package is missing here
            raise
        except Exception as error:  # noqa: BLE001  e.g. no space for a socket
            return plain_text(f"it cannot be queried: {error}", 300)
        answer = asyncio.create_task(_ask(host, launcher, ask))
        while not answer.done():
            left = min(limit, wait(host, began)) - time.monotonic()
            if left <= 0:
                if late is None or time.monotonic() > limit:
                    answer.cancel()
                    await asyncio.wait([answer], timeout=CLOSE_SECONDS)
                    return "it did not answer in time"
                late[host.place] = answer
                return f"it has not answered after {time.monotonic() - began:.0f} s; others have"
            await asyncio.wait([answer], timeout=min(left, CHECK_SECONDS))
        try:
            return answer.result()
        except HostError as error:
            return error.cause
        except Exception as error:  # noqa: BLE001  e.g. an unforeseen answer
            return plain_text(f"its answer cannot be used: {error!r}", 300)

    async def about(host: Host) -> tuple[HostPlace, T | str]:
        async with turns:
            answer = await query(host, time.monotonic())
        report(host, answer)
        return host.place, answer

    return dict(await asyncio.gather(*map(about, hosts)))


async def _ask(host: Host, launcher: Launcher, ask: Callable[[Host, Launcher], T]) -> T:
    """Query a host, then disconnect from it."""
    try:
        return await in_thread(partial(ask, host, launcher))
    finally:
        with contextlib.suppress(HostError), anyio.move_on_after(CLOSE_SECONDS, shield=True):
            await in_thread(launcher.close)


def _with_image(facts: Facts, image: Image, launcher: Launcher) -> Facts:
    """Return a host's facts with the shared image, whose tag is resolved if possible."""
    if facts.images and facts.images[0].reference == image.reference:
        return dataclasses.replace(facts, images=(dataclasses.replace(facts.images[0], reason=image.reason),))
    return dataclasses.replace(facts, images=(launcher.pin(image) if isinstance(launcher, ImagePinner) else image,))


def execute(
    plan: Plan,
    folder: RunFolder,
    make: MakeLauncher,
    bus: EventBus,
    stop: Stop,
    options: RunOptions = RunOptions(),  # noqa: B008 (frozen)
    late: Late | None = None,
) -> RunOutcome:
    """Run every repeat of a plan that has no record yet.

    Records with a status of `options.again` are moved aside, into `superseded/`, and their repeats run once more.

    Args:
        plan: The plan.
        folder: Folder for records and logs.
        make: Returns the launcher of a host.
        bus: Receives all events.
        stop: Ends the run early.
        options: Options of the run.
        late: Probes of `probe_hosts` that continue.

    Raises:
        UserError: The cost is limited, but not every host has a price.
        StorageFailed: This machine could not store the results; `resume` continues.
    """
    with storing(folder):
        return loop.wait_for(_execute(plan, folder, make, bus, stop, options, {} if late is None else late))


async def _execute(
    plan: Plan, folder: RunFolder, make: MakeLauncher, bus: EventBus, stop: Stop, options: RunOptions, late: Late
) -> RunOutcome:
    began = time.monotonic()
    budget = _budget(plan, folder, options)
    recorded = _done_before(plan, folder, options.again, lambda text: bus.emit(Warned(host=None, message=text)))
    done, early = recorded.statuses, recorded.early
    settled = done.keys() | recorded.skipped
    total = len(plan.jobs)
    left = total - len(settled)
    bus.emit(RunStarted(run_id=plan.run_id, jobs=total, done=total - left, folder=str(folder.path)))
    if note := isolation_note(entry.host for entry in plan.hosts):
        bus.emit(Warned(host=None, message=note))
    if not done and (note := sending_note(entry.facts for entry in plan.hosts)):
        bus.emit(Warned(host=None, message=note))
    probed = {entry.host.place: entry.facts for entry in plan.hosts if entry.facts is not None}
    for note in same_machine_notes(probed):
        bus.emit(Warned(host=None, message=note))
    for entry in plan.hosts:
        for warning in host_warnings(entry.host, entry.facts) if entry.facts else ():
            bus.emit(Warned(host=entry.host.key, message=warning))
    async with anyio.create_task_group() as tasks:
        calls = Calls(tasks)
        calls.start(partial(calls.keep_limits, stop.running.is_set))
        network = Connectivity(partial(_any_answers, plan, make), bus, options.offline_seconds)
        shared = RunContext(folder, make, bus, stop, calls, budget, options, done, early, network, late)
        workers: dict[HostPlace, HostWorker | QueueWorker] = {}
        together = [multi for multi in plan.multi_host_jobs if multi.job.id not in settled]
        for entry in plan.hosts:
            todo = [job for job in entry.jobs if job.id not in settled]
            parts = [part for multi in together for part in multi.members if part.place == entry.host.place]
            kind = HostWorker if entry.host.queue is None else QueueWorker
            if budget is not None and kind is HostWorker and (todo or parts):
                budget.begin(entry.host.place)  # it also costs while it waits for its turn
            workers[entry.host.place] = kind(entry, todo, shared, parts)
        machines = {place: tuple(group) for group in same_machines(probed) for place in group}
        machines = {place: machines.get(place, (place,)) for place in workers}
        turns = anyio.CapacityLimiter(options.max_parallel or math.inf)
        ended = {group: anyio.Event() for group in dict.fromkeys(machines.values())}

        async def work_in_turn(group: tuple[HostPlace, ...]) -> None:
            async with turns:
                for place in group:  # hosts that are one machine
                    await workers[place].work()
            ended[group].set()

        async with anyio.create_task_group() as at_work:
            for group in ended:
                at_work.start_soon(work_in_turn, group)
            await run_multi_host(plan, {place: ended[group] for place, group in machines.items()}, shared, settled)
        tasks.cancel_scope.cancel()
    if shared.failures:
        raise shared.failures[0]
    outcome = recorded.outcome()
    bus.emit(
        RunFinished(
            run_id=plan.run_id,
            ok=outcome.ok,
            failed=outcome.failed,
            missing=outcome.missing,
            stopped=outcome.stopped,
            skipped=outcome.skipped,
            saved_seconds=early.saved_seconds,
            seconds=time.monotonic() - began,
        )
    )
    return outcome


async def _any_answers(plan: Plan, make: MakeLauncher) -> bool:
    """Ask some remote hosts of a plan; return whether one has answered."""
    remote = [entry.host for entry in plan.hosts if entry.host.is_remote]
    asked = random.sample(remote, min(len(remote), MAX_ASKED))
    answers = await query_hosts(asked, make, lambda _, launcher: launcher.running(plan.run_id), ASK_SECONDS)
    return any(not isinstance(answer, str) for answer in answers.values())


def _done_before(plan: Plan, folder: RunFolder, again: frozenset[Status], warn: Callable[[str], None]) -> Recorded:
    """Return the repeats with a record; those to be measured again, and damaged ones, go to `superseded/`.

    Raises:
        UserError: A newer tfbench wrote a record.
        OSError: A record cannot be read now.
    """
    recorded = Recorded.of(plan, folder, again)
    for job_id, error in recorded.unreadable.items():
        path = folder.record_path(job_id)
        if isinstance(error, NewerRecord):
            raise UserError(f"{path}: {error}") from error
        if isinstance(error.__cause__, OSError) and error.__cause__.errno != errno.EINVAL:
            raise error.__cause__ from error  # of a failing disk: the record may be good
        warn(f"{path}: {error}; moved to superseded/, its repeat runs again")
    for job_id in (*recorded.unreadable, *recorded.again):
        supersede_record(folder, job_id)
    return recorded


def _budget(plan: Plan, folder: RunFolder, options: RunOptions) -> Budget | None:
    if options.max_usd is None:
        return None
    unpriced = [entry.host.key for entry in plan.hosts if entry.host.usd_per_gpu_hour is None]
    if unpriced:
        raise UserError(f"--max-cost needs a price for every host. Add usd_per_gpu_hour to: {', '.join(unpriced)}")
    return Budget(options.max_usd, plan.hosts, Durations.of(plan, folder.path.parent))


def stop_run(plan: Plan, make: MakeLauncher, bus: EventBus) -> tuple[int, list[str]]:
    """End and remove everything of a run on its hosts.

    Returns:
        The number of removed benchmarks, and causes of hosts that failed.

    Raises:
        UserError: The plan has no repeats.
    """
    if not plan.jobs:
        raise UserError(f"run {plan.run_id} has no repeats")

    def end(host: Host, launcher: Launcher) -> int:
        by_id = {job.id: job for job in plan.jobs_on(host)}
        found = [by_id[job_id] for job_id in launcher.running(plan.run_id) if job_id in by_id]
        if isinstance(launcher, QueueLauncher):
            launcher.clear(found)
            return len(found)
        for job in found:
            launcher.stop(job)
            launcher.remove(job)
        return len(found)

    hosts = [entry.host for entry in plan.hosts]
    answers = loop.wait_for(query_hosts(hosts, make, end))
    problems = {host.key: answer for host in hosts if isinstance(answer := answers[host.place], str)}
    for key, cause in problems.items():
        bus.emit(Warned(host=key, message=cause))
    removed = sum(answer for answer in answers.values() if isinstance(answer, int))
    return removed, [f"{key}: {cause}" for key, cause in problems.items()]


def make_launcher(host: Host, run_path: Path | None, pulls: PullLimits) -> Launcher:
    """Return the launcher of a host.

    Args:
        host: Settings of the host.
        run_path: The run's folder; None if nothing will be started.
        pulls: Shared by all hosts of a run.
    """
    if isinstance(host.queue, SlurmQueue):
        from orchestrate.engines.slurm.launcher import SlurmLauncher

        return SlurmLauncher(host, host.queue)
    if host.queue is not None:
        try:
            from orchestrate.engines.kubernetes.launcher import KubernetesLauncher  # the client takes 0.7 s to import
        except ModuleNotFoundError as error:
            message = f"{host.key}: Kubernetes needs its client. Install it: pip install 'tfbench[kubernetes]'"
            raise UserError(message) from error

        return KubernetesLauncher(host)
    if host.ssh is not None:
        from orchestrate.engines.ssh.launcher import SSHLauncher

        return SSHLauncher(host, pulls)
    if host.docker is None:
        from orchestrate.engines.ssh.launcher import ProcessLauncher

        return ProcessLauncher(host, run_path)
    from orchestrate.engines.docker.launcher import ContainerLauncher  # the SDK takes 0.2 s to import

    return ContainerLauncher(host, pulls)

"""Executes a plan: hosts in parallel, the repeats of a host one after another. Prints nothing.

Every repeat ends with exactly one record in the run's folder, whatever happens to its host. A repeat with a record does
not run again, so that a run can be resumed after any interruption.
"""

from __future__ import annotations

import asyncio
import errno
import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import anyio

from orchestrate import loop
from orchestrate.engines.base import Launcher, QueueLauncher
from orchestrate.engines.pulls import PullLimits
from orchestrate.errors import UserError
from orchestrate.events import EventBus, RunFinished, RunStarted, Warned
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.options import How
from orchestrate.planning.durations import Durations
from orchestrate.planning.host_warnings import host_warnings, same_machine_notes, same_machines
from orchestrate.planning.plan import JobOnHosts, Plan
from orchestrate.running.context import Connectivity, Late, MakeLauncher, RunContext, Stop, StorageFailed, storing
from orchestrate.running.probing import query_hosts
from orchestrate.running.session import PROBE_SECONDS
from orchestrate.running.state import TRIED_AGAIN, Recorded, RunOutcome, RunState
from orchestrate.running.worker import Worker
from results.runs.store import RunFolder
from results.schema import Status
from results.schema.record_json import NewerRecord

MAX_ASKED, ASK_SECONDS = 5, 30.0
"""Hosts asked, and longest wait, to see whether this machine has lost its network."""


def execute(
    plan: Plan,
    folder: RunFolder,
    make: MakeLauncher,
    bus: EventBus,
    stop: Stop,
    how: How = How(),  # noqa: B008 (frozen)
    *,
    again: frozenset[Status] = TRIED_AGAIN,
    late: Late | None = None,
    state: RunState | None = None,
) -> RunOutcome:
    """Run every repeat of a plan that has no record yet.

    Args:
        plan: The plan.
        folder: Folder for records and logs.
        make: Returns the launcher of a host.
        bus: Receives all events.
        stop: Ends the run early.
        how: How the plan is executed.
        again: Statuses of records that are moved aside, into `superseded/`, and whose repeats run once more.
        late: Probes of `probe_hosts` that continue.
        state: Subscribed to `bus`; None: a new one.

    Raises:
        UserError: The cost is limited, but not every host has a price.
        StorageFailed: This machine could not store the results; `resume` continues.
    """
    unpriced = [entry.host.key for entry in plan.hosts if entry.host.usd_per_gpu_hour is None]
    if how.max_cost is not None and unpriced:
        raise UserError(f"--max-cost needs a price for every host. Add usd_per_gpu_hour to: {', '.join(unpriced)}")
    with storing(folder):
        if state is None:
            state = RunState(plan, Durations.of(plan, folder.path.parent))
            bus.subscribe(state.note)
        began = time.monotonic()
        recorded = _done_before(plan, folder, again, lambda text: bus.emit(Warned(host=None, message=text)))
        _announce(plan, folder, bus, recorded)

        async def run() -> list[StorageFailed]:
            async with anyio.create_task_group() as tasks:
                network = Connectivity(partial(_any_answers, plan, make), bus, stop)
                made = RunContext(plan, folder, make, bus, stop, how, recorded, state, network, late or {}, tasks)
                tasks.start_soon(made.keep_limits)
                await _work(made)
                tasks.cancel_scope.cancel()
            return made.failures

        if failures := loop.wait_for(run()):
            raise failures[0]
        outcome = recorded.outcome()
        counts = {name: number for name, number in vars(outcome).items() if name != "answers"}
        took, saved = time.monotonic() - began, recorded.early.saved_seconds
        bus.emit(RunFinished(run_id=plan.run_id, seconds=took, saved_seconds=saved, **counts))
        return outcome


def _announce(plan: Plan, folder: RunFolder, bus: EventBus, recorded: Recorded) -> None:
    """Say that the run starts, and what may spoil it."""
    done = len(recorded.statuses) + len(recorded.skipped)
    bus.emit(RunStarted(run_id=plan.run_id, jobs=recorded.total, done=done, folder=str(folder.path)))
    probed = {entry.host.place: entry.facts for entry in plan.hosts if entry.facts is not None}
    for note in same_machine_notes(probed):
        bus.emit(Warned(host=None, message=note))
    for entry in plan.hosts:
        for warning in host_warnings(entry.host, entry.facts) if entry.facts else ():
            bus.emit(Warned(host=entry.host.key, message=warning))


async def _work(run: RunContext) -> None:
    """Run the repeats: each host its own, then those that hosts of a fleet run together."""
    plan, settled = run.plan, run.recorded.statuses.keys() | run.recorded.skipped
    probed = {entry.host.place: entry.facts for entry in plan.hosts if entry.facts is not None}
    left = [repeat for repeat in plan.multi_host_jobs if repeat.job.id not in settled]
    workers: dict[HostPlace, Worker] = {}
    for entry in plan.hosts:
        parts = [job for repeat in left for job in repeat.members if job.place == entry.host.place]
        own = [JobOnHosts(job=job, members=(job,)) for job in entry.jobs if job.id not in settled]
        workers[entry.host.place] = Worker(run, [entry], own, parts)
    turns = anyio.CapacityLimiter(run.how.max_parallel or math.inf)
    one_by_one = anyio.CapacityLimiter(math.inf if run.how.max_parallel is None else 1)

    async def work_alone(group: Sequence[HostPlace]) -> None:
        async with turns:
            for place in group:  # hosts that are one machine
                if workers[place].entries[0].jobs:
                    await workers[place].work()

    async def work_together(fleet: str) -> None:
        """Run multi-host jobs once the hosts have finished their own, so that no two wait for each other's hosts."""
        every = run.how.max_parallel is not None
        await asyncio.wait([task for place, task in alone.items() if every or place.fleet == fleet])
        todo = [repeat for repeat in left if repeat.job.origin.fleet == fleet]
        of_fleet = [repeat for repeat in plan.multi_host_jobs if repeat.job.origin.fleet == fleet]
        places = dict.fromkeys(job.place for repeat in of_fleet for job in repeat.members)
        async with one_by_one:
            await Worker(run, [workers[place].entries[0] for place in places], todo).work()

    alone: dict[HostPlace, asyncio.Task[None]] = {}
    for group in (*same_machines(probed), *([place] for place in workers)):
        if group[0] not in alone:
            alone |= dict.fromkeys(group, asyncio.create_task(work_alone(group)))
    together = map(work_together, dict.fromkeys(repeat.job.origin.fleet for repeat in plan.multi_host_jobs))
    await asyncio.gather(*alone.values(), *together)


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
    aside = folder.path / "superseded"
    for path in map(folder.record_path, (*recorded.unreadable, *recorded.again)):
        aside.mkdir(exist_ok=True)
        path.rename(aside / f"{path.stem}.{len(list(aside.glob(f'{path.stem}.*')))}.json")
    return recorded


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
    answers = loop.wait_for(query_hosts(hosts, make, end, PROBE_SECONDS))
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
    if host.slurm is not None:
        from orchestrate.engines.slurm.launcher import SlurmLauncher

        return SlurmLauncher(host, host.slurm)
    if host.kubernetes is not None:
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

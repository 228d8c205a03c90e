"""Executes a plan: hosts in parallel, the repeats of a host one after another. Prints nothing.

Every repeat ends with exactly one record in the run's folder, whatever happens to its host. A repeat with a record does
not run again, so that a run can be resumed after any interruption.
"""

from __future__ import annotations

import errno
import math
import time
from pathlib import Path

import anyio

from orchestrate import loop
from orchestrate.engines.base import Launcher, PullLimits, QueueLauncher
from orchestrate.errors import UserError
from orchestrate.events import RunFinished, RunOutcome, RunStarted
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.host_warnings import host_warnings, same_machine_notes, same_machines
from orchestrate.planning.plan import JobOnHosts, Plan
from orchestrate.running.context import RunContext, all_or_none, storing
from orchestrate.running.probing import PROBE_SECONDS, MakeLauncher, query_hosts
from orchestrate.running.state import TRIED_AGAIN
from orchestrate.running.worker import Worker
from results.schema import Status
from results.schema.record_json import NewerRecord


def execute(run: RunContext, again: frozenset[Status] = TRIED_AGAIN) -> RunOutcome:
    """Run every repeat of a plan that has no record yet.

    Args:
        run: The run.
        again: Statuses of records that are moved aside, into `superseded/`, and whose repeats run once more.

    Raises:
        UserError: The cost is limited, but not every host has a price.
        StorageFailed: This machine could not store the results; `resume` continues.
    """
    unpriced = [entry.host.key for entry in run.plan.hosts if entry.host.usd_per_gpu_hour is None]
    if run.how.max_cost is not None and unpriced:
        raise UserError(f"--max-cost needs a price for every host. Add usd_per_gpu_hour to: {', '.join(unpriced)}")
    with storing(run.folder):
        began = time.monotonic()
        _read_records(run, again)
        _announce(run)
        loop.wait_for(_work(run))
        outcome = run.state.outcome()
        run.bus.emit(RunFinished(run_id=run.plan.run_id, seconds=time.monotonic() - began, **vars(outcome)))
        return outcome


def _read_records(run: RunContext, again: frozenset[Status]) -> None:
    """Read what has ended; records of repeats to be measured again, and damaged ones, go to `superseded/`.

    Raises:
        UserError: A newer tfbench wrote a record.
        OSError: A record cannot be read now.
    """
    aside = run.folder.path / "superseded"
    for job_id, error in run.state.read(run.folder, again).items():
        path = run.folder.record_path(job_id)
        if isinstance(error, NewerRecord):
            raise UserError(f"{path}: {error}") from error
        if error is not None and isinstance(cause := error.__cause__, OSError) and cause.errno != errno.EINVAL:
            raise cause from error  # of a failing disk: the record may be good
        if error is not None:
            run.warn(f"{path}: {error}; moved to superseded/, its repeat runs again")
        aside.mkdir(exist_ok=True)
        path.rename(aside / f"{path.stem}.{len(list(aside.glob(f'{path.stem}.*')))}.json")


def _announce(run: RunContext) -> None:
    """Say that the run starts, and what may spoil it."""
    plan, state = run.plan, run.state
    run.bus.emit(RunStarted(run_id=plan.run_id, jobs=len(state.repeats), done=state.done, folder=str(run.folder.path)))
    probed = {entry.host.place: entry.facts for entry in plan.hosts if entry.facts is not None}
    for note in same_machine_notes(probed):
        run.warn(note)
    for entry in plan.hosts:
        for warning in host_warnings(entry.host, entry.facts) if entry.facts else ():
            run.warn(warning, entry.host)


async def _work(run: RunContext) -> None:
    """Run the repeats: each host its own, then those that the hosts of each fleet run together."""
    limit, together = run.how.max_parallel, run.plan.multi_host_jobs
    entries = {entry.host.place: entry for entry in run.plan.hosts}
    probed = {place: entry.facts for place, entry in entries.items() if entry.facts is not None}
    machines: dict[HostPlace, anyio.CapacityLimiter] = {}
    for machine in same_machines(probed):  # hosts may be one machine
        machines |= dict.fromkeys(machine, anyio.CapacityLimiter(1))
    hosts, fleets = anyio.CapacityLimiter(limit or math.inf), anyio.CapacityLimiter(1 if limit else math.inf)
    workers: dict[HostPlace, Worker] = {}
    for place, entry in entries.items():
        if entry.jobs:
            own = [JobOnHosts(job=job, members=(job,)) for job in entry.jobs]
            turns = [machines[place], hosts] if place in machines else [hosts]
            workers[place] = Worker(run, [entry], own, turns)
    multi_host_workers = []
    for fleet in dict.fromkeys(repeat.job.origin.fleet for repeat in together):
        repeats = [repeat for repeat in together if repeat.job.origin.fleet == fleet]
        places = dict.fromkeys(job.place for repeat in repeats for job in repeat.members)
        # Its hosts idle for no other fleet, and no two wait for each other's hosts.
        after = [worker for place, worker in workers.items() if place.fleet == fleet or limit]
        multi_host_workers.append(Worker(run, [entries[place] for place in places], repeats, [fleets], after))
    async with all_or_none() as run.tasks:
        run.tasks.start_soon(run.keep_limits)
        async with all_or_none() as tasks:
            for worker in (*workers.values(), *multi_host_workers):
                tasks.start_soon(worker.work)
        run.tasks.cancel_scope.cancel()


def stop_run(plan: Plan, make: MakeLauncher) -> tuple[int, list[str]]:
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
    problems = [f"{host.key}: {answer}" for host in hosts if isinstance(answer := answers[host.place], str)]
    return sum(answer for answer in answers.values() if isinstance(answer, int)), problems


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
    if host.ssh is not None or host.docker is None:
        from orchestrate.engines.ssh.launcher import ProcessLauncher, SSHLauncher

        return ProcessLauncher(host, run_path) if host.ssh is None else SSHLauncher(host, pulls)
    from orchestrate.engines.docker.launcher import ContainerLauncher  # the SDK takes 0.2 s to import

    return ContainerLauncher(host, pulls)

"""Cases that several hosts train together: which hosts of a fleet, in which order, with which ranks."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from itertools import groupby

from orchestrate.inventory.members import members_of
from orchestrate.planning.plan import Gang, HostPlan, Job, Plan, empty_plan, host_job
from orchestrate.suites import Suite
from results.schema import Case, Device


def add_gangs(plan: Plan, read_suite: Callable[[str], Suite], *, repeats: int | None = None) -> Plan:
    """Lay out the repeats that several hosts of a fleet do together; a case of N hosts takes the first N.

    Args:
        plan: With what each host does alone.
        read_suite: Turns a suite's name into a suite.
        repeats: Overrides those of hosts and suites.

    Raises:
        UserError: Nothing is left to do, alone or together.
    """
    gangs: list[Gang] = []
    entries: list[HostPlan] = []
    for _, group in groupby(plan.hosts, key=lambda entry: entry.host.fleet):
        fleet = list(group)
        made, left_out = _of_fleet(plan, fleet, read_suite, repeats)
        gangs += made
        first = dataclasses.replace(fleet[0], left_out=(*fleet[0].left_out, *left_out))
        entries += [first, *fleet[1:]]
    whole = dataclasses.replace(plan, hosts=tuple(entries), gangs=tuple(gangs))
    if not whole.jobs:
        raise empty_plan(whole.hosts)
    return whole


def _of_fleet(
    plan: Plan, fleet: Sequence[HostPlan], read_suite: Callable[[str], Suite], repeats: int | None
) -> tuple[list[Gang], list[str]]:
    """Lay out a fleet's gangs, round by round, each round shuffled; and say which cases it cannot hold."""
    chief = fleet[0]
    if chief.host.queue is not None:
        return [], []  # the queue chooses the machines, and its own jobs are of several of them
    suite = read_suite(chief.suite)
    gpus = min(_gpu_count(entry) for entry in fleet)
    device = chief.host.device or (Device.GPU if gpus else Device.CPU)
    cases, left_out = [], []
    for case in suite.cases(device):
        if case.num_hosts == 1:
            continue
        members = members_of([entry.host for entry in fleet[: case.num_hosts]], case)
        if isinstance(members, str):
            left_out.append(f"{case.name}: {members}")
        elif case.device is Device.GPU and case.num_gpus > max(1, gpus):
            left_out.append(f"{case.name}: needs {case.num_gpus} GPUs of each host, the fleet offers {gpus}")
        else:
            cases.append(case)
    shuffle = random.Random(f"{plan.seed}:{chief.host.fleet}:together")
    gangs = []
    for repeat in range(1, (repeats or chief.host.repeats or suite.repeats) + 1):
        shuffle.shuffle(cases)
        gangs += [_gang(plan, fleet[: case.num_hosts], case, repeat) for case in cases]
    return gangs, left_out


def _gang(plan: Plan, entries: Sequence[HostPlan], case: Case, repeat: int) -> Gang:
    """Make one repeat; its name is that of the chief's part."""
    members = members_of([entry.host for entry in entries], case)
    assert not isinstance(members, str), "the caller looked"
    jobs = tuple(
        dataclasses.replace(host_job(entry.host, entry.facts, case, repeat, plan.run_id), member=member)
        for entry, member in zip(entries, members, strict=True)
    )
    return Gang(job=whole_job(jobs), members=jobs)


def whole_job(members: Sequence[Job]) -> Job:
    """Return the repeat that the members are parts of: its record names all hosts, in the order of their ranks."""
    chief = members[0]
    hosts = "+".join(job.origin.host for job in members)
    blocked = next((job.blocked for job in members if job.blocked is not None), None)
    return dataclasses.replace(chief, origin=dataclasses.replace(chief.origin, host=hosts), blocked=blocked)


def _gpu_count(entry: HostPlan) -> int:
    if entry.facts is None:
        return len(entry.host.gpus or ())
    present = {gpu.index for gpu in entry.facts.gpus}
    return len(present if entry.host.gpus is None else present & set(entry.host.gpus))

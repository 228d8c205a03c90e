"""Runs of dstack, from `dstack ps --json`; `dstack attach` defines an ssh alias for each."""

from __future__ import annotations

from orchestrate.errors import UserError
from orchestrate.inventory.sources.machines import Described, Found, Machine, Price, destination, read_json, validated

COMMAND = "dstack ps --json"
RUNNING = "running"


class _GPU(Described):
    name: str


class _Resources(Described):
    gpus: tuple[_GPU, ...] = ()
    spot: bool = False


class _InstanceType(Described):
    resources: _Resources


class _Provisioned(Described):
    backend: str
    instance_type: _InstanceType
    price: Price | None = None


class _Submission(Described):
    status: str
    job_provisioning_data: _Provisioned | None = None


class _Job(Described):
    job_submissions: tuple[_Submission, ...] = ()


class _RunSpec(Described):
    run_name: str | None = None


class _Run(Described):
    status: str
    run_spec: _RunSpec
    jobs: tuple[_Job, ...] = ()


class _Runs(Described):
    runs: tuple[_Run, ...]


def from_dstack(path: str) -> Found:
    """Read runs; `ssh RUN` leads into the container of a run, whatever machine that is on."""
    document = read_json(path, COMMAND)
    if isinstance(document, dict) and "instances" in document:
        raise UserError(
            f"{path}: this is a fleet, and dstack does not report how to log in to its instances. Start a task on "
            f"it (see docs/rent.md), then: {COMMAND} | tfbench hosts --from dstack -"
        )
    found = Found(
        notes=[
            "The names of hosts are ssh aliases, which exist while `dstack attach NAME` runs: start one for each host,",
            "in a terminal of its own, before `tfbench check`.",
        ]
    )
    for run in validated(_Runs, document, path, COMMAND).runs:
        _add(run, found)
    return found


def _add(run: _Run, found: Found) -> None:
    name = run.run_spec.run_name or ""
    submission = run.jobs[0].job_submissions[-1] if run.jobs and run.jobs[0].job_submissions else None
    given = submission.job_provisioning_data if submission else None
    if run.status != RUNNING or submission is None or submission.status != RUNNING or given is None:
        found.left_out.append(f"{name}: its status is {run.status}, not {RUNNING}")
        return
    target = destination(None, name)
    if target is None:
        found.left_out.append(f"{name}: not a valid ssh host name")
        return
    if len(run.jobs) > 1:
        found.left_out.append(f"all jobs of {name} but the first: dstack attaches to one job of a run at a time")
    gpus = given.instance_type.resources.gpus
    kinds = {gpu.name for gpu in gpus}
    found.machines.append(
        Machine(
            name=name,
            way="ssh",
            target=target,
            gpu=kinds.pop() if len(kinds) == 1 else None,
            gpus=len(gpus) or None,
            usd_per_hour=given.price,
            notes=("a spot instance: it can be stopped at any time",) if given.instance_type.resources.spot else (),
        )
    )

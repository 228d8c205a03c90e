"""What must hold after a schedule of faults, read from what a run and its hosts have kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrate.running.state import TRIED_AGAIN
from results.runs.reading import from_json
from results.schema import Status
from results.schema.record_json import RecordError
from tests.support.engines.processes import EngineError, wait_until

if TYPE_CHECKING:
    from studies.faults.places import Place
    from studies.faults.schedules import Fault

OWN_FAILURES = {Status.ERROR, Status.TIMEOUT, Status.BAD_RESULT, Status.OOM}
"""Results of a repeat whose benchmark was ended, held or spoilt; `resume` leaves them as they are."""

CALM_SECONDS = 20.0
"""How long a process that was asked to end may take."""


def problems_after(code: int, said: str, run: Path | None, hits: Sequence[Fault], before: Sequence[Fault]) -> list[str]:
    """Check one controller: how it ended says what there is; `before` is what may last from earlier ones."""
    found = []
    if "Traceback" in said or " bug" in said or (run and list(run.glob("traceback*"))):
        found.append(f"crashed: {said[-3000:]}")
    on_us = {fault.how for fault in hits if fault.what == "controller"}
    if code == -9:
        return found if "KILL" in on_us else [*found, "killed by somebody"]
    spoilt = any(fault.what == "run file" and ".json" in fault.how for fault in hits)  # after it was stored
    full = any((fault.what, fault.how) == ("disk", "here") for fault in (*before, *hits))
    statuses = [status_of(run, job) for job in job_ids(run)] if run else []
    # -15: before it takes signals, as any program that starts
    allowed = {130, -15} if any(how.startswith("TERM") for how in on_us) else set()
    allowed |= {4} if full or not statuses else set()
    if statuses:
        allowed |= {0} if set(statuses) == {Status.OK} else {0, 3} if spoilt else {3}
    if code not in allowed:
        found.append(f"untrue exit code {code}, of {statuses}: {said[-1500:]}")
    return found


def problems_at_the_end(folder: Path, run: Path | None, code: int, place: Place, hits: Sequence[Fault]) -> list[str]:
    """Check everything once nothing fails any more."""
    if run is None:
        return ["lost: there is no run"]
    found, jobs = [], job_ids(run)
    statuses = {job: status_of(run, job) for job in jobs}
    for job, status in statuses.items():
        if status is None or status in TRIED_AGAIN:
            found.append(f"lost: {job} is {status}")
        elif status is not Status.OK and not (
            status in OWN_FAILURES and any(fault.what != "controller" for fault in hits)
        ):
            found.append(f"untrue status: {job} is {status}")
    if code != (0 if set(statuses.values()) == {Status.OK} else 3):
        found.append(f"untrue exit code {code} at the end")
    if others := {path.stem for path in (run / "records").iterdir()} - set(jobs):
        found.append(f"doubled: records of nothing: {others}")
    before = Counter(path.stem.rpartition(".")[0] for path in (run / "superseded").glob("*"))
    for job, count in place.created().items():
        if count > 1 + before[job]:
            found.append(f"doubled: {job} was started {count} times, with {before[job]} superseded")
    for job, count in results(run).items():
        if count > 1 + before[job]:
            found.append(f"doubled: {count} results of {job}, with {before[job]} superseded")
    if (folder / "overlaps").exists():
        found.append(f"doubled: {(folder / 'overlaps').read_text()}")
    try:
        wait_until(lambda: not place.left(), "nothing to be left", CALM_SECONDS)
    except EngineError:
        found.append(f"left behind: {place.left()}")
    return found


def job_ids(run: Path | None) -> list[str]:
    """Return the names of a plan's repeats."""
    from orchestrate.planning.plan import plan_from_json

    return [] if run is None else [job.id for job in plan_from_json((run / "plan.json").read_text(), "plan.json").jobs]


def status_of(run: Path | None, job: str) -> Status | None:
    """Return how a repeat has ended; None: it has no record that can be read."""
    try:
        return from_json((run / "records" / f"{job}.json").read_bytes()).status
    except (OSError, RecordError):
        return None


def results(run: Path) -> Counter[str]:
    """Count the results that a run's events name; a line may be cut."""
    found: Counter[str] = Counter()
    for line in (run / "events.jsonl").read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "job_result":
            found[event["job"]] += 1
    return found

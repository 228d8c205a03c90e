"""Makes the record of a repeat from its parts: that of the first host, unless another host has the cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from orchestrate.errors import Lost
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import Job
from orchestrate.running.calls import Abandoned
from orchestrate.running.judge import failed_record, judge
from orchestrate.running.part import RunningPart
from results.schema import Record, Status

CONTROLLER_REASONS = frozenset({Status.TIMEOUT, Status.STOPPED})
"""Reasons for which the controller ended a part, other than the failure of another part."""


def judge_parts(job: Job, parts: Sequence[RunningPart], *, stopped: bool) -> Record:
    """Return the record of a repeat.

    Args:
        job: The repeat.
        parts: By rank; each has ended or was abandoned.
        stopped: Whether the user has ended running repeats.
    """
    chief = parts[0]
    record = _judge_part(job, chief, stopped=stopped)
    if len(parts) == 1:
        return record
    if record.status is Status.OK:
        return _with_host_names(record, parts)
    for part in parts:
        if part.stopped_for is not None and part.stopped_for[0] in CONTROLLER_REASONS:
            return failed_record(job, *part.stopped_for, chief.started_at)
    for part in parts if record.status is Status.LOST else ():
        if part.payload is not None or (part.ending is not None and part.ending.out_of_memory):
            own = _judge_part(part.job, part, stopped=stopped)
            if own.status not in (Status.OK, Status.LOST, Status.STOPPED):
                return failed_record(job, own.status, f"{part.session.host.key}: {own.cause}", chief.started_at)
    if chief.error is None:
        return record
    causes = [how_failed(chief), *(how_failed(part) for part in parts[1:] if has_failed(part))]
    return failed_record(job, record.status, "; ".join(causes[:2]), chief.started_at)


def _judge_part(job: Job, part: RunningPart, *, stopped: bool) -> Record:
    error = part.error
    if error is None and part.ending is not None:
        return judge(
            job,
            part.ending,
            part.payload,
            started_at=part.started_at,
            stopped_for=part.stopped_for,
            last_line=part.last_line,
            observed_seconds=None if part.reattached else clock_seconds() - part.began,
        )
    error = error or Lost("")
    status, cause = error.status, error.cause
    if isinstance(error, Abandoned):  # the reason why it was ended says more
        if part.stopped_for is not None:
            status, cause = part.stopped_for[0], f"{part.stopped_for[1]}; {cause}"
        elif stopped:
            status, cause = Status.STOPPED, f"stopped by the user; {cause}"
    return failed_record(job, status, cause, part.started_at)


def has_failed(part: RunningPart) -> bool:
    """Return whether a part has ended with a failure."""
    ended_well = part.error is None and part.ending is not None and part.ending.exit_code == 0
    return part.ended_at is not None and not ended_well


def how_failed(part: RunningPart) -> str:
    """Return how a part failed, in words."""
    key, ending = part.session.host.key, part.ending
    if part.error is not None:
        return f"{key}: {part.error.cause}"
    return f"the part on {key} ended with exit code {ending and ending.exit_code}"


def _with_host_names(record: Record, parts: Sequence[RunningPart]) -> Record:
    """Replace the addresses of hosts by their names, because addresses are private."""
    if record.measurement is None:
        return record
    names = {part.job.member.rank: part.session.host.name for part in parts if part.job.member is not None}
    ranks = [dataclasses.replace(rank, host=names[rank.rank]) for rank in record.measurement.ranks]
    return dataclasses.replace(record, measurement=dataclasses.replace(record.measurement, ranks=ranks))

"""Turns the ending and the output of a benchmark into its record. Nothing a host sends is trusted."""

from __future__ import annotations

import dataclasses
import json
import math
import signal
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from orchestrate.engines.base import Ending
from orchestrate.errors import HostError
from orchestrate.planning.durations import clock_seconds
from orchestrate.planning.plan import Job
from orchestrate.running.context import Abandoned
from orchestrate.text import plain_text, plain_values
from results.runs.reading import from_json
from results.schema import Record, SoftWarning, Status
from results.schema.enums import SUSPECT
from results.schema.record_json import MAX_RECORD_BYTES, RecordError, to_json

MAX_CLOCK_ERROR, MAX_AGE = timedelta(days=1), timedelta(days=30)
"""How far a host's clock may be ahead, and how old a repeat may be when `resume` collects it."""

CLOCK_DRIFT, SLACK_SECONDS = 0.05, 10.0
"""How far the reported time may exceed the observed time, as a share and in seconds."""

MAY_GROW_BYTES = MAX_RECORD_BYTES // 64
"""Above this size, a record is serialised to check that it can be read again: nulls and spaces may make it larger."""

MAX_RECORD_VALUES = 800_000
"""Maximum number of objects, lists and keys in a record: each takes some 80 bytes of memory, and may be two bytes."""

OURS_BYTES = 16_384
"""Upper limit for what a controller adds to a record: origin, cause and a warning."""

CAUSE_LENGTH = 500
"""Maximum length of a cause, in characters."""


def now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def failed_record(job: Job, status: Status, cause: str, started_at: str) -> Record:
    """Return a record for a repeat that has none of its own."""
    return Record(
        status=status,
        case=job.case,
        cause=plain_text(cause, CAUSE_LENGTH) or "no cause was given",
        origin=job.origin,
        started_at=started_at,
        finished_at=now(),
    )


@dataclass(kw_only=True)
class Attempt:
    """What a controller knows of a benchmark that it ran.

    Attributes:
        began: When it started, in `clock_seconds`.
        started_at: The same in UTC, ISO 8601.
        reattached: Whether another controller started it.
        ending: How it ended, according to its engine, with its record file as received.
        last_line: The last non-empty line of its output, at most 200 characters.
        stopped_for: Why the controller ended it, as a status and a cause, or None.
        error: Why its host failed.
    """

    began: float = field(default_factory=clock_seconds)
    started_at: str = field(default_factory=now)
    reattached: bool = False
    ending: Ending = field(default=Ending(exit_code=None))
    last_line: str = ""
    stopped_for: tuple[Status, str] | None = None
    error: HostError | None = None


def judge(job: Job, attempt: Attempt) -> Record:
    """Return the record of a benchmark that ended, or whose host failed."""
    ending, payload, started_at = attempt.ending, attempt.ending.record, attempt.started_at
    if (failure := attempt.error) is not None:
        status, cause = failure.status, failure.cause
        if isinstance(failure, Abandoned) and attempt.stopped_for:  # the reason why it was ended says more
            status, cause = attempt.stopped_for[0], f"{attempt.stopped_for[1]}; {cause}"
        return failed_record(job, status, cause, started_at)
    job = _placed(job, ending)
    if payload is None:
        return failed_record(job, *_without_record(attempt), started_at)

    def bad(cause: str) -> Record:
        return failed_record(job, Status.BAD_RESULT, cause, started_at)

    if len(payload) > MAX_RECORD_BYTES:
        return bad(f"the record is larger than {MAX_RECORD_BYTES} bytes")
    if sum(map(payload.count, (b"{", b"[", b":"))) > MAX_RECORD_VALUES:
        return bad(f"the record has more than {MAX_RECORD_VALUES} objects, lists and keys")
    try:
        record = from_json(payload)
        # JSON itself forbids control characters in strings, except for DEL and in escapes.
        if not payload.isascii() or b"\\" in payload or b"\x7f" in payload:
            record = from_json(json.dumps(plain_values(json.loads(payload))))
    except RecordError as error:
        return bad(f"the record is malformed: {'; '.join(error.problems[:3])}")
    if record.case != job.case:
        return bad(f"the record belongs to another case: {record.case.name} instead of {job.case.name}")
    if len(payload) > MAY_GROW_BYTES and len(to_json(record).encode()) + OURS_BYTES > MAX_RECORD_BYTES:
        return bad(f"the record is larger than {MAX_RECORD_BYTES} bytes when written in full")
    if record.status is Status.OK and ending.exit_code not in (0, None):
        return bad(f"the record has status ok, but the process ended with exit code {ending.exit_code}")
    if record.status is Status.STOPPED:
        cause = "not ended by tfbench: the engine or its machine was stopped or restarted, or somebody ended it"
        status, cause = attempt.stopped_for or ending.failure or (Status.LOST, cause)
        return dataclasses.replace(record, status=status, cause=cause, origin=job.origin)
    cause_text = None if record.cause is None else plain_text(record.cause, CAUSE_LENGTH)
    warnings = list(record.warnings)
    if found := contradictions(record, None if attempt.reattached else clock_seconds() - attempt.began):
        warnings.append(SoftWarning(code=SUSPECT, message="; ".join(found)))
    return dataclasses.replace(record, cause=cause_text, origin=job.origin, warnings=warnings)


def contradictions(record: Record, observed_seconds: float | None) -> list[str]:
    """Return what in a record contradicts this machine's clock.

    Args:
        record: As written by the host.
        observed_seconds: From the repeat's start to its end; None: this controller did not start it.
    """
    found, measured = [], record.measurement
    started, finished = (datetime.fromisoformat(at).astimezone(UTC) for at in (record.started_at, record.finished_at))
    if finished < started:
        found.append(f"it finished at {record.finished_at}, before it started at {record.started_at}")
    age = datetime.now(UTC) - started
    if not -MAX_CLOCK_ERROR < age < MAX_AGE:
        found.append(f"it is dated {record.started_at}, but this controller's clock shows {now()}")
    if measured is not None and observed_seconds is not None:
        timed = math.fsum((measured.seconds, measured.build_seconds, measured.compile_seconds, measured.warmup_seconds))
        if timed > observed_seconds * (1 + CLOCK_DRIFT) + SLACK_SECONDS:
            found.append(f"it reports {timed:.0f} s of work, but its process ran for {observed_seconds:.0f} s")
    return found


def _placed(job: Job, ending: Ending) -> Job:
    """Set the machine that a queue chose as the host, because machines differ."""
    if ending.node is None:
        return job
    digest = ending.image_digest or job.origin.image_digest
    return dataclasses.replace(job, origin=dataclasses.replace(job.origin, host=ending.node, image_digest=digest))


def _without_record(attempt: Attempt) -> tuple[Status, str]:
    """Return why there is no record, by the most reliable indication."""
    output = f" Last output: {attempt.last_line}" if attempt.last_line else ""
    ending, code = attempt.ending, attempt.ending.exit_code
    if reason := attempt.stopped_for or ending.failure:
        return reason
    if ending.out_of_memory:
        return Status.OOM, "the host ran out of memory: the kernel killed the benchmark at its memory limit"
    if code is None:
        return Status.LOST, f"the benchmark ended without a record, while no controller was following it.{output}"
    if code > 128 and code - 128 in set(signal.Signals):
        name = signal.Signals(code - 128).name
        hint = " The kernel may have run out of memory: see the host's system log." if name == "SIGKILL" else ""
        return Status.ERROR, f"the benchmark was killed by {name} and left no record.{hint}{output}"
    if code == 0:
        return Status.BAD_RESULT, f"the benchmark ended with exit code 0 but left no record.{output}"
    detail = f" {ending.detail}" if ending.detail else ""
    return Status.ERROR, f"the benchmark ended with exit code {code} and left no record.{detail}{output}"

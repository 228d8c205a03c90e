"""The stream of events of a run, written to `events.jsonl` and shown by a display.

`running` prints nothing; displays and the journal subscribe to the events.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, dataclass_transform


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """Base class of all events, which are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class RunStarted(Event):
    """The run starts or resumes.

    Attributes:
        done: Repeats that already have a record, when a run is resumed.
    """

    run_id: str
    jobs: int
    done: int
    folder: str


class HostChecked(Event):
    """A host was probed; `problem` has the reason if it did not answer."""

    host: str
    problem: str | None
    gpus: int = 0


class ImageProgress(Event):
    """Progress of a pull; shown, not stored.

    Attributes:
        done_bytes: Of the bytes known to be needed so far.
    """

    host: str
    image: str
    done_bytes: int
    total_bytes: int


class ImageReady(Event):
    """The image is on the host.

    Attributes:
        seconds: Duration of the pull or transfer.
    """

    host: str
    image: str
    digest: str | None
    seconds: float = 0.0


class JobState(Event):
    """A repeat entered a phase: `launching`, a phase of `results.schema.progress.STATES`, `reattached`.

    In a queue also `queued`, and `on NODE` once it has a machine.
    """

    job: str
    host: str
    state: str


class JobStep(Event):
    """A line of progress; shown, not stored."""

    job: str
    host: str
    step: int
    samples_per_second: float
    unit: str


class JobResult(Event):
    """A repeat has its record.

    Attributes:
        host: Fleet and host joined by a dot, for display: either may contain dots.
        fleet: The fleet alone; empty in older journals.
    """

    job: str
    host: str
    status: str
    cause: str | None
    samples_per_second: float | None
    unit: str | None
    seconds: float
    case: str = ""
    fleet: str = ""


class JobSkipped(Event):
    """A repeat is skipped, because the comparisons of its case are decided."""

    job: str
    host: str
    case: str
    why: str


class Decided(Event):
    """A comparison between fleets needs no more repeats."""

    case: str
    answer: str


class Warned(Event):
    """A warning; the run continues."""

    host: str | None
    message: str


class Stopping(Event):
    """The user stopped the run.

    Attributes:
        now: Whether running repeats are ended, too.
        hint: What the user can do next.
    """

    now: bool
    hint: str


class HostLost(Event):
    """A host was dropped; its remaining repeats get `status`."""

    host: str
    status: str
    cause: str


@dataclass(frozen=True)
class RunOutcome:
    """Counts of the repeats of a run.

    Attributes:
        missing: Repeats without a record, because the run was stopped.
        stopped: Those of `failed` that were running when the run was stopped.
        skipped: Repeats without a record, because they were not needed (`--stop-early`).
    """

    ok: int
    failed: int
    missing: int
    stopped: int = 0
    skipped: int = 0


class RunFinished(RunOutcome, Event):
    """The run has ended."""

    run_id: str
    seconds: float


NAMES: dict[type, str] = {Warned: "warning"}
"""Names of events that differ from their class."""


def event_name(kind: type[Event]) -> str:
    """Return the name of a kind of event, e.g. `job_result` for `JobResult`."""
    return NAMES.get(kind) or re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


_KINDS = {event_name(kind): kind for kind in Event.__subclasses__()}


def event_document(event: Event) -> dict[str, Any]:
    """Return plain data for JSON: `{"event": name, "at": UTC time, …}`."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"event": event_name(type(event)), "at": now, **vars(event)}


def stored_event(document: dict[str, Any]) -> tuple[Event, float] | None:
    """Return the event of a line of a journal, and when it happened, in seconds since the epoch; None: unknown."""
    try:
        kind = _KINDS[document["event"]]
        known = {item.name: document[item.name] for item in fields(kind) if item.name in document}  # type: ignore[arg-type]
        return kind(**known), datetime.fromisoformat(document["at"]).timestamp()
    except (KeyError, TypeError, ValueError):  # of another version
        return None


class EventBus:
    """Delivers every event to every subscriber, one at a time; callable from any thread."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()

    def subscribe(self, subscriber: Callable[[Event], None]) -> None:
        """Add a receiver; it must not block for long and must not emit."""
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Deliver an event to all subscribers, in the order of their subscription."""
        with self._lock:
            for subscriber in self._subscribers:
                subscriber(event)

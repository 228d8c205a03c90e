"""What happens in a run, as one stream: written to `events.jsonl` and shown by a display.

`run.py` prints nothing; displays and the journal subscribe.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


class Event:
    """Something that happened; each kind is a class of its own."""


@dataclass(frozen=True, kw_only=True)
class RunStarted(Event):
    """The run begins, or goes on.

    Attributes:
        done: Repeats that already have a record, when a run is resumed.
    """

    run_id: str
    jobs: int
    done: int
    folder: str


@dataclass(frozen=True, kw_only=True)
class HostChecked(Event):
    """A host answered, or `problem` has the reason why not."""

    host: str
    problem: str | None
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class ImageProgress(Event):
    """A pull goes on; shown, not stored.

    Attributes:
        done_bytes: Of what is known to be needed so far.
    """

    host: str
    image: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class ImageReady(Event):
    """The image is on the host.

    Attributes:
        seconds: That bringing it took.
    """

    host: str
    image: str
    digest: str | None
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class JobState(Event):
    """A repeat enters a phase: `launching`, a phase of `results.schema.progress.STATES`, `collecting`, `reattached`.

    In a queue also `queued`, and `on NODE` once it has a machine.
    """

    job: str
    host: str
    state: str


@dataclass(frozen=True, kw_only=True)
class JobStep(Event):
    """A line of progress; shown, not stored."""

    job: str
    host: str
    step: int
    samples_per_second: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class JobResult(Event):
    """A repeat has its record.

    Attributes:
        host: Fleet and host with a dot between them, for people: either may hold dots of its own.
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


@dataclass(frozen=True, kw_only=True)
class JobSkipped(Event):
    """A repeat is skipped, because the comparisons of its case are decided."""

    job: str
    host: str
    case: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Decided(Event):
    """A comparison between fleets needs no more repeats."""

    case: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Warned(Event):
    """A warning; the run continues."""

    host: str | None
    message: str


@dataclass(frozen=True, kw_only=True)
class Stopping(Event):
    """The user asked the run to stop.

    Attributes:
        now: Running repeats are ended too.
        hint: What can be done next.
    """

    now: bool
    hint: str


@dataclass(frozen=True, kw_only=True)
class HostLost(Event):
    """A host is dropped; its remaining repeats get `status`."""

    host: str
    status: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """Nothing runs any more.

    Attributes:
        missing: Repeats without a record, because the run was stopped.
        skipped: Repeats that were not needed (`--stop-early`).
        saved_seconds: What they would have taken.
    """

    run_id: str
    ok: int
    failed: int
    missing: int
    seconds: float
    skipped: int = 0
    saved_seconds: float = 0.0


NAMES: dict[type, str] = {Warned: "warning"}
"""Of events that are not named like their class."""


def event_name(kind: type[Event]) -> str:
    """Return the name of a kind of event, like its class: `job_result`."""
    return NAMES.get(kind) or re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


def event_document(event: Event) -> dict[str, Any]:
    """Return plain data for JSON: `{"event": name, "at": UTC time, …}`."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"event": event_name(type(event)), "at": now, **vars(event)}


class EventBus:
    """Hands every event to every subscriber, one at a time, whichever thread it comes from."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Event], None]] = []
        self._lock = threading.Lock()

    def subscribe(self, subscriber: Callable[[Event], None]) -> None:
        """Add a receiver; it must not block for long and must not emit."""
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Hand an event to all subscribers, in the order in which they came."""
        with self._lock:
            for subscriber in self._subscribers:
                subscriber(event)

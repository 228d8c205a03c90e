"""Displays of the stream of events: plain lines, JSON Lines, or the live table. All but JSON Lines are on stderr.

A display never affects a run: control characters are removed from what hosts send, standard streams survive the end of
their readers (`results.schema.streams.LastingStream`), and readers that stall delay nothing (`streams.py`).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import IO, Any, Protocol

from rich.console import Console

from orchestrate import events
from orchestrate.display.streams import is_behind, undelayed
from orchestrate.events import Event, event_document
from orchestrate.planning.plan import Plan
from orchestrate.running.state import RunState
from orchestrate.text import plain_text
from results.text_table import print_line

STOPPING = "no new repeats will start; running ones will finish"


def describe(event: Event) -> str:
    """Describe an event in one line that is safe to print."""
    return plain_text(_TEXTS[type(event)](event))


def _started(event: events.RunStarted) -> str:
    rest = f", {event.done} already done" if event.done else ""
    return f"run {event.run_id}: {event.jobs} repeats{rest}, output in {event.folder}"


def _checked(event: events.HostChecked) -> str:
    return f"{event.host}: {event.problem or 'reachable, ' + (f'{event.gpus} GPUs' if event.gpus else 'no GPU')}"


def _pulling(event: events.ImageProgress) -> str:
    done, total = (number / 1e6 for number in (event.done_bytes, event.total_bytes))
    return f"{event.host}: pulling {event.image}: {done:.0f} of {total:.0f} MB"


def _stopping(event: events.Stopping) -> str:
    return f"stopping: {'ending the running repeats' if event.now else STOPPING}. {event.hint}"


def _result(event: events.JobResult) -> str:
    after = event.status + (f" after {event.seconds:.0f} s" if event.seconds >= 0.5 else "")
    if event.samples_per_second is not None:
        return f"{after}, {event.samples_per_second:.2f} {event.unit}/s"
    return f"{after}: {event.cause}" if event.cause else after


def _summary(event: events.RunFinished) -> str:
    counts = {"stopped": event.stopped, "not run": event.missing, "skipped": event.skipped}
    parts = [f"{event.ok} ok", f"{event.failed - event.stopped} failed"]
    parts += [f"{number} {word}" for word, number in counts.items() if number]
    saved = f" (about {clock(event.saved_seconds)} of machine time saved)" if event.saved_seconds else ""
    return f"run {event.run_id}: {', '.join(parts)}, {event.seconds:.0f} s{saved}"


_TEXTS: dict[type[Event], Callable[[Any], str]] = {
    events.RunStarted: _started,
    events.HostChecked: _checked,
    events.ImageProgress: _pulling,
    events.ImageReady: lambda event: f"{event.host}: image {event.image} {event.digest or ''}".rstrip(),
    events.JobState: lambda event: f"{event.job}: {event.state}",
    events.JobStep: lambda event: f"{event.job}: step {event.step}, {event.samples_per_second:.1f} {event.unit}/s",
    events.JobResult: lambda event: f"{event.job}: {_result(event)}",
    events.JobSkipped: lambda event: f"{event.job}: skipped: {event.why}",
    events.Decided: lambda event: f"decided: {event.answer}",
    events.Warned: lambda event: f"warning: {event.host + ': ' if event.host else ''}{event.message}",
    events.Stopping: _stopping,
    events.HostLost: lambda event: f"{event.host}: dropped ({event.status}): {event.cause}",
    events.RunFinished: _summary,
}


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds, with hours if necessary."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def remaining(separator: str, state: RunState) -> str:
    """Return the remaining time of a run in words, after a separator; empty: unknown, or nothing is left."""
    left = state.seconds_left()
    return f"{separator}about {clock(left)} left" if left >= 1 else ""


_FREQUENT = (events.JobStep, events.ImageProgress)

PLAIN_STEP_SECONDS = 10.0
"""Minimum time between two step lines of a host, to keep the output readable."""


class Display(Protocol):
    """Shows a run; use as a context manager around it."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...

    def planned(self, plan: Plan, state: RunState | None = None) -> None:
        """Prepare for a plan.

        Args:
            plan: All repeats.
            state: The state of the run so far, to be continued; None: nothing is known.
        """

    def show(self, event: Event) -> None:
        """Show an event."""


class NoDisplay:
    """Shows nothing."""

    def __enter__(self) -> NoDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, plan: Plan, state: RunState | None = None) -> None:
        """See `Display.planned`."""

    def show(self, event: Event) -> None:
        """See `Display.show`."""


class _LineDisplay(NoDisplay):
    """Writes lines to a stream."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = undelayed(stream)

    def _write(self, *lines: str) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()


class JSONDisplay(_LineDisplay):
    """One event per line, as JSON in ASCII, which is safe on a terminal."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__(stream or sys.stdout)

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        if not (isinstance(event, _FREQUENT) and is_behind(self._stream)):
            self._write(json.dumps(event_document(event)))


class PlainDisplay(_LineDisplay):
    """One line per event, for pipes and log files."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._began = time.monotonic()
        self._last_step: dict[str, float] = {}
        self._state = RunState()

    def planned(self, plan: Plan, state: RunState | None = None) -> None:
        """See `Display.planned`."""
        self._state = state or RunState(plan)

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        state = self._state
        state.note(event)
        if isinstance(event, _FREQUENT) and (is_behind(self._stream) or not self._due(event.host)):
            return
        counted = f"{state.done}/{state.total} " if state.total else ""
        left = remaining("; ", state) if isinstance(event, events.JobResult | events.Stopping) else ""
        lines = [f"[{clock(time.monotonic() - self._began)}] {counted}{describe(event)}{left}"]
        if isinstance(event, events.RunFinished):
            lines += state.failures(event)
        self._write(*lines)

    def _due(self, host: str) -> bool:
        now = time.monotonic()
        if now - self._last_step.get(host, -PLAIN_STEP_SECONDS) < PLAIN_STEP_SECONDS:
            return False
        self._last_step[host] = now
        return True


def notify(*lines: str) -> None:
    """Print lines on stderr, unformatted."""
    console = Console(stderr=True)
    for line in lines:
        print_line(line, console)


def stdout_console() -> Console:
    """Return a console on stdout, which does not limit the width of tables in a pipe."""
    return Console(highlight=False)

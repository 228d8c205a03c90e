"""Displays of the stream of events: plain lines, JSON Lines, or the live table. All but JSON Lines are on stderr.

A display never affects a run: control characters are removed from what hosts send, standard streams survive the end of
their readers (`results.schema.streams.LastingStream`), and readers that stall delay nothing (`streams.py`).
"""

from __future__ import annotations

import json
import sys
import time
from typing import IO, Self

from rich.console import Console

from orchestrate import events
from orchestrate.display.streams import is_behind, undelayed
from orchestrate.events import Event, event_document
from orchestrate.running.state import RunState
from orchestrate.text import plain_text
from results.text_table import print_line

STOPPING = "no new repeats will start; running ones will finish"


def describe(event: Event) -> str:
    """Describe an event in one line that is safe to print."""
    return plain_text(_text(event))


def _text(event: Event) -> str:
    match event:
        case events.RunStarted():
            rest = f", {event.done} already done" if event.done else ""
            return f"run {event.run_id}: {event.jobs} repeats{rest}, output in {event.folder}"
        case events.HostChecked():
            gpus = f"{event.gpus} GPUs" if event.gpus else "no GPU"
            return f"{event.host}: {event.problem or f'reachable, {gpus}'}"
        case events.ImageProgress():
            done, total = event.done_bytes / 1e6, event.total_bytes / 1e6
            return f"{event.host}: pulling {event.image}: {done:.0f} of {total:.0f} MB"
        case events.ImageReady():
            return f"{event.host}: image {event.image} {event.digest or ''}".rstrip()
        case events.JobState():
            return f"{event.job}: {event.state}"
        case events.JobStep():
            return f"{event.job}: step {event.step}, {event.samples_per_second:.1f} {event.unit}/s"
        case events.JobResult():
            after = f" after {event.seconds:.0f} s" if event.seconds >= 0.5 else ""
            speed = "" if event.samples_per_second is None else f", {event.samples_per_second:.2f} {event.unit}/s"
            return f"{event.job}: {event.status}{after}{speed or (f': {event.cause}' if event.cause else '')}"
        case events.JobSkipped():
            return f"{event.job}: skipped: {event.why}"
        case events.Decided():
            return f"decided: {event.answer}"
        case events.Warned():
            return f"warning: {event.host + ': ' if event.host else ''}{event.message}"
        case events.Stopping():
            return f"stopping: {'ending the running repeats' if event.now else STOPPING}. {event.hint}"
        case events.HostLost():
            return f"{event.host}: dropped ({event.status}): {event.cause}"
        case events.RunFinished():
            counts = {"stopped": event.stopped, "not run": event.missing, "skipped": event.skipped}
            parts = [f"{event.ok} ok", f"{event.failed - event.stopped} failed"]
            parts += [f"{number} {word}" for word, number in counts.items() if number]
            saved = f" (about {clock(event.saved_seconds)} of machine time saved)" if event.saved_seconds else ""
            return f"run {event.run_id}: {', '.join(parts)}, {event.seconds:.0f} s{saved}"
    raise TypeError(type(event))


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


class Display:
    """Shows nothing of a run; others show events. Use as a context manager around a run."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, event: Event) -> None:
        """Show an event, which the state of the run contains."""


class JSONDisplay(Display):
    """One event per line, as JSON in ASCII, which is safe on a terminal."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = undelayed(stream or sys.stdout)

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        if not (isinstance(event, _FREQUENT) and is_behind(self._stream)):
            self._stream.write(f"{json.dumps(event_document(event))}\n")
            self._stream.flush()


FEW_HOSTS = 50
LEFT_SECONDS = 0.5
"""How long the time left is shown again before it is computed anew, which looks at every host, with many of them."""


class PlainDisplay(Display):
    """One line per event, for pipes and log files."""

    def __init__(self, stream: IO[str], state: RunState) -> None:
        self._stream = undelayed(stream)
        self._began = time.monotonic()
        self._next_step: dict[str, float] = {}
        self._left, self._left_until = "", 0.0
        self._state = state

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        state, now = self._state, time.monotonic()
        if isinstance(event, _FREQUENT):
            if is_behind(self._stream) or now < self._next_step.get(event.host, 0.0):
                return
            self._next_step[event.host] = now + PLAIN_STEP_SECONDS
        counted = f"{state.done}/{state.total} " if state.total else ""
        left = ""
        if isinstance(event, events.JobResult | events.Stopping):
            if now >= self._left_until or len(state.hosts) <= FEW_HOSTS or isinstance(event, events.Stopping):
                self._left, self._left_until = remaining("; ", state), now + LEFT_SECONDS
            left = self._left
        lines = [f"[{clock(now - self._began)}] {counted}{describe(event)}{left}"]
        if isinstance(event, events.RunFinished):
            lines += state.failures(event)
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()


def notify(*lines: str) -> None:
    """Print lines on stderr, unformatted."""
    console = Console(stderr=True)
    for line in lines:
        print_line(line, console)


def stdout_console() -> Console:
    """Return a console on stdout, which does not limit the width of tables in a pipe."""
    return Console(highlight=False)

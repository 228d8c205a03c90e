"""Three ways to show the one stream of events: a live table, plain lines, JSON Lines. All on stderr but the last.

A display never harms a run: what hosts send is made plain before it is shown, and standard streams outlast their
readers (`results.program.LastingStream`).
"""

from __future__ import annotations

import json
import sys
import time
from typing import IO, Protocol

from rich.console import Console

from orchestrate.display.wording import Failures, clock, describe
from orchestrate.events import (
    Event,
    HostLost,
    ImageProgress,
    JobResult,
    JobSpared,
    JobStep,
    RunFinished,
    RunStarted,
    event_document,
)
from orchestrate.planning.durations import Durations, Outlook
from orchestrate.planning.plan import Plan

KINDS = ("auto", "live", "plain", "json", "none")
_FREQUENT = (JobStep, ImageProgress)

PLAIN_STEP_SECONDS = 10.0
"""Shortest time between two steps of a host in plain lines: people read them too."""


class Display(Protocol):
    """Shows a run; use as a context manager around it."""

    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...

    def planned(self, plan: Plan, durations: Durations | None = None) -> None:
        """Learn what is going to happen.

        Args:
            plan: All repeats.
            durations: Of its repeats, as far as anything is known.
        """

    def show(self, event: Event) -> None:
        """Show an event."""


def make_display(kind: str, console: Console) -> Display:
    """Choose a display.

    Args:
        kind: One of `KINDS`; `auto`: live on a terminal, plain elsewhere.
        console: On stderr.
    """
    if kind == "live" or (kind == "auto" and console.is_terminal):
        from orchestrate.display.live import LiveDisplay

        return LiveDisplay(console)
    if kind == "json":
        return JSONDisplay(sys.stdout)
    return NoDisplay() if kind == "none" else PlainDisplay(console.file)


class NoDisplay:
    """Shows nothing."""

    def __enter__(self) -> NoDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def planned(self, plan: Plan, durations: Durations | None = None) -> None:
        """See `Display.planned`."""

    def show(self, event: Event) -> None:
        """See `Display.show`."""


class _LineDisplay(NoDisplay):
    """Writes lines to a stream."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def _write(self, *lines: str) -> None:
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()


class JSONDisplay(_LineDisplay):
    """An event a line, as JSON, for programs; in ASCII, because a terminal may be reading."""

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        self._write(json.dumps(event_document(event)))


class PlainDisplay(_LineDisplay):
    """A line for whatever happens, for pipes and log files."""

    def __init__(self, stream: IO[str]) -> None:
        super().__init__(stream)
        self._began = time.monotonic()
        self._total = 0
        self._done = 0
        self._last_step: dict[str, float] = {}
        self._outlook: Outlook | None = None
        self._failures = Failures()

    def planned(self, plan: Plan, durations: Durations | None = None) -> None:
        """See `Display.planned`."""
        self._total = len(plan.jobs)
        self._outlook = Outlook(plan, durations) if durations else None

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        self._failures.note(event)
        if isinstance(event, RunStarted):
            self._done = event.done
        if isinstance(event, JobResult | JobSpared):
            self._done += 1
        left = self._left_after(event)
        if isinstance(event, _FREQUENT) and not self._due(event.host):
            return
        counted = f"{self._done}/{self._total} " if self._total else ""
        lines = [f"[{clock(time.monotonic() - self._began)}] {counted}{describe(event)}{left}"]
        if isinstance(event, RunFinished):
            lines += self._failures.summary(event)
        self._write(*lines)

    def _left_after(self, event: Event) -> str:
        """Return how long the run still takes, where an event has changed that."""
        if self._outlook is None or not isinstance(event, JobResult | JobSpared | HostLost):
            return ""
        self._outlook.note(event)
        left = self._outlook.seconds_left()
        return f"; about {clock(left)} left" if left and isinstance(event, JobResult) else ""

    def _due(self, host: str) -> bool:
        now = time.monotonic()
        if now - self._last_step.get(host, -PLAIN_STEP_SECONDS) < PLAIN_STEP_SECONDS:
            return False
        self._last_step[host] = now
        return True


def notify(*lines: str) -> None:
    """Print lines on stderr, as they are."""
    console = Console(stderr=True)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def stdout_console() -> Console:
    """Return a console on stdout; in a pipe it is wide, because lines are for programs then."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=240)

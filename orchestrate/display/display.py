"""Displays of the stream of events: plain lines, JSON Lines, or the live table. All but JSON Lines are on stderr.

A display never affects a run: control characters are removed from what hosts send, standard streams survive the end of
their readers (`results.schema.streams.LastingStream`), and readers that stall delay nothing (`streams.py`).
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import IO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrate import events
from orchestrate.display.streams import is_behind
from orchestrate.errors import UserError
from orchestrate.events import Event, event_document
from orchestrate.planning.facts import Facts
from orchestrate.project import command_line
from orchestrate.running.state import QUEUED, SKIPPED, TRIED_AGAIN, HostState, RunState
from orchestrate.text import each, plain_text, shown
from results.schema import Status
from results.table.comparable import grouped
from results.text import printable, shortened
from results.text_table import Grid, fitting, print_line, table_of

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
            return f"run {event.run_id}: {', '.join(parts)}, {event.seconds:.0f} s"
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


MAX_CAUSES, MAX_HOSTS_NAMED = 10, 4


def failures(state: RunState) -> list[str]:
    """Summarise what failed by cause and host, with the command that repeats only that."""
    failed = [repeat for repeat in state.repeats.values() if repeat.status not in ("", Status.OK, SKIPPED)]
    groups = grouped(((one.status, one.cause), one.hosts[0].entry.host.key) for one in failed)
    if not groups and state.done == len(state.repeats):
        return []
    lines = []
    for (status, cause), hosts in sorted(groups.items(), key=lambda group: -len(group[1]))[:MAX_CAUSES]:
        named = ", ".join(shortened([*dict.fromkeys(hosts)], MAX_HOSTS_NAMED))
        lines.append(plain_text(f"  {len(hosts)} × {status} on {named}: {cause}"))
    if len(groups) > MAX_CAUSES:
        lines.append(f"  … and {len(groups) - MAX_CAUSES} more causes")
    again = sorted({status for status, _ in groups} - TRIED_AGAIN)
    flag = ["--again", ",".join(again)] if again else []
    return [*lines, plain_text(f"  to repeat only these: {command_line('orchestrate', 'resume', state.folder, *flag)}")]


_FREQUENT = (events.JobStep, events.ImageProgress)

PLAIN_STEP_SECONDS = 10.0
"""Minimum time between two step lines of a host, to keep the output readable."""


class Display(contextlib.ExitStack):
    """Shows nothing of a run; others show events. Use as a context manager around a run."""

    def show(self, event: Event) -> None:
        """Show an event, which the state of the run contains."""


class JSONDisplay(Display):
    """One event per line, as JSON in ASCII, which is safe on a terminal."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        super().__init__()
        self._stream = stream or sys.stdout

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        if not (isinstance(event, _FREQUENT) and is_behind(self._stream)):
            self._stream.write(f"{json.dumps(event_document(event))}\n")
            self._stream.flush()


FEW_HOSTS, LEFT_SECONDS = 50, 0.5
"""With more hosts, how long the time left is shown again before it is computed anew, which looks at every repeat."""


class PlainDisplay(Display):
    """One line per event, for pipes and log files."""

    def __init__(self, stream: IO[str], state: RunState) -> None:
        super().__init__()
        self._stream = stream
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
        counted = f"{state.done}/{len(state.repeats)} " if state.repeats else ""
        left = isinstance(event, events.JobResult | events.Stopping)
        if left and (now >= self._left_until or len(state.hosts) <= FEW_HOSTS):
            self._left, self._left_until = remaining("; ", state), now + LEFT_SECONDS
        lines = [f"[{clock(now - self._began)}] {counted}{describe(event)}{self._left if left else ''}"]
        if isinstance(event, events.RunFinished):
            lines += failures(state)
        self._stream.write("".join(f"{line}\n" for line in lines))
        self._stream.flush()


REFRESH_PER_SECOND = 4
MANY_HOSTS = 100
"""Number of hosts above which the table is drawn once a second: a full screen of a thousand hosts takes 20 ms."""

OTHER_LINES = 8
"""Lines of a terminal without rows: frame and heading, summary, prompt, some messages."""

FEWEST_ROWS = 5
COLUMNS = ("host", "GPU", "variant", "case", "k/n>", "state", "step>", "samples/s>", "time\u00a0left>")
DROPPED_FIRST = ("variant", "GPU", "step", "samples/s", "case", "time\u00a0left")
"""Columns that a narrow terminal omits, in this order."""

AT_WORK, DROPPED, FAILED, WAITING, DONE = KINDS = ("at work", "dropped", "done with failures", "waiting", "done")
"""Kinds of hosts, those that are shown first."""


_IN_TABLE = (*_FREQUENT, events.ImageReady, events.JobState, events.JobSkipped)


class LiveDisplay(Live):
    """A table that is redrawn in place, with messages printed above it.

    Args:
        console: On stderr.
        state: The state of the run.
        began: Start of the run on the clock of `time.monotonic()`; None: now.
    """

    def __init__(self, console: Console, state: RunState, began: float | None = None) -> None:
        self._state = state
        self._began = time.monotonic() if began is None else began
        rate = REFRESH_PER_SECOND if len(state.hosts) <= MANY_HOSTS else 1
        super().__init__(console=console, refresh_per_second=rate, transient=True)

    def refresh(self) -> None:
        """See `Live.refresh`; draws nothing while the reader is behind."""
        if not is_behind(self.console.file):
            super().refresh()

    def show(self, event: Event) -> None:
        """Print an event above the table, unless the table shows it: a thousand lines would hide failures."""
        is_well = isinstance(event, events.HostChecked) and event.problem is None
        if not (isinstance(event, _IN_TABLE) or is_well or getattr(event, "status", None) == Status.OK):
            summary = failures(self._state) if isinstance(event, events.RunFinished) else []
            for line in (describe(event), *summary):
                print_line(line, self.console)

    def get_renderable(self) -> RenderableType:
        """Return the current table."""
        hosts = list(self._state.hosts.values())
        most = max(FEWEST_ROWS, self.console.height - OTHER_LINES)
        order = sorted(range(len(hosts)), key=lambda index: KINDS.index(_kind(hosts[index])))
        chosen, others = [hosts[index] for index in sorted(order[:most])], [hosts[index] for index in order[most:]]
        rows = [_cells(host, self._state.seconds_left(host.entry.host.key)) for host in chosen]
        table = _live_table(Grid("", COLUMNS, rows, optional=DROPPED_FIRST), self.console)
        lines = []
        if others:
            kinds = Counter(map(_kind, others)).most_common()
            lines.append(f"… and {len(others)} more: {', '.join(f'{number} {kind}' for kind, number in kinds)}")
        if (stopping := self._state.stopping) is not None:
            lines.append("stopping: ending the running repeats" if stopping.now else f"stopping… {STOPPING}")
        counts = ", ".join(f"{number} {status}" for status, number in sorted(self._state.counts.items()))
        left = remaining(", ", self._state)
        lines.append(f"{clock(time.monotonic() - self._began)}  {counts or 'nothing finished yet'}{left}")
        return Group(table, *map(Text, lines))


def _live_table(grid: Grid, console: Console) -> Table:
    """Return a table without the optional columns that do not fit; no cell is wrapped."""
    grid = replace(grid, rows=[[printable(cell).replace(" ", "\u00a0") for cell in row] for row in grid.rows])
    if fit := fitting(grid, console):
        return table_of(*fit)
    least = grid.only([place for place, name in enumerate(grid.headings) if name not in grid.optional])
    return table_of(least, [max(map(cell_len, cells)) for cells in zip(least.headings, *least.rows, strict=True)])


def gpu_names(facts: Facts | None) -> str:
    """Return a short name of a host's GPUs: `2 × RTX A4000`."""
    if facts is None:
        return "?"
    names = (plain_text(gpu.name, 40).removeprefix("NVIDIA ").removeprefix("GeForce ") for gpu in facts.gpus)
    return each(names) or "none"


def _kind(host: HostState) -> str:
    if host.dropped:
        return DROPPED
    repeats = host.repeats.values()
    if not host.running and all(repeat.status for repeat in repeats):
        return FAILED if any(repeat.failed for repeat in repeats) else DONE
    return AT_WORK if host.running or host.pulled or any(repeat.status for repeat in repeats) else WAITING


def _cells(host: HostState, seconds_left: float) -> tuple[str, ...]:
    """Return the cells of a host: of a queue, how many repeats run and wait; of a machine, its repeat."""
    states, kind, repeats = host.states, _kind(host), host.repeats.values()
    position, failed = sum(bool(repeat.status) for repeat in repeats), sum(repeat.failed for repeat in repeats)
    state, variant, case, step, speed = WAITING, "", "", "", ""
    if host.entry.host.slots > 1:  # cases and steps of several repeats would alternate in one row
        queued = sum(word in (QUEUED, "launching") for word in states)
        state = f"{len(states) - queued} run, {queued} {QUEUED}" if states or position else WAITING
    else:
        position += len(states)
        if host.latest is not None:
            job = host.latest.job
            variant, case = job.origin.variant or "", f"{job.case.name} r{job.origin.repeat}"
        if host.step is not None:
            step, speed = str(host.step.step), f"{host.step.samples_per_second:.1f}"
        if host.pulled is not None:
            state, step = "pulling", f"{host.pulled[0]:.0%}"
        elif states:
            state = plain_text(states[-1], 20)
    if kind in (DROPPED, FAILED, DONE):
        state, step = (DROPPED if kind == DROPPED else DONE) + (f", {failed} failed" if failed else ""), ""
    return (
        f"{host.entry.host.fleet}/{host.entry.host.name}",
        gpu_names(host.entry.facts),
        variant,
        case,
        f"{position}/{len(repeats)}",
        state,
        step,
        speed,
        clock(seconds_left) if seconds_left and kind in (AT_WORK, WAITING) else "",
    )


def make_display(kind: str, console: Console, state: RunState) -> Display | LiveDisplay:
    """Choose a display.

    Args:
        kind: `live`, `plain`, `json` or `none`; `auto`: live on a terminal that can redraw, otherwise plain.
        console: On stderr.
        state: The state of the run.

    Raises:
        UserError: There is no such display.
    """
    if kind == "live" or (kind == "auto" and console.is_terminal and not console.is_dumb_terminal):
        return LiveDisplay(console, state)
    if kind == "json":
        return JSONDisplay()
    if kind in ("auto", "plain"):
        return PlainDisplay(console.file, state)
    if kind == "none":
        return Display()
    raise UserError(f"TFBENCH_DISPLAY must be auto, live, plain, json or none. Received: {shown(kind)}")


def notify(*lines: str) -> None:
    """Print lines on stderr, unformatted."""
    console = Console(stderr=True)
    for line in lines:
        print_line(line, console)

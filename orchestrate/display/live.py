"""The live table: a row per host, with the most relevant ones if they do not all fit."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrate import events
from orchestrate.display.display import (
    STOPPING,
    Display,
    JSONDisplay,
    NoDisplay,
    PlainDisplay,
    clock,
    describe,
    remaining,
)
from orchestrate.display.streams import is_behind, undelayed
from orchestrate.errors import UserError
from orchestrate.events import Event
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job, Plan
from orchestrate.running.options import QUEUED
from orchestrate.running.state import RunState
from orchestrate.text import plain_text, shown
from results.schema import Status
from results.text_table import new_table, print_line

REFRESH_PER_SECOND = 4
MANY_HOSTS = 100
"""Number of hosts above which the table is drawn once a second: a full screen of a thousand hosts takes 20 ms."""

OTHER_LINES = 8
"""Lines of a terminal without rows: frame and heading, summary, prompt, some messages."""

FEWEST_ROWS = 5
COLUMNS = ("host", "GPU", "variant", "case", "k/n", "state", "step", "samples/s", "time left")
RIGHT = {"k/n", "step", "samples/s", "time left"}
DROPPED_FIRST = ("variant", "GPU", "step", "samples/s", "case", "time left")
"""Columns that a narrow terminal omits, in this order; the others always fit, and headings are never cut."""

FEWEST_CASE_LETTERS = 20
"""Minimum width of the column of cases, the only one whose cells are cut to fit."""
WAITING, DONE, DROPPED = "waiting", "done", "dropped"


@dataclass
class HostRow:
    """A row of the table.

    Attributes:
        position: Position in the host's plan of the repeat that runs or ran last, from 1; 0: none yet.
        failed: Number of repeats that failed.
        slots: Repeats that may run in parallel; more than one for a queue.
    """

    title: str
    gpu: str
    total: int
    variant: str = ""
    case: str = ""
    state: str = WAITING
    step: str = ""
    speed: str = ""
    position: int = 0
    failed: int = 0
    slots: int = 1
    ended: int = 0

    def show_queue(self, states: Sequence[str]) -> None:
        """Show how many repeats of a queue run and wait, from their states."""
        queued = sum(word in (QUEUED, "launching") for word in states)
        self.state = f"{len(states) - queued} run, {queued} {QUEUED}"
        self.variant = self.case = self.step = self.speed = ""
        self.position = self.ended

    @property
    def rank(self) -> int:
        """Return the sort key of a row: running first, then failed, waiting, done."""
        if self.state in (WAITING, DONE, DROPPED):
            return {DROPPED: 1, WAITING: 2, DONE: 4}[self.state] if not self.failed else 1
        return 0


class _Live(Live):
    """A table that is not drawn while its reader is behind."""

    before: Callable[[], None]

    def refresh(self) -> None:
        """See `Live.refresh`."""
        if not is_behind(self.console.file):
            self.before()
            super().refresh()


class LiveDisplay:
    """A table that is redrawn in place, with messages printed above it.

    Args:
        console: On stderr.
        began: Start of the run on the clock of `time.monotonic()`; None: now.
    """

    def __init__(self, console: Console, began: float | None = None) -> None:
        self._console = console
        self._rows: dict[str, HostRow] = {}
        self._jobs: dict[str, tuple[int, str, str]] = {}
        self._statuses: Counter[str] = Counter()
        self._state = RunState()
        self._stopping = ""
        self._began = time.monotonic() if began is None else began
        self._lock = threading.Lock()
        self._unread: list[str] = []  # messages for a reader that is behind
        console.file = undelayed(console.file)
        self._live = _Live(
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
            get_renderable=self.render,
            transient=True,
        )
        self._live.before = self._print

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        self._print(at_once=True)

    def planned(self, plan: Plan, state: RunState | None = None) -> None:
        """See `Display.planned`."""
        self._state = state or RunState(plan)
        if len(plan.hosts) > MANY_HOSTS:
            self._live.refresh_per_second = 1
        with self._lock:
            for entry in plan.hosts:
                title = f"{entry.host.fleet}/{entry.host.name}"
                slots = entry.host.slots
                led = [multi.job for multi in plan.multi_host_jobs if multi.members[0].place == entry.host.place]
                jobs = [*entry.jobs, *led]
                row = HostRow(title, gpu_names(entry.facts), len(jobs), slots=slots)
                self._rows[entry.host.key] = row
                self._jobs.update(_job_titles(jobs))

    def show(self, event: Event) -> None:
        """See `Display.show`."""
        with self._lock:
            self._state.note(event)
            self._note(event)
        match event:
            case events.RunFinished():
                self._print(describe(event), *self._state.failures(event))
            case events.JobResult(status=Status.OK):
                pass  # shown in the table; a thousand lines would hide failures
            case (
                events.RunStarted()
                | events.HostLost()
                | events.Warned()
                | events.Decided()
                | events.Stopping()
                | events.JobResult()
            ):
                self._print(describe(event))
            case events.HostChecked() if event.problem:
                self._print(describe(event))

    def _print(self, *lines: str, at_once: bool = False) -> None:
        """Print above the table, as soon as the reader has what was printed before."""
        with self._lock:
            self._unread += lines
            due = [] if is_behind(self._console.file) and not at_once else self._unread[:]
            del self._unread[: len(due)]
        for line in due:
            print_line(line, self._live.console)

    def _note(self, event: Event) -> None:
        if isinstance(event, events.Stopping):
            self._stopping = "stopping: ending the running repeats" if event.now else f"stopping… {STOPPING}"
        row = self._rows.get(getattr(event, "host", None) or "")
        if row is None:
            return
        match event:
            case events.ImageProgress():
                share = event.done_bytes / event.total_bytes if event.total_bytes else 0.0
                row.state, row.step = "pulling", f"{share:.0%}"
            case events.ImageReady():
                row.state, row.step = WAITING, ""
            case events.JobState() if row.slots > 1:
                row.show_queue(self._state.doing(event.host))
            case events.JobStep() if row.slots > 1:
                pass  # steps of several repeats would alternate in one row
            case events.JobState():
                unknown = (row.position, "", plain_text(event.job, 80))
                row.position, row.variant, row.case = self._jobs.get(event.job, unknown)
                row.state, row.step = plain_text(event.state, 20), ""
            case events.JobStep():
                row.step, row.speed = str(event.step), f"{event.samples_per_second:.1f}"
            case events.JobResult():
                self._end(row, event)
            case events.JobSkipped():
                row.position = max(row.position, self._jobs.get(event.job, (row.position, "", ""))[0])
                row.state = DONE if row.position >= row.total else row.state
            case events.HostLost():
                row.state, row.step = DROPPED, ""

    def _end(self, row: HostRow, event: events.JobResult) -> None:
        self._statuses[event.status] += 1
        row.position = max(row.position, self._jobs.get(event.job, (row.position, "", ""))[0])
        row.ended, row.step = row.ended + 1, ""
        if row.slots > 1 and row.state != DROPPED:
            row.show_queue(self._state.doing(event.host))
        if event.status not in (Status.OK, Status.STOPPED):
            row.failed += 1
        if row.state != DROPPED and (row.slots == 1 or row.position >= row.total):
            row.state = DONE if row.position >= row.total else event.status

    def render(self) -> RenderableType:
        """Return the current table."""
        with self._lock:
            rows = list(self._rows.values())
            shown = choose_rows(rows, max(FEWEST_ROWS, self._console.height - OTHER_LINES))
            keys = {id(row): key for key, row in self._rows.items()}
            cells = [_cells(row, self._state.seconds_left(keys[id(row)])) for row in shown]
            table = new_table()
            widths = fitting(cells, self._console.width)
            for name, width in widths.items():
                justify: JustifyMethod = "right" if name in RIGHT else "left"
                table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis", width=width)
            for row in cells:
                table.add_row(*(Text(cell) for name, cell in zip(COLUMNS, row, strict=True) if name in widths))
            return Group(table, *(Text(line) for line in self._below(rows, shown)))

    def _below(self, rows: Sequence[HostRow], shown: Sequence[HostRow]) -> list[str]:
        """Summarise the rows that do not fit, and the progress of the whole run."""
        lines = []
        if len(shown) < len(rows):
            chosen = {id(row) for row in shown}
            kinds = Counter(_kind(row) for row in rows if id(row) not in chosen)
            reported = ", ".join(f"{number} {kind}" for kind, number in kinds.most_common())
            lines.append(f"… and {len(rows) - len(shown)} more: {reported}")
        counts = ", ".join(f"{number} {status}" for status, number in sorted(self._statuses.items()))
        lines += [self._stopping] if self._stopping else []
        left = remaining(", ", self._state)
        return [*lines, f"{clock(time.monotonic() - self._began)}  {counts or 'nothing finished yet'}{left}"]


def fitting(rows: Sequence[tuple[str, ...]], width: int) -> dict[str, int]:
    """Return the columns that fit, and the width that each needs.

    Args:
        rows: Cells in the order of `COLUMNS`.
        width: Of the terminal.
    """
    columns = zip(COLUMNS, *rows, strict=True)
    wanted = {name: max(map(cell_len, (name, *cells))) for name, *cells in columns}
    for name in (None, *DROPPED_FIRST):
        wanted.pop(name or "", None)
        cut = max(0, sum(wanted.values()) + 2 * len(wanted) - width)  # two spaces between columns, one around them
        if cut <= max(0, wanted.get("case", 0) - FEWEST_CASE_LETTERS):
            return wanted | ({"case": wanted["case"] - cut} if cut else {})
    return wanted


def choose_rows(rows: Sequence[HostRow], most: int) -> list[HostRow]:
    """Choose the rows that fit: running first, then failed, then waiting; return them in the order of the plan.

    Args:
        rows: In the order of the plan.
        most: Number of rows that fit.
    """
    chosen = sorted(range(len(rows)), key=lambda index: rows[index].rank)[:most]
    return [rows[index] for index in sorted(chosen)]


def gpu_names(facts: Facts | None) -> str:
    """Return a short name of a host's GPUs: `2 × RTX A4000`."""
    if facts is None:
        return "?"
    names = Counter(plain_text(gpu.name, 40).removeprefix("NVIDIA ").removeprefix("GeForce ") for gpu in facts.gpus)
    return ", ".join(f"{number} × {name}" for name, number in names.items()) or "none"


def _job_titles(jobs: Sequence[Job]) -> dict[str, tuple[int, str, str]]:
    """Return position, variant and title of each job of a host, including multi-host jobs of which it is the chief."""
    return {
        job.id: (position, job.origin.variant or "", f"{job.case.name} r{job.origin.repeat}")
        for position, job in enumerate(jobs, start=1)
    }


def _cells(row: HostRow, seconds_left: float) -> tuple[str, ...]:
    left = 0.0 if row.state in (DONE, DROPPED) else seconds_left
    state = f"{row.state}, {row.failed} failed" if row.failed and row.state in (DONE, DROPPED) else row.state
    return (
        row.title,
        row.gpu,
        row.variant,
        row.case,
        f"{row.position}/{row.total}",
        state,
        row.step,
        row.speed,
        clock(left) if left else "",
    )


def _kind(row: HostRow) -> str:
    """Return the kind of a host, for hosts that are only counted."""
    if row.state in (WAITING, DROPPED):
        return row.state
    if row.state == DONE:
        return "done with failures" if row.failed else DONE
    return "at work"


def make_display(kind: str, console: Console) -> Display:
    """Choose a display.

    Args:
        kind: `live`, `plain`, `json` or `none`; `auto`: live on a terminal that can redraw, otherwise plain.
        console: On stderr.

    Raises:
        UserError: There is no such display.
    """
    if kind == "live" or (kind == "auto" and console.is_terminal and not console.is_dumb_terminal):
        return LiveDisplay(console)
    if kind == "json":
        return JSONDisplay()
    if kind in ("auto", "plain"):
        return PlainDisplay(console.file)
    if kind == "none":
        return NoDisplay()
    raise UserError(f"TFBENCH_DISPLAY must be auto, live, plain, json or none. Received: {shown(kind)}")

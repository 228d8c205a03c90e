"""The live table: a row per host, with the most relevant ones if they do not all fit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrate import events
from orchestrate.display.display import STOPPING, Display, JSONDisplay, PlainDisplay, clock, describe, remaining
from orchestrate.display.streams import is_behind, undelayed
from orchestrate.errors import UserError
from orchestrate.events import Event
from orchestrate.planning.facts import Facts
from orchestrate.running.state import QUEUED, HostState, RunState
from orchestrate.text import each, plain_text, shown
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

AT_WORK, DROPPED, FAILED, WAITING, DONE = KINDS = ("at work", "dropped", "done with failures", "waiting", "done")
"""Kinds of hosts, those that are shown first."""


class _Live(Live):
    """A table that is not drawn while its reader is behind."""

    def refresh(self) -> None:
        """See `Live.refresh`."""
        if not is_behind(self.console.file):
            super().refresh()


class LiveDisplay(Display):
    """A table that is redrawn in place, with messages printed above it.

    Args:
        console: On stderr.
        state: The state of the run.
        began: Start of the run on the clock of `time.monotonic()`; None: now.
    """

    def __init__(self, console: Console, state: RunState, began: float | None = None) -> None:
        self._console = console
        self._state = state
        self._began = time.monotonic() if began is None else began
        console.file = undelayed(console.file)
        rate = REFRESH_PER_SECOND if len(state.hosts) <= MANY_HOSTS else 1
        self._live = _Live(console=console, refresh_per_second=rate, get_renderable=self.render, transient=True)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Print an event above the table; most are shown in the table only."""
        match event:
            case events.JobResult(status=Status.OK) | events.HostChecked(problem=None):
                pass  # a thousand lines would hide failures
            case (
                events.RunStarted()
                | events.HostChecked()
                | events.HostLost()
                | events.Warned()
                | events.Decided()
                | events.Stopping()
                | events.JobResult()
                | events.RunFinished()
            ):
                failures = self._state.failures(event) if isinstance(event, events.RunFinished) else ()
                for line in (describe(event), *failures):
                    print_line(line, self._console)

    def render(self) -> RenderableType:
        """Return the current table."""
        hosts = list(self._state.hosts.values())
        most = max(FEWEST_ROWS, self._console.height - OTHER_LINES)
        order = sorted(range(len(hosts)), key=lambda index: KINDS.index(_kind(hosts[index])))
        chosen, others = [hosts[index] for index in sorted(order[:most])], [hosts[index] for index in order[most:]]
        cells = [_cells(host, self._state.seconds_left(host.entry.host.key)) for host in chosen]
        table, widths = new_table(), fitting(cells, self._console.width)
        for name, width in widths.items():
            right = name in RIGHT
            table.add_column(name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis", width=width)
        for row in cells:
            table.add_row(*(Text(cell) for name, cell in zip(COLUMNS, row, strict=True) if name in widths))
        lines = []
        if others:
            kinds = Counter(map(_kind, others)).most_common()
            lines.append(f"… and {len(others)} more: {', '.join(f'{number} {kind}' for kind, number in kinds)}")
        if (stopping := self._state.stopping) is not None:
            lines.append("stopping: ending the running repeats" if stopping.now else f"stopping… {STOPPING}")
        statuses = Counter(result.status for result in list(self._state.results.values()))
        counts = ", ".join(f"{number} {status}" for status, number in sorted(statuses.items()))
        left = remaining(", ", self._state)
        lines.append(f"{clock(time.monotonic() - self._began)}  {counts or 'nothing finished yet'}{left}")
        return Group(table, *map(Text, lines))


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


def gpu_names(facts: Facts | None) -> str:
    """Return a short name of a host's GPUs: `2 × RTX A4000`."""
    if facts is None:
        return "?"
    names = (plain_text(gpu.name, 40).removeprefix("NVIDIA ").removeprefix("GeForce ") for gpu in facts.gpus)
    return each(names) or "none"


def _kind(host: HostState) -> str:
    if host.dropped:
        return DROPPED
    if host.states:
        return AT_WORK
    if host.ended >= len(host.jobs):
        return FAILED if host.failed else DONE
    return AT_WORK if host.ended or host.pulled else WAITING


def _cells(host: HostState, seconds_left: float) -> tuple[str, ...]:
    """Return the cells of a host: of a queue, how many repeats run and wait; of a machine, its repeat."""
    states, kind = dict(host.states), _kind(host)
    position, state, variant, case, step, speed = host.ended, WAITING, "", "", "", ""
    if host.entry.host.slots > 1:  # cases and steps of several repeats would alternate in one row
        queued = sum(word in (QUEUED, "launching") for word in states.values())
        state = f"{len(states) - queued} run, {queued} {QUEUED}" if states or host.ended else WAITING
    else:
        position += len(states.keys() & host.jobs.keys())
        if job := host.jobs.get(host.latest):
            variant, case = job.origin.variant or "", f"{job.case.name} r{job.origin.repeat}"
        else:
            case = plain_text(host.latest, 80)  # a part of a repeat that another host leads
        if host.step is not None:
            step, speed = str(host.step.step), f"{host.step.samples_per_second:.1f}"
        if host.pulled is not None:
            state, step = "pulling", f"{host.pulled[0]:.0%}"
        elif states:
            state = plain_text([*states.values()][-1], 20)
    if kind in (DROPPED, FAILED, DONE):
        state, step = (DROPPED if kind == DROPPED else DONE) + (f", {host.failed} failed" if host.failed else ""), ""
    return (
        f"{host.entry.host.fleet}/{host.entry.host.name}",
        gpu_names(host.entry.facts),
        variant,
        case,
        f"{position}/{len(host.jobs)}",
        state,
        step,
        speed,
        clock(seconds_left) if seconds_left and kind in (AT_WORK, WAITING) else "",
    )


def make_display(kind: str, console: Console, state: RunState) -> Display:
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

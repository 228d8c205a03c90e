"""After a run: its results, the user's `--when-done` command, and rented machines that still cost money."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from orchestrate.display.display import notify, stdout_console
from orchestrate.display.streams import stderr_file
from orchestrate.errors import UserError
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.base import Launcher
from orchestrate.planning.durations import hourly_usd
from orchestrate.planning.plan import Plan
from orchestrate.running.run import query_hosts
from results.grid import print_grid
from results.program import command_line, started_as_tfbench
from results.runs.store import RunFolder, write_file
from results.schema.exit_codes import ExitCode
from results.table.merge import merge_records
from results.text import counted

MAX_ROWS_SHOWN = 1_000
"""Maximum number of rows that a run shows at its end; beyond it, the fleets' tables and the command for all rows."""

MAX_REPORTED = 5_000
"""Maximum number of records for which a run writes its report; more would take longer than a user waits."""

Notify = Callable[[str], None]
"""Receives a line for the user."""

Handler = Callable[[int, FrameType | None], None]
"""Handler of a signal."""

ANSWER_SECONDS = 15.0
"""Longest wait for hosts to answer: slightly more than ssh's timeout for a machine that is gone."""

MAX_NAMED = 20

TOGETHER_SECONDS = 0.15
"""Time after a signal in which others have the same cause; a user presses Ctrl-C twice more slowly."""


@contextmanager
def when_done(command: str | None, notify: Notify) -> Iterator[None]:
    """Run a shell command after the block, however it ends, e.g. to return rented machines.

    SIGTERM and SIGHUP (a closed terminal) end the block like Ctrl-C. After a mistake in flags or files the command does
    not run: nothing was measured, and the user will try again.

    Args:
        command: For `sh`; never printed, because it may contain a token. None: nothing is run.
        notify: Receives lines about its start and end.
    """
    measured = True
    with signals_handled(lambda *_: None, signal.SIGINT):  # nothing ends it before the command
        try:
            with signals_handled(_interrupt, signal.SIGINT):
                yield
        except UserError as error:
            measured = error.exit_code is not ExitCode.USAGE
            raise
        finally:
            if command is not None and measured:
                run_command(command, notify)
            elif command is not None:
                notify("--when-done did not run, because nothing was measured")


@contextmanager
def signals_handled(handle: Handler, *more: signal.Signals) -> Iterator[None]:
    """Handle SIGTERM and SIGHUP in the block; of several SIGHUPs, as sent by a closing terminal, only the first.

    Signals at the same moment are one: `timeout` sends each to its child and to the group of processes.
    """
    handled_at = -math.inf

    def handle_once(number: int, frame: FrameType | None) -> None:
        nonlocal handled_at
        if time.monotonic() - handled_at > TOGETHER_SECONDS:
            handled_at = time.monotonic()
            handle(number, frame)

    def handle_hangup(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        handle_once(number, frame)

    handlers = dict.fromkeys((signal.SIGTERM, *more), handle_once)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # otherwise nohup
        handlers[signal.SIGHUP] = handle_hangup
    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run_command(command: str, notify: Notify) -> int:
    """Run a shell command to its end, with its output on stderr and no input.

    The command has a session of its own, so the Ctrl-C that ends the run does not interrupt it. A second one does.

    Returns:
        Its exit code, which does not affect the run's; negative: it was ended by that signal.
    """
    notify("--when-done: running the command")
    interrupts = 0

    def handle(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            notify("--when-done is still running. Press Ctrl-C again to end it")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=stderr_file(),
        stderr=stderr_file(),
        start_new_session=True,
    )
    with signals_handled(handle, signal.SIGINT):
        code = process.wait()
    if code == 0:
        notify("--when-done succeeded")
    else:
        notify(f"--when-done FAILED with exit code {code}. Check whether your machines still cost money")
    return code


def show_results(folder: RunFolder, records: int, *, quiet: bool, report: bool) -> None:
    """Write `results.csv` and, if `report`, the report; then show the table."""
    from results.report.tables import brief_grids, to_csv, wide_grids
    from results.table.fleets import outliers

    merged = merge_records(folder.records())  # read lazily: 24,000 records would take a GB
    write_file(folder.table_path, to_csv(merged))
    shown = len(merged.rows) <= MAX_ROWS_SHOWN
    if not quiet:
        console = stdout_console()
        for grid in brief_grids(merged) if shown else wide_grids(merged):
            print_grid(grid, console)
    notify(
        *merged.problems,
        *map(str, outliers(merged.rates)),
        f"records, logs and results.csv: {folder.path}",
        _write_report(folder) if report and records <= MAX_REPORTED else f"report: {_report_command(folder)}",
        f"{'table' if shown else f'all {len(merged.rows)} rows'}: {command_line('results', 'show', folder.path)}",
    )


def verdict(folder: RunFolder) -> str:
    """Describe which of a run's two fleets is faster, if it has two, and how many repeats are suspect."""
    from results.compare.overall import answer_lines
    from results.compare.pairs import compare, fleets_of

    merged = merge_records(folder.records())
    rates, suspects = merged.rates, f"{merged.suspects} suspect, in no mean" if merged.suspects else ""
    sides = [[rate for rate in rates if rate.fleet == fleet] for fleet in fleets_of(rates)]
    answer = next(iter(answer_lines(compare(sides[1], sides[0]))), "") if len(sides) == 2 else ""
    return ". ".join(filter(None, (answer.rstrip("."), suspects))) if suspects else answer


def _write_report(folder: RunFolder) -> str:
    """Write the report of a run; return its path, or the command that writes it.

    Runs in a process of its own, so that an error cannot affect the run.
    """
    module = "orchestrate.cli" if started_as_tfbench() else "results"  # the command for hints in the report
    command = [sys.executable, "-P", "-m", module, "report", str(folder.path), f"--output={folder.report_path}"]
    project = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([project, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return (
        f"report: {folder.report_path}"
        if done.returncode == 0
        else f"writing the report failed; to try again: {_report_command(folder)}"
    )


def _report_command(folder: RunFolder) -> str:
    return command_line("results", "report", folder.path)


def still_costing(plan: Plan, make: Callable[[Host], Launcher], seconds: float = ANSWER_SECONDS) -> str | None:
    """Describe the hosts with a price that answer now, and their costs; None: there are none.

    Args:
        plan: Of the run; queues are excluded, because their idle nodes cost nothing.
        make: Creates the launcher of a host.
        seconds: Longest wait.
    """
    priced = [entry for entry in plan.hosts if entry.host.queue is None and entry.host.usd_per_gpu_hour]
    answers = query_hosts([entry.host for entry in priced], make, lambda _, there: there.running(plan.run_id), seconds)
    answered = [entry for entry, answer in zip(priced, answers, strict=True) if not isinstance(answer, str)]
    costs = {entry.host.key: hourly_usd(entry) or 0.0 for entry in answered}
    if not costs:
        return None
    named = [f"{key} {usd:.2f}" for key, usd in list(costs.items())[:MAX_NAMED]]
    more = [f"{len(costs) - MAX_NAMED} more"] if len(costs) > MAX_NAMED else []
    one = len(costs) == 1
    subject = "1 host still answers and costs" if one else f"{len(costs)} hosts still answer and cost"
    usd = f"{sum(costs.values()):.2f} USD per hour until you return {'it' if one else 'them'}"
    silent = len(priced) - len(answered)
    others = f". {counted(silent, 'host')} did not answer, and may cost as well" if silent else ""
    return f"{subject} {usd}: {', '.join(named + more)}{others}"

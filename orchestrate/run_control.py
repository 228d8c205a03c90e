"""Carries out a plan under control of this process: its journal, display, Ctrl-C, results, costs and `--when-done`."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType

from rich.console import Console

from orchestrate import loop
from orchestrate.deep_check import FOLDER, HostVerdict, judge_records, plan_deep_check
from orchestrate.display import tables
from orchestrate.display.display import make_display, notify, stdout_console
from orchestrate.display.streams import stderr_file
from orchestrate.errors import UserError
from orchestrate.events import Event, EventBus, ImageProgress, JobStep, Stopping, event_document, stored_event
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.options import How, Where
from orchestrate.planning.durations import Durations, RunEstimate, estimate, fitting_repeats, hourly_usd, usd_text
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Plan, new_run_id, plan_to_json
from orchestrate.running.context import Late, MakeLauncher, Stop, StorageFailed, storing
from orchestrate.running.controller import controlling, is_controlled, tune_process
from orchestrate.running.probing import query_hosts
from orchestrate.running.run import execute
from orchestrate.running.state import TRIED_AGAIN, Recorded, RunState
from orchestrate.session import launcher_maker, read_plan, resume_hint
from orchestrate.text import shortened
from results.program import command_line, started_as_tfbench
from results.runs.store import RunFolder, write_file
from results.schema import Status
from results.schema.exit_codes import ExitCode
from results.text import counted
from results.text_table import print_grid

MAX_ROWS_SHOWN = 1_000
"""Maximum number of rows that a run shows at its end; beyond it, the fleets' tables and the command for all rows."""

MAX_REPORTED = 5_000
"""Maximum number of records for which a run writes its report; more would take longer than a user waits."""

ANSWER_SECONDS = 15.0
"""Longest wait for hosts to answer: slightly more than ssh's timeout for a machine that is gone."""

MAX_NAMED = 20


def run_row(path: Path) -> dict[str, str]:
    """Return the row of a run, or the reason why it cannot be read."""
    folder = RunFolder.open(path)
    try:
        planned = read_plan(folder)
        created = datetime.fromisoformat(planned.created_at)
    except (UserError, ValueError) as error:
        words = str(error).partition(": ")[2]
        return {"run": folder.run_id, "date": "", "fleets": "", "suite": "", "progress": "unknown", "verdict": words}
    counts = Recorded.of(planned, folder).outcome()
    numbers = {"failed": counts.failed - counts.stopped, "stopped": counts.stopped, "skipped": counts.skipped}
    parts = [f"{counts.ok + counts.failed}/{len(planned.jobs)}"]
    parts += [f"{number} {word}" for word, number in numbers.items() if number]
    parts += ["running"] if is_controlled(path) else []
    return {
        "run": folder.run_id,
        "date": f"{created:%Y-%m-%d %H:%M}",
        "fleets": ", ".join(dict.fromkeys(entry.host.fleet for entry in planned.hosts)),
        "suite": ", ".join(dict.fromkeys(entry.suite for entry in planned.hosts)),
        "progress": ", ".join(parts),
        "verdict": verdict(folder),
    }


def deep_check(
    where: Where, hosts: list[Host], probed: Mapping[HostPlace, Facts | str]
) -> tuple[list[HostVerdict], bool]:
    """Measure all answering hosts in parallel; return a verdict on each, and whether the user stopped it."""
    run_id = new_run_id()
    planned = plan_deep_check(hosts, probed, run_id)
    with storing(RunFolder(where.runs_dir / FOLDER / run_id)):
        folder = RunFolder.create(where.runs_dir / FOLDER, run_id)
        folder.write_plan(plan_to_json(planned))
    bus, stop = EventBus(), Stop()
    tune_process()
    with storing(folder), _controlled(folder, bus, stop, "auto", RunState(planned)):
        execute(planned, folder, launcher_maker(folder.path, bus), bus, stop)
    return judge_records(planned, folder, where.runs_dir), stop.asked


@contextmanager
def ending(how: How) -> Iterator[list[Plan]]:
    """After the block, also after an error: run `--when-done`, then report rented machines that were not returned.

    Yields:
        A list, to which the block adds its plan when it begins to measure.
    """
    begun: list[Plan] = []
    try:
        with when_done(how.when_done, notify):
            yield begun
    except UserError as error:
        if error.exit_code is ExitCode.USAGE:  # nothing was measured; another controller may be using them
            begun.clear()
        raise
    finally:
        for planned in begun:
            notify(*still_costing(planned, launcher_maker(None)))


def start(how: How, planned: Plan, runs_dir: Path, begun: list[Plan], late: Late) -> int:
    """Estimate a new run, create its folder and carry it out; `begun` receives the plan when it begins to measure."""
    estimated = estimate(planned, Durations.of(planned, runs_dir))
    tables.render_estimate(estimated, Console(stderr=True))
    if how.max_cost is not None and estimated.usd is not None and estimated.usd > how.max_cost:
        fitting = fitting_repeats(planned, Durations.of(planned, runs_dir), how.max_cost)
        allowed = f"about {fitting} of {counted(len(planned.jobs), 'repeat')}"
        limits = f"--max-cost {usd_text(how.max_cost)} is below the estimated {usd_text(estimated.usd)} USD"
        notify(f"{limits}: it allows {allowed}")
    text = plan_to_json(planned)
    begun.append(planned)
    with storing(RunFolder(runs_dir / planned.run_id)):
        folder = RunFolder.create(runs_dir, planned.run_id)
        folder.write_plan(text)
    return carry_out(how, planned, folder, TRIED_AGAIN, estimated, late)


def carry_out(
    how: How,
    planned: Plan,
    folder: RunFolder,
    again: frozenset[Status],
    estimated: RunEstimate | None = None,
    late: Late | None = None,
) -> int:
    """Run the missing repeats, then show the table, the time taken, and the paths of files."""
    began = time.monotonic()
    bus, stop = EventBus(), Stop()
    state = RunState(planned, Durations.of(planned, folder.path.parent))
    state.resume(filter(None, map(stored_event, folder.read_events())), again)
    tune_process()
    with storing(folder):
        with _controlled(folder, bus, stop, how.display, state):
            make = launcher_maker(folder.path, bus)
            outcome = execute(planned, folder, make, bus, stop, how, again=again, late=late, state=state)
        took = time.monotonic() - began
        show_results(folder, outcome.ok + outcome.failed, quiet=how.display == "json", report=how.report)
    complete = not outcome.missing + outcome.stopped + outcome.skipped
    tables.render_taken(took, estimated if complete else None, Console(stderr=True))
    notify(*outcome.answers)
    if stop.asked and outcome.missing + outcome.stopped:
        notify(f"stopped. {resume_hint(folder)}")
        return ExitCode.STOPPED
    return ExitCode.SOME_FAILED if outcome.failed or outcome.missing else ExitCode.OK


@contextmanager
def _controlled(folder: RunFolder, bus: EventBus, stop: Stop, display: str, state: RunState) -> Iterator[None]:
    """Control a run in the block: lock it, store, reduce and show its events, and stop it on Ctrl-C."""
    folder.complete()
    shown = make_display(display, Console(stderr=True), state)
    with controlling(folder.path), folder.journal() as journal, shown, _interrupts(stop, folder, bus):

        def store(event: Event) -> None:
            if not isinstance(event, JobStep | ImageProgress):
                with storing(folder):
                    journal.append(event_document(event))

        for subscriber in (store, state.note, shown.show):
            bus.subscribe(subscriber)
        yield


def statuses_of(named: str | None) -> frozenset[Status]:
    """Return the statuses whose repeats `resume` measures again.

    Args:
        named: Comma-separated statuses, in addition to host failures and stopped repeats.
    """
    words = named.split(",") if named is not None else []
    unknown = [word for word in words if word not in set(Status) - {Status.OK}]
    if unknown:
        known = ", ".join(status for status in Status if status is not Status.OK)
        raise UserError(f"--again: unknown status {', '.join(map(repr, unknown))}. Choose from: {known}")
    return TRIED_AGAIN | {Status(word) for word in words}


@contextmanager
def _interrupts(stop: Stop, folder: RunFolder, bus: EventBus) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP: the first starts no new repeats, the second ends running ones."""
    reports: list[threading.Thread] = []

    def handle(_number: int, _frame: object) -> None:
        if stop.running.is_set():
            return
        now = stop.ask() > 1
        again = "" if now else "Press Ctrl-C again to end them now. "
        event = Stopping(now=now, hint=f"{again}{resume_hint(folder)}")
        # In a thread of its own: the interrupted one may hold the lock of the bus or of a stream.
        reports.append(threading.Thread(target=emit, args=(event,), daemon=True))
        reports[-1].start()

    def emit(event: Event) -> None:
        with contextlib.suppress(StorageFailed):  # reported by the workers
            bus.emit(event)

    with signals_handled(handle, signal.SIGINT):
        yield
    for report in reports:
        report.join(1.0)


def show_results(folder: RunFolder, records: int, *, quiet: bool, report: bool) -> None:
    """Write `results.csv` and, if `report`, the report; then show the table."""
    from results.report.tables import all_grids, exported, wide_grids
    from results.table.fleets import outliers
    from results.table.merge import merge_records

    merged = merge_records(folder.records())  # read lazily: 24,000 records would take a GB
    write_file(folder.table_path, exported(merged, "csv"))
    shown = len(merged.rows) <= MAX_ROWS_SHOWN
    if not quiet:
        console = stdout_console()
        for grid in all_grids(merged, brief=True) if shown else wide_grids(merged):
            print_grid(grid, console)
    notify(
        *merged.problems,
        *outliers(merged.rates),
        f"records, logs and results.csv: {folder.path}",
        _write_report(folder) if report and records <= MAX_REPORTED else f"report: {_report_command(folder)}",
        f"{'table' if shown else f'all {len(merged.rows)} rows'}: {command_line('results', 'show', folder.path)}",
    )


def verdict(folder: RunFolder) -> str:
    """Describe which of a run's two fleets is faster, if it has two, and how many repeats are suspect."""
    from results.compare.comparison import compare, fleets_of
    from results.compare.means import answer_lines
    from results.table.merge import merge_records

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


def still_costing(plan: Plan, make: MakeLauncher, seconds: float = ANSWER_SECONDS) -> list[str]:
    """Describe in a line the hosts with a price that answer now, and their costs; empty: there are none.

    Args:
        plan: Of the run; queues are excluded, because their idle nodes cost nothing.
        make: Creates the launcher of a host.
        seconds: Longest wait.
    """
    priced = [entry for entry in plan.hosts if entry.host.queue is None and entry.host.usd_per_gpu_hour]
    hosts = [entry.host for entry in priced]
    answers = loop.wait_for(query_hosts(hosts, make, lambda _, there: there.running(plan.run_id), seconds))
    answered = [entry for entry in priced if not isinstance(answers[entry.host.place], str)]
    costs = {entry.host.key: hourly_usd(entry) or 0.0 for entry in answered}
    if not costs:
        return []
    one = len(costs) == 1
    subject = "1 host still answers and costs" if one else f"{len(costs)} hosts still answer and cost"
    usd = f"{sum(costs.values()):.2f} USD per hour until you return {'it' if one else 'them'}"
    named = shortened([f"{key} {price:.2f}" for key, price in costs.items()], MAX_NAMED)
    silent = len(priced) - len(answered)
    others = f". {counted(silent, 'host')} did not answer, and may cost as well" if silent else ""
    return [f"{subject} {usd}: {named}{others}"]


Notify = Callable[[str], None]
"""Receives a line for the user."""

Handler = Callable[[int, FrameType | None], None]
"""Handler of a signal."""

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

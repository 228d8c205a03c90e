"""The commands of `python -m orchestrate`: each reads as read → ask → plan → run → report."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path

import stamina.instrumentation
from filelock import FileLock, Timeout
from rich.console import Console

from orchestrate.accepting.deep import FOLDER, Checked, judge_records, plan_deep_check
from orchestrate.accepting.judging import Verdict
from orchestrate.accepting.verdict_table import verdict_grid, verdicts_json
from orchestrate.afterwards import signals_handled, still_costing, when_done
from orchestrate.display import tables
from orchestrate.display.display import make_display
from orchestrate.display.wording import describe
from orchestrate.errors import NoUsableHost, UserError
from orchestrate.events import Event, EventBus, JobStep, Stopping, Warned, event_document
from orchestrate.inventory.hosts import Host, Place, read_hosts
from orchestrate.launchers.base import Launcher, QueueLauncher
from orchestrate.launchers.pulls import PullLimits
from orchestrate.links.first_contact import remember_new_keys
from orchestrate.planning.codec import plan_from_json, plan_to_json
from orchestrate.planning.durations import Durations, RunEstimate, earlier_durations, estimate
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan, make_plan, new_run_id
from orchestrate.running.launchers import make_launcher
from orchestrate.running.options import TRIED_AGAIN, Options, Stop
from orchestrate.running.process_limits import allow_open_files, collect_rarely
from orchestrate.running.run import Outcome, count_records, execute, probe_hosts, stop_run
from orchestrate.suites import read_suite
from results.grid import Grid, print_grid
from results.program import command_line, started_as_tfbench
from results.runs.checked_hosts import keep_check
from results.runs.store import Journal, RunFolder, latest_run
from results.schema import Status
from results.schema.exit_codes import ExitCode
from results.table.merge import merge_records

HOSTS_FILE = Path("hosts.yml")

THIS_MACHINE = Path(__file__).parent / "inventory" / "this_machine.yml"
"""Hosts file of a user who has none, so that the first command after an installation measures something."""

MAX_ROWS_SHOWN = 1_000
"""Rows up to which a run ends by showing all of them; of more, the tables per fleet, and how to see the rest."""

MAX_REPORTED = 5_000
"""Records up to which a run writes its report by itself; for more, drawing takes longer than a user would wait."""


def hosts(parsed: argparse.Namespace) -> int:
    """Print a hosts file made from another tool's list of machines."""
    from orchestrate.inventory.sources import import_hosts

    sys.stdout.write(import_hosts(parsed.source, parsed.file))
    return ExitCode.OK


def check(parsed: argparse.Namespace) -> int:
    """Ask every host what it is; exit code 4 when none can measure."""
    hosts, bus = read_hosts(_hosts_file(parsed), parsed.limit), EventBus()
    if parsed.trust_new:
        tables.render_new_keys(remember_new_keys(hosts), _stdout())
    bus.subscribe(_show_warnings)
    probed = probe_hosts(hosts, _maker(None, bus), bus)
    if parsed.deep:
        checked = _deep_check(parsed, hosts, probed)
        if parsed.format == "json":
            sys.stdout.write(verdicts_json(checked))
        rejected = any(found.verdict is Verdict.REJECT for found in checked.verdicts)
        return ExitCode.NO_HOST if rejected else ExitCode.OK
    tables.render_check(hosts, probed, _stdout())
    return ExitCode.OK if any(_usable(facts) for facts in probed.values()) else ExitCode.NO_HOST


def _deep_check(parsed: argparse.Namespace, hosts: list[Host], probed: Mapping[Place, Facts | str]) -> Checked:
    """Measure every host that answers, all side by side, and show what each is worth."""
    run_id = new_run_id()
    planned = plan_deep_check(hosts, probed, run_id)
    folder = RunFolder.create(parsed.runs_dir / FOLDER, run_id)
    folder.write_plan(plan_to_json(planned))
    bus, stop = EventBus(), Stop()
    display = make_display("auto", Console(stderr=True))
    display.planned(planned)
    collect_rarely()
    with _locked(folder), folder.journal() as journal, display, _interrupts(stop, folder, bus):
        bus.subscribe(_store_in(journal))
        bus.subscribe(display.show)
        execute(planned, folder, _maker(folder.path, bus), bus, stop, Options())
    checked = judge_records(planned, folder, parsed.runs_dir)
    if getattr(parsed, "format", "text") == "text":
        print_grid(verdict_grid(checked), _stdout())
    return checked


def _accepted(parsed: argparse.Namespace) -> tuple[list[Host], Grid]:
    """Return the hosts that a deep check does not reject, and its table.

    Raises:
        NoUsableHost: It rejects all.
    """
    hosts = read_hosts(_hosts_file(parsed), parsed.limit)
    checked = _deep_check(parsed, hosts, probe_hosts(hosts, _maker(None), EventBus()))
    rejected = {(found.fleet, found.host) for found in checked.verdicts if found.verdict is Verdict.REJECT}
    kept = [host for host in hosts if (host.fleet, host.name) not in rejected]
    if not kept:
        raise NoUsableHost("every host was rejected by its deep check: see the lines above")
    if rejected:
        _notify(f"left out, rejected by the deep check: {', '.join('/'.join(place) for place in sorted(rejected))}")
    return kept, verdict_grid(checked)


def plan(parsed: argparse.Namespace) -> int:
    """Show what `run` would do."""
    planned = _plan(parsed, new_run_id(), _progress_bus(parsed))
    if parsed.format == "json":
        sys.stdout.write(plan_to_json(planned, ensure_ascii=True))
    else:
        tables.render_plan(planned, _stdout())
        tables.render_estimate(estimate(planned, Durations.of(planned, parsed.runs_dir)), _stdout())
    if parsed.show_manifests:
        _show_manifests(planned)
    return ExitCode.OK


def _show_manifests(planned: Plan) -> None:
    """Print what would be handed to each queue, as it is."""
    make = _maker(None)
    for entry in planned.hosts:
        launcher = make(entry.host) if entry.host.queue is not None else None
        if isinstance(launcher, QueueLauncher):
            for text in launcher.manifests([job for job in entry.jobs if job.blocked is None]):
                sys.stdout.write(f"# fleet {entry.host.fleet}\n{text}\n")
            launcher.close()


def run(parsed: argparse.Namespace) -> int:
    """Measure."""
    with when_done(parsed.when_done, _notify):
        planned, code = _run(parsed)
    _report_costs(planned)
    return code


def _run(parsed: argparse.Namespace) -> tuple[Plan, int]:
    """Plan and measure; return the plan and the exit code."""
    run_id = parsed.run_id or new_run_id()
    hosts, check = _accepted(parsed) if parsed.accept else (None, None)
    planned = _plan(parsed, run_id, _progress_bus(parsed), hosts)
    if not any(entry.facts and _usable(entry.facts) for entry in planned.hosts):
        causes = "\n".join(f"  {entry.host.key}: {_why(entry)}" for entry in planned.hosts)
        raise NoUsableHost(f"no host can measure anything:\n{causes}\nSee: {command_line('orchestrate', 'check')}")
    estimated = estimate(planned, Durations.of(planned, parsed.runs_dir))
    tables.render_estimate(estimated, Console(stderr=True))
    allow_open_files([entry.host for entry in planned.hosts], parsed.max_parallel)
    folder = RunFolder.create(parsed.runs_dir, run_id)
    folder.write_plan(plan_to_json(planned))
    if check is not None:
        keep_check(folder.path, check)
    return planned, _carry_out(parsed, planned, folder, estimated)


def resume(parsed: argparse.Namespace) -> int:
    """Go on with a run."""
    folder = _folder(parsed)
    planned = _planned(folder)
    allow_open_files([entry.host for entry in planned.hosts], parsed.max_parallel)
    with when_done(parsed.when_done, _notify):
        code = _carry_out(parsed, planned, folder)
    _report_costs(planned)
    return code


def status(parsed: argparse.Namespace) -> int:
    """Say how a run stands; exit code as `run` would end now."""
    folder = _folder(parsed)
    planned = _planned(folder)
    running = _is_running(folder)
    tables.render_status(planned, folder, running, _stdout())
    if not running:
        _report_costs(planned)
    return _exit_code(count_records(planned, folder))


def stop(parsed: argparse.Namespace) -> int:
    """End and remove what a run has on its hosts."""
    folder = _folder(parsed)
    planned = _planned(folder)
    removed, problems = stop_run(planned, _maker(folder.path), EventBus())
    _notify(*problems, f"run {planned.run_id}: {removed} benchmarks ended and removed. {_resume_hint(folder)}")
    return ExitCode.SOME_FAILED if problems else ExitCode.OK


def _report_costs(planned: Plan) -> None:
    """Name rented machines that nobody has returned."""
    if line := still_costing(planned, _maker(None)):
        _notify(line)


def _carry_out(
    parsed: argparse.Namespace, planned: Plan, folder: RunFolder, estimated: RunEstimate | None = None
) -> int:
    """Run what is missing, then show the table, what it took, and where everything is."""
    began = time.monotonic()
    bus = EventBus()
    display = make_display(parsed.display, Console(stderr=True))
    display.planned(planned, Durations.of(planned, parsed.runs_dir))
    options, stop = _options(parsed), Stop()
    collect_rarely()
    with _locked(folder), folder.journal() as journal, display, _interrupts(stop, folder, bus):
        bus.subscribe(_store_in(journal))
        bus.subscribe(display.show)
        outcome = execute(planned, folder, _maker(folder.path, bus), bus, stop, options)
    took = time.monotonic() - began
    _show_results(folder, outcome.ok + outcome.failed, quiet=parsed.display == "json", report=parsed.report)
    tables.render_taken(took, estimated, Console(stderr=True))
    _notify(*outcome.answers)
    if stop.launching.is_set() and outcome.missing:
        _notify(f"stopped. {_resume_hint(folder)}")
        return ExitCode.STOPPED
    return _exit_code(outcome)


def _options(parsed: argparse.Namespace) -> Options:
    again = TRIED_AGAIN
    named = getattr(parsed, "again", None)
    if named is not None:
        unknown = [word for word in named.split(",") if word not in set(Status) - {Status.OK}]
        if unknown:
            known = ", ".join(status for status in Status if status is not Status.OK)
            raise UserError(f"--again: unknown status {', '.join(map(repr, unknown))}. Choose from: {known}")
        again = TRIED_AGAIN | {Status(word) for word in named.split(",")}
    return Options(
        max_parallel=parsed.max_parallel,
        fail_fast=parsed.fail_fast,
        retries=parsed.retries,
        set_aside_after=parsed.set_aside_after,
        max_usd=parsed.max_cost,
        again=again,
    )


def _show_results(folder: RunFolder, records: int, *, quiet: bool, report: bool) -> None:
    """Write the table of a run of so many records, and its report where it is wanted, and show the table."""
    from results.render.tables import render_ratios, render_results, wide_grids, write_csv
    from results.runs.time_breakdown import time_breakdown, time_breakdown_grid
    from results.table.outliers import outliers

    merged = merge_records(folder.records())  # one by one: 24,000 of them would take a GB
    write_csv(merged, folder.table_path)
    shown = len(merged.rows) <= MAX_ROWS_SHOWN
    if not quiet:
        console = _stdout()
        if shown:
            render_results(merged, console)
        for grid in wide_grids(merged):
            print_grid(grid, console)
        render_ratios(merged, console)
        if (minutes := time_breakdown_grid(time_breakdown(folder.records()))) is not None and shown:
            print_grid(minutes, console)
    _notify(
        *merged.problems,
        *map(str, outliers(merged.rates)),
        f"records, logs and results.csv: {folder.path}",
        _write_report(records, folder) if report else _report_hint(folder),
        f"{'table' if shown else f'all {len(merged.rows)} rows'}: {command_line('results', f'show {folder.path}')}",
    )


def _write_report(count: int, folder: RunFolder) -> str:
    """Write the report of a run that is small enough to be read as a page; say where it is, or how to get it.

    In a process of its own: drawing charts takes 400 MB, and what goes wrong there must not touch the run.
    """
    if count > MAX_REPORTED:
        return _report_hint(folder)
    module = "orchestrate.cli" if started_as_tfbench() else "results"  # so that hints in the report name it
    command = [sys.executable, "-P", "-m", module, "report", str(folder.path), f"--output={folder.report_path}"]
    project = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([project, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return (
        f"report: {folder.report_path}"
        if done.returncode == 0
        else f"writing the report failed; to try again: {_report_command(folder)}"
    )


def _report_hint(folder: RunFolder) -> str:
    return f"report: {_report_command(folder)}"


def _report_command(folder: RunFolder) -> str:
    return command_line("results", f"report {folder.path}")


def _plan(
    parsed: argparse.Namespace,
    run_id: str,
    bus: EventBus,
    hosts: list[Host] | None = None,
) -> Plan:
    """Ask all hosts, or those that are given, and plan."""
    hosts = read_hosts(_hosts_file(parsed), parsed.limit) if hosts is None else hosts
    read = lru_cache(read_suite)
    for host in hosts:  # mistakes in names come before anything is asked of a host
        read(parsed.suite or host.suite or "standard")
    probed = probe_hosts(hosts, _maker(None, bus), bus)

    planned = make_plan(
        hosts,
        probed,
        lambda name: read(parsed.suite or name),
        run_id=run_id,
        seed=parsed.seed,
        repeats=parsed.repeats,
        durations=earlier_durations(parsed.runs_dir),
    )
    return dataclasses.replace(planned, stop_early=parsed.stop_early)


def _hosts_file(parsed: argparse.Namespace) -> Path:
    """Return the hosts file; without one, this machine is the only host."""
    if not parsed.hosts and not HOSTS_FILE.exists():
        _notify(f"no {HOSTS_FILE} here: measuring this machine, without Docker")
        return THIS_MACHINE
    return parsed.hosts or HOSTS_FILE


def _maker(run_path: Path | None, bus: EventBus | None = None) -> Callable[[Host], Launcher]:
    """Return what makes launchers; those of one run share a limit of pulls, and report to a bus."""
    stamina.instrumentation.set_on_retry_hooks(())  # it would write on stderr, in the middle of a display

    def notify(host: str, message: str) -> None:
        if bus is not None:
            bus.emit(Warned(host=host, message=message))

    pulls = PullLimits(notify=notify)
    return partial(make_launcher, run_path=run_path, pulls=pulls)


def _folder(parsed: argparse.Namespace) -> RunFolder:
    """Find a run by its folder, its id, or as the latest one."""
    if parsed.run is None:
        return RunFolder.open(latest_run(parsed.runs_dir))
    path = Path(parsed.run)
    return RunFolder.open(path if path.is_dir() else parsed.runs_dir / parsed.run)


def _planned(folder: RunFolder) -> Plan:
    return plan_from_json(folder.read_plan(), str(folder.plan_path))


def _usable(facts: Facts | str) -> bool:
    return isinstance(facts, Facts) and facts.problem is None


def _why(entry: HostPlan) -> str:
    return entry.problem or (entry.facts.problem if entry.facts else None) or "nothing is wrong"


def _exit_code(outcome: Outcome) -> int:
    return ExitCode.SOME_FAILED if outcome.failed or outcome.missing else ExitCode.OK


def _store_in(journal: Journal) -> Callable[[Event], None]:
    """Append every event but single steps to the run's journal."""

    def store(event: Event) -> None:
        if not isinstance(event, JobStep):
            journal.append(event_document(event))

    return store


def _progress_bus(parsed: argparse.Namespace) -> EventBus:
    """Show what happens while hosts are asked, before there is a run."""
    bus = EventBus()
    kind = getattr(parsed, "display", "plain")
    display = make_display("plain" if kind in ("auto", "live") else kind, Console(stderr=True))
    bus.subscribe(display.show)
    return bus


def _show_warnings(event: Event) -> None:
    """Show what a user should know while hosts are asked, e.g. that a Python is installed."""
    if isinstance(event, Warned):
        _notify(describe(event))


def _lock(folder: RunFolder) -> FileLock:
    return FileLock(folder.path / ".lock", timeout=0)


@contextmanager
def _locked(folder: RunFolder) -> Iterator[None]:
    """Keep other controllers out of this run while we work on it."""
    try:
        with _lock(folder):
            yield
    except Timeout as error:
        raise UserError(
            f"another controller is using {folder.path}. See: {command_line('orchestrate', f'status {folder.path}')}"
        ) from error


def _is_running(folder: RunFolder) -> bool:
    try:
        with _lock(folder):
            return False
    except Timeout:
        return True


@contextmanager
def _interrupts(stop: Stop, folder: RunFolder, bus: EventBus) -> Iterator[None]:
    """First Ctrl-C (or SIGTERM, SIGHUP): start nothing more. Second: end what runs."""
    reports: list[threading.Thread] = []

    def handle(_number: int, _frame: object) -> None:
        now = stop.ask() > 1
        again = "" if now else "Press Ctrl-C again to end them now. "
        event = Stopping(now=now, hint=f"{again}{_resume_hint(folder)}")
        # In a thread of its own: the one that was interrupted may hold the locks of the displays.
        reports.append(threading.Thread(target=bus.emit, args=(event,), daemon=True))
        reports[-1].start()

    with signals_handled(handle, signal.SIGINT):
        yield
    for report in reports:
        report.join(1.0)


def _notify(*lines: str) -> None:
    """Print lines on stderr, as they are."""
    console = Console(stderr=True)
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _resume_hint(folder: RunFolder) -> str:
    return f"Resume with: {command_line('orchestrate', f'resume {folder.path}')}"


def _stdout() -> Console:
    """Return a console on stdout; in a pipe it is wide, because lines are for programs then."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=240)

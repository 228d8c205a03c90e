"""The commands of the controller; each reads as read → probe → plan → run → report."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

import stamina.instrumentation
from rich.console import Console

from orchestrate.accepting.deep import FOLDER, judge_records, plan_deep_check, verdict_grid, verdicts_json
from orchestrate.accepting.judging import Acceptance, HostVerdict
from orchestrate.afterwards import show_results, signals_handled, still_costing, verdict, when_done
from orchestrate.display import tables
from orchestrate.display.display import Display, notify, stdout_console
from orchestrate.display.live import make_display
from orchestrate.errors import NoUsableHost, UserError
from orchestrate.events import Event, EventBus, ImageProgress, JobStep, Stopping, Warned, event_document, stored_event
from orchestrate.inventory.hosts import Host, HostPlace, read_hosts
from orchestrate.launchers.base import Launcher, QueueLauncher
from orchestrate.launchers.pulls import PullLimits
from orchestrate.planning.codec import plan_from_json, plan_to_json
from orchestrate.planning.durations import (
    Durations,
    RunEstimate,
    earlier_durations,
    estimate,
    fitting_repeats,
    usd_text,
)
from orchestrate.planning.facts import Facts
from orchestrate.planning.host_warnings import problem_of
from orchestrate.planning.plan import DEFAULT_SUITE, HostPlan, Plan, make_plan, new_run_id
from orchestrate.running.controller import allow_open_files, collect_rarely, controlling, end_controller, is_controlled
from orchestrate.running.options import TRIED_AGAIN, RunOptions, Stop
from orchestrate.running.run import (
    ASK_SECONDS,
    execute,
    make_launcher,
    probe_hosts,
    query_hosts,
    stop_run,
)
from orchestrate.running.shared import Late, StorageFailed, storing
from orchestrate.running.state import Recorded, RunOutcome, RunState
from orchestrate.suites import read_suite, suite_names
from results.grid import Grid, print_grid
from results.program import command_line
from results.runs.store import Journal, RunFolder, is_folder, latest_run, run_folders
from results.schema import Device, Status
from results.schema.exit_codes import ExitCode
from results.text import counted

HOSTS_FILE = Path("hosts.yml")

FIRST_SUITE = "first"
"""Suite of a machine with GPUs and no hosts file; without GPUs, that of `this_machine.yml`."""

THIS_MACHINE = Path(__file__).parent / "inventory" / "this_machine.yml"
"""The default hosts file, so that a new user can measure this machine at once."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which machines to use.

    Attributes:
        hosts: File; None: `hosts.yml` if it exists, otherwise this machine.
        limit: Names of fleets and hosts to use; None: all.
        runs_dir: Folder of all runs.
    """

    hosts: Path | None = None
    limit: Sequence[str] | None = None
    runs_dir: Path = Path("runs")


@dataclass(frozen=True, kw_only=True)
class What:
    """What to measure.

    Attributes:
        suite: Name or file; None: from the hosts file.
        repeats: Repeats of each case; None: from the suite or hosts file.
        seed: For shuffling repeats.
        stop_early: See `Plan.stop_early`.
    """

    suite: str | None = None
    repeats: int | None = None
    seed: int = 1
    stop_early: float | None = None


@dataclass(frozen=True, kw_only=True)
class How:
    """How a plan is executed and displayed; see `RunOptions` for the other fields.

    Attributes:
        display: auto, live, plain, json or none.
        report: Whether `report.html` is written at the end.
        max_cost: In USD; no repeat starts that would exceed it.
        when_done: Shell command to run after the run, however it ends.
    """

    display: str = "auto"
    max_parallel: int | None = None
    fail_fast: bool = False
    report: bool = True
    max_cost: float | None = None
    when_done: str | None = None


def init(hosts: Path | None, *, source: str | None = None, file: str = "-") -> int:
    """Write a hosts file for this machine or another tool's list; an existing one is never changed."""
    from orchestrate.inventory.rented import import_hosts

    path = hosts or HOSTS_FILE
    text = import_hosts(source, file) if source else THIS_MACHINE.read_text(encoding="utf-8")
    if source is None and has_nvidia_driver():
        text = text.replace("suite: quick", f"suite: {FIRST_SUITE}")
    try:
        with path.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise UserError(f"{path} exists and was not changed. Write another file with --hosts FILE") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}. Choose another file with --hosts") from error
    found = read_hosts(path)
    fleets = ", ".join(dict.fromkeys(host.fleet for host in found))
    notify(
        f"wrote {path}: {counted(len(found), 'host')} (fleets: {fleets}). Next: {command_line('orchestrate', 'check')}"
    )
    return ExitCode.OK


def suites(name: str | None) -> int:
    """List the suites, or the cases of one."""
    print_grid(suites_grid(name), stdout_console())
    return ExitCode.OK


def suites_grid(name: str | None) -> Grid:
    """Return a grid with a row per suite, or per case of one suite."""
    if name is None:
        found = [read_suite(each) for each in suite_names()]
        rows = [
            [suite.name, suite.description, str(len(suite.cases(Device.GPU))), str(suite.repeats)] for suite in found
        ]
        return Grid("", ["suite", "what it measures", "cases>", "repeats>"], rows)
    suite = read_suite(name)
    cases = suite.cases(Device.GPU)
    columns = ["network", "precision", "batch>", "GPUs>", "XLA", "mode", "case"]
    rows = [
        [case.model, case.precision, str(case.batch_per_gpu), str(case.num_gpus), case.xla, case.mode, case.name]
        for case in cases
    ]
    notes = [f"{counted(len(cases), 'case')} on GPUs, {suite.repeats} repeats each"]
    return Grid(f"{suite.name}: {suite.description}", columns, rows, notes, ("case", "mode", "XLA"))


def runs(runs_dir: Path, *, format: str = "text") -> int:
    """List the runs, the latest first: date, fleets, suite, progress, and which fleet is faster."""
    found = sorted(map(_described, run_folders(runs_dir)), key=lambda run: run["date"], reverse=True)
    if format == "json":
        sys.stdout.write(_json({"runs": found}))
        return ExitCode.OK
    if not found:
        notify(f"{runs_dir}: no run found here. Start one: {command_line('orchestrate', 'run')}")
    grid = Grid("", ["run", "date", "fleets", "suite", "progress", "verdict"], [list(run.values()) for run in found])
    print_grid(replace(grid, optional=("suite", "verdict")), stdout_console())
    return ExitCode.OK


def _described(path: Path) -> dict[str, str]:
    """Return the row of a run, or the reason why it cannot be read."""
    folder = RunFolder.open(path)
    try:
        planned = _planned(folder)
        created = datetime.fromisoformat(planned.created_at)
    except (UserError, ValueError) as error:
        words = str(error).partition(": ")[2]
        return {"run": folder.run_id, "date": "", "fleets": "", "suite": "", "progress": "unknown", "verdict": words}
    counts = Recorded.of(planned, folder).outcome()
    parts = [f"{counts.ok + counts.failed}/{len(planned.jobs)}"]
    failed = counts.failed - counts.stopped
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{counts.stopped} stopped"] if counts.stopped else []
    parts += [f"{counts.skipped} skipped"] if counts.skipped else []
    parts += ["running"] if is_controlled(path) else []
    return {
        "run": folder.run_id,
        "date": f"{created:%Y-%m-%d %H:%M}",
        "fleets": ", ".join(dict.fromkeys(entry.host.fleet for entry in planned.hosts)),
        "suite": ", ".join(dict.fromkeys(entry.suite for entry in planned.hosts)),
        "progress": ", ".join(parts),
        "verdict": verdict(folder),
    }


def _json(document: object) -> str:
    return json.dumps(document, indent=2, default=str) + "\n"


def check(where: Where, *, deep: bool = False, format: str = "text") -> int:
    """Probe every host; exit code 4 if none can measure, or `deep` rejects one."""
    hosts = _read_hosts(where)
    probed = probe(hosts)
    if deep:
        checked, stopped = _deep_check(where, hosts, probed)
        if format == "json":
            sys.stdout.write(verdicts_json(checked))
        else:
            print_grid(verdict_grid(checked), stdout_console())
        if stopped:
            return ExitCode.STOPPED
        rejected = any(found.verdict is Acceptance.REJECT for found in checked)
        return ExitCode.NO_HOST if rejected or not any(found.figures for found in checked) else ExitCode.OK
    if format == "json":
        sys.stdout.write(_json({"hosts": tables.check_document(hosts, probed)}))
    else:
        tables.render_check(hosts, probed, stdout_console())
    found = ((host, probed[host.place]) for host in hosts)
    usable = any(isinstance(facts, Facts) and problem_of(host, facts) is None for host, facts in found)
    return ExitCode.OK if usable else ExitCode.NO_HOST


def probe(hosts: list[Host]) -> Mapping[HostPlace, Facts | str]:
    """Probe hosts, with progress on stderr."""
    bus = _progress_bus("plain")
    return probe_hosts(hosts, _maker(None, bus), bus)


def _deep_check(
    where: Where, hosts: list[Host], probed: Mapping[HostPlace, Facts | str]
) -> tuple[list[HostVerdict], bool]:
    """Measure all answering hosts in parallel; return a verdict on each, and whether the user stopped it."""
    run_id = new_run_id()
    planned = plan_deep_check(hosts, probed, run_id)
    with storing(RunFolder(where.runs_dir / FOLDER / run_id)):
        folder = RunFolder.create(where.runs_dir / FOLDER, run_id)
        folder.write_plan(plan_to_json(planned))
    bus, stop = EventBus(), Stop()
    display = make_display("auto", Console(stderr=True))
    display.planned(planned)
    collect_rarely()
    with storing(folder), _controlled(folder, bus, stop, display):
        execute(planned, folder, _maker(folder.path, bus), bus, stop, RunOptions())
    return judge_records(planned, folder, where.runs_dir), stop.asked


def plan(where: Where, what: What, *, show_manifests: bool = False, format: str = "text") -> int:
    """Show what `run` would do; exit code 4 if nothing can be measured."""
    planned = _plan(where, what, new_run_id(), _progress_bus("plain"))
    if format == "json":
        sys.stdout.write(plan_to_json(planned, ensure_ascii=True))
    else:
        tables.render_plan(planned, stdout_console())
    if not any(job.blocked is None for job in planned.jobs):
        _require_usable(planned)
    if format != "json":
        tables.render_estimate(estimate(planned, Durations.of(planned, where.runs_dir)), stdout_console())
    if show_manifests:
        _show_manifests(planned)
    return ExitCode.OK


def _require_usable(planned: Plan) -> None:
    """Raise if no host of a plan can measure anything now.

    Raises:
        NoUsableHost: The message has the reason for each host.
    """
    causes = {entry.host.key: why_unusable(entry) for entry in planned.hosts}
    if all(causes.values()) and not any(multi.job.blocked is None for multi in planned.multi_host_jobs):
        lines = [f"  {key}: {cause}" for key, cause in causes.items()]
        see = f"See: {command_line('orchestrate', 'check')}"
        raise NoUsableHost("\n".join(["no host can measure anything:", *lines, see]))


def _require_unused(planned: Plan) -> None:
    """Raise if hosts still have repeats of an earlier run of this name, whose results would be taken over.

    Raises:
        UserError: The message has the hosts.
    """
    hosts = [entry.host for entry in planned.hosts if entry.facts is not None]
    answers = query_hosts(hosts, _maker(None), lambda _, there: there.running(planned.run_id), ASK_SECONDS)
    used = [host.key for host, found in zip(hosts, answers, strict=True) if found and not isinstance(found, str)]
    if used:
        stop = command_line("orchestrate", "stop", planned.run_id)
        raise UserError(
            f"another run {planned.run_id} is on {', '.join(used)}. Choose another --run-id, or end that one: {stop}"
        )


def _show_manifests(planned: Plan) -> None:
    """Print exactly what would be submitted to each queue."""
    make = _maker(None)
    for entry in planned.hosts:
        launcher = make(entry.host) if entry.host.queue is not None else None
        if isinstance(launcher, QueueLauncher):
            for text in launcher.manifests([job for job in entry.jobs if job.blocked is None]):
                sys.stdout.write(f"# fleet {entry.host.fleet}\n{text}\n")
            launcher.close()


def run(where: Where, what: What, how: How, *, run_id: str | None = None) -> int:
    """Plan, measure and show the results.

    Args:
        where: Hosts.
        what: Cases.
        how: Limits and display.
        run_id: Name of the run; None: start time and four random digits.
    """
    with _ending(how) as begun:
        named, run_id, late = run_id is not None, run_id or new_run_id(), Late()
        RunFolder.new_path(where.runs_dir, run_id)  # before hosts are probed
        planned = _plan(where, what, run_id, _progress_bus(how.display), late)
        _require_usable(planned)
        if named:
            _require_unused(planned)
        estimated = estimate(planned, Durations.of(planned, where.runs_dir))
        tables.render_estimate(estimated, Console(stderr=True))
        _warn_of_cost(planned, estimated, how.max_cost, where.runs_dir)
        allow_open_files([entry.host for entry in planned.hosts], how.max_parallel)
        text = plan_to_json(planned)
        begun.append(planned)
        with storing(RunFolder(where.runs_dir / run_id)):
            folder = RunFolder.create(where.runs_dir, run_id)
            folder.write_plan(text)
        return _carry_out(how, TRIED_AGAIN, planned, folder, estimated, late)


def resume(how: How, *, run: str | None, runs_dir: Path, again: str | None = None) -> int:
    """Continue a run; see `_folder` for the run, and `_statuses` for what is measured again."""
    with _ending(how) as begun:
        folder = _folder(run, runs_dir)
        planned = _with_new_addresses(_planned(folder))
        allow_open_files([entry.host for entry in planned.hosts], how.max_parallel)
        begun.append(planned)
        return _carry_out(how, _statuses(again), planned, folder)


def _warn_of_cost(planned: Plan, estimated: RunEstimate, limit: float | None, runs_dir: Path) -> None:
    """Say how many repeats a limit below the estimated cost allows."""
    if limit is None or estimated.usd is None or estimated.usd <= limit:
        return
    fitting = fitting_repeats(planned, Durations.of(planned, runs_dir), limit)
    allowed = f"about {fitting} of {counted(len(planned.jobs), 'repeat')}"
    notify(f"--max-cost {usd_text(limit)} is below the estimated {usd_text(estimated.usd)} USD: it allows {allowed}")


@contextmanager
def _ending(how: How) -> Iterator[list[Plan]]:
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
            _report_costs(planned)


def status(run: str | None, runs_dir: Path, *, format: str = "text") -> int:
    """Show the progress of a run, with the exit code that `run` would have now."""
    folder = _folder(run, runs_dir)
    planned = _planned(folder)
    running = is_controlled(folder.path)
    document = tables.status_document(planned, folder, running)
    if format == "json":
        sys.stdout.write(_json(document))
    else:
        tables.render_status(document, stdout_console())
    if not running:
        _report_costs(planned)
    unfinished = any(host["repeats"] != host["ok"] + host["skipped"] for host in document["hosts"])
    return ExitCode.SOME_FAILED if unfinished else ExitCode.OK


def stop(run: str | None, runs_dir: Path) -> int:
    """End a run's controller, if any, then end and remove its benchmarks on all hosts."""
    folder = _folder(run, runs_dir)
    planned = _with_new_addresses(_planned(folder))
    if controller := end_controller(folder.path):
        notify(f"run {planned.run_id}: its controller ({controller}) has ended")
    with storing(folder), controlling(folder.path):
        removed, problems = stop_run(planned, _maker(folder.path), EventBus())
    notify(
        *problems,
        f"run {planned.run_id}: {counted(removed, 'benchmark')} ended and removed. {_resume_hint(folder)}",
    )
    return ExitCode.SOME_FAILED if problems else ExitCode.OK


def _report_costs(planned: Plan) -> None:
    """Report rented machines that were not returned."""
    if line := still_costing(planned, _maker(None)):
        notify(line)


def _carry_out(
    how: How,
    again: frozenset[Status],
    planned: Plan,
    folder: RunFolder,
    estimated: RunEstimate | None = None,
    late: Late | None = None,
) -> int:
    """Run the missing repeats, then show the table, the time taken, and the paths of files."""
    began = time.monotonic()
    bus = EventBus()
    display = make_display(how.display, Console(stderr=True))
    state = RunState(planned, Durations.of(planned, folder.path.parent))
    state.resume(filter(None, map(stored_event, folder.read_events())), again)
    display.planned(planned, state)
    stop = Stop()
    options = RunOptions(
        max_parallel=how.max_parallel,
        fail_fast=how.fail_fast,
        max_usd=how.max_cost,
        again=again,
    )
    collect_rarely()
    with storing(folder):
        with _controlled(folder, bus, stop, display):
            outcome = execute(planned, folder, _maker(folder.path, bus), bus, stop, options, late)
        took = time.monotonic() - began
        show_results(folder, outcome.ok + outcome.failed, quiet=how.display == "json", report=how.report)
    complete = not outcome.missing + outcome.stopped + outcome.skipped
    tables.render_taken(took, estimated if complete else None, Console(stderr=True))
    notify(*outcome.answers)
    if stop.asked and outcome.missing + outcome.stopped:
        notify(f"stopped. {_resume_hint(folder)}")
        return ExitCode.STOPPED
    return _exit_code(outcome)


@contextmanager
def _controlled(folder: RunFolder, bus: EventBus, stop: Stop, display: Display) -> Iterator[None]:
    """Control a run in the block: lock it, store and show its events, and stop it on Ctrl-C."""
    folder.complete()
    with controlling(folder.path), folder.journal() as journal, display, _interrupts(stop, folder, bus):
        bus.subscribe(_store_in(folder, journal))
        bus.subscribe(display.show)
        yield


def _statuses(named: str | None) -> frozenset[Status]:
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


def _plan(where: Where, what: What, run_id: str, bus: EventBus, late: Late | None = None) -> Plan:
    """Probe all hosts and plan; `late` receives the probes that continue."""
    hosts = _read_hosts(where)
    if what.suite is not None:
        hosts = [dataclasses.replace(host, suite=what.suite) for host in hosts]
    read = lru_cache(read_suite)
    for host in hosts:  # report mistakes in names before any host is contacted
        read(host.suite or DEFAULT_SUITE)
    planned = make_plan(
        hosts,
        probe_hosts(hosts, _maker(None, bus), bus, late),
        read,
        run_id=run_id,
        seed=what.seed,
        repeats=what.repeats,
        durations=earlier_durations(where.runs_dir),
    )
    file = where.hosts or HOSTS_FILE
    hosts_file = str(file.absolute()) if file.exists() else None
    return dataclasses.replace(planned, stop_early=what.stop_early, hosts_file=hosts_file)


def _read_hosts(where: Where) -> list[Host]:
    """Read the hosts file; without one, this machine is the only host."""
    file = where.hosts or HOSTS_FILE
    if where.hosts is None and not HOSTS_FILE.exists():
        notify(f"no {HOSTS_FILE} here: measuring this machine, without Docker")
        found = read_hosts(THIS_MACHINE, where.limit)
        return [dataclasses.replace(host, suite=FIRST_SUITE) for host in found] if has_nvidia_driver() else found
    return read_hosts(file, where.limit)


def has_nvidia_driver() -> bool:
    """Return whether an NVIDIA driver answers on this machine, whose GPUs are then measured."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    try:
        done = subprocess.run(["nvidia-smi", "-L"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _maker(run_path: Path | None, bus: EventBus | None = None) -> Callable[[Host], Launcher]:
    """Return a function that creates launchers, which share a limit of pulls and report to a bus."""
    stamina.instrumentation.set_on_retry_hooks(())  # it would write to stderr, into a live display

    def notify(host: str, message: str) -> None:
        if bus is not None:
            bus.emit(Warned(host=host, message=message))

    def progress(host: str, image: str, done: int, total: int) -> None:
        if bus is not None:
            bus.emit(ImageProgress(host=host, image=image, done_bytes=done, total_bytes=total))

    pulls = PullLimits(notify=notify, progress=progress)
    return partial(make_launcher, run_path=run_path, pulls=pulls)


def _folder(run: str | None, runs_dir: Path) -> RunFolder:
    """Find a run by its folder, its id, or as the latest one."""
    if run is None:
        return RunFolder.open(latest_run(runs_dir))
    return RunFolder.open(Path(run) if is_folder(Path(run)) else runs_dir / run)


def _planned(folder: RunFolder) -> Plan:
    return plan_from_json(folder.read_plan(), str(folder.plan_path))


def _with_new_addresses(planned: Plan) -> Plan:
    """Return a plan with the addresses that its hosts file has now: a rented machine may come back elsewhere."""
    if planned.hosts_file is None:
        return planned
    try:
        now = {host.place: host for host in read_hosts(Path(planned.hosts_file))}
    except UserError as error:
        notify(f"the addresses of the plan are used, because the hosts file cannot be: {error}")
        return planned
    entries = []
    for entry in planned.hosts:
        host = entry.host.moved_to(now.get(entry.host.place, entry.host))
        if host != entry.host:
            notify(f"{host.key}: its address has changed in {planned.hosts_file}: it is used from now on")
        entries.append(dataclasses.replace(entry, host=host))
    return dataclasses.replace(planned, hosts=tuple(entries))


def why_unusable(entry: HostPlan) -> str:
    """Return why a host cannot measure anything now; empty if it can."""
    if entry.facts is None or entry.problem or entry.facts.problem:
        return entry.problem or (entry.facts.problem if entry.facts else None) or "it was not queried"
    blocked = [job.blocked for job in entry.jobs]
    return blocked[0][1] if blocked and blocked[0] is not None and None not in blocked else ""


def _exit_code(outcome: RunOutcome) -> int:
    return ExitCode.SOME_FAILED if outcome.failed or outcome.missing else ExitCode.OK


def _store_in(folder: RunFolder, journal: Journal) -> Callable[[Event], None]:
    """Return a subscriber that appends every event, except progress, to the run's journal."""

    def store(event: Event) -> None:
        if not isinstance(event, JobStep | ImageProgress):
            with storing(folder):
                journal.append(event_document(event))

    return store


def _progress_bus(kind: str) -> EventBus:
    """Return a bus that shows events while hosts are probed, before there is a run."""
    bus = EventBus()
    display = make_display("plain" if kind in ("auto", "live") else kind, Console(stderr=True))
    bus.subscribe(display.show)
    return bus


@contextmanager
def _interrupts(stop: Stop, folder: RunFolder, bus: EventBus) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP: the first starts no new repeats, the second ends running ones."""
    reports: list[threading.Thread] = []

    def handle(_number: int, _frame: object) -> None:
        if stop.running.is_set():
            return
        now = stop.ask() > 1
        again = "" if now else "Press Ctrl-C again to end them now. "
        event = Stopping(now=now, hint=f"{again}{_resume_hint(folder)}")
        # In a thread of its own: the interrupted one may hold the locks of displays.
        reports.append(threading.Thread(target=emit, args=(event,), daemon=True))
        reports[-1].start()

    def emit(event: Event) -> None:
        with contextlib.suppress(StorageFailed):  # reported by the workers
            bus.emit(event)

    with signals_handled(handle, signal.SIGINT):
        yield
    for report in reports:
        report.join(1.0)


def _resume_hint(folder: RunFolder) -> str:
    return f"Resume with: {command_line('orchestrate', 'resume', folder.path)}"

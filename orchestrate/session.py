"""What the commands do: find hosts, plans and runs, carry a plan out under control of this process, and end it.

A run has a journal, a display, signals that stop it, results, costs, and a command that follows (`--when-done`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path

import stamina.instrumentation
from rich.console import Console

from orchestrate import loop
from orchestrate.deep_check import FOLDER, Acceptance, checked_host, judge, plan_deep_check, verdict_grid
from orchestrate.display import tables
from orchestrate.display.display import make_display, notify
from orchestrate.display.streams import stderr_file
from orchestrate.engines.base import PullLimits, QueueLauncher
from orchestrate.errors import NoUsableHost, UserError
from orchestrate.events import Event, EventBus, ImageProgress, JobStep, Stopping, event_document
from orchestrate.inventory.hosts import Host, HostPlace, read_hosts
from orchestrate.options import How, What, Where
from orchestrate.planning.durations import estimate, hourly_usd, known_durations, usd_text
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import HostPlan, Plan, make_plan, new_run_id, plan_from_json, plan_to_json
from orchestrate.project import command_line, own_module
from orchestrate.running.context import RunContext, Stop, storing
from orchestrate.running.controller import controlling, is_controlled, tune_process
from orchestrate.running.probing import MakeLauncher, probe_hosts, query_hosts
from orchestrate.running.run import execute, make_launcher
from orchestrate.running.state import TRIED_AGAIN, RunState
from orchestrate.suites import read_suite
from results.commands import print_json, print_parts
from results.program import started_as_tfbench
from results.runs.store import RunFolder, is_folder, latest_run, runs_dir, write_file
from results.schema import Status
from results.schema.exit_codes import ExitCode
from results.text import counted, shortened

HOSTS_FILE = Path("hosts.yml")


def probe(hosts: list[Host], display: str = "plain") -> Mapping[HostPlace, Facts | str]:
    """Probe hosts, and show events before there is a run."""
    bus = EventBus()
    shown = make_display("plain" if display in ("auto", "live") else display, Console(stderr=True), RunState())
    bus.subscribe(shown.show)
    return probe_hosts(hosts, launcher_maker(None, bus), bus)


def require_usable(planned: Plan) -> None:
    """Raise if no host of a plan can measure anything now.

    Raises:
        NoUsableHost: The message has the reason for each host.
    """
    causes = {entry.host.key: _why_unusable(entry) for entry in planned.hosts}
    if all(causes.values()) and not any(multi.job.blocked is None for multi in planned.multi_host_jobs):
        lines = [f"  {key}: {cause}" for key, cause in causes.items()]
        see = f"See: {command_line('orchestrate', 'check')}"
        raise NoUsableHost("\n".join(["no host can measure anything:", *lines, see]))


def _why_unusable(entry: HostPlan) -> str:
    """Return why a host cannot measure anything now; empty if it can."""
    if entry.facts is None:
        return entry.problem or "it was not queried"
    blocked = [job.blocked for job in entry.jobs]
    return entry.facts.problem or (blocked[0][1] if blocked and blocked[0] and None not in blocked else "")


def manifests(planned: Plan) -> Iterator[str]:
    """Yield exactly what would be submitted to each queue."""
    make = launcher_maker(None)
    for entry in planned.hosts:
        launcher = make(entry.host) if entry.host.queue is not None else None
        if isinstance(launcher, QueueLauncher):
            for text in launcher.manifests([job for job in entry.jobs if job.blocked is None]):
                yield f"# fleet {entry.host.fleet}\n{text}\n"
            launcher.close()


def plan_of(where: Where, what: What, run_id: str, display: str = "plain") -> Plan:
    """Probe all hosts and plan; see `probe`."""
    hosts = read_hosts(file_of(where), where.limit)
    if what.suite is not None:
        read_suite(what.suite)  # report a mistake before any host is contacted, as for those of the file
        hosts = [host.model_copy(update={"suite": what.suite}) for host in hosts]
    probed = probe(hosts, display)
    planned = make_plan(hosts, probed, lru_cache(read_suite), run_id=run_id, seed=what.seed, repeats=what.repeats)
    file = where.hosts or HOSTS_FILE
    hosts_file = str(file.absolute()) if file.exists() else None
    return dataclasses.replace(planned, stop_early=what.stop_early, hosts_file=hosts_file)


def file_of(where: Where) -> Path:
    """Return the hosts file; without one, this machine is measured."""
    if where.hosts is not None or HOSTS_FILE.exists():
        return where.hosts or HOSTS_FILE
    notify(f"no {HOSTS_FILE} here: measuring this machine, without Docker")
    return this_machine()


def this_machine() -> Path:
    """Return the hosts file of a new user: this machine, with another suite if an NVIDIA driver answers on it."""
    has_gpus = Path("/proc/driver/nvidia/version").exists()
    if not has_gpus:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            command = ["nvidia-smi", "-L"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
            has_gpus = done.returncode == 0
    return Path(__file__).parent / "inventory" / ("this_gpu_machine.yml" if has_gpus else "this_machine.yml")


def launcher_maker(run_path: Path | None, bus: EventBus | None = None) -> MakeLauncher:
    """Return a function that creates launchers, which share a limit of pulls and report to a bus."""
    stamina.instrumentation.set_on_retry_hooks(())  # it would write to stderr, into a live display
    return partial(make_launcher, run_path=run_path, pulls=PullLimits(bus))


def find_run(run: str | None) -> tuple[RunFolder, Plan]:
    """Find a run by its folder, its id, or as the latest one, with the addresses that its hosts have now."""
    path = latest_run() if run is None else Path(run) if is_folder(Path(run)) else runs_dir() / run
    folder = RunFolder.open(path)
    return folder, with_new_addresses(plan_from_json(folder.read_plan(), str(folder.plan_path)))


def with_new_addresses(planned: Plan) -> Plan:
    """Return a plan with the addresses that its hosts file has now: a rented machine may come back elsewhere."""
    now: dict[HostPlace, Host] = {}
    try:
        now = {host.place: host for host in read_hosts(Path(planned.hosts_file))} if planned.hosts_file else {}
    except UserError as error:
        notify(f"the addresses of the plan are used, because the hosts file cannot be: {error}")
    entries = []
    for entry in planned.hosts:
        host = entry.host.moved_to(now.get(entry.host.place, entry.host))
        if host != entry.host:
            notify(f"{host.key}: its address has changed in {planned.hosts_file}: it is used from now on")
        entries.append(dataclasses.replace(entry, host=host))
    return dataclasses.replace(planned, hosts=tuple(entries))


def resume_hint(folder: RunFolder) -> str:
    """Return the command that continues a run."""
    return f"Resume with: {command_line('orchestrate', 'resume', folder.path)}"


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
    row = {"run": path.resolve().name, "date": "", "fleets": "", "suite": "", "progress": ""}
    try:
        planned = plan_from_json(folder.read_plan(), str(folder.plan_path))
        row["date"] = f"{datetime.fromisoformat(planned.created_at):%Y-%m-%d %H:%M}"
    except (UserError, ValueError) as error:
        return {**row, "progress": f"unknown: {str(error).partition(': ')[2]}"}
    (state := RunState(planned)).read(folder)
    counts = state.outcome()
    numbers = {"failed": counts.failed - counts.stopped, "stopped": counts.stopped, "skipped": counts.skipped}
    parts = [f"{counts.ok + counts.failed}/{len(planned.jobs)}"]
    parts += [f"{number} {word}" for word, number in numbers.items() if number]
    parts += ["running"] if is_controlled(path) else []
    fleets = dict.fromkeys(entry.host.fleet for entry in planned.hosts)
    suites = dict.fromkeys(entry.suite for entry in planned.hosts)
    return {**row, "fleets": ", ".join(fleets), "suite": ", ".join(suites), "progress": ", ".join(parts)}


def deep_check(hosts: list[Host], probed: Mapping[HostPlace, Facts | str], format: str) -> int:
    """Measure all answering hosts in parallel, print a verdict on each, and return the exit code."""
    planned = plan_deep_check(hosts, probed, new_run_id())
    folder = new_folder(runs_dir() / FOLDER / planned.run_id, planned)
    stopped = measure(planned, folder, How(), RunState(planned))
    records = [folder.read_record(entry.jobs[0].id) if entry.jobs else None for entry in planned.hosts]
    checked = judge(list(map(checked_host, planned.hosts, records)))
    if format == "json":
        print_json({"version": 4, "hosts": [host.document() for host in checked]})
    else:
        print_parts("text", verdict_grid(checked))
    rejected = any(host.verdict is Acceptance.REJECT for host in checked)
    unusable = rejected or not any(host.is_measured for host in checked)
    return ExitCode.STOPPED if stopped else ExitCode.NO_HOST if unusable else ExitCode.OK


def new_folder(path: Path, planned: Plan) -> RunFolder:
    """Create the folder of a new run, with its plan."""
    with storing(RunFolder(path)):
        folder = RunFolder.create(path.parent, path.name)
        folder.write_plan(plan_to_json(planned))
    return folder


@contextmanager
def ending(command: str | None) -> Iterator[list[Plan]]:
    """After the block, however it ends: run a shell command, then report rented machines that were not returned.

    SIGTERM and SIGHUP (a closed terminal) end the block like Ctrl-C. After a mistake in flags or files nothing is done:
    nothing was measured, and the user will try again.

    Args:
        command: For `sh`, e.g. to return rented machines; never printed, because it may contain a token.

    Yields:
        A list, to which the block adds its plan when it begins to measure.
    """
    begun, measured = list[Plan](), True
    try:
        with signals_handled(lambda: None):  # nothing ends it before the command
            try:
                with signals_handled(_interrupt):
                    yield begun
            except UserError as error:
                measured = error.exit_code is not ExitCode.USAGE
                raise
            finally:
                if command is not None and measured:
                    _run_command(command)
                elif command is not None:
                    notify("--when-done did not run, because nothing was measured")
    finally:
        for planned in begun if measured else ():
            notify(*still_costing(planned))


def carry_out(planned: Plan, folder: RunFolder, how: How, again: frozenset[Status] = TRIED_AGAIN) -> int:
    """Run the missing repeats, of a new run after an estimate; then show the table and the paths of files.

    Args:
        planned: The plan.
        folder: Folder of the run.
        how: How the plan is executed.
        again: See `execute`.
    """
    durations = known_durations(planned, folder.path.parent)
    state = RunState(planned, durations)
    if not folder.events_path.exists():
        estimated = estimate(planned, durations)
        notify(tables.estimate_text(estimated))
        if how.max_cost is not None and how.max_cost < (estimated.usd or 0.0):
            fitting = state.fitting_repeats(how.max_cost)
            limits = f"--max-cost {usd_text(how.max_cost)} is below the estimated {usd_text(estimated.usd or 0.0)} USD"
            notify(f"{limits}: it allows about {fitting} of {counted(len(planned.jobs), 'repeat')}")
    stopped = measure(planned, folder, how, state, again)
    outcome = state.outcome()
    with storing(folder):
        show_results(folder, outcome.ok + outcome.failed, quiet=how.display == "json", report=how.report)
    notify(*state.early.answers)
    if stopped and outcome.missing + outcome.stopped:
        notify(f"stopped. {resume_hint(folder)}")
        return ExitCode.STOPPED
    return ExitCode.SOME_FAILED if outcome.failed or outcome.missing else ExitCode.OK


def measure(
    planned: Plan, folder: RunFolder, how: How, state: RunState, again: frozenset[Status] = TRIED_AGAIN
) -> bool:
    """Execute a plan under control of this process: lock its folder, and store, reduce and show its events.

    Ctrl-C, SIGTERM and SIGHUP stop it: the first starts no new repeats, the second ends running ones.

    Returns:
        Whether the user stopped it.
    """
    bus, stop = EventBus(), Stop()
    tune_process()

    def interrupted() -> None:
        if not stop.running.is_set():
            stop.ask()
            now = stop.running.is_set()
            hint = f"{'' if now else 'Press Ctrl-C again to end them now. '}{resume_hint(folder)}"
            # The interrupted thread may hold the lock of the bus or of a stream.
            reports.submit(bus.emit, Stopping(now=now, hint=hint))

    def store(event: Event) -> None:
        if not isinstance(event, JobStep | ImageProgress):
            with storing(folder):
                append(event_document(event))

    with storing(folder):
        folder.complete()
        shown = make_display(how.display, Console(stderr=True), state)
        with (
            controlling(folder.path),
            folder.journal() as append,
            shown,
            ThreadPoolExecutor(1) as reports,
            signals_handled(interrupted),
        ):
            for subscriber in (store, state.note, shown.show):
                bus.subscribe(subscriber)
            run = RunContext(planned, folder, launcher_maker(folder.path, bus), bus, stop, how, state)
            execute(run, again)
            return stop.asked


def show_results(folder: RunFolder, records: int, *, quiet: bool, report: bool) -> None:
    """Write `results.csv` and, if `report`, the report; then show the table."""
    from results.report.tables import all_grids, exported, wide_grids
    from results.table.fleets import outliers
    from results.table.merge import merge_records

    merged = merge_records(folder.records())  # read lazily: 24,000 records would take a GB
    write_file(folder.table_path, exported(merged, "csv"))
    shown = len(merged.rows) <= MAX_ROWS_SHOWN
    if not quiet:
        print_parts("text", *(all_grids(merged, brief=True) if shown else wide_grids(merged)))
    written = report and records <= MAX_REPORTED and _write_report(folder)
    notify(
        *merged.problems,
        *outliers(merged.rates),
        f"records, logs and results.csv: {folder.path}",
        f"report: {folder.report_path if written else command_line('results', 'report', folder.path)}",
        f"{'table' if shown else f'all {len(merged.rows)} rows'}: {command_line('results', 'show', folder.path)}",
    )


def _write_report(folder: RunFolder) -> bool:
    """Write the report of a run, in a process of its own, so that an error cannot affect the run."""
    module = "orchestrate.cli" if started_as_tfbench() else "results"  # the command for hints in the report
    command, environment = own_module(module, "report", str(folder.path))
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def still_costing(plan: Plan) -> list[str]:
    """Describe in a line the hosts with a price that answer now, and their costs; empty: there are none.

    Args:
        plan: Of the run; queues are excluded, because their idle nodes cost nothing.
    """
    priced = [entry for entry in plan.hosts if entry.host.queue is None and entry.host.usd_per_gpu_hour]
    hosts, make = [entry.host for entry in priced], launcher_maker(None)
    query = query_hosts(hosts, make, lambda _, launcher: launcher.running(plan.run_id), ANSWER_SECONDS)
    answers = loop.wait_for(query)
    answered = [entry for entry in priced if not isinstance(answers[entry.host.place], str)]
    costs = {entry.host.key: hourly_usd(entry) or 0.0 for entry in answered}
    if not costs:
        return []
    named = ", ".join(shortened([f"{key} {price:.2f}" for key, price in costs.items()], MAX_NAMED))
    silent = len(priced) - len(answered)
    others = f". {counted(silent, 'host')} did not answer, and may cost as well" if silent else ""
    return [f"hosts that still answer cost {sum(costs.values()):.2f} USD per hour until returned: {named}{others}"]


TOGETHER_SECONDS = 0.15
"""Time after a signal in which others have the same cause; a user presses Ctrl-C twice more slowly."""


@contextmanager
def signals_handled(handle: Callable[[], object]) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP in the block; of a closing terminal's SIGHUPs only the first.

    Signals at the same moment are one: `timeout` sends each to its child and to the group of processes.
    """
    handled_at = -math.inf

    def handle_once(number: int, _frame: object) -> None:
        nonlocal handled_at
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        if time.monotonic() - handled_at > TOGETHER_SECONDS:
            handled_at = time.monotonic()
            handle()

    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]  # ignored by nohup
    previous = {number: signal.signal(number, handle_once) for number in (signal.SIGINT, signal.SIGTERM, *hangup)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _run_command(command: str) -> None:
    """Run a shell command to its end, with its output on stderr and no input; its exit code does not affect the run's.

    The command has a session of its own, so the Ctrl-C that ends the run does not interrupt it. A second one does.
    """
    notify("--when-done: running the command")
    output, interrupts = stderr_file(), itertools.count()
    process = subprocess.Popen(
        ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )

    def handle() -> None:
        if next(interrupts) == 0:
            notify("--when-done is still running. Press Ctrl-C again to end it")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    with signals_handled(handle):
        code = process.wait()
    failed = f"FAILED with exit code {code}. Check whether your machines still cost money"
    notify(f"--when-done {failed if code else 'succeeded'}")

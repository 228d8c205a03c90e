"""What every command begins with: the hosts and their facts, a plan, or the folder and plan of an earlier run."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path

import stamina.instrumentation
from rich.console import Console

from orchestrate import loop
from orchestrate.display.display import make_display, notify
from orchestrate.engines.base import QueueLauncher
from orchestrate.engines.pulls import PullLimits
from orchestrate.errors import NoUsableHost, UserError
from orchestrate.events import EventBus, ImageProgress, Warned
from orchestrate.inventory.hosts import Host, HostPlace, read_hosts
from orchestrate.options import What, Where
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import DEFAULT_SUITE, HostPlan, Plan, make_plan, plan_from_json
from orchestrate.running.context import Late, MakeLauncher
from orchestrate.running.probing import probe_hosts, query_hosts
from orchestrate.running.run import ASK_SECONDS, make_launcher
from orchestrate.running.state import RunState
from orchestrate.suites import read_suite
from results.program import command_line
from results.runs.store import RunFolder, is_folder, latest_run

HOSTS_FILE = Path("hosts.yml")

FIRST_SUITE = "first"
"""Suite of a machine with GPUs and no hosts file; without GPUs, that of `this_machine.yml`."""

THIS_MACHINE = Path(__file__).parent / "inventory" / "this_machine.yml"
"""The default hosts file, so that a new user can measure this machine at once."""


def probe(hosts: list[Host]) -> Mapping[HostPlace, Facts | str]:
    """Probe hosts, with progress on stderr."""
    bus = progress_bus("plain")
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


def require_unused(planned: Plan) -> None:
    """Raise if hosts still have repeats of an earlier run of this name, whose results would be taken over.

    Raises:
        UserError: The message has the hosts.
    """
    hosts = [entry.host for entry in planned.hosts if entry.facts is not None]
    ask = query_hosts(hosts, launcher_maker(None), lambda _, there: there.running(planned.run_id), ASK_SECONDS)
    answers = loop.wait_for(ask)
    used = [host.key for host in hosts if (found := answers[host.place]) and not isinstance(found, str)]
    if used:
        stop = command_line("orchestrate", "stop", planned.run_id)
        raise UserError(
            f"another run {planned.run_id} is on {', '.join(used)}. Choose another --run-id, or end that one: {stop}"
        )


def manifests(planned: Plan) -> Iterator[str]:
    """Yield exactly what would be submitted to each queue."""
    make = launcher_maker(None)
    for entry in planned.hosts:
        launcher = make(entry.host) if entry.host.queue is not None else None
        if isinstance(launcher, QueueLauncher):
            for text in launcher.manifests([job for job in entry.jobs if job.blocked is None]):
                yield f"# fleet {entry.host.fleet}\n{text}\n"
            launcher.close()


def plan_of(where: Where, what: What, run_id: str, bus: EventBus, late: Late | None = None) -> Plan:
    """Probe all hosts and plan; `late` receives the probes that continue."""
    hosts = read_places(where)
    if what.suite is not None:
        hosts = [dataclasses.replace(host, suite=what.suite) for host in hosts]
    read = lru_cache(read_suite)
    for host in hosts:  # report mistakes in names before any host is contacted
        read(host.suite or DEFAULT_SUITE)
    planned = make_plan(
        hosts,
        probe_hosts(hosts, launcher_maker(None, bus), bus, late),
        read,
        run_id=run_id,
        seed=what.seed,
        repeats=what.repeats,
    )
    file = where.hosts or HOSTS_FILE
    hosts_file = str(file.absolute()) if file.exists() else None
    return dataclasses.replace(planned, stop_early=what.stop_early, hosts_file=hosts_file)


def read_places(where: Where) -> list[Host]:
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


def launcher_maker(run_path: Path | None, bus: EventBus | None = None) -> MakeLauncher:
    """Return a function that creates launchers, which share a limit of pulls and report to a bus."""
    stamina.instrumentation.set_on_retry_hooks(())  # it would write to stderr, into a live display

    reports = bus or EventBus()

    def warn(host: str, message: str) -> None:
        reports.emit(Warned(host=host, message=message))

    def progress(host: str, image: str, done: int, total: int) -> None:
        reports.emit(ImageProgress(host=host, image=image, done_bytes=done, total_bytes=total))

    pulls = PullLimits(notify=warn, progress=progress)
    return partial(make_launcher, run_path=run_path, pulls=pulls)


def find_run(run: str | None, runs_dir: Path) -> RunFolder:
    """Find a run by its folder, its id, or as the latest one."""
    if run is None:
        return RunFolder.open(latest_run(runs_dir))
    return RunFolder.open(Path(run) if is_folder(Path(run)) else runs_dir / run)


def read_plan(folder: RunFolder) -> Plan:
    """Read the plan of a run."""
    return plan_from_json(folder.read_plan(), str(folder.plan_path))


def with_new_addresses(planned: Plan) -> Plan:
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


def progress_bus(kind: str) -> EventBus:
    """Return a bus that shows events while hosts are probed, before there is a run."""
    bus = EventBus()
    display = make_display("plain" if kind in ("auto", "live") else kind, Console(stderr=True), RunState())
    bus.subscribe(display.show)
    return bus


def resume_hint(folder: RunFolder) -> str:
    """Return the command that continues a run."""
    return f"Resume with: {command_line('orchestrate', 'resume', folder.path)}"

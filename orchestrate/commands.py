"""The commands of the controller; each reads as read → probe → plan → run → report.

Parameters are declared in `options.py`. Everything else is imported where it is used, so that `--help` is fast.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Literal

from orchestrate.options import HostsFile, How, Images, RunName, Source, What, Where
from orchestrate.project import command_line
from results.commands import TextOrJSON, print_json, print_parts, put
from results.program import among, flag
from results.schema import Status
from results.schema.exit_codes import ExitCode
from results.text import counted


def init(
    file: Annotated[str, flag("what the tool printed (default: standard input)", metavar="FILE")] = "-",
    *,
    hosts: HostsFile = None,
    source: Annotated[Source | None, flag("tool that the list comes from", "--from")] = None,
) -> int:
    """Write a hosts.yml: this machine, or the machines that a tool has rented.

    Example: init --from vast instances.json
    """
    from orchestrate.display.display import notify
    from orchestrate.errors import UserError
    from orchestrate.inventory.hosts import read_hosts
    from orchestrate.inventory.rented import import_hosts
    from orchestrate.session import HOSTS_FILE, this_machine

    path = hosts or HOSTS_FILE
    text = import_hosts(source, file) if source else this_machine().read_text(encoding="utf-8")
    if path.exists():
        raise UserError(f"{path} exists and was not changed. Write another file with --hosts FILE")
    put(text, path)
    written = read_hosts(path)
    fleets = ", ".join(dict.fromkeys(host.fleet for host in written))
    check_command = command_line("orchestrate", "check")
    notify(f"{counted(len(written), 'host')} (fleets: {fleets}). Next: {check_command}")
    return ExitCode.OK


def suites(name: Annotated[str | None, flag("name or file of a suite", metavar="SUITE")] = None) -> int:
    """List the suites, or the cases of one.

    Example: suites standard
    """
    from orchestrate.suites import suites_grid

    print_parts("text", suites_grid(name))
    return ExitCode.OK


def check(
    where: Where,
    *,
    deep: Annotated[
        bool,
        flag("measure each host for two minutes and judge whether it is worth keeping; exit code 4 if one is rejected"),
    ] = False,
    format: TextOrJSON = "text",
) -> int:
    """Query every host for its hardware and check that it can run benchmarks.

    Example: check --hosts hosts.yml --deep
    """
    from orchestrate.display import tables
    from orchestrate.inventory.hosts import read_hosts
    from orchestrate.session import deep_check, file_of, probe

    hosts = read_hosts(file_of(where), where.limit)
    probed = probe(hosts)
    if deep:
        return deep_check(hosts, probed, format)
    documents = tables.check_document(hosts, probed)
    if format == "json":
        print_json({"hosts": documents})
    else:
        print_parts("text", tables.check_grid(hosts, probed))
    return ExitCode.OK if any(document["problem"] is None for document in documents) else ExitCode.NO_HOST


def plan(
    where: Where,
    what: What,
    *,
    show_manifests: Annotated[bool, flag("show exactly what would be submitted to Slurm or Kubernetes")] = False,
    format: TextOrJSON = "text",
) -> int:
    """Show what `run` would do; exit code 4 if nothing can be measured.

    Example: plan --limit a4000 --suite quick
    """
    from orchestrate.display import tables
    from orchestrate.planning.durations import estimate, known_durations
    from orchestrate.planning.plan import new_run_id, plan_to_json
    from orchestrate.session import manifests, plan_of, require_usable
    from results.runs.store import runs_dir

    planned = plan_of(where, what, new_run_id())
    works = any(job.blocked is None for job in planned.jobs)
    if format == "json":
        sys.stdout.write(plan_to_json(planned, ensure_ascii=True))
    else:
        estimated = estimate(planned, known_durations(planned, runs_dir()))
        print_parts("text", [tables.estimate_text(estimated)] if works else [], tables.plan_grid(planned))
    if not works:
        require_usable(planned)
    if show_manifests:
        sys.stdout.writelines(manifests(planned))
    return ExitCode.OK


def run(
    where: Where,
    what: What,
    how: How,
    *,
    run_id: Annotated[str | None, flag("name of the run's folder (default: start time and four random digits)")] = None,
) -> int:
    """Measure every case, with a fresh process for each repeat.

    Example: run --when-done 'sky down -y bench'
    """
    from orchestrate.planning.plan import new_run_id
    from orchestrate.session import carry_out, ending, new_folder, plan_of, require_usable
    from results.runs.store import RunFolder, runs_dir

    with ending(how.when_done) as begun:
        unique = new_run_id(run_id)  # the names of its containers must not be those of another run
        path = RunFolder.new_path(runs_dir(), run_id or unique)  # before hosts are probed
        planned = plan_of(where, what, unique, how.display)
        require_usable(planned)
        begun.append(planned)
        return carry_out(planned, new_folder(path, planned), how)


AGAIN = among(*(status for status in Status if status is not Status.OK))


def resume(
    how: How,
    run: RunName = None,
    *,
    again: Annotated[
        Sequence[str],
        flag(
            "repeat failures with these statuses too, e.g. oom,error (default: host failures and stopped repeats)",
            metavar="STATUS[,STATUS…]",
            type=AGAIN,
        ),
    ] = (),
) -> int:
    """Continue a run: reattach to what is running, start what is missing.

    Example: resume --again oom,error
    """
    from orchestrate.running.state import TRIED_AGAIN
    from orchestrate.session import carry_out, ending, find_run

    with ending(how.when_done) as begun:
        folder, planned = find_run(run)
        begun.append(planned)
        return carry_out(planned, folder, how, TRIED_AGAIN | {*map(Status, again)})


def runs(*, format: TextOrJSON = "text") -> int:
    """List all runs: date, fleets, suite and progress.

    Example: runs --format json
    """
    from orchestrate.display.display import notify
    from orchestrate.session import run_row
    from results.runs.store import run_folders, runs_dir
    from results.text_table import grid_of

    rows = sorted(map(run_row, run_folders()), key=lambda row: row["date"], reverse=True)
    if format == "json":
        print_json({"runs": rows})
    elif not rows:
        notify(f"{runs_dir()}: no run found here. Start one: {command_line('orchestrate', 'run')}")
    else:
        print_parts("text", grid_of("", rows, optional=("suite",)))
    return ExitCode.OK


def status(run: RunName = None, *, format: TextOrJSON = "text") -> int:
    """Show the progress of a run, from any terminal.

    Example: status 20261124-101500-1234
    """
    from orchestrate.display import tables
    from orchestrate.display.display import notify
    from orchestrate.running.controller import is_controlled
    from orchestrate.session import find_run, still_costing

    folder, planned = find_run(run)
    running = is_controlled(folder.path)
    document = tables.status_document(planned, folder, running)
    if format == "json":
        print_json(document)
    else:
        print_parts("text", tables.status_grid(document))
    if not running:
        notify(*still_costing(planned))
    unfinished = any(host["repeats"] != host["ok"] + host["skipped"] for host in document["hosts"])
    return ExitCode.SOME_FAILED if unfinished else ExitCode.OK


def stop(run: RunName = None) -> int:
    """Stop a run's benchmarks and remove them from its hosts; records are kept.

    Example: stop 20261124-101500-1234
    """
    from orchestrate.display.display import notify
    from orchestrate.running.context import storing
    from orchestrate.running.controller import controlling, end_controller
    from orchestrate.running.run import stop_run
    from orchestrate.session import find_run, launcher_maker, resume_hint

    folder, planned = find_run(run)
    if controller := end_controller(folder.path):
        notify(f"run {planned.run_id}: its controller ({controller}) has ended")
    with storing(folder), controlling(folder.path):
        removed, problems = stop_run(planned, launcher_maker(folder.path))
    ended = f"run {planned.run_id}: {counted(removed, 'benchmark')} ended and removed. {resume_hint(folder)}"
    notify(*problems, ended)
    return ExitCode.SOME_FAILED if problems else ExitCode.OK


def images(
    action: Annotated[Literal["list", "build", "push", "verify"], flag("what to do")],
    variants: Annotated[list[str], flag("variants (default: all except ngc…)", metavar="VARIANT")],
    *,
    what: Images,
) -> int:
    """List, build, push or verify the container images.

    list shows what each variant is for, and where it has been tested; build uses the installed sources; push prints
    digests; verify starts variants and compares them with containers/images.toml, and needs no GPU.

    Example: images push --hosts hosts.yml
    """
    from orchestrate.images import perform
    from orchestrate.session import probe

    return perform(action, variants, what, probe)


COMMANDS = (init, suites, check, plan, run, resume, runs, status, stop, images)
"""In the order of work."""

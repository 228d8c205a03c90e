"""Tables of hosts, plans and the progress of a run; those of results are in `results.report.tables`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchestrate.events import stored_event
from orchestrate.inventory.addresses import DockerAddress
from orchestrate.inventory.hosts import Host, HostPlace
from orchestrate.planning.durations import RunEstimate, known_durations, usd_text
from orchestrate.planning.facts import Facts
from orchestrate.planning.host_warnings import (
    host_warnings,
    memory_notes,
    problem_of,
    same_machine_notes,
    state_words,
)
from orchestrate.planning.plan import HostPlan, Plan, fleet_facts
from orchestrate.running.state import SKIPPED, RepeatState, RunState
from orchestrate.text import each, plain_text
from results.runs.store import RunFolder, problem_lines
from results.schema import GPU, Status
from results.schema.record_json import NewerRecord
from results.table.comparable import grouped
from results.text import counted
from results.text_table import Grid, grid_of

Probed = Mapping[HostPlace, Facts | str]
"""The facts of hosts, or why they could not be probed."""


def check_grid(hosts: Sequence[Host], probed: Probed) -> Grid:
    """Return each host's facts, whether it can measure, and how to fix problems."""
    columns = ["fleet", "host", "reached by", "processor", "memory", "GPUs", "now", "driver", "image", "verdict"]
    rows, notes, documents = [], [], check_document(hosts, probed)
    for host, document in zip(hosts, documents, strict=True):
        facts = probed[host.place]
        notes += _host_notes(host, facts, fleet_facts(host, hosts, probed))
        cells = [""] * 6
        if isinstance(facts, Facts):
            cells = [
                f"{facts.cpu or ''} × {facts.cpu_limit or '?'}".strip(" ×"),
                "" if facts.memory_bytes is None else f"{facts.memory_bytes / 1e9:.0f}\u00a0GB",
                _gpus(facts),
                each(map(state_words, facts.gpu_states), numbered=len(facts.gpu_states) > 1),
                facts.driver or "none",
                ", ".join(image.reference for image in facts.images) or "none needed",
            ]
        engine = f", {facts.engine}" if isinstance(facts, Facts) and facts.engine else ""
        rows.append([host.fleet, host.name, _reached(host) + engine, *cells, document["verdict"]])
    notes += same_machine_notes(probed)
    optional = ("image", "memory", "now", "processor", "reached by")  # the notes below name the image and the reason
    usable = sum(document["problem"] is None for document in documents)
    title = f"{usable} of {counted(len(hosts), 'host')} can run benchmarks"
    return Grid(title, columns, rows, notes, optional).without_empty_columns()


def check_document(hosts: Sequence[Host], probed: Probed) -> list[dict[str, Any]]:
    """Return the facts of every host, for `--format json`."""
    documents = []
    for host in hosts:
        facts = probed[host.place]
        known = facts if isinstance(facts, Facts) else None
        problem = problem_of(host, known) if known else str(facts)
        warnings = [*host_warnings(host, known, fleet_facts(host, hosts, probed))] if known else []
        documents.append(
            {
                "fleet": host.fleet,
                "host": host.name,
                "verdict": "unusable" if problem else "warning" if warnings else "ready",
                "problem": problem,
                "warnings": warnings + same_machine_notes(probed, host.place),
                "facts": asdict(known) if known else None,
            }
        )
    return documents


def plan_grid(plan: Plan) -> Grid:
    """Return which cases run where and how often, and which are excluded and why."""
    entries: dict[object, HostPlan] = {entry.host.fleet: entry for entry in reversed(plan.hosts)}
    entries |= {entry.host.place: entry for entry in plan.hosts}
    counts: Counter[tuple[str, ...]] = Counter()
    for job in plan.jobs:
        entry = entries.get(job.place) or entries[job.origin.fleet]
        image = job.origin.image or ("none needed" if entry.problem is None else "not known yet")
        counts[*job.place, entry.suite, job.case.name, image] += 1
    rows = [[*names, str(repeats)] for names, repeats in counts.items()]
    notes = [line for entry in plan.hosts for line in _notes(entry)]
    notes += same_machine_notes({entry.host.place: entry.facts for entry in plan.hosts if entry.facts is not None})
    title = f"{counted(len(plan.jobs), 'repeat')} on {counted(len(plan.hosts), 'host')}, seed {plan.seed}"
    columns = ["fleet", "host", "suite", "case", "image", "repeats>"]
    return Grid(title, columns, rows, notes, ("image", "suite"))


def estimate_text(estimated: RunEstimate) -> str:
    """Describe the estimated duration and cost of a run, and their basis."""
    parts = estimated.basis.most_common()
    shares = [f"{number / estimated.basis.total():.0%} {words}" for words, number in parts]
    basis = ", ".join(shares if len(parts) > 1 else estimated.basis)
    cost = "" if estimated.usd is None else f", about {usd_text(estimated.usd)} USD"
    return f"estimate: {duration(estimated.seconds)}{cost} ({basis})"


def duration(seconds: float) -> str:
    """Format a duration with the precision of an estimate: `40 s`, `7 min 30 s`, `43 min`, `3 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 600:
        minutes, rest = divmod(round(seconds / 10) * 10, 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def status_document(plan: Plan, folder: RunFolder, running: bool) -> dict[str, Any]:
    """Return the number of ended repeats of each host, by status."""
    state = RunState(plan, known_durations(plan, folder.path.parent) if running else None)
    for event, at in filter(None, map(stored_event, folder.read_events())) if running else ():
        state.note(event, at)
    unreadable = []
    for job_id, error in state.read(folder).items():
        remedy = "" if isinstance(error, NewerRecord) else "not a record, resume measures it again: "
        unreadable.append((folder.record_path(job_id), f"{remedy}{error}"))
    places = {entry.host.place: list[RepeatState]() for entry in plan.hosts}
    places |= grouped((repeat.job.place, repeat) for repeat in state.repeats.values())
    hosts = []
    for (fleet, host), repeats in places.items():
        doing = state.hosts.get(f"{fleet}.{host}")
        counts = Counter(repeat.status for repeat in repeats if repeat.status)
        failed = {status: number for status, number in counts.items() if status not in (Status.OK, SKIPPED)}
        hosts.append(
            {
                "fleet": fleet,
                "host": host,
                "repeats": len(repeats),
                "ended": counts.total() - counts[SKIPPED],
                "skipped": counts[SKIPPED],
                "ok": counts[Status.OK],
                "failed": failed,
                "causes": list(dict.fromkeys(repeat.cause for repeat in repeats if repeat.status in failed)),
                "now": doing.states if doing else [],
            }
        )
    return {
        "run": plan.run_id,
        "folder": str(folder.path),
        "controller_active": running,
        "seconds_left": round(state.seconds_left()),
        "answers": list(state.early.answers),
        "unreadable": problem_lines(unreadable),
        "hosts": hosts,
    }


def status_grid(status: Mapping[str, Any]) -> Grid:
    """Return a document of `status_document` as a table."""
    rows = [
        {
            "fleet": host["fleet"],
            "host": host["host"],
            "ended>": f"{host['ended']}/{host['repeats']}",
            "skipped>": str(host["skipped"] or ""),
            "ok>": str(host["ok"]),
            "failed": ", ".join(f"{number} {word}" for word, number in host["failed"].items()),
            "why": "; ".join(host["causes"]),
            "now": plain_text(each(host["now"], numbered=len(host["now"]) > 1)),
        }
        for host in status["hosts"]
    ]
    left = f", about {duration(status['seconds_left'])} left" if status["seconds_left"] else ""
    state = f"a controller is active{left}" if status["controller_active"] else "no controller is active"
    notes = [*status["answers"], *status["unreadable"], f"run {status['run']}: {state}; {status['folder']}"]
    return grid_of("", rows, notes)


def _notes(entry: HostPlan) -> list[str]:
    notes = [f"{entry.host.key}: excluded {text}" for text in _by_reason(entry.excluded)]
    blocked = Counter(job.blocked for job in entry.jobs if job.blocked is not None)
    for (status, cause), number in blocked.items():
        notes.append(f"{entry.host.key}: cannot run: {counted(number, 'repeat')}: {status}: {cause}")
    if entry.facts is not None:
        cases = dict.fromkeys(job.case for job in entry.jobs)
        notes += [f"{entry.host.key}: {note}" for note in memory_notes(entry.host, entry.facts, cases)]
    return notes + _host_notes(entry.host, entry.facts or entry.problem or "")


def _by_reason(excluded: Iterable[str]) -> list[str]:
    """Group cases with the same reason: of a suite for 8 GPUs, one GPU excludes a dozen."""
    cases = grouped((reason, case) for case, _, reason in (text.partition(": ") for text in excluded))
    return [
        f"{names[0]}: {reason}" if len(names) == 1 else f"{len(names)} cases ({names[0]}, …): {reason}"
        for reason, names in cases.items()
    ]


def _host_notes(host: Host, facts: Facts | str, mates: Sequence[Facts] = ()) -> list[str]:
    """Explain the choice of each image, or why the host cannot be used; show variables that `hosts.yml` sets."""
    if isinstance(facts, str):
        notes = [f"{host.key}: cannot be measured now: {facts}"]
    else:
        notes = [f"{host.key}: {image.reference}: {image.reason}" for image in facts.images]
        if host.python is not None:
            notes.append(f"{host.key}: {host.python}, with the TensorFlow that it has: named in hosts.yml")
        notes += [f"{host.key}: {warning}" for warning in host_warnings(host, facts, mates)]
    if host.environment:
        variables = " ".join(f"{name}={value}" for name, value in host.environment.items())
        notes.append(f"{host.key}: environment: {variables}")
    return notes


def _reached(host: Host) -> str:
    address = host.ssh or host.docker
    if address is None:
        return host.launcher
    scheme = f"{address.scheme}://" if isinstance(address, DockerAddress) else "ssh "
    return f"{scheme}{address.target}" + (f":{address.port}" if address.port else "")


def _gpus(facts: Facts) -> str:
    given = [f"given by {facts.gpu_runtime}"] if facts.gpus and facts.gpu_runtime else []
    return ", ".join([each(map(_gpu, facts.gpus)) or "none", *given])


def _gpu(gpu: GPU) -> str:
    """Describe a GPU: name, memory, power limit, compute capability."""
    memory = "" if gpu.memory_bytes is None else f"{gpu.memory_bytes / (1 << 30):.0f} GiB"
    limit = "" if gpu.power_limit_watts is None else f"{gpu.power_limit_watts:.0f} W"
    capability = "" if gpu.compute_capability is None else f"cc {gpu.compute_capability}"
    return ", ".join(filter(None, (gpu.name, memory, limit, capability)))

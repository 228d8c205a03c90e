"""Time breakdown of runs, by host.

Phases of a repeat are in its record (`Record.phases`); starting it, queueing and fetching its record are in the events
of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from results.runs.store import RunFolder, StoredRecord
from results.schema import Record, Status
from results.text_table import Grid

TIMED, FAILED, OTHER, WAITING, PULL, REPEATS = "timed steps", "failed", "other", "waiting", "pull", "repeats"

KINDS = (TIMED, "warm-up", "compilation", "building", "start", "peaks", "checks", PULL, WAITING, FAILED, OTHER)
"""What time is spent on, in the order of the table: the timed steps, then overhead."""

KIND_OF_STATE: Mapping[str, str] = {
    "launching": "start",
    "running": "start",
    "starting": "start",
    "building": "building",
    "compiling": "compilation",
    "checking": "checks",
    "cooling": WAITING,
    "queued": WAITING,
    "warming": "warm-up",
    "timing": TIMED,
    "peaks": "peaks",
}
"""By state of `results.schema.progress.STATES` and of the orchestrator; all others are `OTHER`."""

QUEUED = "queued"
OUTSIDE = frozenset({"launching", "running", QUEUED})
"""States before the process starts, which are in no record; `running`: a queue has allocated a machine."""


def time_breakdown(stored: Iterable[StoredRecord]) -> dict[str, Mapping[str, float]]:
    """Return the number of repeats and the seconds by kind of each `fleet/host`.

    Args:
        stored: Records of any number of runs; events are read from the folders of the runs.
    """
    hosts: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    by_run: dict[Path, list[tuple[str, Record]]] = {}
    for item in stored:
        if item.record is not None:
            by_run.setdefault(item.path.parent.parent, []).append((item.path.stem, item.record))
    for path, records in by_run.items():
        states, repeats, pulls = _times(_events(RunFolder(path)))
        names: dict[str, str] = {}
        for job, record in records:
            origin = record.origin
            host = f"{origin.fleet}/{origin.host}" if origin else "-"
            names[host.replace("/", ".")] = host  # events have a dot between fleet and host
            hosts[host][REPEATS] += 1
            for kind, seconds in _of_repeat(record, states.get(job, {}), repeats.get(job)).items():
                hosts[host][kind] += seconds
        for host, seconds in pulls.items():
            hosts[names.get(host, host)][PULL] += seconds
    return dict(sorted(hosts.items()))


def _events(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the events of a run; none if the file is missing or cannot be read."""
    try:
        if folder.events_path.is_file():
            yield from folder.read_events()
    except OSError:
        return


_Seconds = defaultdict[str, float]


def _times(events: Iterable[dict[str, Any]]) -> tuple[dict[str, _Seconds], dict[str, float], _Seconds]:
    """Return durations from the events of a run.

    Returns:
        Seconds of each state, by job; duration of each repeat, by job; and seconds spent pulling images, by host.
    """
    states, repeats, pulls = dict[str, _Seconds](), dict[str, float](), _Seconds(float)
    begun: dict[str, tuple[str, float]] = {}
    for event in events:
        kind, job, at = event.get("event"), str(event.get("job")), _seconds(event.get("at"))
        if kind == "run_started":
            begun.clear()  # states are unknown while there is no controller
        elif kind == "image_ready":
            pulls[str(event.get("host"))] += _number(event.get("seconds"))
        elif kind in ("job_state", "job_result"):
            if job in begun and at is not None:
                state, since = begun.pop(job)
                states.setdefault(job, _Seconds(float))[state] += max(0.0, at - since)
            if kind == "job_result":
                repeats[job] = _number(event.get("seconds"))
            elif at is not None:
                state = str(event.get("state"))
                if state == "launching":
                    states.pop(job, None)  # a new attempt
                begun[job] = "running" if state.startswith("on ") else state, at
    return states, repeats, pulls


def _of_repeat(record: Record, states: Mapping[str, float], whole: float | None) -> dict[str, float]:
    """Split the duration of a repeat by kind.

    Args:
        record: Its record.
        states: Seconds of each state, from the events.
        whole: Seconds from its start to its record; None: in no event.
    """
    found: defaultdict[str, float] = defaultdict(float)
    outside = [(state, states[state]) for state in OUTSIDE & states.keys()]
    for state, seconds in [*((phase.name, phase.seconds) for phase in record.phases), *outside]:
        found[KIND_OF_STATE.get(state, OTHER)] += seconds
    if whole is not None:
        found[OTHER] += max(0.0, whole + states.get(QUEUED, 0.0) - sum(found.values()))
    return found if record.status is Status.OK else {FAILED: sum(found.values())}


def _seconds(stamp: object) -> float | None:
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except (ValueError, OverflowError):
        return None


def _number(value: object) -> float:
    """Parse a duration of an untrusted event; 0 if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return 0.0
    return float(value)


def time_breakdown_grid(hosts: Mapping[str, Mapping[str, float]]) -> Grid | None:
    """Return a row per host and the share of each kind; None: no time was spent.

    Args:
        hosts: From `time_breakdown`.
    """
    whole = {kind: sum(spent.get(kind, 0.0) for spent in hosts.values()) for kind in KINDS}
    total = sum(whole.values())
    if not total:
        return None
    rows = []
    for host, spent in hosts.items():
        seconds = [spent.get(kind, 0.0) for kind in KINDS]
        if sum(seconds):
            rows.append([host, f"{spent.get(REPEATS, 0):.0f}", *map(_clock, seconds), _clock(sum(seconds))])
    shares = [f"{whole[kind] / total:.0%}" if whole[kind] else "" for kind in KINDS]
    return Grid(
        "Where the time went",
        ["host", "repeats>", *(f"{kind}>" for kind in KINDS), "all>"],
        [*rows, ["share of all", "", *shares, _clock(total)]],
        [f"minutes:seconds; timed steps are {whole[TIMED] / total:.0%} of what the hosts spent"],
        (OTHER, "checks", "peaks", "building", "repeats", "start"),
    ).without_empty_columns()


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if seconds >= 0.5 else ""

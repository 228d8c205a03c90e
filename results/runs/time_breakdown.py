"""Where the time of a run went: what each repeat spent its time on, per host and case, and as a table.

What happens inside of a repeat is in its record (`Record.phases`); starting it, waiting in a queue and fetching its
record are in the events of the run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from results.grid import Grid
from results.runs.store import RunFolder, StoredRecord
from results.schema import Record, Status

TIMED, FAILED, OTHER, WAITING, PULL = "timed steps", "failed", "other", "waiting", "pull"

KINDS = (TIMED, "warm-up", "compilation", "building", "start", "peaks", "checks", PULL, WAITING, FAILED, OTHER)
"""What time is spent on, in the order of the table: what is wanted, then what it costs."""

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
"""Kind of each state of `results.schema.progress.STATES` and of the orchestrator; all others are `OTHER`."""

MAX_ROWS = 200
"""Rows of cases up to which each has its own; of more, each host has one."""

QUEUED = "queued"
OUTSIDE = frozenset({"launching", "running", QUEUED})
"""States that no record holds, because the process has not begun; `running`: a queue has found a machine."""


@dataclass
class TimeSpent:
    """What the repeats of a case on a host took; or, without a case, the host itself.

    Attributes:
        host: Fleet and host, `fleet/host`.
        case: Its name; empty: what belongs to no case.
        repeats: Repeats that left a record.
        seconds: By kind.
    """

    host: str
    case: str
    repeats: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def total(self) -> float:
        """Seconds of all kinds."""
        return sum(self.seconds.values())


def time_breakdown(stored: Iterable[StoredRecord]) -> list[TimeSpent]:
    """Return where the time of runs went, hosts in the order of their names.

    Args:
        stored: Records of any number of runs; the events of a run are read from its folder.
    """
    rows: dict[tuple[str, str], TimeSpent] = {}
    by_run: dict[Path, list[tuple[str, Record]]] = {}
    for item in stored:
        if item.record is not None:
            by_run.setdefault(item.path.parent.parent, []).append((item.path.stem, item.record))
    for path, records in by_run.items():
        journal = _Journal(_events(RunFolder(path)))
        for job, record in records:
            host = _host(record)
            row = rows.setdefault((host, record.case.name), TimeSpent(host, record.case.name))
            row.repeats += 1
            for kind, seconds in _of_repeat(record, journal.states.get(job, {}), journal.seconds.get(job)).items():
                row.seconds[kind] += seconds
        for host, seconds in journal.pulls.items():
            row = rows.setdefault((_slashed(host, by_run[path]), ""), TimeSpent(_slashed(host, by_run[path]), ""))
            row.seconds[PULL] += seconds
    return [rows[key] for key in sorted(rows)]


def _events(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the events of a run; none where its journal is no file, or may not be read."""
    try:
        if folder.events_path.is_file():
            yield from folder.read_events()
    except OSError:
        return


class _Journal:
    """What the events of a run report of time.

    Attributes:
        states: Seconds of each state, by job.
        seconds: That each repeat took, by job.
        pulls: Seconds in which images came to a host.
    """

    def __init__(self, events: Iterator[dict[str, Any]]) -> None:
        self.states: dict[str, dict[str, float]] = {}
        self.seconds: dict[str, float] = {}
        self.pulls: dict[str, float] = defaultdict(float)
        begun: dict[str, tuple[str, float]] = {}
        for event in events:
            match event.get("event"):
                case "run_started":
                    begun.clear()  # what ran when a controller died was not watched
                case "job_state" | "job_result":
                    self._take(event, begun)
                case "image_ready":
                    self.pulls[str(event.get("host"))] += _number(event.get("seconds"))

    def _take(self, event: dict[str, Any], begun: dict[str, tuple[str, float]]) -> None:
        job, at = str(event.get("job")), _seconds(event.get("at"))
        if job in begun and at is not None:
            state, since = begun.pop(job)
            spent, state = self.states.setdefault(job, {}), "running" if state.startswith("on ") else state
            spent[state] = spent.get(state, 0.0) + max(0.0, at - since)
        if event["event"] == "job_result":
            self.seconds[job] = _number(event.get("seconds"))
        elif at is not None:
            if event.get("state") == "launching":
                self.states.pop(job, None)  # a new attempt
            begun[job] = str(event.get("state")), at


def _of_repeat(record: Record, states: Mapping[str, float], whole: float | None) -> dict[str, float]:
    """Split the time of a repeat by kind.

    Args:
        record: What it left.
        states: Seconds of each state, by the events.
        whole: Seconds from its start to its record; None: no event has it.
    """
    inside = [(phase.name, phase.seconds) for phase in record.phases]
    found: dict[str, float] = defaultdict(float)
    for state, seconds in [*inside, *((state, states[state]) for state in OUTSIDE & states.keys())]:
        found[KIND_OF_STATE.get(state, OTHER)] += seconds
    if whole is not None:
        found[OTHER] += max(0.0, whole + states.get(QUEUED, 0.0) - sum(found.values()))
    if record.status is not Status.OK:
        return {FAILED: sum(found.values())}
    return {kind: seconds for kind, seconds in found.items() if seconds > 0}


def timed_share(rows: Sequence[TimeSpent]) -> float:
    """Return the share of timed steps in all that was spent, 0 to 1; 0 where nothing was."""
    total = sum(row.total for row in rows)
    return sum(row.seconds.get(TIMED, 0.0) for row in rows) / total if total else 0.0


def _host(record: Record) -> str:
    return f"{record.origin.fleet}/{record.origin.host}" if record.origin else "-"


def _slashed(key: str, records: Sequence[tuple[str, Record]]) -> str:
    """Return a host's name as records have it: events join fleet and host by a dot, and either may hold dots."""
    for _, record in records:
        if record.origin and f"{record.origin.fleet}.{record.origin.host}" == key:
            return _host(record)
    return key


def _seconds(stamp: object) -> float | None:
    try:
        return datetime.fromisoformat(str(stamp)).timestamp()
    except (ValueError, OverflowError):
        return None


def _number(value: object) -> float:
    """Read a duration of an event, which anybody may have written."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        return 0.0
    return float(value)


def time_breakdown_grid(rows: Sequence[TimeSpent]) -> Grid | None:
    """Return a row for each host and case, the sum of each host with several, and that of all; None without any time.

    Args:
        rows: From `time_breakdown`.
    """
    rows = [row for row in rows if row.total > 0]
    if not rows:
        return None
    hosts = list(dict.fromkeys(row.host for row in rows))
    shown = list(rows) if len(rows) <= MAX_ROWS else [_sum(host, [r for r in rows if r.host == host]) for host in hosts]
    lines = [_line(row, row.case or "(host)") for row in shown]
    whole = _sum("", rows)
    if len(shown) > 1:
        lines.append(_line(whole, "all"))
    share = [f"{whole.seconds.get(kind, 0.0) / whole.total:.0%}" if whole.seconds.get(kind) else "" for kind in KINDS]
    lines.append(["", "share of all", "", *share, ""])
    return Grid(
        "Where the time went",
        ["host", "case", "repeats>", *(f"{kind}>" for kind in KINDS), "all>"],
        lines,
        [f"minutes:seconds; timed steps are {timed_share(rows):.0%} of what the hosts spent"],
        (OTHER, "checks", "peaks", "building", "repeats", "start"),
    ).without_empty_columns()


def _sum(host: str, rows: Sequence[TimeSpent]) -> TimeSpent:
    total = TimeSpent(host, "", sum(row.repeats for row in rows))
    for row in rows:
        for kind, seconds in row.seconds.items():
            total.seconds[kind] += seconds
    return total


def _line(row: TimeSpent, case: str) -> list[str]:
    seconds = [row.seconds.get(kind, 0.0) for kind in KINDS]
    return [
        row.host,
        case,
        str(row.repeats or ""),
        *(_clock(value) if value >= 0.5 else "" for value in seconds),
        _clock(row.total),
    ]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"

"""Time breakdown of runs, by host.

Phases of a repeat are in its record (`Record.phases`); its whole duration, queueing and pulls are in the events of the
run.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from results.runs.store import RunFolder, StoredRecord
from results.schema import Status
from results.text_table import Grid, grid_of

FAILED, OTHER, WAITING, PULL, REPEATS = "failed", "other", "waiting", "pull", "repeats"

KINDS = ("timing", "warming", "compiling", "building", "starting", "peaks", "checking", PULL, WAITING, FAILED, OTHER)
"""What time is spent on, in the order of the table: the timed steps, then overhead."""

WHOLE = "whole repeat"
"""From its start to its record, after any queue."""

BEFORE_PHASES = {"launching": "starting", "on": "starting", "queued": WAITING}
"""By state of a repeat whose process has not started, which is in no record; `on HOST`: a queue allocated a machine."""

KIND_OF_PHASE = {kind: kind for kind in KINDS} | {"cooling": WAITING}
"""By phase of a record; all others, and what is in no phase, are `OTHER`."""

Spent = defaultdict[str, float]
"""Seconds by kind, job or host."""


def time_breakdown(stored: Iterable[StoredRecord]) -> dict[str, Mapping[str, float]]:
    """Return the number of repeats and the seconds by kind of each `fleet/host`.

    Args:
        stored: Records of any number of runs; events are read from the folders of the runs.
    """
    hosts = defaultdict[str, Spent](lambda: Spent(float))
    readable = ((item.path, item.record) for item in stored if item.record is not None)
    for folder, records in itertools.groupby(readable, lambda item: item[0].parent.parent):
        jobs, pulls = _times(RunFolder(folder))
        for path, record in records:
            origin, spent = record.origin, jobs[path.stem]
            host = f"{origin.fleet}/{origin.host}" if origin else "-"
            whole = spent.pop(WHOLE, 0.0) + spent[WAITING]
            for phase in record.phases:
                spent[KIND_OF_PHASE.get(phase.name, OTHER)] += phase.seconds
            spent[OTHER] += max(0.0, whole - sum(spent.values()))
            hosts[host][REPEATS] += 1
            for kind, seconds in spent.items():
                hosts[host][kind if record.status is Status.OK else FAILED] += seconds
        names = {host.replace("/", "."): host for host in hosts}  # events have a dot between fleet and host
        for host, seconds in pulls.items():
            hosts[names.get(host, host)][PULL] += seconds
    return dict(sorted(hosts.items()))


def _times(folder: RunFolder) -> tuple[defaultdict[str, Spent], Spent]:
    """Return durations from the events of a run.

    Returns:
        Seconds by kind before the process started and of the `WHOLE` repeat, by job; seconds spent pulling images, by
        host.
    """
    jobs, pulls = defaultdict[str, Spent](lambda: Spent(float)), Spent(float)
    begun = dict[str, tuple[str, float]]()
    with contextlib.suppress(OSError):  # a copied run may lack its events
        for event in folder.read_events():
            with contextlib.suppress(KeyError, TypeError, AttributeError, ValueError, OverflowError):  # damaged
                kind, at = event["event"], datetime.fromisoformat(event["at"]).timestamp()
                if kind == "run_started":
                    begun.clear()  # states are unknown while there is no controller
                elif kind == "image_ready":
                    pulls[str(event["host"])] += _number(event["seconds"])
                elif kind in ("job_state", "job_result"):
                    job = event["job"]
                    state, since = begun.pop(job, ("", at))
                    if state in BEFORE_PHASES:
                        jobs[job][BEFORE_PHASES[state]] += max(0.0, at - since)
                    if kind == "job_result":
                        jobs[job][WHOLE] = _number(event["seconds"])
                    else:
                        state = event["state"].partition(" ")[0]
                        begun[job] = state, at
                        if state == "launching":
                            jobs.pop(job, None)  # a new attempt
    return jobs, pulls


def _number(value: Any) -> float:  # noqa: ANN401 (of a file)
    """Return a duration of an untrusted event; 0 if it is not one."""
    return float(value) if type(value) in (int, float) and 0 <= value < 1e9 else 0.0


def time_breakdown_grid(hosts: Mapping[str, Mapping[str, float]]) -> Grid | None:
    """Return a row per host and the share of each kind; None: no time was spent.

    Args:
        hosts: From `time_breakdown`.
    """
    rows, whole = list[dict[str, str]](), Spent(float)
    for host, spent in hosts.items():
        seconds = {kind: spent.get(kind, 0.0) for kind in KINDS}
        seconds["all"] = sum(seconds.values())
        for kind, of_kind in seconds.items():
            whole[kind] += of_kind
        if seconds["all"]:
            texts = {f"{kind}>": _clock(of_kind) for kind, of_kind in seconds.items()}
            rows.append({"host": host, "repeats>": f"{spent.get(REPEATS, 0):.0f}", **texts})
    if not rows:
        return None
    shares = {f"{kind}>": f"{of_kind / whole['all']:.0%}" if of_kind else "" for kind, of_kind in whole.items()}
    rows.append({"host": "share of all", **shares, "all>": _clock(whole["all"])})
    notes = [f"minutes:seconds; timing is {whole['timing'] / whole['all']:.0%} of what the hosts spent"]
    return grid_of("Where the time went", rows, notes, (OTHER, "checking", "peaks", "building", "repeats", "starting"))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}" if seconds >= 0.5 else ""

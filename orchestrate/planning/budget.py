"""What a run takes and costs: an estimate before the start, a limit while it goes on."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrate.inventory.hosts import Place
from orchestrate.planning.plan import HostPlan, Plan

GUESSED_REPEAT_SECONDS = 150.0
"""Taken for a repeat that was never seen: start, compilation, warm-up and 100 steps on a current GPU (a guess)."""

MAX_EARLIER_RUNS = 20

Durations = Mapping[tuple[str, str], float]
"""Seconds of a repeat by fleet and case name."""

Meter = Place | str
"""What costs are counted under: a host, or the id of a repeat in a queue."""


@dataclass(frozen=True)
class Estimate:
    """What a run, or a part of it, may take.

    Attributes:
        seconds: Until the slowest host is done.
        usd: All hosts together, each from its start to its end; None: not every host has a price.
        seen: Share of repeats whose duration is known from earlier runs, 0 to 1.
        computed: Share whose duration was computed from the network's work and the host's speed; the rest is a guess.
        fleets: The same of each fleet, by its name; empty in those.
    """

    seconds: float
    usd: float | None
    seen: float
    computed: float = 0.0
    fleets: dict[str, Estimate] = field(default_factory=dict)


@dataclass
class _Sum:
    """What the repeats of a fleet, or of all, add up to."""

    seconds: dict[Place, float] = field(default_factory=dict)
    usd: float | None = 0.0
    seen: int = 0
    computed: int = 0
    count: int = 0

    def add(self, entry: HostPlan, seconds: float, lanes: int = 1) -> None:
        """Add what a host does; its lanes work side by side, and each is paid."""
        place = entry.host.place
        self.seconds[place] = self.seconds.get(place, 0.0) + seconds / lanes
        price = hourly_usd(entry)
        self.usd = None if self.usd is None or price is None else self.usd + price * seconds / 3600

    def count_in(self, key: tuple[str, str], durations: Durations, computed: Durations) -> None:
        """Count one repeat by what its duration comes from."""
        self.count += 1
        self.seen += key in durations
        self.computed += key not in durations and key in computed

    def estimate(self, fleets: dict[str, Estimate]) -> Estimate:
        """Return the sum as an estimate."""
        count, slowest = self.count or 1, max(self.seconds.values(), default=0.0)
        return Estimate(slowest, self.usd, self.seen / count if self.count else 1.0, self.computed / count, fleets)


def earlier_durations(runs_dir: Path) -> dict[tuple[str, str], float]:
    """Return how long repeats took in the latest runs.

    Returns:
        Median seconds by fleet and case name.
    """
    seconds: dict[tuple[str, str], list[float]] = {}
    runs = sorted(runs_dir.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in runs[:MAX_EARLIER_RUNS]:
        with path.open(encoding="utf-8", errors="replace") as lines:  # a large run has a quarter of a million
            for line in lines:
                if '"job_result"' in line:
                    _note_duration(line, seconds)
    return {key: statistics.median(values) for key, values in seconds.items()}


def _note_duration(line: str, seconds: dict[tuple[str, str], list[float]]) -> None:
    """Take in a line of a journal; one that was cut off, or is of another version, counts for nothing."""
    try:
        event = json.loads(line)
        if event["status"] == "ok":
            fleet = event.get("fleet") or event["host"].partition(".")[0]  # older journals name no fleet
            seconds.setdefault((fleet, event["case"]), []).append(float(event["seconds"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def estimate(
    plan: Plan, durations: Durations, computed: Durations | None = None, once: Mapping[Place, float] | None = None
) -> Estimate:
    """Estimate duration and cost of a plan.

    Args:
        plan: What will run.
        durations: From `earlier_durations`.
        computed: For repeats that no earlier run had, from the work of the networks; None: they are guessed.
        once: Seconds of what a host does once in the run, by host.
    """
    computed = computed or {}
    sums = {"": _Sum()} | {entry.host.fleet: _Sum() for entry in plan.hosts}
    for entry in plan.hosts:
        keys = [(entry.host.fleet, job.case.name) for job in entry.jobs if job.blocked is None]
        total = sum(_seconds(key, durations, computed) for key in keys)
        for part in (sums[""], sums[entry.host.fleet]):
            part.add(entry, total, min(entry.host.lanes, max(1, len(keys))))
            part.add(entry, (once or {}).get(entry.host.place, 0.0) if keys else 0.0)
            for key in keys:
                part.count_in(key, durations, computed)
    for gang in plan.gangs:
        key = gang.job.origin.fleet, gang.job.case.name
        places = {part.place for part in gang.members}
        for part in (sums[""], sums[key[0]]):
            part.count_in(key, durations, computed)
            for entry in plan.hosts:
                if entry.host.place in places:
                    part.add(entry, _seconds(key, durations, computed))
    return sums.pop("").estimate({fleet: part.estimate({}) for fleet, part in sums.items()})


def _seconds(key: tuple[str, str], durations: Durations, computed: Durations) -> float:
    return durations.get(key, computed.get(key, GUESSED_REPEAT_SECONDS))


def hourly_usd(entry: HostPlan) -> float | None:
    """Return what a host costs in an hour: all its GPUs, because a machine is rented as a whole."""
    price = entry.host.usd_per_gpu_hour
    if price is None:
        return None
    gpus = len(entry.facts.gpus) if entry.facts else 0
    return price * max(1, gpus)


class Budget:
    """Keeps a run below a cost: no repeat begins that would end above it.

    A host is counted from its start to its end; of a queue each repeat is, while it has a machine, under its own name.

    Args:
        limit_usd: For the whole run.
        hosts: Those that will work; each needs a price.
        durations: From `earlier_durations`; what this run sees itself counts more.
    """

    def __init__(self, limit_usd: float, hosts: Iterable[HostPlan], durations: Durations) -> None:
        self._limit_usd = limit_usd
        self._rates = {entry.host.place: (hourly_usd(entry) or 0.0) / 3600 for entry in hosts}
        self._durations = dict(durations)
        self._began: dict[Meter, tuple[Place, float]] = {}
        self._reserved: dict[Meter, float] = {}
        self._reserved_usd = 0.0
        self._settled_usd = 0.0
        self._lock = threading.Lock()

    def begin(self, host: Place, meter: str | None = None) -> None:
        """Start to count the time of a host, or of a repeat in its queue."""
        with self._lock:
            self._settle(meter or host)
            self._began[meter or host] = host, time.monotonic()

    def end(self, host: Place, meter: str | None = None) -> None:
        """Stop to count; nothing happens when nothing is counted."""
        with self._lock:
            if meter is None or meter in self._began:
                self._reserve(meter or host, 0.0)
            self._settle(meter or host)

    def allows(self, host: Place, case: str, meter: str | None = None) -> bool:
        """Return whether one more repeat can end within the limit; if so, its cost is reserved."""
        with self._lock:
            wanted = self._rates[host] * self._durations.get((host.fleet, case), GUESSED_REPEAT_SECONDS)
            others = self._reserved_usd - self._reserved.get(meter or host, 0.0)
            if self._spent() + others + wanted > self._limit_usd:
                return False
            self._reserve(meter or host, wanted)
            return True

    def learn(self, fleet: str, case: str, seconds: float) -> None:
        """Take in how long a repeat took."""
        with self._lock:
            self._durations[fleet, case] = seconds

    def spent_usd(self) -> float:
        """Return what the run has cost so far."""
        with self._lock:
            return self._spent()

    def _spent(self) -> float:
        return self._settled_usd + sum(map(self._running_usd, self._began))

    def _running_usd(self, meter: Meter) -> float:
        host, began = self._began[meter]
        return self._rates[host] * (time.monotonic() - began)

    def _settle(self, meter: Meter) -> None:
        if meter in self._began:
            self._settled_usd += self._running_usd(meter)
            del self._began[meter]

    def _reserve(self, meter: Meter, usd: float) -> None:
        self._reserved_usd += usd - self._reserved.pop(meter, 0.0)
        if usd:
            self._reserved[meter] = usd

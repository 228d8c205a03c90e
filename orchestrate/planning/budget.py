"""The limit of a run's cost: no repeat begins that would end above it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from orchestrate.inventory.hosts import Place
from orchestrate.planning.durations import Durations, hourly_usd
from orchestrate.planning.plan import HostPlan

Meter = Place | str
"""What costs are counted under: a host, or the id of a repeat in a queue."""


class Budget:
    """Keeps a run below a cost: no repeat begins that would end above it.

    A host is counted from its start to its end; of a queue each repeat is, while it has a machine, under its own name.

    Args:
        limit_usd: For the whole run.
        hosts: Those that will work; each needs a price.
        durations: Of its repeats; what this run sees itself counts more.
    """

    def __init__(self, limit_usd: float, hosts: Iterable[HostPlan], durations: Durations) -> None:
        self._limit_usd = limit_usd
        self._rates = {entry.host.place: (hourly_usd(entry) or 0.0) / 3600 for entry in hosts}
        self._durations = durations
        self._seen: dict[tuple[str, str], float] = {}
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
            seconds = self._seen.get((host.fleet, case)) or self._durations.seconds(host.fleet, case)
            wanted = self._rates[host] * seconds
            others = self._reserved_usd - self._reserved.get(meter or host, 0.0)
            if self._spent() + others + wanted > self._limit_usd:
                return False
            self._reserve(meter or host, wanted)
            return True

    def learn(self, fleet: str, case: str, seconds: float) -> None:
        """Take in how long a repeat took."""
        with self._lock:
            self._seen[fleet, case] = seconds

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

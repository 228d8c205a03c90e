"""How long a run still takes: what was expected of its repeats, corrected by those that have ended."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrate.events import Event, HostLost, JobResult, JobSpared
from orchestrate.planning.budget import GUESSED_REPEAT_SECONDS
from orchestrate.planning.plan import Plan
from results.schema import Status

WEIGHT_OF_EXPECTED = 1.0
"""Repeats that the expectation of a host counts as, against those that have ended there."""


class Outlook:
    """Learns from each repeat that ends.

    Args:
        plan: What runs.
        expected: Seconds by fleet and case name, from earlier runs or computed.
    """

    def __init__(self, plan: Plan, expected: Mapping[tuple[str, str], float]) -> None:
        self._left: dict[str, dict[str, float]] = {}
        self._lanes = {entry.host.key: entry.host.lanes for entry in plan.hosts}
        self._factors: dict[str, tuple[float, float]] = {}
        for entry in plan.hosts:
            led = [gang.job for gang in plan.gangs if gang.members[0].place == entry.host.place]
            jobs = [job for job in (*entry.jobs, *led) if job.blocked is None]
            self._left[entry.host.key] = {
                job.id: expected.get((job.origin.fleet, job.case.name), GUESSED_REPEAT_SECONDS) for job in jobs
            }

    def note(self, event: Event) -> None:
        """Take in what an event says of the time that is left."""
        match event:
            case JobResult():
                self.ended(event.host, event.job, event.seconds if event.status == Status.OK else None)
            case JobSpared():
                self.ended(event.host, event.job, None)
            case HostLost():
                self.drop(event.host)

    def ended(self, host: str, job: str, seconds: float | None) -> None:
        """Take in a repeat that ended.

        Args:
            host: Key of the host that it counts for.
            job: Its id.
            seconds: That it took; None or 0: it says nothing of the others, because it was left out or never began.
        """
        expected = self._left.get(host, {}).pop(job, None)
        if expected is not None and seconds:
            took, planned = self._factors.get(host, (0.0, 0.0))
            self._factors[host] = took + seconds, planned + expected

    def drop(self, host: str) -> None:
        """Expect no more of a host that was set aside."""
        self._left.get(host, {}).clear()

    def seconds_left(self, host: str | None = None) -> float:
        """Return the seconds until a host is done, or the slowest of all; counted from the last repeat's end."""
        if host is None:
            return max(map(self.seconds_left, self._left), default=0.0)
        left = self._left.get(host, {})
        total = sum(left.values())
        took, planned = self._factors.get(host, (0.0, 0.0))
        mean = total / len(left) if left else 0.0
        prior = WEIGHT_OF_EXPECTED * mean
        factor = (took + prior) / (planned + prior) if planned + prior else 1.0
        return total * factor / min(self._lanes.get(host, 1), max(1, len(left)))

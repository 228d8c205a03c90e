"""Trying a repeat again: only because its host failed, never to improve a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from orchestrate.planning.plan import Job
from orchestrate.running.options import HOST_FAULTS
from orchestrate.running.shared import Shared, set_record_aside
from results.schema import Record

Ended = TypeVar("Ended", bound=Record | None)


@dataclass
class Retries:
    """Of one host, or of hosts that work together.

    Attributes:
        faults: Repeats in a row, tried again or new, that ended by a fault of a host.
    """

    shared: Shared
    faults: int = 0

    def run(self, job: Job, once: Callable[[], Ended]) -> Ended:
        """Run one repeat, again while a host fails, the options allow it and the run is not to stop.

        Args:
            job: The repeat.
            once: Runs it, and stores its record; None: it was taken back before it began, and is not tried again.
        """
        for left in reversed(range(self.shared.options.retries + 1)):
            record = once()
            if record is None:
                break
            failed = record.status in HOST_FAULTS
            self.faults = self.faults + 1 if failed else 0
            if not failed or not left or self.shared.stop.launching.is_set():
                break
            set_record_aside(self.shared.folder, job)
        return record

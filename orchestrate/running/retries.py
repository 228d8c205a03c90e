"""Trying a repeat again: only because its host failed, never to improve a number."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrate.planning.plan import Job
from orchestrate.running.options import HOST_FAULTS
from orchestrate.running.shared import Shared, set_record_aside
from results.schema import Record


@dataclass
class Retries:
    """Of one host, or of hosts that work together.

    Attributes:
        faults: Repeats in a row, tried again or new, that ended by a fault of a host.
    """

    faults: int = 0

    def again(self, job: Job, record: Record, tries: int, shared: Shared) -> bool:
        """Return whether to run a repeat again: its host failed, the options allow it, and the run is not to stop.

        Its record is kept under another name then.

        Args:
            job: The repeat.
            record: How it ended.
            tries: How often it has run.
            shared: Has the options and the run's folder.
        """
        failed = record.status in HOST_FAULTS
        self.faults = self.faults + 1 if failed else 0
        if not failed or tries > shared.options.retries or shared.stop.launching.is_set():
            return False
        set_record_aside(shared.folder, job)
        return True

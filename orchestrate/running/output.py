"""What a repeat prints: kept in its log, bounded, and what it reports passed on as events."""

from __future__ import annotations

import time

from orchestrate.events import EventBus, JobState, JobStep
from orchestrate.planning.plan import Job
from orchestrate.running.watchdog import Watched
from results.runs.store import RunFolder
from results.schema.progress import State, Step, parse_line

MAX_LOG_BYTES = 4 * 1024 * 1024
"""Most that is kept of a repeat's output."""

STEP_SECONDS = 1.0
"""Events of steps come at most so often for each repeat: a fast network prints a line every few milliseconds."""


class Output:
    """Takes the lines of one repeat.

    Args:
        job: The repeat.
        host: `Host.key`, for events.
        folder: Has its log.
        bus: Learns of states and steps.
        watched: Learns that it is not silent.
        tells_steps: False: another part of the same repeat does.

    Attributes:
        last_line: That was not empty; at most 200 characters.
    """

    def __init__(
        self, job: Job, host: str, folder: RunFolder, bus: EventBus, watched: Watched, *, tells_steps: bool = True
    ) -> None:
        self._job = job
        self._host = host
        self._bus = bus
        self._watched = watched
        self._tells_steps = tells_steps
        self._next_step = 0.0
        self._file = folder.log_path(job.id).open("wb", buffering=0)  # a line is there as soon as it came
        self._left = MAX_LOG_BYTES
        self.last_line = ""

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, line: str) -> None:
        """Take a line, without its end."""
        self._watched.heard()
        self._keep(line)
        match parse_line(line):
            case State(name):
                self._bus.emit(JobState(job=self._job.id, host=self._host, state=name))
            case Step() as step if self._tells_steps and time.monotonic() >= self._next_step:
                self._next_step = time.monotonic() + STEP_SECONDS
                self._bus.emit(
                    JobStep(
                        job=self._job.id,
                        host=self._host,
                        step=step.phase_step,
                        samples_per_second=step.samples_per_second,
                        unit=step.unit,
                    )
                )

    def _keep(self, line: str) -> None:
        if line.strip():
            self.last_line = line[:200]
        if self._left <= 0:
            return
        data = f"{line}\n".encode("utf-8", "replace")
        self._left -= len(data)
        self._file.write(data if self._left > 0 else b"tfbench: the rest of the output was not kept\n")

"""What starts benchmarks on a host: one small interface, whatever stands behind it.

A launcher belongs to one host. `run.py` calls it from that host's own thread, but `stop`, which may come from the
watchdog or from Ctrl-C while `follow` waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from orchestrate.facts import Facts
from orchestrate.launchers.pulls import Progress
from orchestrate.plan import Job

OutputLine = Callable[[str], None]
"""Receives each line of output, already made safe to print."""


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a started benchmark ended, as its engine tells, not as its log suggests.

    Attributes:
        exit_code: Of the process, 128 + n for signal n; None: it cannot be known.
        out_of_memory: The kernel killed it at its memory limit.
        detail: What the engine added, for a person.
    """

    exit_code: int | None
    out_of_memory: bool = False
    detail: str = ""


class Launcher(Protocol):
    """Starts, follows and collects benchmarks on one host."""

    def probe(self) -> Facts:
        """Ask the host what it is, connecting first.

        Raises:
            HostError: It does not answer, or refuses.
        """

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """Bring what `job` starts from to the host; quick when it is there.

        Raises:
            HostError: It cannot be had.
        """

    def start(self, job: Job) -> bool:
        """Start a benchmark under the job's name, or adopt what already runs under that name.

        Returns:
            True when it was adopted.

        Raises:
            HostError: It could not be started.
        """

    def follow(self, job: Job, on_line: OutputLine) -> Ending:
        """Wait until the benchmark has ended, handing on its output.

        Raises:
            HostError: The host was lost for good.
        """

    def collect(self, job: Job) -> bytes | None:
        """Fetch the record that the benchmark wrote; at most `MAX_RECORD_BYTES` + 1 bytes.

        Returns:
            None: it wrote none.

        Raises:
            HostError: The host was lost for good.
        """

    def stop(self, job: Job) -> None:
        """End a running benchmark; nothing happens when there is none. Callable from any thread."""

    def remove(self, job: Job) -> None:
        """Remove what the benchmark left on the host; nothing happens when there is nothing."""

    def running(self, run_id: str) -> list[str]:
        """Return the job ids of a run that exist on the host, running or ended.

        Raises:
            HostError: It does not answer.
        """

    def close(self) -> None:
        """Let go of the host; what runs there goes on."""

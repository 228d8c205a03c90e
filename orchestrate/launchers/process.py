"""Benchmarks as processes of this machine, with this Python: the default without a hosts file, and `process: true`.

They are started and guarded by the same agent as on hosts that ssh reaches, behind a pipe: see `launchers/ssh`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrate.errors import LaunchFailed, Lost
from orchestrate.inventory.hosts import Host
from orchestrate.launchers.pulls import Progress
from orchestrate.launchers.ssh.connection import Connection
from orchestrate.launchers.ssh.launcher import AgentLauncher
from orchestrate.launchers.ssh.software import HostSoftware
from orchestrate.planning.facts import Facts
from orchestrate.planning.plan import Job
from orchestrate.project import PROJECT, missing_extra

SOFTWARE = HostSoftware(python=sys.executable, environment={"PYTHONPATH": str(PROJECT)})


class ProcessLauncher(AgentLauncher):
    """Starts benchmarks on this machine; each has a folder below the run's, `work/jobs/RUN/JOB/`.

    Args:
        host: Settings of the host.
        run_path: The run's folder; None when nothing will be started.
        command: What runs instead of `python -m tfbench`, for tests.
    """

    def __init__(self, host: Host, run_path: Path | None, command: list[str] | None = None) -> None:
        # Absolute: the agent runs elsewhere, and `--runs-dir` is relative to where the user is.
        self._work = None if run_path is None else run_path.absolute() / "work"
        self._command = command
        super().__init__(host, Connection(None, root=str(self._work or "/nonexistent")), lambda host, message: None)

    def probe(self) -> Facts:
        """See `Launcher.probe`."""
        if missing := missing_extra():
            raise LaunchFailed(missing)
        return self._ask_probe(SOFTWARE)

    def prepare(self, job: Job, on_progress: Progress) -> None:
        """See `Launcher.prepare`: this Python is all that is needed."""

    @property
    def _root(self) -> str:
        if self._work is None:
            raise Lost("no run folder was given")
        return str(self._work)

    def _software_of(self, job: Job, on_progress: Progress) -> HostSoftware:
        return SOFTWARE

    def _program(self, used: HostSoftware) -> list[str]:
        return self._command or super()._program(used)

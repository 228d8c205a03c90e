"""What a run takes of this machine.

Open files, of which many systems allow a process 1,024 unless it asks; and the time of Python's cycle collector, which
walks over all objects of a large plan again and again: a fourth of a controller's CPU time.
"""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING

from orchestrate.errors import UserError

if TYPE_CHECKING:
    from orchestrate.inventory.hosts import Host  # pydantic is slow to import, and `--help` needs none

FILES_OF_OUR_OWN = 64
"""Journal, lock, libraries, terminal, and what is open for a moment."""

FILES_PER_HOST = 5
"""Connection, log, record and its folder, and one more connection to end a repeat."""

FILES_PER_TUNNEL = 3
"""Pipe to ssh, and its errors while it starts."""


COLLECTOR_THRESHOLDS = (50_000, 20, 20)
"""See `gc.set_threshold`; Python's own first one is 700. A repeat leaves hardly any cycles."""


def collect_rarely() -> None:
    """Let the cycle collector come rarely, and pass over all that is there now."""
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.freeze()


def files_needed(hosts: list[Host], max_parallel: int | None) -> int:
    """Return how many files a run may have open at a time, at most."""
    return FILES_OF_OUR_OWN + sum(sorted(map(_files, hosts), reverse=True)[:max_parallel])


def _files(host: Host) -> int:
    tunnel = host.docker is not None and host.docker.scheme == "ssh"
    return FILES_PER_HOST * host.lanes + (FILES_PER_TUNNEL if tunnel else 0)


def allow_open_files(hosts: list[Host], max_parallel: int | None) -> None:
    """Raise this process's limit of open files as far as a run needs it.

    Raises:
        UserError: The system does not allow so many.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows, which has no such limit
        return
    needed = files_needed(hosts, max_parallel)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        totals = itertools.accumulate(sorted(map(_files, hosts), reverse=True), initial=FILES_OF_OUR_OWN)
        fitting = max(1, sum(total <= hard for total in totals) - 1)
        raise UserError(
            f"{len(hosts)} hosts need {needed} open files, and this machine allows a process {hard}. "
            f"Raise it (ulimit -Hn {needed}, or nofile in /etc/security/limits.conf), or give --max-parallel {fitting}"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

"""Machines that other tools know, written as a `hosts.yml`."""

from __future__ import annotations

from collections.abc import Callable

from orchestrate.errors import UserError
from orchestrate.inventory.sources.ansible import from_ansible
from orchestrate.inventory.sources.dstack import from_dstack
from orchestrate.inventory.sources.hosts_file import hosts_file
from orchestrate.inventory.sources.machines import Found
from orchestrate.inventory.sources.runpod import from_runpod
from orchestrate.inventory.sources.sky import from_sky
from orchestrate.inventory.sources.ssh_config import from_ssh_config
from orchestrate.inventory.sources.vast import from_vast

SOURCES: dict[str, Callable[[str], Found]] = {
    "ssh-config": from_ssh_config,
    "ansible": from_ansible,
    "sky": from_sky,
    "dstack": from_dstack,
    "vast": from_vast,
    "runpod": from_runpod,
}
"""What reads each source; takes the path of a file, or `-` for standard input."""


def import_hosts(source: str, path: str) -> str:
    """Return the text of a `hosts.yml` with the machines that a tool knows.

    Args:
        source: Name of the tool; see `SOURCES`.
        path: What it printed, or its own file; `-`: standard input.

    Raises:
        UserError: The file cannot be read, or holds no reachable machine.
    """
    found = SOURCES[source](path)
    if not found.machines:
        reasons = "\n".join(f"  {reason}" for reason in found.left_out) or "  it is empty"
        raise UserError(f"{path}: no reachable machine:\n{reasons}")
    return hosts_file(found, source)

"""Machines that other tools know, written as a `hosts.yml`."""

from __future__ import annotations

from collections.abc import Callable

from orchestrate.errors import UserError
from orchestrate.inventory.sources.ansible import from_ansible
from orchestrate.inventory.sources.machines import Found, hosts_file
from orchestrate.inventory.sources.rented import from_dstack, from_runpod, from_sky, from_vast
from orchestrate.inventory.sources.ssh_config import from_ssh_config

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
        reasons = "\n".join(f"  {reason}" for reason in found.excluded) or "  it is empty"
        raise UserError(f"{path}: no reachable machine:\n{reasons}")
    return hosts_file(found, source)

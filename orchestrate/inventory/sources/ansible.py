"""Hosts of an Ansible inventory, by Ansible's own rules: what `ansible-inventory --list` prints."""

from __future__ import annotations

import shutil
from typing import Any

from orchestrate.errors import UserError
from orchestrate.inventory.sources.machines import (
    STDIN,
    Described,
    Found,
    Machine,
    destination,
    output_of,
    parsed,
    port_number,
    read_text,
    validated,
)
from results.reference.gpus import gpus_named

PROGRAM = "ansible-inventory"
COMMAND = f"{PROGRAM} -i INVENTORY --list"
SSH = frozenset({"ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh"})
"""Connections of Ansible that are ssh."""

IN_SSH_CONFIG = {
    "ansible_ssh_private_key_file": "IdentityFile",
    "ansible_private_key_file": "IdentityFile",
    "ansible_ssh_common_args": "its options",
    "ansible_ssh_extra_args": "its options",
}
"""Variables that `hosts.yml` has no key for, and what says the same in an ssh configuration."""


class _Group(Described):
    hosts: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


def from_ansible(path: str) -> Found:
    """Read an inventory: the output of `ansible-inventory --list`, or any inventory that this program can read."""
    document = _listed(path)
    meta = document.pop("_meta", None)
    variables = meta.get("hostvars") if isinstance(meta, dict) else None
    if not isinstance(variables, dict):
        raise UserError(f"{path}: not the output of: {COMMAND} (it has no _meta.hostvars)")
    groups = validated(dict[str, _Group], document, path, COMMAND)
    hosts = list(dict.fromkeys([*(host for group in groups.values() for host in group.hosts), *variables]))
    found = Found(
        notes=["An inventory does not show which hosts have Docker. For a host without Docker, write {ssh: ADDRESS}."]
    )
    for host in hosts:
        own = variables.get(host)
        _add(host, own if isinstance(own, dict) else {}, _groups_of(host, groups), found)
    return found


def _listed(path: str) -> dict[str, Any]:
    """Return the inventory as Ansible lists it; Ansible itself does that where the file is not that already."""
    if path == STDIN or path.endswith(".json"):
        text, origin = read_text(path), path
    elif shutil.which(PROGRAM) is None:
        raise UserError(
            f"{path}: {PROGRAM} is needed to read it, because only Ansible knows all rules of its inventories. "
            f"Install ansible-core, or: {PROGRAM} -i {path} --list | tfbench init --from ansible"
        )
    else:
        text, origin = output_of(PROGRAM, "-i", path, "--list"), f"{PROGRAM} -i {path}"
    document = parsed(text, origin, COMMAND)
    if not isinstance(document, dict):
        raise UserError(f"{origin}: not the output of: {COMMAND}")
    return document


def _groups_of(host: str, groups: dict[str, _Group]) -> list[str]:
    """Return the groups that a host is in, also through groups of groups, but not `all`."""
    names = [name for name, group in groups.items() if host in group.hosts]
    for name in names:
        names += [parent for parent, group in groups.items() if name in group.children and parent not in names]
    return [name for name in names if name not in ("all", "ungrouped")]


def _add(host: str, variables: dict[str, Any], groups: list[str], found: Found) -> None:
    connection = str(variables.get("ansible_connection", "ssh"))
    if connection not in SSH:
        found.excluded.append(f"{host}: ansible_connection is {connection}, not ssh")
        return
    address, user, port = (
        variables.get(f"ansible_{name}", variables.get(f"ansible_ssh_{name}")) for name in ("host", "user", "port")
    )
    address = host if address is None else address
    for name, value in (("host", address), ("user", user), ("port", port)):
        if "{{" in str(value):
            found.excluded.append(f"{host}: ansible_{name} is a template, which only an Ansible play fills in: {value}")
            return
    target, number = destination(None if user is None else str(user), str(address)), port_number(port)
    if target is None or (port is not None and number is None):
        found.excluded.append(f"{host}: no ssh address: user {user}, host {address}, port {port}")
        return
    gpus = [group for group in groups if len(gpus_named(group)) == 1]
    notes = [f"in groups {', '.join(groups)}, and none of them is named like one GPU"] if groups and not gpus else []
    if len(gpus) > 1:
        notes = [f"ambiguous: in groups {', '.join(gpus)}, which are all named like a GPU"]
    notes += [
        f"{name} is {variables[name]}: put it into ~/.ssh/config as {means}"
        for name, means in IN_SSH_CONFIG.items()
        if variables.get(name)
    ]
    gpu = gpus[0] if len(gpus) == 1 else None
    found.machines.append(Machine(name=host, way="docker", target=target, port=number, gpu=gpu, notes=tuple(notes)))

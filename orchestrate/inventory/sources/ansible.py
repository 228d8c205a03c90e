"""Hosts of an Ansible inventory, by Ansible's own rules: what `ansible-inventory --list` prints."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

from orchestrate.errors import UserError
from orchestrate.inventory.sources.machines import (
    STDIN,
    Found,
    Machine,
    destination,
    port_number,
    read_text,
    validated,
)
from orchestrate.inventory.sources.rented import Described
from orchestrate.text import plain_text
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

SECONDS = 120.0


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
    """Return the inventory as Ansible lists it; asks Ansible itself where the file is not that already."""
    if path == STDIN or path.endswith(".json"):
        text, origin = read_text(path), path
        if not text.lstrip().startswith("{"):
            raise UserError(f"{path}: not JSON. Expected the output of: {COMMAND}")
    else:
        text, origin = _ask_ansible(path), f"{PROGRAM} -i {path}"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin}: not JSON: {error}. Expected the output of: {COMMAND}") from error
    if not isinstance(document, dict):
        raise UserError(f"{origin}: not the output of: {COMMAND}")
    return document


def _ask_ansible(path: str) -> str:
    if shutil.which(PROGRAM) is None:
        raise UserError(
            f"{path}: {PROGRAM} is needed to read it, because only Ansible knows all rules of its inventories. "
            f"Install ansible-core, or: {PROGRAM} -i {path} --list | tfbench hosts --from ansible -"
        )
    try:
        done = subprocess.run(
            [PROGRAM, "-i", path, "--list"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError) as error:
        raise UserError(f"{PROGRAM} -i {path}: {error}") from error
    if done.returncode != 0:
        raise UserError(f"{PROGRAM} -i {path}: {plain_text(done.stderr.strip(), 1000)}")
    return done.stdout


def _groups_of(host: str, groups: dict[str, _Group]) -> list[str]:
    """Return the groups that a host is in, also through groups of groups, but not `all`."""
    names = [name for name, group in groups.items() if host in group.hosts]
    for name in names:
        names += [parent for parent, group in groups.items() if name in group.children and parent not in names]
    return [name for name in names if name not in ("all", "ungrouped")]


def _add(host: str, variables: dict[str, Any], groups: list[str], found: Found) -> None:
    connection = str(variables.get("ansible_connection", "ssh"))
    if connection not in SSH:
        found.left_out.append(f"{host}: ansible_connection is {connection}, not ssh")
        return
    address = variables.get("ansible_host", variables.get("ansible_ssh_host", host))
    user = variables.get("ansible_user", variables.get("ansible_ssh_user"))
    port = variables.get("ansible_port", variables.get("ansible_ssh_port"))
    given = {"ansible_host": address, "ansible_user": user, "ansible_port": port}
    for name, value in given.items():
        if "{{" in str(value):
            found.left_out.append(f"{host}: {name} is a template, which only an Ansible play fills in: {value}")
            return
    target = destination(None if user is None else str(user), str(address))
    number = port_number(port)
    if target is None or (port is not None and number is None):
        found.left_out.append(f"{host}: no ssh address: user {user}, host {address}, port {port}")
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
    found.machines.append(
        Machine(
            name=host,
            way="docker",
            target=target,
            port=number,
            gpu=gpus[0] if len(gpus) == 1 else None,
            notes=tuple(notes),
        )
    )

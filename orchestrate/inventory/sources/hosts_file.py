"""The text of a `hosts.yml`: fleets by GPU, prices, and comments for what nobody can know but the user."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

from orchestrate.inventory.sources.machines import Found, Machine
from orchestrate.text import plain_text
from results.reference.gpus import gpu_key

UNKNOWN_FLEET = "unknown-gpu"
MAX_NAME = 55
"""Characters of a name; `hosts.yml` allows 63, and equal names get a number."""

MAX_COMMENT = 300

HEADER = """\
# Written by `tfbench hosts --from {source}`. Read the comments, then run: tfbench check
# All keys and their meanings: hosts.example.yml
"""


def hosts_file(found: Found, source: str) -> str:
    """Write a `hosts.yml`.

    A machine that is there twice, under two names, is written once: two benchmarks at a time disturb each other.

    Args:
        found: At least one machine.
        source: Name of the tool.
    """
    machines, twins = _single(found.machines)
    lines = [HEADER.format(source=source).rstrip("\n")]
    lines += [f"# {_comment(note)}" for note in found.notes]
    lines += ["version: 1", "", "defaults:", "  suite: standard"]
    if any(machine.way == "docker" for machine in machines):
        lines.append("  # registry: ghcr.io/you   # where hosts with Docker pull images from: docs/images.md")
    lines += ["", "fleets:"]
    names = _Names()
    for fleet, members in _fleets(machines).items():
        lines += _fleet(fleet, members, names)
    left_out = [*found.left_out, *twins]
    if left_out:
        lines += ["", "# Left out:", *(f"#   {_comment(reason)}" for reason in left_out)]
    return "\n".join(lines) + "\n"


def fleet_name(gpu: str | None) -> str:
    """Name a fleet by its GPU: `RTX A4000`, `RTX_A4000` and `NVIDIA RTX A4000` are `a4000`.

    Args:
        gpu: As a tool writes it; None: unknown.
    """
    if gpu is None or not gpu.strip():
        return UNKNOWN_FLEET
    plain = (gpu_key(gpu) or gpu).lower().replace("nvidia", "").replace("geforce", "")
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return re.sub(r"^rtx-(?=a\d{4})", "", words)[:MAX_NAME] or UNKNOWN_FLEET


def _fleets(machines: Sequence[Machine]) -> dict[str, list[Machine]]:
    fleets: dict[str, list[Machine]] = {}
    for machine in sorted(machines, key=lambda machine: fleet_name(machine.gpu) == UNKNOWN_FLEET):
        fleets.setdefault(fleet_name(machine.gpu), []).append(machine)
    return fleets


def _fleet(fleet: str, members: Sequence[Machine], names: _Names) -> list[str]:
    lines = [f"  {_key(fleet)}:"]
    if fleet == UNKNOWN_FLEET:
        lines.append("    # The source does not name the GPUs. `tfbench check` shows them: one fleet per kind of GPU.")
    prices = {machine.usd_per_gpu_hour for machine in members}
    (common,) = prices if len(prices) == 1 else (None,)
    if common is not None:
        lines.append(f"    usd_per_gpu_hour: {common:g}")
    elif prices == {None}:
        lines.append("    # usd_per_gpu_hour:   # the source has no price; add it to see costs")
    lines.append("    hosts:")
    for machine in members:
        price = None if common is not None else machine.usd_per_gpu_hour
        lines += [f"      # {_comment(note)}" for note in machine.notes]
        lines.append(f"      {_key(names.unique(machine.name))}: {{{_entry(machine, price)}}}{_host_comment(machine)}")
    return lines


def _entry(machine: Machine, price: float | None) -> str:
    address = f"ssh://{machine.address}" if machine.way == "docker" else machine.address
    parts = [f"{machine.way}: {json.dumps(address)}"]
    parts += [f"ssh_config: {json.dumps(machine.ssh_config)}"] if machine.ssh_config is not None else []
    parts += [f"usd_per_gpu_hour: {price:g}"] if price is not None else []
    return ", ".join(parts)


def _host_comment(machine: Machine) -> str:
    if machine.gpu is None:
        return ""
    count = "" if machine.gpus is None else f"{machine.gpus} × "
    return f"   # {count}{_comment(machine.gpu)}"


def _single(machines: Iterable[Machine]) -> tuple[list[Machine], list[str]]:
    """Return each address once, and why the others are left out."""
    kept: dict[tuple[str, int | None], Machine] = {}
    twins = []
    for machine in machines:
        first = kept.setdefault((machine.target, machine.port), machine)
        if first is not machine:
            twins.append(f"{machine.name}: the same address as {first.name}")
    return list(kept.values()), twins


class _Names:
    """Makes names for `hosts.yml`, each of them once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, name: str) -> str:
        """Return a name that looks like a tool's own."""
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:MAX_NAME] or "host"
        number, unique = 1, plain
        while unique in self._taken:
            number += 1
            unique = f"{plain}-{number}"
        self._taken.add(unique)
        return unique


def _key(name: str) -> str:
    """Write a key; a name that YAML could take for a number or a truth value gets quotes."""
    is_word = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and name.lower() not in _NO_TEXTS
    return name if is_word else json.dumps(name)


_NO_TEXTS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _comment(text: str) -> str:
    return plain_text(text, MAX_COMMENT)

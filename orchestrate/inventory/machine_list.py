"""Writes rented machines as a `hosts.yml`; the tools' outputs are parsed in `rented.py`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrate.errors import UserError
from orchestrate.text import plain_text
from results.reference.gpus import gpu_key

STDIN = "-"
MAX_PORT = 65_535

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A reachable rented machine.

    Attributes:
        name: Its name in the tool.
        kind: Key of `hosts.yml`: `docker` for a machine with an engine, `ssh` for one that is a container itself.
        target: An alias of the ssh configuration, or `user@host`.
        port: Of its sshd; None: from the ssh configuration.
        gpu: Name of its GPUs in the tool; None: not reported.
        gpus: Number of GPUs; None: not reported.
        usd_per_hour: Price of the whole machine; None: not reported.
        notes: Comments for the user.
    """

    name: str
    kind: Literal["docker", "ssh"]
    target: str
    port: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    usd_per_hour: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Return target and port in the format of `hosts.yml`."""
        return self.target if self.port is None else f"{self.target}:{self.port}"

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Return the price of one GPU."""
        if self.usd_per_hour is None:
            return None
        return round(self.usd_per_hour / max(1, self.gpus or 1), 4)


def destination(user: str | None, host: str) -> str | None:
    """Return an ssh destination; None: user or host is not a valid name."""
    if user is not None and not _PLAIN.fullmatch(user):
        return None
    if _IPV6.fullmatch(host):
        host = f"[{host}]"
    elif not _PLAIN.fullmatch(host):
        return None
    return host if user is None else f"{user}@{host}"


def port_number(value: object) -> int | None:
    """Parse a port number; None: not a port."""
    number = int(str(value)) if re.fullmatch(r"[0-9]{1,5}", str(value)) else 0
    return number if 0 < number <= MAX_PORT else None


def read_json_text(path: str, command: str) -> Any:  # noqa: ANN401 (any JSON)
    """Parse a file or standard input as JSON.

    Args:
        path: File, or `-`.
        command: The command that prints it, for messages.

    Raises:
        UserError: It cannot be read, or is not JSON.
    """
    try:
        with sys.stdin.buffer if path == STDIN else Path(path).expanduser().open("rb") as file:
            return json.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}. Expected the output of: {command}") from error


UNKNOWN_FLEET = "unknown-gpu"
MAX_NAME = 55
"""Maximum length of a name: `hosts.yml` allows 63 characters, and equal names get a number appended."""

MAX_COMMENT = 300

HEADER = """\
# Written by `tfbench init --from {source}`. Read the comments, then run: tfbench check
# All keys and their meanings: hosts.example.yml
"""


def hosts_file(found: Sequence[Machine], excluded: Sequence[str], notes: Sequence[str], source: str) -> str:
    """Return a `hosts.yml` with the given machines.

    A machine that is listed under two names is written once: simultaneous benchmarks disturb each other.

    Args:
        found: At least one machine.
        excluded: Why other machines cannot be reached.
        notes: Comments for the whole file.
        source: Name of the tool.
    """
    machines, twins = _single(found)
    lines = [*HEADER.format(source=source).splitlines(), *(f"# {_comment(note)}" for note in notes)]
    lines += ["version: 1", "", "defaults:", "  suite: standard", "  host_keys: accept-new"]
    if any(machine.kind == "docker" for machine in machines):
        lines.append(
            "  # registry: registry.example.org/bench   # where hosts with Docker pull images from: docs/images.md"
        )
    fleets: dict[str, list[Machine]] = {}
    for machine in machines:
        fleets.setdefault(fleet_name(machine.gpu), []).append(machine)
    lines += ["", "fleets:"]
    taken: set[str] = set()
    for fleet in sorted(fleets, key=lambda fleet: fleet == UNKNOWN_FLEET):
        lines += _fleet(fleet, fleets[fleet], taken)
    if left := [*excluded, *twins]:
        lines += ["", "# Excluded:", *(f"#   {_comment(reason)}" for reason in left)]
    return "\n".join(lines) + "\n"


def fleet_name(gpu: str | None) -> str:
    """Return a fleet's name from its GPU: `RTX A4000`, `RTX_A4000` and `NVIDIA RTX A4000` are `a4000`.

    Args:
        gpu: Name in the tool; None: unknown.
    """
    if gpu is None or not gpu.strip():
        return UNKNOWN_FLEET
    plain = (gpu_key(gpu) or gpu).lower().replace("nvidia", "").replace("geforce", "")
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return re.sub(r"^rtx-(?=a\d{4})", "", words)[:MAX_NAME] or UNKNOWN_FLEET


def _fleet(fleet: str, members: Sequence[Machine], taken: set[str]) -> list[str]:
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
        entry = [f"{machine.kind}: {json.dumps(('ssh://' if machine.kind == 'docker' else '') + machine.address)}"]
        if common is None and machine.usd_per_gpu_hour is not None:
            entry.append(f"usd_per_gpu_hour: {machine.usd_per_gpu_hour:g}")
        count = "" if machine.gpus is None else f"{machine.gpus} × "
        gpu = "" if machine.gpu is None else f"   # {count}{_comment(machine.gpu)}"
        lines += [f"      # {_comment(note)}" for note in machine.notes]
        lines.append(f"      {_key(_unique(machine.name, taken))}: {{{', '.join(entry)}}}{gpu}")
    return lines


def _single(machines: Iterable[Machine]) -> tuple[list[Machine], list[str]]:
    """Return machines with distinct addresses, and why the others are excluded."""
    kept: dict[tuple[str, int | None], Machine] = {}
    twins = []
    for machine in machines:
        first = kept.setdefault((machine.target, machine.port), machine)
        if first is not machine:
            twins.append(f"{machine.name}: the same address as {first.name}")
    return list(kept.values()), twins


def _unique(name: str, taken: set[str]) -> str:
    """Return a unique name for `hosts.yml`, similar to the tool's, and add it to `taken`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:MAX_NAME] or "host"
    number, unique = 1, plain
    while unique in taken:
        number += 1
        unique = f"{plain}-{number}"
    taken.add(unique)
    return unique


def _key(name: str) -> str:
    """Format a key, quoted if YAML could read it as a number or a boolean."""
    is_word = re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name) and name.lower() not in _NO_TEXTS
    return name if is_word else json.dumps(name)


_NO_TEXTS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _comment(text: str) -> str:
    return re.sub("[\ufffe\uffff]", "", plain_text(text, MAX_COMMENT))  # not allowed in YAML

"""`tfbench init --from`: writes rented machines as hosts.yml, from the JSON of SkyPilot, dstack, Vast.ai and RunPod.

A tool is a row of `SOURCES`: in which fields of its list a machine's name, GPUs, price and address are.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import ssh_address
from orchestrate.text import plain_text, shown
from results.reference.gpus import gpu_key

STDIN = "-"
MAX_NUMBER = 1_000_000

_SKY_GPUS = re.compile(r"\{'([^']+)': ([0-9]+)(?:\.[0-9]+)?\}")


def value_at(document: Any, path: str) -> Any:  # noqa: ANN401 (any JSON)
    """Return the value at a path of keys and indices, joined by dots; None: it does not exist."""
    for key in path.split("."):
        try:
            document = document[int(key) if isinstance(document, list) else key]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return document


def _text_at(entry: object, *paths: str) -> str | None:
    """Return the first text or number at one of the paths, as text."""
    values = (value_at(entry, path) for path in paths)
    return next((str(value) for value in values if isinstance(value, str | int | float) and str(value).strip()), None)


def address_of(host: str | None, port: str | None = None, user: str = "") -> str | None:
    """Return an address as `hosts.yml` takes it; None: it would not be valid.

    Args:
        host: An alias of the ssh configuration, a name, or an IP address.
        port: Of its sshd; None: from the ssh configuration.
        user: With its `@`.
    """
    text = f"{user}{f'[{host}]' if ':' in (host or '') else host or '-'}{'' if port is None else f':{port}'}"
    try:
        ssh_address(text)
    except ValueError:
        return None
    return text


@dataclass(frozen=True, kw_only=True)
class Tool:
    """Where a tool's list has what; values are paths, see `value_at`, of which the first with a value counts.

    Attributes:
        command: Command that prints the list.
        listed: Key of the list, in versions that print an object.
        status: Where its status is.
        running: The status with which it can be reached.
        gpu: A name, SkyPilot's `{'A4000': 1}`, or a list of objects with a name.
        nodes: Number of machines, each with an alias; empty: 1.
        address: Returns the address from an entry and a name, which is an alias of the ssh configuration by default.
        no_address: What to do about a machine without an address.
        notes: Comments for the whole file.
    """

    command: str
    listed: str = ""
    name: tuple[str, ...]
    status: str
    running: str
    gpu: tuple[str, ...]
    gpus: str = ""
    usd_per_hour: tuple[str, ...] = ()
    nodes: str = ""
    address: Callable[[Any, str], str | None] = lambda _, name: address_of(name)
    no_address: str = "not a valid ssh host name"
    notes: tuple[str, ...] = ()


def _vast_address(entry: Any, _: str) -> str | None:  # noqa: ANN401
    """Return the direct address, else that of Vast's proxy, like `vastai ssh-url`."""
    host, port = _text_at(entry, "public_ipaddr"), _text_at(entry, "ports.22/tcp.0.HostPort")
    if host and port:
        return address_of(host.strip(), port, "root@")
    behind_jupyter = "jupyter" in (_text_at(entry, "image_runtype") or "")
    port = f"{(_number(entry, 'ssh_port') or 0) + behind_jupyter:.0f}"
    return address_of(_text_at(entry, "ssh_host"), port, "root@")


_DSTACK = "jobs.0.job_submissions.-1.job_provisioning_data"
_DSTACK_RESOURCES = f"{_DSTACK}.instance_type.resources"

SOURCES = {
    "sky": Tool(
        command="sky status --output json",
        name=("name",),
        status="status",
        running="UP",
        gpu=("accelerators",),
        nodes="nodes",
        notes=(
            "The names of hosts are ssh aliases, which `sky status` writes and `sky down` removes.",
            "SkyPilot reports no prices: add usd_per_gpu_hour: to each fleet to see costs.",
            'Benchmarks run as processes; on a virtual machine with Docker, {docker: "ssh://NAME"} runs images.',
        ),
    ),
    "dstack": Tool(
        command="dstack ps --json",
        listed="runs",
        name=("run_spec.run_name",),
        status="status",
        running="running",
        gpu=(f"{_DSTACK_RESOURCES}.gpus",),
        usd_per_hour=(f"{_DSTACK}.price",),
        notes=(
            "The names of hosts are ssh aliases, which exist while `dstack attach NAME` runs: start one for each host,",
            "in a terminal of its own, before `tfbench check`. dstack attaches to the first job of a run only.",
        ),
    ),
    "vast": Tool(
        command="vastai show instances --raw",
        listed="instances",
        name=("label", "id"),
        status="actual_status",
        running="running",
        gpu=("gpu_name",),
        gpus="num_gpus",
        usd_per_hour=("dph_total",),
        address=_vast_address,
        no_address="no ssh address. Start it with ssh (runtype ssh)",
        notes=("Prices are those of Vast's dph_total: GPU and disk, without traffic.",),
    ),
    "runpod": Tool(
        command='curl -H "Authorization: Bearer $RUNPOD_API_KEY" "https://rest.runpod.io/v1/pods?includeMachine=true"',
        name=("name", "id"),
        status="desiredStatus",
        running="RUNNING",
        gpu=("gpu.displayName", "machine.gpuTypeId"),
        gpus="gpu.count",
        usd_per_hour=("adjustedCostPerHr", "costPerHr"),
        address=lambda entry, _: address_of(
            _text_at(entry, "publicIp"), _text_at(entry, "portMappings.22") or "", "root@"
        ),
        no_address="no public address for port 22. RunPod's proxy (ssh.runpod.io) does not pass on commands: "
        "use a template with 22/tcp, and a machine with a public IP address",
    ),
}
"""By name of the tool."""


def import_hosts(source: str, path: str) -> str:
    """Return a `hosts.yml` with the machines that a tool lists.

    Args:
        source: Name of the tool; see `SOURCES`.
        path: File with its output; `-`: standard input.

    Raises:
        UserError: The file cannot be read, is not the tool's output, or has no reachable machine.
    """
    tool = SOURCES[source]
    try:
        with sys.stdin.buffer if path == STDIN else Path(path).expanduser().open("rb") as file:
            document = json.loads(file.read().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}. Expected the output of: {tool.command}") from error
    listed = document.get(tool.listed) if isinstance(document, dict) else document
    if not isinstance(listed, list):
        raise UserError(f"{path}: not the output of: {tool.command}. Received: {shown(document, 300)}")
    fleets: dict[str, list[str]] = {}
    names, excluded = set[str](), list[str]()
    for entry in listed:
        name = _text_at(entry, *tool.name) or source
        name = f"{source}-{name}" if name.isdigit() else name
        status, nodes = _text_at(entry, tool.status), int(_number(entry, tool.nodes) or 1)
        for machine in (name, *(f"{name}-worker{number}" for number in range(1, nodes))):
            if status != tool.running:
                excluded.append(f"{name}: its status is {status}, not {tool.running}")
            elif (address := tool.address(entry, machine)) is None:
                excluded.append(f"{machine}: {tool.no_address}")
            else:
                fleet, line = _described(tool, entry, _unique(machine, names), address)
                fleets.setdefault(fleet, []).append(line)
    if not fleets:
        reasons = "\n".join(f"  {_comment(reason)}" for reason in excluded) or "  it is empty"
        raise UserError(f"{path}: no reachable machine:\n{reasons}")
    head = [*HEADER.format(source=source).splitlines(), *(f"# {note}" for note in tool.notes)]
    head += ["version: 1", "", "defaults:", "  suite: standard", "  host_keys: accept-new", "", "fleets:"]
    body = [line for fleet, lines in fleets.items() for line in (f"  {fleet}:", "    hosts:", *lines)]
    tail = ["", "# Excluded:", *(f"#   {_comment(reason)}" for reason in excluded)] if excluded else []
    return "\n".join([*head, *body, *tail]) + "\n"


def _described(tool: Tool, entry: object, name: str, address: str) -> tuple[str, str]:
    """Return the fleet of a machine, and its line in `hosts.yml`."""
    gpu, count = _gpus(next(filter(None, (value_at(entry, path) for path in tool.gpu)), None))
    count = count or int(_number(entry, tool.gpus) or 0)
    text, usd_per_hour = f"ssh: {json.dumps(address)}", _number(entry, *tool.usd_per_hour)
    if usd_per_hour is not None:
        text += f", usd_per_gpu_hour: {round(usd_per_hour / (count or 1), 4):g}"
    comment = "" if gpu is None else f"   # {count or '?'} × {_comment(gpu)}"
    return fleet_name(gpu), f"      {name}: {{{text}}}{comment}"


def _gpus(value: object) -> tuple[str | None, int | None]:
    """Return the name and number of GPUs, as far as `Tool.gpu` has them."""
    if isinstance(value, list):
        names = {_text_at(gpu, "name") for gpu in value}
        return (names.pop() if len(names) == 1 else None), len(value)
    if isinstance(value, str) and (read := _SKY_GPUS.fullmatch(value)):
        return read[1], int(read[2])
    return (value, None) if isinstance(value, str) else (None, None)


def _number(entry: object, *paths: str) -> float | None:
    """Return the first number at one of the paths, from 0 to a million."""
    try:
        number = float(_text_at(entry, *paths) or "")
    except ValueError:
        return None
    return number if 0 <= number <= MAX_NUMBER else None


UNKNOWN_FLEET = "unknown-gpu"
MAX_NAME = 55
"""Maximum length of a name: `hosts.yml` allows 63 characters, and equal names get a number appended."""

MAX_COMMENT = 300

HEADER = """\
# Written by `tfbench init --from {source}`. Read the comments, then run: tfbench check
# All keys and their meanings: hosts.example.yml
"""


def fleet_name(gpu: str | None) -> str:
    """Return a fleet's name from its GPU: `RTX A4000`, `RTX_A4000` and `NVIDIA RTX A4000` are `a4000`.

    Args:
        gpu: Name in the tool; None: unknown, `tfbench check` shows it.
    """
    plain = (gpu_key(gpu or "") or gpu or "").lower().replace("nvidia", "").replace("geforce", "")
    words = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")
    return re.sub(r"^rtx-(?=a\d{4})", "", words)[:MAX_NAME] or UNKNOWN_FLEET


def _unique(name: str, taken: set[str]) -> str:
    """Return a unique name for `hosts.yml`, similar to the tool's, and add it to `taken`."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("._-")[:MAX_NAME] or "host"
    unique, number = plain, 1
    while unique in taken:
        number += 1
        unique = f"{plain}-{number}"
    taken.add(unique)
    return unique


def _comment(text: str) -> str:
    return re.sub("[\ufffe\uffff]", "", plain_text(text, MAX_COMMENT))  # not allowed in YAML

"""`tfbench init --from`: writes rented machines as hosts.yml, from the JSON of SkyPilot, dstack, Vast.ai and RunPod.

The fields of their lists have different names, so one table says where a machine's name, GPUs, price and address are.
"""

from __future__ import annotations

import json
import re
import sys
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


NAME = ("name", "label", "run_spec.run_name", "id")
STATUS = ("actual_status", "desiredStatus", "status")
_DSTACK = "jobs.0.job_submissions.-1.job_provisioning_data"
GPU = ("accelerators", "gpu_name", "gpu.displayName", "machine.gpuTypeId", f"{_DSTACK}.instance_type.resources.gpus")
"""A name, SkyPilot's `{'A4000': 1}`, or a list of objects with a name."""

GPUS = ("num_gpus", "gpu.count")
USD_PER_HOUR = ("dph_total", "adjustedCostPerHr", "costPerHr", f"{_DSTACK}.price")
"""Where the lists of all tools have what: paths, see `value_at`, of which the first with a value counts."""

PROXY_PORT = "ssh_port"
ADDRESSES = (("public_ipaddr", "ports.22/tcp.0.HostPort"), ("publicIp", "portMappings.22"), ("ssh_host", PROXY_PORT))
"""Host and port, of which the first that a machine has both count; the last is Vast's proxy."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """What differs between the lists of tools.

    Attributes:
        command: Command that prints the list.
        listed: Key of the list, in versions that print an object.
        running: The status with which a machine can be reached.
        no_address: What to do about a machine without an address; empty: names are aliases of the ssh configuration.
        notes: Comments for the whole file.
    """

    command: str
    listed: str = ""
    running: str
    no_address: str = ""
    notes: tuple[str, ...] = ()


SOURCES = {
    "sky": Tool(
        command="sky status --output json",
        running="UP",
        notes=(
            "The names of hosts are ssh aliases, which `sky status` writes and `sky down` removes.",
            "SkyPilot reports no prices: add usd_per_gpu_hour: to each fleet to see costs.",
            'Benchmarks run as processes; on a virtual machine with Docker, {docker: "ssh://NAME"} runs images.',
        ),
    ),
    "dstack": Tool(
        command="dstack ps --json",
        listed="runs",
        running="running",
        notes=(
            "The names of hosts are ssh aliases, which exist while `dstack attach NAME` runs: start one for each host,",
            "in a terminal of its own, before `tfbench check`. dstack attaches to the first job of a run only.",
        ),
    ),
    "vast": Tool(
        command="vastai show instances --raw",
        listed="instances",
        running="running",
        no_address="no ssh address. Start it with ssh (runtype ssh)",
        notes=("Prices are those of Vast's dph_total: GPU and disk, without traffic.",),
    ),
    "runpod": Tool(
        command='curl -H "Authorization: Bearer $RUNPOD_API_KEY" "https://rest.runpod.io/v1/pods?includeMachine=true"',
        running="RUNNING",
        no_address="no public address for port 22. RunPod's proxy (ssh.runpod.io) does not pass on commands: "
        "use a template with 22/tcp, and a machine with a public IP address",
    ),
}
"""By name of the tool."""


def _address(entry: object) -> str | None:
    """Return the direct address of a machine, else that of Vast's proxy, like `vastai ssh-url`; None: it has none."""
    for host_at, port_at in ADDRESSES:
        host, port = _text_at(entry, host_at), _number(entry, port_at) or 0
        if host and port:
            behind_jupyter = port_at == PROXY_PORT and "jupyter" in (_text_at(entry, "image_runtype") or "")
            return address_of(host.strip(), f"{port + behind_jupyter:.0f}", "root@")
    return None


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
        name = _text_at(entry, *NAME) or source
        name = f"{source}-{name}" if name.isdigit() else name
        status, nodes = _text_at(entry, *STATUS), int(_number(entry, "nodes") or 1)
        for machine in (name, *(f"{name}-worker{number}" for number in range(1, nodes))):
            if status != tool.running:
                excluded.append(f"{name}: its status is {status}, not {tool.running}")
            elif (address := _address(entry) if tool.no_address else address_of(machine)) is None:
                excluded.append(f"{machine}: {tool.no_address or 'not a valid ssh host name'}")
            else:
                fleet, line = _described(entry, _unique(machine, names), address)
                fleets.setdefault(fleet, []).append(line)
    if not fleets:
        reasons = "\n".join(f"  {_comment(reason)}" for reason in excluded) or "  it is empty"
        raise UserError(f"{path}: no reachable machine:\n{reasons}")
    head = [*HEADER.format(source=source).splitlines(), *(f"# {note}" for note in tool.notes)]
    head += ["version: 1", "", "defaults:", "  suite: standard", "  host_keys: accept-new", "", "fleets:"]
    body = [line for fleet, lines in fleets.items() for line in (f"  {fleet}:", "    hosts:", *lines)]
    tail = ["", "# Excluded:", *(f"#   {_comment(reason)}" for reason in excluded)] if excluded else []
    return "\n".join([*head, *body, *tail]) + "\n"


def _described(entry: object, name: str, address: str) -> tuple[str, str]:
    """Return the fleet of a machine, and its line in `hosts.yml`."""
    gpu, count = next(filter(None, (value_at(entry, path) for path in GPU)), None), int(_number(entry, *GPUS) or 0)
    if isinstance(gpu, list):
        names, count = {_text_at(one, "name") for one in gpu}, len(gpu)
        gpu = names.pop() if len(names) == 1 else None
    elif isinstance(gpu, str) and (read := _SKY_GPUS.fullmatch(gpu)):
        gpu, count = read[1], int(read[2])
    text, usd_per_hour = f"ssh: {json.dumps(address)}", _number(entry, *USD_PER_HOUR)
    if usd_per_hour is not None:
        text += f", usd_per_gpu_hour: {round(usd_per_hour / (count or 1), 4):g}"
    comment = f"   # {count or '?'} × {_comment(gpu)}" if isinstance(gpu, str) else ""
    return fleet_name(gpu if isinstance(gpu, str) else None), f"      {name}: {{{text}}}{comment}"


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

"""`tfbench init --from`: writes rented machines as hosts.yml, from the JSON of SkyPilot, dstack, Vast.ai and RunPod.

A tool is a row of `SOURCES`: in which fields of its list a machine's name, GPUs, price and address are.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrate.errors import UserError
from orchestrate.inventory.addresses import ssh_address
from orchestrate.text import plain_text, shown
from results.reference.gpus import gpu_key

SPOT = "a spot instance: it can be stopped at any time"
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
        status: Where its status is, and the value with which it can be reached.
        gpu: A name, SkyPilot's `{'A4000': 1}`, or a list of objects with a name.
        spot: `true`, or a text with `[spot]`.
        nodes: Number of machines, each with an alias; empty: 1.
        address: Returns the address; without `no_address`, the name is an alias of the ssh configuration.
        no_address: What to do about a machine without an address.
        notes: Comments for the whole file.
    """

    command: str
    listed: str = ""
    name: tuple[str, ...]
    status: tuple[str, str]
    gpu: tuple[str, ...]
    gpus: str = ""
    usd_per_hour: tuple[str, ...] = ()
    spot: tuple[str, ...] = ()
    nodes: str = ""
    address: Callable[[Any], str | None] = lambda _: None
    no_address: str = ""
    notes: tuple[str, ...] = ()


def _vast_address(entry: Any) -> str | None:  # noqa: ANN401
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
        status=("status", "UP"),
        gpu=("accelerators",),
        spot=("resources_str", "resources_str_full"),
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
        status=("status", "running"),
        gpu=(f"{_DSTACK_RESOURCES}.gpus",),
        usd_per_hour=(f"{_DSTACK}.price",),
        spot=(f"{_DSTACK_RESOURCES}.spot",),
        notes=(
            "The names of hosts are ssh aliases, which exist while `dstack attach NAME` runs: start one for each host,",
            "in a terminal of its own, before `tfbench check`. dstack attaches to the first job of a run only.",
        ),
    ),
    "vast": Tool(
        command="vastai show instances --raw",
        listed="instances",
        name=("label", "id"),
        status=("actual_status", "running"),
        gpu=("gpu_name",),
        gpus="num_gpus",
        usd_per_hour=("dph_total",),
        spot=("is_bid",),
        address=_vast_address,
        no_address="no ssh address. Start it with ssh (runtype ssh)",
        notes=("Prices are those of Vast's dph_total: GPU and disk, without traffic.",),
    ),
    "runpod": Tool(
        command='curl -H "Authorization: Bearer $RUNPOD_API_KEY" "https://rest.runpod.io/v1/pods?includeMachine=true"',
        name=("name", "id"),
        status=("desiredStatus", "RUNNING"),
        gpu=("gpu.displayName", "machine.gpuTypeId"),
        gpus="gpu.count",
        usd_per_hour=("adjustedCostPerHr", "costPerHr"),
        spot=("interruptible",),
        address=lambda entry: address_of(
            _text_at(entry, "publicIp"), _text_at(entry, "portMappings.22") or "", "root@"
        ),
        no_address="no public address for port 22. RunPod's proxy (ssh.runpod.io) does not pass on commands: "
        "use a template with 22/tcp, and a machine with a public IP address",
    ),
}
"""By name of the tool."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A reachable rented machine.

    Attributes:
        name: Its name in the tool.
        address: `user@host:port`, or an alias of the ssh configuration.
        gpu: Name of its GPUs in the tool; None: not reported.
        gpus: Number of GPUs; None: not reported.
        usd_per_hour: Price of the whole machine; None: not reported.
        notes: Comments for the user.
    """

    name: str
    address: str
    gpu: str | None = None
    gpus: int | None = None
    usd_per_hour: float | None = None
    notes: tuple[str, ...] = ()


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
    answers = [_machines(source, tool, entry) for entry in listed]
    machines = [machine for answer in answers if not isinstance(answer, str) for machine in answer]
    excluded = [answer for answer in answers if isinstance(answer, str)]
    if not machines:
        reasons = "\n".join(f"  {plain_text(reason, MAX_COMMENT)}" for reason in excluded) or "  it is empty"
        raise UserError(f"{path}: no reachable machine:\n{reasons}")
    return hosts_file(machines, excluded, tool.notes, source)


def _machines(source: str, tool: Tool, entry: object) -> list[Machine] | str:
    """Return the machines of an entry of a tool's list, or why it cannot be reached."""
    name = _text_at(entry, *tool.name) or source
    name = f"{source}-{name}" if name.isdigit() else name
    where, running = tool.status
    if (status := _text_at(entry, where)) != running:
        return f"{name}: its status is {status}, not {running}"
    address = tool.address(entry) if tool.no_address else address_of(name)
    if address is None:
        return f"{name}: {tool.no_address or 'not a valid ssh host name'}"
    gpu, gpus = _gpus(next(filter(None, (value_at(entry, path) for path in tool.gpu)), None))
    spots = [value_at(entry, path) for path in tool.spot]
    notes = [SPOT] if any(spot is True or "[spot]" in str(spot) for spot in spots) else []
    first = Machine(
        name=name,
        address=address,
        gpu=gpu,
        gpus=gpus or int(_number(entry, tool.gpus) or 0) or None,
        usd_per_hour=_number(entry, *tool.usd_per_hour),
        notes=tuple(notes),
    )
    workers = [f"{name}-worker{number}" for number in range(1, int(_number(entry, tool.nodes) or 1))]
    return [first, *(dataclasses.replace(first, name=worker, address=worker) for worker in workers)]


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


def hosts_file(found: Sequence[Machine], excluded: Sequence[str], notes: Sequence[str], source: str) -> str:
    """Return a `hosts.yml` with the given machines.

    A machine that is listed under two names is written once: simultaneous benchmarks disturb each other.

    Args:
        found: At least one machine.
        excluded: Why other machines cannot be reached.
        notes: Comments for the whole file.
        source: Name of the tool.
    """
    left, seen, names = list(excluded), dict[str, str](), set[str]()
    fleets: dict[str, list[str]] = {}
    for machine in found:
        if machine.address in seen:
            left.append(f"{machine.name}: the same address as {seen[machine.address]}")
            continue
        seen[machine.address] = machine.name
        entry = f"ssh: {json.dumps(machine.address)}"
        if machine.usd_per_hour is not None:
            entry += f", usd_per_gpu_hour: {round(machine.usd_per_hour / (machine.gpus or 1), 4):g}"
        count = "" if machine.gpus is None else f"{machine.gpus} × "
        gpu = "" if machine.gpu is None else f"   # {count}{_comment(machine.gpu)}"
        lines = fleets.setdefault(fleet_name(machine.gpu), [])
        lines += [f"      # {_comment(note)}" for note in machine.notes]
        lines.append(f"      {_unique(machine.name, names)}: {{{entry}}}{gpu}")
    head = [*HEADER.format(source=source).splitlines(), *(f"# {_comment(note)}" for note in notes)]
    head += ["version: 1", "", "defaults:", "  suite: standard", "  host_keys: accept-new", "", "fleets:"]
    body = [line for fleet, lines in fleets.items() for line in (f"  {fleet}:", "    hosts:", *lines)]
    tail = ["", "# Excluded:", *(f"#   {_comment(reason)}" for reason in left)] if left else []
    return "\n".join([*head, *body, *tail]) + "\n"


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
    numbered = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
    unique = next(name for name in numbered if name not in taken)
    taken.add(unique)
    return unique


def _comment(text: str) -> str:
    return re.sub("[\ufffe\uffff]", "", plain_text(text, MAX_COMMENT))  # not allowed in YAML

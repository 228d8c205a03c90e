"""What all sources share: a machine as a tool describes it, and how a tool's output is read."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchestrate.errors import UserError
from orchestrate.text import plain_text

MAX_BYTES = 64 << 20
STDIN = "-"
MAX_REPORTED = 5
"""Mistakes of a document that are shown: all of its entries tend to have the same one."""

SSH_PORT = 22
MAX_PORT = 65_535

Price = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
"""US dollars per hour."""

T = TypeVar("T")

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")


class Described(BaseModel):
    """Part of a tool's output; what we do not use, and what its next version adds, is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, coerce_numbers_to_str=True)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine that can be reached.

    Attributes:
        name: As its tool calls it.
        way: Key of `hosts.yml`: `docker` for a machine with an engine, `ssh` for one that is a container itself.
        target: An alias of the ssh configuration, or `user@host`.
        port: Of its sshd; None: as the ssh configuration says.
        gpu: Name of its GPUs as the tool writes it; None: the tool does not report it.
        gpus: How many; None: not reported.
        usd_per_hour: For the whole machine; None: not reported.
        ssh_config: Path of the configuration file that holds the alias; None: the user's own.
        notes: For comments: what the user should know or decide.
    """

    name: str
    way: Literal["docker", "ssh"]
    target: str
    port: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    usd_per_hour: float | None = None
    ssh_config: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Write the target and its port as `hosts.yml` does."""
        return self.target if self.port is None else f"{self.target}:{self.port}"

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Return the price of one GPU."""
        if self.usd_per_hour is None:
            return None
        return round(self.usd_per_hour / max(1, self.gpus or 1), 4)


@dataclass(kw_only=True)
class Found:
    """What a source holds.

    Attributes:
        machines: Those that can be reached.
        left_out: The others, each with the reason.
        notes: What holds for the whole file.
    """

    machines: list[Machine] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def destination(user: str | None, host: str) -> str | None:
    """Write an ssh destination; None: the parts are no user's and no host's name."""
    if user is not None and not _PLAIN.fullmatch(user):
        return None
    if _IPV6.fullmatch(host):
        host = f"[{host}]"
    elif not _PLAIN.fullmatch(host):
        return None
    return host if user is None else f"{user}@{host}"


def port_number(value: object) -> int | None:
    """Read the number of a port; None: it is none."""
    number = int(str(value)) if re.fullmatch(r"[0-9]{1,5}", str(value)) else 0
    return number if 0 < number <= MAX_PORT else None


def read_text(path: str) -> str:
    """Read a file or standard input.

    Raises:
        UserError: It cannot be read.
    """
    try:
        content = sys.stdin.buffer.read(MAX_BYTES + 1) if path == STDIN else _head(Path(path).expanduser())
        if len(content) > MAX_BYTES:
            raise UserError(f"{path}: larger than {MAX_BYTES >> 20} MB")
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from error


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def read_json(path: str, command: str) -> object:
    """Read what a tool printed as JSON.

    Args:
        path: File, or `-`.
        command: What prints it, for messages.

    Raises:
        UserError: It cannot be read, or is no JSON.
    """
    try:
        document: object = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}. Expected the output of: {command}") from error
    return document


def validated(kind: type[T], document: object, path: str, command: str) -> T:
    """Check a document against what a tool is known to print.

    Raises:
        UserError: It is something else; the message says where.
    """
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        lines = [f"  {'.'.join(map(str, item['loc'])) or 'all'}: {item['msg']}" for item in found[:MAX_REPORTED]]
        more = [f"  and {len(found) - MAX_REPORTED} more"] if len(found) > MAX_REPORTED else []
        wrong = plain_text("\n".join(lines + more).replace("\n", "\v"), 2000).replace("\v", "\n")
        raise UserError(f"{path}: not the output of: {command}\n{wrong}") from error

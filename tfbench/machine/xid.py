"""Xid errors of GPUs in the kernel log, where this process may read it; a container usually may not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

MAX_MESSAGES = 100_000
"""Messages that are read at most: the kernel's buffer holds fewer."""

_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d{1,4})\b")


def kernel_messages(log: Path = Path("/dev/kmsg")) -> list[str] | None:
    """Return the messages of the kernel log; None where it may not be read."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    found: list[str] = []
    try:
        while len(found) < MAX_MESSAGES:
            try:
                message = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the oldest message was overwritten while we read
            if not message:
                break
            found.extend(message.decode("utf-8", "replace").splitlines())
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return found


def xid_errors(messages: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the Xid errors by the bus id of their GPU, as `short_bus_id` writes it."""
    found: dict[str, list[int]] = {}
    for message in messages:
        if match := _XID.search(message):
            numbers = found.setdefault(short_bus_id(match[1]), [])
            if int(match[2]) not in numbers:
                numbers.append(int(match[2]))
    return found


def short_bus_id(text: str) -> str:
    """Write a bus id without its domain's leading zeros and without its function: `0000:3B:00.0` is `3b:00`."""
    parts = text.lower().partition(".")[0].split(":")
    domain = [] if len(parts) < 3 or int(parts[-3], 16) == 0 else [f"{int(parts[-3], 16):x}"]
    return ":".join([*domain, *parts[-2:]])

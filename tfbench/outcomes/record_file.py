"""Records on disk: always valid, never half written."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from results.schema import Record
from results.schema.progress import record_lines
from results.schema.record_json import from_json, to_json


def utc_now() -> str:
    """Return the time as a record stamps it: UTC, ISO 8601, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(record: Record, output: Path | None) -> None:
    """Write a record, to stdout where no file is given.

    The file appears complete or not at all: written beside its place, then renamed.

    Raises:
        results.schema.record_json.RecordError: The record contradicts itself; nothing was written.
    """
    text = to_json(record)
    from_json(text)
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    beside = output.with_name(f".{output.name}.{os.getpid()}.part")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(output)


def print_record(output: Path | None) -> None:
    """Print a record that is in its file as lines on stdout; nothing where there is none."""
    if output is None or not output.is_file():
        return
    for line in record_lines(output.read_bytes()):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()  # a line a write: nothing else of the output can come between its parts

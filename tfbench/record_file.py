"""Records on disk: always valid, never half written."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from results.schema import Record, from_json, to_json


def utc_now() -> str:
    """Return the time as a record stamps it: UTC, ISO 8601, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(record: Record, output: Path | None) -> None:
    """Write a record, to stdout where no file is given.

    The file appears complete or not at all: written beside its place, then renamed.

    Raises:
        results.schema.RecordError: The record contradicts itself; nothing was written.
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

"""The findings of a repeat so far, its time breakdown, and the file of its record."""

from __future__ import annotations

import errno
import itertools
import os
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from results.schema import Check, DeviceResult, Environment, Measurement, Phase, Record, SoftWarning, Telemetry
from results.schema.health import GPUFacts
from results.schema.progress import record_lines, state_line
from results.schema.record_json import RecordError, contradictions, to_json
from tfbench.record_table import record_table


class Phases:
    """Times consecutive phases; the times of a phase that is entered twice are added up."""

    def __init__(self) -> None:
        self._entered: list[tuple[str, float, float]] = []

    def enter(self, name: str) -> None:
        """End the current phase and begin the next, with a line on stderr.

        Args:
            name: One of `results.schema.progress.STATES`.
        """
        self._entered.append((name, time.perf_counter(), time.process_time()))
        print(state_line(name), file=sys.stderr, flush=True)  # noqa: T201 (progress is this program's stderr)

    def ended(self) -> list[Phase]:
        """Return the phases that have ended, in the order of their first begin."""
        spent: dict[str, list[tuple[float, float]]] = {}
        for (name, wall, cpu), (_, wall_end, cpu_end) in itertools.pairwise(self._entered):
            spent.setdefault(name, []).append((wall_end - wall, cpu_end - cpu))
        totals = {name: [sum(parts) for parts in zip(*times, strict=True)] for name, times in spent.items()}
        return [Phase(name=name, seconds=wall, cpu_seconds=cpu) for name, (wall, cpu) in totals.items()]


@dataclass
class Findings:
    """The parts of a record, filled while a case is measured."""

    environment: Environment | None = None
    measurement: Measurement | None = None
    telemetry: Telemetry | None = None
    checks: list[Check] = field(default_factory=list)
    warnings: list[SoftWarning] = field(default_factory=list)
    device_results: list[DeviceResult] = field(default_factory=list)
    gpus: list[GPUFacts] = field(default_factory=list)
    phases: Phases = field(default_factory=Phases)

    @property
    def valid(self) -> bool:
        """Return whether no check failed and at least one passed."""
        return all(check.passed is not False for check in self.checks) and any(check.passed for check in self.checks)


def utc_now() -> str:
    """Return the current time for a record: UTC, ISO 8601, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(record: Record, output: Path | None, *, as_table: bool = False) -> None:
    """Write a record as JSON to a file, or to stdout.

    The file appears complete or not at all: it is written under another name, then renamed.

    Args:
        record: The record.
        output: File; None: stdout.
        as_table: Print a table on stdout, instead of JSON if there is no file.

    Raises:
        RecordError: The record contradicts itself; nothing was written.
    """
    if problems := contradictions(record):
        raise RecordError(problems)
    text = to_json(record)
    if as_table or output is None:
        sys.stdout.write(record_table(record) if as_table else text)
        sys.stdout.flush()
    if output is None:
        return
    beside = _part_of(output)
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(output)


def try_output(output: Path) -> None:
    """Try to write next to a record that is yet to be written.

    Raises:
        OSError: It could not be written.
    """
    if output.exists() and not output.is_file():
        raise OSError(errno.EEXIST, "it exists and is not a file", str(output))
    beside = _part_of(output)
    beside.touch()
    beside.unlink()


def _part_of(output: Path) -> Path:
    """Return the name under which a record is written, in a folder that exists."""
    output.parent.mkdir(parents=True, exist_ok=True)
    return output.with_name(f".{output.name}.{os.getpid()}.part")


def print_record(output: Path | None) -> None:
    """Print the record in a file as lines on stdout, if the file exists."""
    if output is None or not output.is_file():
        return
    for line in record_lines(output.read_bytes()):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()  # one write per line: no other output can come in between

"""A row of the merged table, typed: one fleet, host, case and software, with what its repeats gave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter

from results.schema import Case
from results.table.columns import CASE_COLUMNS, COLUMNS, SOFTWARE_COLUMNS, Value
from results.table.software import Software

NO_ORIGIN = "-"
"""Fleet and host of a record that no orchestrator has placed."""


@dataclass(frozen=True)
class Place:
    """Where a case was measured."""

    fleet: str
    host: str
    case: Case

    def __str__(self) -> str:
        """Name the host with its fleet."""
        return f"{self.fleet}/{self.host}"


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """The numbers of a row; units and meanings as `COLUMNS` has them. None: not measured.

    Attributes:
        ci95_low: Lower end of the 95 % interval of `samples_per_second`; None with fewer than two repeats.
        ci95_high: Upper end, likewise.
    """

    samples_per_second: float | None = None
    ci95_low: float | None = None
    ci95_high: float | None = None
    step_p50_seconds: float | None = None
    step_p95_seconds: float | None = None
    step_cv: float | None = None
    latency_p50_seconds: float | None = None
    latency_p95_seconds: float | None = None
    latency_p99_seconds: float | None = None
    samples_per_joule: float | None = None
    power_mean_watts: float | None = None
    temperature_steady_celsius: float | None = None
    all_reduce_bytes_per_second: float | None = None


STATISTICS: tuple[str, ...] = tuple(item.name for item in fields(Statistics))
"""Columns that are numbers over repeats."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row; `COLUMNS` says what each value means. Its texts are safe for a terminal.

    Attributes:
        unit: What a sample is; None without a number.
        input_size: Height and width of an image in pixels, or tokens of a sequence, as trained.
        status: `ok` if a repeat gave a number, else the most frequent status of the repeats.
        cause: Status and cause of the repeats that failed; None when none did.
        repeats_ok: Repeats that gave a number.
        repeats: Repeats that were tried.
        valid: None: no validity check was reached.
        warnings: Codes, with a count where not all repeats have it.
        runs: Runs that the repeats come from.
        last_started_at: In UTC, ISO 8601.
        usd_per_gpu_hour: As given for the latest repeat.
    """

    fleet: str
    host: str
    case: Case
    software: Software
    statistics: Statistics
    status: str
    repeats_ok: int
    repeats: int
    runs: int
    last_started_at: str
    unit: str | None = None
    input_size: int | None = None
    cause: str | None = None
    valid: bool | None = None
    warnings: str | None = None
    usd_per_gpu_hour: float | None = None

    @property
    def place(self) -> Place:
        """Fleet, host and case."""
        return Place(self.fleet, self.host, self.case)

    def named(self, column: str) -> Value:
        """Return the cell of a column."""
        return READERS[column](self)


READERS: dict[str, Callable[[Row], Value]] = {
    **{name: attrgetter(name) for name in COLUMNS},
    "global_batch": attrgetter("case.global_batch"),
    **{name: attrgetter(f"case.{name}") for name in CASE_COLUMNS},
    **{name: attrgetter(f"software.{name}") for name in SOFTWARE_COLUMNS},
    **{name: attrgetter(f"statistics.{name}") for name in STATISTICS},
}
"""Where the value of each column lies in a row."""


def sort_key(place: Place) -> tuple[object, ...]:
    """Order rows by fleet, kind of work, network and settings, then host; an empty cell comes after all others."""
    case = place.case
    length = case.sequence_length
    return (
        *(place.fleet, case.device, case.model, str(case.batch_norm), case.precision, case.xla, case.data, case.mode),
        *(length is None, length or 0, case.batch_per_gpu, case.num_gpus, case.num_hosts, place.host),
    )

"""Merges the records of any number of runs into one table.

There is one row per fleet, host, GPU, case and software. If all its repeats failed, it has a status and a cause instead
of numbers. `Merged.problems` lists excluded records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

from results.runs.store import ReadingNotes, StoredRecord
from results.schema import Case, Measurement, Record, Status
from results.schema.words import SUSPECT
from results.table.columns import (
    NO_NUMBERS,
    REPEAT_TYPES,
    CaseOnHost,
    Row,
    Software,
    Value,
    place_of,
    repeat_numbers,
    software_of,
    sort_key,
)
from results.table.fleets import FleetRate, fleet_rates
from results.table.suspects import Suspects, above_fleet, highest_rate
from results.text import path_text, printable

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Merged:
    """Records in one table.

    Attributes:
        rows: One per fleet, host, GPU, case and software, in the order of the table.
        repeats: One row per record with a number: `row` (index in `rows`), `run`, `repeat`, `started_at`,
            `samples_per_second`, and the columns of `columns.REPEAT_TYPES` that follow.
        problems: One line for each exclusion or other problem.
        devices: Records of devices, which have no throughput and a table of their own.
        apart: Records without all-reduce, merged likewise; None: there are none. They are not training, so they are
            excluded from tables of throughput; see `results.report.comparison`.
        suspicions: Why repeats are suspect and in no mean, by file; without those of `apart`.
        unread: Number of files that are not records.
    """

    rows: list[Row]
    repeats: pd.DataFrame
    problems: list[str]
    devices: list[Record] = field(default_factory=list)
    apart: Merged | None = None
    suspicions: Mapping[Path, str] = field(default_factory=dict)
    unread: int = 0

    @property
    def suspects(self) -> int:
        """Number of suspect repeats."""
        return len(self.suspicions)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table as exported; columns as in `COLUMNS`."""
        from results.table.frames import table_frame

        return table_frame(self.rows)

    @cached_property
    def rates(self) -> list[FleetRate]:
        """Throughput of each fleet, case and software, in the order of the table."""
        return fleet_rates(self)


def merge_records(stored: Iterable[StoredRecord]) -> Merged:
    """Merge records into one table.

    Args:
        stored: Records of any number of runs.
    """
    collector, apart, notes, unread = _Collector(), _Collector(), ReadingNotes(), 0
    for item in notes.of(stored):
        if item.record is None:
            unread += 1
        else:
            (collector if item.record.case.all_reduce else apart).add(item.record, item.path)
    collector.problems[:0] = notes.lines()
    merged, without = collector.merged(), apart.merged()
    return replace(merged, apart=without if without.rows else None, unread=unread)


@dataclass(slots=True)
class _Group:
    """The records of one row."""

    place: CaseOnHost
    software: Software
    statuses: Counter[Status] = field(default_factory=Counter)
    causes: dict[str, None] = field(default_factory=dict)  # in order of appearance
    warnings: Counter[str] = field(default_factory=Counter)
    runs: set[str] = field(default_factory=set)
    prices: dict[float, str] = field(default_factory=dict)  # price → latest time it was asked
    last_started_at: str = ""
    measurement: Measurement | None = None
    highest_rate: float | None = None
    suspects: int = 0


@dataclass
class _Collector:
    """Collects records one by one and keeps only what the table needs.

    To merge a million records in less than a minute, each place is hashed once per record and numbered.
    """

    problems: list[str] = field(default_factory=list)
    devices: list[Record] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)
    measured: list[tuple[Value, ...]] = field(default_factory=list)  # values of REPEAT_TYPES, by record
    _paths: list[Path] = field(default_factory=list)  # of `measured`
    _places: list[CaseOnHost] = field(default_factory=list)
    _numbers: dict[tuple[str, str, Case], int] = field(default_factory=dict)  # of places
    _taken: dict[tuple[str, int, int], Path] = field(default_factory=dict)  # by run, number of the place and repeat
    _alone: Counter[int] = field(default_factory=Counter)  # records without an orchestrator, by number of the place
    _rows: dict[tuple[int, Software], int] = field(default_factory=dict)  # by number of the place
    _rows_of_run: defaultdict[tuple[str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    _failed: list[tuple[str, int, Record]] = field(default_factory=list)  # run and number of the place
    _doubts: Suspects = field(default_factory=Suspects)

    def add(self, record: Record, path: Path) -> None:
        """Add a record; duplicates are excluded and reported."""
        origin, where = record.origin, place_of(record)
        place = where.fleet, where.host, where.case
        run, repeat = (path_text(path), 1) if origin is None else (origin.run_id, origin.repeat)
        number = self._numbers.setdefault(place, len(self._places))
        if number == len(self._places):
            self._places.append(_shown(*place))
        if (earlier := self._taken.get((run, number, repeat))) is not None:
            self.problems.append(f"{path_text(path)}: same run, job and repeat as {path_text(earlier)}, excluded")
            return
        self._taken[run, number, repeat] = path
        if origin is None:
            self._alone[number] += 1
            repeat = self._alone[number]  # the first record of each case counts as one round, and so on
        if record.status is Status.OK and record.device_results:
            self.devices.append(record)
            return
        software, measurement = software_of(record), record.measurement
        if record.status is not Status.OK or measurement is None or software is None:
            self._failed.append((run, number, record))
            return
        row = self._row(number, software)
        self._rows_of_run[run, number].add(row)
        group = self.groups[row]
        group.measurement = measurement
        self._note(group, run, record)
        if group.highest_rate is None:  # one row, one case and hardware
            group.highest_rate = highest_rate(record)
        self._doubts.add(record, measurement, group.highest_rate)
        self._paths.append(path)
        self.measured.append((row, run, repeat, record.started_at, *repeat_numbers(measurement, record.telemetry)))

    def merged(self) -> Merged:
        """Return the table of all added records."""
        from results.table.frames import repeats_frame, row_numbers
        from results.table.unusual import unusual_repeats

        early = defaultdict[tuple[int, Software], set[int]](set)
        for (number, software), row in self._rows.items():
            early[number, software.known_early].add(row)
        for run, number, record in self._failed:
            self._note(self.groups[self._row_of_failure(run, number, software_of(record), early)], run, record)
        suspicions = self._exclude_suspects()
        order = sorted(range(len(self.groups)), key=lambda index: sort_key(self.groups[index].place))
        repeats = repeats_frame(self.measured, order)
        numbers = row_numbers(repeats)
        rows = [_described(self.groups[i], numbers.get(row, NO_NUMBERS)) for row, i in enumerate(order)]
        self.problems += [problem for group in self.groups if (problem := _price_problem(group))]
        self.problems += unusual_repeats(rows, repeats)
        return Merged(rows, repeats, list(dict.fromkeys(self.problems)), self.devices, suspicions=suspicions)

    def _exclude_suspects(self) -> dict[Path, str]:
        """Exclude suspect repeats from all means, add the reason to their rows, and return the reasons."""
        rate = list(REPEAT_TYPES).index("samples_per_second")
        fleets = defaultdict[tuple[str, Case], list[tuple[int, str, float]]](list)
        rows: list[_Group] = [self.groups[cast(int, values[0])] for values in self.measured]
        for index, (group, values) in enumerate(zip(rows, self.measured, strict=True)):
            fleets[group.place.fleet, group.place.case].append((index, group.place.host, cast(float, values[rate])))
        why = dict(self._doubts.why)
        for same in fleets.values():
            why |= above_fleet(item for item in same if item[0] not in why)
        why = {index: f"{SUSPECT}: {reason}" for index, reason in why.items()}
        for index in why:
            group = rows[index]
            group.statuses[Status.OK] -= 1
            group.statuses[Status.INVALID] += 1
            group.causes[why[index]] = None
            group.suspects += 1
        for group in self.groups:
            if group.suspects:
                group.warnings[SUSPECT] = group.suspects
                causes = printable("; ".join(group.causes))
                self.problems.append(f"{group.place}: {group.suspects} suspect, in no mean: {causes}")
        self.measured = [values for index, values in enumerate(self.measured) if index not in why]
        return {self._paths[index]: reason for index, reason in why.items()}

    def _row(self, place: int, software: Software) -> int:
        row = self._rows.setdefault((place, software), len(self.groups))
        if row == len(self.groups):
            self.groups.append(_Group(self._places[place], software))
        return row

    def _row_of_failure(
        self, run: str, place: int, software: Software | None, early: Mapping[tuple[int, Software], set[int]]
    ) -> int:
        """Return the row of a failed repeat.

        The software of a failed repeat is unknown (it never started) or incomplete. It is added to the successful
        repeats with the same known software, or of the same run, if these form one row; else it has a row of its own.
        """
        if software is None:
            rows = self._rows_of_run.get((run, place), set())
        else:
            rows = early.get((place, software.known_early), set())
        return next(iter(rows)) if len(rows) == 1 else self._row(place, software or Software())

    def _note(self, group: _Group, run: str, record: Record) -> None:
        group.statuses[record.status] += 1
        group.runs.add(run)
        if record.started_at > group.last_started_at:
            group.last_started_at = record.started_at
        if record.cause:
            group.causes[f"{record.status}: {record.cause}"] = None
        if record.warnings:
            group.warnings.update({warning.code for warning in record.warnings})
        if record.origin and record.origin.usd_per_gpu_hour is not None:
            price = record.origin.usd_per_gpu_hour
            group.prices[price] = max(group.prices.get(price, ""), record.started_at)


def _described(group: _Group, numbers: Mapping[str, float | None]) -> Row:
    """Build the row of a group."""
    repeats, repeats_ok = group.statuses.total(), group.statuses[Status.OK]
    failures = [status for status, _ in group.statuses.most_common() if status is not Status.OK]
    measurement, warnings = (group.measurement if repeats_ok else None), _counted(group.warnings, repeats)
    return Row(
        fleet=group.place.fleet,
        host=group.place.host,
        case=group.place.case,
        software=group.software.shown(),
        numbers=numbers,
        unit=printable(measurement.unit) if measurement else None,
        input_size=(measurement.image_size or measurement.sequence_length) if measurement else None,
        status=str(Status.OK if repeats_ok else failures[0]),
        cause=printable("; ".join(group.causes)) or None,
        repeats_ok=repeats_ok,
        repeats=repeats,
        valid=True if repeats_ok else (False if Status.INVALID in group.statuses else None),
        warnings=printable(warnings) if warnings else None,
        runs=len(group.runs),
        last_started_at=group.last_started_at,
        usd_per_gpu_hour=max(group.prices, key=group.prices.__getitem__) if group.prices else None,
    )


def _shown(fleet: str, host: str, case: Case) -> CaseOnHost:
    """Return a place with texts that are safe for a terminal."""
    safe = case if case.model.isprintable() else replace(case, model=printable(case.model))
    return CaseOnHost(printable(fleet), printable(host), safe)


def _price_problem(group: _Group) -> str:
    """Return a note if a host's price changed between runs; else an empty text."""
    if len(group.prices) < 2:
        return ""
    asked = ", ".join(f"{price:g}" for price in sorted(group.prices))
    return f"{group.place}: prices differ between runs ({asked} USD per GPU-hour); the latest is used"


def _counted(warnings: Counter[str], repeats: int) -> str | None:
    """Format warnings by code, with a count if only some repeats have them."""
    texts = [code if count == repeats else f"{code} ({count} of {repeats})" for code, count in sorted(warnings.items())]
    return ", ".join(texts) or None

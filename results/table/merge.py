"""Merges the records of any number of runs: a frame with a row per record, then a row per host, case and software.

If all repeats of a row failed, it has a status and a cause instead of numbers.
"""

from __future__ import annotations

import itertools
import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from results.runs.store import ReadingNotes, StoredRecord
from results.schema import Record, Status, Telemetry
from results.schema.enums import SUSPECT
from results.stats import estimate_of_runs
from results.table.columns import (
    CASE_COLUMNS,
    COLUMNS,
    OF_REPEAT,
    REPEAT_COLUMNS,
    CaseOnHost,
    Row,
    Software,
    place_of,
    software_of,
    values_of_repeat,
)
from results.table.comparable import grouped
from results.table.fleets import OF_RUNS, FleetRate, fleet_rates
from results.table.suspects import highest_rate, own_doubt, step_times, suspicions, unusual_repeats
from results.text import path_text, printable

_TYPES = {
    **dict.fromkeys(("path", "place", "number", "software", "alone", "device_record", "run", "repeat"), "object"),
    **dict.fromkeys(("started_at", "status", "cause", "warnings", "usd_per_gpu_hour", "unit"), "object"),
    **dict.fromkeys(("input_size", "doubt", "steps", *OF_REPEAT), "object"),
    **{"number": "int64", "repeat": "int64", "alone": "bool"},
    **dict.fromkeys(("usd_per_gpu_hour", "input_size", *OF_REPEAT), "float64"),
}
"""Columns of `Merged.records`: `number` identifies a `place`, `alone` is a record without an orchestrator,
`device_record` is that of a device, `doubt` says why a repeat is suspect, `steps` is a hash of its step times."""

_NOTHING = Telemetry()


@dataclass(frozen=True)
class Merged:
    """Records in frames.

    Attributes:
        records: One row per record, duplicates excluded; numbers only of repeats that succeeded and are not suspect.
        rows: One per fleet, host, GPU, case and software, in the order of the table.
        without_all_reduce: Likewise of records without all-reduce. They are not training, so they are excluded from
            tables of throughput, and stand in a note.
        problems: One line for each exclusion or other problem.
        devices: Records of devices, which have no throughput and a table of their own.
        suspects: Number of suspect repeats.
        unread: Number of files that are not records.
    """

    records: pd.DataFrame
    rows: list[Row]
    without_all_reduce: list[Row]
    problems: list[str]
    devices: list[Record]
    suspects: int
    unread: int

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table as exported; columns as in `COLUMNS`."""
        return pd.DataFrame({name: of.array([getattr(row, name) for row in self.rows]) for name, of in COLUMNS.items()})

    @cached_property
    def all_repeats(self) -> pd.DataFrame:
        """One row per record with the columns `REPEAT_COLUMNS`."""
        cells = _with_settings(self.records)
        return pd.DataFrame({name: of.array(cells[name].tolist()) for name, of in REPEAT_COLUMNS.items()})

    @cached_property
    def rates(self) -> list[FleetRate]:
        """Throughput of each fleet, case and software, in the order of the table."""
        return fleet_rates(self.rows)


def merge_records(stored: Iterable[StoredRecord]) -> Merged:
    """Merge records into one table.

    Args:
        stored: Records of any number of runs.
    """
    notes, numbers, limits = ReadingNotes(), dict[Any, int](), dict[Any, float]()
    read = [_cells(item.path, item.record, numbers, limits) for item in notes.of(stored) if item.record is not None]
    frame = pd.DataFrame(read, columns=list(_TYPES), dtype=object).astype(_TYPES)
    keys = ["run", "number", "repeat"]
    again, first = frame.duplicated(keys), frame.groupby(keys)["path"].transform("first")
    doubles = [
        f"{path_text(path)}: same run, job and repeat as {path_text(earlier)}, excluded"
        for path, earlier in zip(frame["path"][again], first[again], strict=True)
    ]
    frame = frame[~again]
    of_devices, networks = frame[frame["device_record"].notna()], _judged(frame[frame["device_record"].isna()])
    groups = itertools.groupby(networks.itertuples(index=False), operator.attrgetter("row"))
    rows = [_row([*records]) for _, records in groups]
    prices = [(row.place, ", ".join(f"{usd:g}" for usd in row.prices)) for row in rows if len(row.prices) > 1]
    problems = [
        *(f"{row.place}: {row.suspects} suspect, in no mean: {row.cause}" for row in rows if row.suspects),
        *(f"{place}: prices differ between runs ({usd} USD per GPU-hour); the latest is used" for place, usd in prices),
        *unusual_repeats(rows, networks[networks["samples_per_second"].notna()]),
    ]
    speeds = [row for row in rows if row.case.all_reduce]
    return Merged(
        records=pd.concat([networks, of_devices]).sort_index(),
        rows=speeds,
        without_all_reduce=rows[len(speeds) :],
        problems=list(dict.fromkeys([*notes.lines(), *doubles, *problems])),
        devices=of_devices["device_record"].tolist(),
        suspects=int(networks["suspect"].sum()),
        unread=notes.unread,
    )


def _cells(path: Path, record: Record, numbers: dict[Any, int], limits: dict[Any, float]) -> tuple[Any, ...]:
    """Return the values of `_TYPES` of a record.

    Args:
        path: Its file.
        record: The record.
        numbers: Numbers of places.
        limits: The largest possible rate by number and software.
    """
    origin, place, software = record.origin, place_of(record), software_of(record)
    number = numbers.setdefault(place, len(numbers))
    measured = record.measurement if record.status is Status.OK and software is not None else None
    device = record if record.status is Status.OK and record.device_results else None
    cells: list[Any] = [path, place, number, software, origin is None, device]
    cells += [origin.run_id, origin.repeat] if origin else [path_text(path), 1]
    cells += [record.started_at, str(record.status), record.cause and printable(record.cause)]
    cells += [tuple({warning.code for warning in record.warnings}), origin and origin.usd_per_gpu_hour]
    if measured is None or device is not None:
        return (*cells, *[None] * (len(_TYPES) - len(cells)))
    if (number, software) not in limits:  # one case and hardware
        limits[number, software] = highest_rate(record)
    doubt = own_doubt(record, measured, limits[number, software])
    cells += [printable(measured.unit), measured.image_size or measured.sequence_length]
    cells += [doubt and printable(doubt), step_times(measured)]
    return (*cells, *values_of_repeat(measured, record.telemetry or _NOTHING))


def _judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Return records of networks sorted by their `row`, with their `round`, and without numbers of suspect ones."""
    measured = frame["samples_per_second"].notna()
    found = suspicions(frame[measured])
    alone = frame.groupby(["number", "alone"]).cumcount() + 1  # the first record of each case is round 1, and so on
    frame = frame.assign(
        round=frame["repeat"].mask(frame["alone"], alone),
        software=pd.Series(_software_of_failures(frame, measured), frame.index, dtype=object),
        suspect=frame.index.isin(found.index),
    )
    keys = [*zip(frame["number"], frame["software"], strict=True)]
    ok = {key for key, has_number in zip(keys, measured, strict=True) if has_number}
    places = dict(zip(frame["number"], frame["place"], strict=True))
    order = sorted(dict.fromkeys(keys), key=lambda key: (*places[key[0]].sort_key, key not in ok))
    row_of_key = {key: row for row, key in enumerate(order)}
    frame["row"] = [row_of_key[key] for key in keys]
    frame.loc[found.index, "cause"] = found
    frame.loc[found.index, ["status", "unit"]] = str(Status.INVALID), None
    frame.loc[found.index, ["input_size", *OF_REPEAT]] = math.nan
    return frame.sort_values("row", kind="stable")


def _software_of_failures(frame: pd.DataFrame, measured: pd.Series) -> list[Software]:
    """Return the software of each record.

    That of a failed repeat is unknown (it never started) or incomplete. It is taken from the successful repeats with
    the same known software, or of the same run, if these have one; else the repeat has a row of its own.
    """
    of_run, early = defaultdict[Any, set[Software]](set), defaultdict[Any, set[Software]](set)
    for number, run, software in set(frame.loc[measured, ["number", "run", "software"]].itertuples(index=False)):
        of_run[number, run].add(software)
        early[number, software.known_early].add(software)
    found = []
    for number, run, software, ok in zip(frame["number"], frame["run"], frame["software"], measured, strict=True):
        likely = set() if ok else of_run[number, run] if software is None else early[number, software.known_early]
        found.append(next(iter(likely)) if len(likely) == 1 else software or Software())
    return found


_EXTRA = ("place", "case", "software", "interval", "suspects", "prices", *OF_RUNS)
"""Attributes of a row that are no columns: `prices` are the distinct ones of its runs; see `Row`."""

_Row = make_dataclass("_Row", (*COLUMNS, *_EXTRA), slots=True)


def _row(records: Sequence[Any]) -> Row:
    """Summarise the records of a host, case and software, as `_judged` returns them."""
    place, software = records[0].place, records[0].software
    ok = [record for record in records if _known([record], "samples_per_second")]
    of_runs = {
        name: grouped((record.run, value) for record in ok for value in _known([record], column))
        for name, column in OF_RUNS.items()
    }
    estimate = estimate_of_runs([*of_runs["rates"].values()]) if ok else None
    interval = None if estimate is None else estimate.interval()
    numbers = {name: _OVER[COLUMNS[name].over](values) if (values := _known(ok, name)) else None for name in OF_REPEAT}
    statuses = [record.status for record in records if record.status != Status.OK]
    causes = (of.cause if of.suspect else f"{of.status}: {of.cause}" for of in records if of.cause)
    codes = Counter(code for record in records for code in {*record.warnings, *[SUSPECT] * record.suspect})
    some = {code: "" if count == len(records) else f" ({count} of {len(records)})" for code, count in codes.items()}
    latest = sorted(records, key=operator.attrgetter("started_at"))
    prices = _known(latest, "usd_per_gpu_hour")
    return _Row(
        **place._asdict(),
        **{name: getattr(place.case, name) for name in (*CASE_COLUMNS, "global_batch")},
        **vars(software),
        **(numbers if interval is None else numbers | {"samples_per_second": interval.value}),
        **of_runs,
        place=place,
        software=software,
        interval=interval,
        ci95_low=interval and interval.low,
        ci95_high=interval and interval.high,
        unit=next(iter(_known(records, "unit")), None),
        input_size=next(map(int, _known(records, "input_size")), None),
        repeats=len(records),
        repeats_ok=len(ok),
        status=str(Status.OK) if ok else Counter(statuses).most_common(1)[0][0],
        cause="; ".join(dict.fromkeys(causes)) or None,
        valid=True if ok else False if Status.INVALID in statuses else None,
        warnings=", ".join(printable(code) + some[code] for code in sorted(codes)) or None,
        runs=len({record.run for record in records}),
        suspects=sum(record.suspect for record in records),
        last_started_at=latest[-1].started_at,
        usd_per_gpu_hour=prices[-1] if prices else None,
        prices=sorted({*prices}),
    )


_OVER: dict[str, Callable[[Sequence[float]], float]] = {"mean": statistics.fmean, "median": statistics.median}


def _known(records: Iterable[Any], name: str) -> list[Any]:
    """Return the values of a column that are not missing."""
    return [value for record in records if (value := getattr(record, name)) is not None and value == value]


def _with_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """Add columns of the fleet, the host, the case and its settings."""
    places = pd.DataFrame([*frame["place"]], frame.index, CaseOnHost._fields, dtype=object)
    settings = pd.DataFrame([vars(case) for case in places["case"]], frame.index, CASE_COLUMNS, dtype=object)
    return frame.join([places, settings])

"""Merges the records of any number of runs: a frame with a row per record, then a row per host, case and software.

If all repeats of a row failed, it has a status and a cause instead of numbers.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
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
    sort_key,
)
from results.table.fleets import FleetRate, fleet_rates
from results.table.suspects import highest_rate, own_doubt, step_times, suspicions
from results.table.unusual import unusual_repeats
from results.text import path_text, printable

_TYPES = {
    **{"path": "object", "where": "object", "software": "object", "alone": "bool", "is_device": "bool"},
    **{"run": "object", "repeat": "int64", "number": "int64", "started_at": "object", "status": "object"},
    **{"cause": "object", "warnings": "object", "usd_per_gpu_hour": "float64", "unit": "object"},
    **{"input_size": "float64", "doubt": "object", "steps": "object", **dict.fromkeys(OF_REPEAT, "float64")},
}
"""Columns of `Merged.records`: `number` identifies fleet, host and case (`where`), `alone` is a record without an
orchestrator, `doubt` says why a repeat is suspect, and `steps` is a hash of its step times."""

_NOTHING = Telemetry()


@dataclass(frozen=True)
class Merged:
    """Records in frames.

    Attributes:
        records: One row per record, duplicates excluded; numbers only of repeats that succeeded and are not suspect.
        rows: One per fleet, host, GPU, case and software, in the order of the table.
        repeats: The rows of `records` with a number, sorted by `row`, which is their index in `rows`, and with their
            `round`: the number of the repeat.
        problems: One line for each exclusion or other problem.
        devices: Records of devices, which have no throughput and a table of their own.
        apart: Records without all-reduce, merged likewise; None: there are none. They are not training, so they are
            excluded from tables of throughput; see `results.report.comparison`.
        suspects: Number of suspect repeats, without those of `apart`.
        unread: Number of files that are not records.
    """

    records: pd.DataFrame
    rows: list[Row]
    repeats: pd.DataFrame
    problems: list[str]
    devices: list[Record] = field(default_factory=list)
    apart: Merged | None = None
    suspects: int = 0
    unread: int = 0

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table as exported; columns as in `COLUMNS`."""
        return pd.DataFrame({name: of.array([row.named(name) for row in self.rows]) for name, of in COLUMNS.items()})

    @cached_property
    def all_repeats(self) -> pd.DataFrame:
        """One row per record with the columns `REPEAT_COLUMNS`."""
        where = self.records["where"].tolist()
        cells: dict[str, list[Any]] = {"fleet": [of.fleet for of in where], "host": [of.host for of in where]}
        cells |= {name: [getattr(of.case, name) for of in where] for name in CASE_COLUMNS}
        cells |= {name: self.records[name].tolist() for name in REPEAT_COLUMNS if name not in cells}
        return pd.DataFrame({name: of.array(cells[name]) for name, of in REPEAT_COLUMNS.items()})

    @cached_property
    def rates(self) -> list[FleetRate]:
        """Throughput of each fleet, case and software, in the order of the table."""
        return fleet_rates(self)


def merge_records(stored: Iterable[StoredRecord]) -> Merged:
    """Merge records into one table.

    Args:
        stored: Records of any number of runs.
    """
    notes, devices, numbers, limits = ReadingNotes(), dict[int, Record](), dict[Any, int](), dict[Any, float]()
    read: list[tuple[Any, ...]] = []
    for item in notes.of(stored):
        if item.record is not None:
            if item.record.status is Status.OK and item.record.device_results:
                devices[len(read)] = item.record
            read.append(_cells(item.path, item.record, numbers, limits))
    frame = pd.DataFrame(read, columns=list(_TYPES), dtype=object).astype(_TYPES)
    keys = ["run", "number", "repeat"]
    again, first = frame.duplicated(keys), frame.groupby(keys)["path"].transform("first")
    problems = [
        f"{path_text(path)}: same run, job and repeat as {path_text(earlier)}, excluded"
        for path, earlier in zip(frame["path"][again], first[again], strict=True)
    ]
    frame = frame[~again]
    trains = pd.Series([where.case.all_reduce for where in frame["where"]], frame.index, dtype=bool)
    merged, apart = (_merged(frame[~frame["is_device"] & kind]) for kind in (trains, ~trains))
    return replace(
        merged,
        records=pd.concat([merged.records, apart.records, frame[frame["is_device"]]]).sort_index(),
        problems=list(dict.fromkeys([*notes.lines(), *problems, *merged.problems])),
        devices=[record for index, record in devices.items() if not again[index]],
        apart=apart if apart.rows else None,
        unread=notes.unread,
    )


def _cells(path: Path, record: Record, numbers: dict[Any, int], limits: dict[Any, float]) -> tuple[Any, ...]:
    """Return the values of `_TYPES` of a record.

    Args:
        path: Its file.
        record: The record.
        numbers: Numbers of fleets, hosts and cases, so that each of up to a million records is hashed once.
        limits: The largest possible rate by number and software.
    """
    origin, where, software = record.origin, place_of(record), software_of(record)
    number = numbers.setdefault((where.fleet, where.host, where.case), len(numbers))
    ok = record.status is Status.OK and software is not None
    measured = record.measurement if ok and not record.device_results else None
    cells: list[Any] = [path, where, software, origin is None, bool(ok and record.device_results)]
    cells += [origin.run_id, origin.repeat] if origin else [path_text(path), 1]
    cells += [number, record.started_at, str(record.status), record.cause]
    cells += [tuple({warning.code: None for warning in record.warnings}), origin and origin.usd_per_gpu_hour]
    if measured is None:
        return (*cells, None, None, None, None, *(None for _ in OF_REPEAT))
    if (number, software) not in limits:  # one case and hardware
        limits[number, software] = highest_rate(record)
    doubt, telemetry = own_doubt(record, measured, limits[number, software]), record.telemetry or _NOTHING
    cells += [measured.unit, measured.image_size or measured.sequence_length, doubt, step_times(measured)]
    return (*cells, *(read(measured, telemetry) for read in OF_REPEAT.values()))


def _merged(frame: pd.DataFrame) -> Merged:
    """Return the rows of records of networks."""
    measured = frame["samples_per_second"].notna()
    found = suspicions(frame[measured])
    alone = frame.groupby(["number", "alone"]).cumcount() + 1  # the first record of each case is round 1, and so on
    frame = frame.assign(round=frame["repeat"].mask(frame["alone"], alone))
    keys = _row_keys(frame)
    places = frame.drop_duplicates("number").set_index("number")["where"].map(_printable).to_dict()
    ok = set(itertools.compress(keys, measured))
    order = sorted(dict.fromkeys(keys), key=lambda key: (*sort_key(places[key[0]]), key not in ok))
    frame["row"] = pd.Series(keys, frame.index, dtype=object).map({key: row for row, key in enumerate(order)})
    frame.loc[found.index, "doubt"] = frame.loc[found.index, "cause"] = found
    frame.loc[found.index, "status"] = str(Status.INVALID)
    frame.loc[found.index, "unit"] = None
    frame.loc[found.index, ["input_size", *OF_REPEAT]] = math.nan
    frame = frame.astype({"row": "int64"}).sort_values("row", kind="stable")
    groups = frame.groupby("row")
    columns = {name: frame[name].tolist() for name in _SUMMARISED}
    ends = groups.size().cumsum().tolist()
    slices = itertools.starmap(slice, zip([0, *ends], ends, strict=False))
    lists = [{name: values[of] for name, values in columns.items()} for of in slices]
    means: Any = groups.agg({name: COLUMNS[name].over for name in OF_REPEAT}).to_dict("records")
    rows = [
        _described(places[number], software, of, mean)
        for (number, software), of, mean in zip(order, lists, means, strict=True)
    ]
    repeats = frame[frame["samples_per_second"].notna()].reset_index(drop=True)
    problems = [problem for row, of in zip(rows, lists, strict=True) for problem in _problems(row, of)]
    return Merged(frame, rows, repeats, [*problems, *unusual_repeats(rows, repeats)], suspects=len(found))


_Key = tuple[int, Software]
"""Identity of a row: the number of its fleet, host and case, and the software."""


def _row_keys(frame: pd.DataFrame) -> list[_Key]:
    """Return the row of each record.

    The software of a failed repeat is unknown (it never started) or incomplete. It is added to the successful
    repeats with the same known software, or of the same run, if these form one row; else it has a row of its own.
    """
    keys: list[Any] = list(zip(frame["number"], frame["software"], strict=True))
    measured = frame["samples_per_second"].notna()
    of_run, early = defaultdict[Any, set[_Key]](set), defaultdict[Any, set[_Key]](set)
    for run, key in set(zip(frame["run"][measured], itertools.compress(keys, measured), strict=True)):
        of_run[key[0], run].add(key)
    for number, software in set().union(*of_run.values()):
        early[number, software.known_early].add((number, software))
    for index, run in zip(np.flatnonzero(~measured), frame["run"][~measured], strict=True):
        number, software = keys[index]
        likely = of_run[number, run] if software is None else early[number, software.known_early]
        keys[index] = next(iter(likely)) if len(likely) == 1 else (number, software or Software())
    return keys


_SUMMARISED = ["run", "status", "cause", "doubt", "warnings", "started_at", "usd_per_gpu_hour", "unit", "input_size"]
_SUMMARISED += ["samples_per_second"]


def _described(place: CaseOnHost, software: Software, of: Mapping[str, list[Any]], means: Mapping[str, float]) -> Row:
    """Build a row.

    Args:
        place: Fleet, host and case.
        software: Its software.
        of: Values of its records, by column of `_SUMMARISED`.
        means: Means and medians over its repeats.
    """
    statuses, repeats = Counter(of["status"]), len(of["status"])
    ok = statuses.pop(str(Status.OK), 0)
    warnings = Counter(itertools.chain.from_iterable(of["warnings"]))
    if suspects := sum(doubt is not None for doubt in of["doubt"]):
        warnings[SUSPECT] = suspects
    parts = {code: "" if count == repeats else f" ({count} of {repeats})" for code, count in sorted(warnings.items())}
    return Row(
        **vars(place),
        software=software.shown(),
        numbers=_numbers(of, means),
        unit=next((printable(unit) for unit in of["unit"] if unit), None),
        input_size=next((int(size) for size in of["input_size"] if size == size), None),
        status=str(Status.OK) if ok else statuses.most_common()[0][0],
        cause=printable("; ".join(_causes(of))) or None,
        repeats_ok=ok,
        repeats=repeats,
        valid=True if ok else (False if Status.INVALID in statuses else None),
        warnings=printable(", ".join(map("".join, parts.items()))) or None,
        runs=len(set(of["run"])),
        last_started_at=max(of["started_at"]),
        usd_per_gpu_hour=max(prices, key=prices.__getitem__) if (prices := _prices(of)) else None,
    )


def _numbers(of: Mapping[str, list[Any]], means: Mapping[str, float]) -> dict[str, float | None]:
    """Return the means and medians of a row, and the interval of its throughput over runs or repeats."""
    runs = defaultdict[str, list[float]](list)
    for run, rate in zip(of["run"], of["samples_per_second"], strict=True):
        if not math.isnan(rate):
            runs[run].append(rate)
    numbers = {name: None if math.isnan(value) else value for name, value in means.items()}
    known = estimate_of_runs([*runs.values()]) if runs else None
    interval = known.interval() if known else None
    if known:
        numbers["samples_per_second"] = known.mean
    numbers["ci95_low"], numbers["ci95_high"] = (interval.low, interval.high) if interval else (None, None)
    return numbers


def _causes(of: Mapping[str, list[Any]]) -> Iterable[str]:
    known = zip(of["status"], of["cause"], of["doubt"], strict=True)
    return dict.fromkeys(cause if doubt else f"{status}: {cause}" for status, cause, doubt in known if cause)


def _prices(of: Mapping[str, list[Any]]) -> dict[float, str]:
    """Return when each price was asked last."""
    prices: dict[float, str] = {}
    for price, started_at in zip(of["usd_per_gpu_hour"], of["started_at"], strict=True):
        if not math.isnan(price):
            prices[price] = max(prices.get(price, ""), started_at)
    return prices


def _problems(row: Row, of: Mapping[str, list[Any]]) -> Iterator[str]:
    """Yield what is wrong with the records of a row: suspect ones, and changed prices."""
    if suspects := sum(doubt is not None for doubt in of["doubt"]):
        yield f"{row.place}: {suspects} suspect, in no mean: {row.cause}"
    if len(prices := sorted(set(_prices(of)))) > 1:
        asked = ", ".join(f"{price:g}" for price in prices)
        yield f"{row.place}: prices differ between runs ({asked} USD per GPU-hour); the latest is used"


def _printable(where: CaseOnHost) -> CaseOnHost:
    """Return a place with texts that are safe for a terminal."""
    case = where.case
    safe = case if case.model.isprintable() else replace(case, model=printable(case.model))
    return CaseOnHost(printable(where.fleet), printable(where.host), safe)

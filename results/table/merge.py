"""Merges the records of any number of runs: a frame with a row per record, then a row per host, case and software.

If all repeats of a row failed, it has a status and a cause instead of numbers.
"""

from __future__ import annotations

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from results.runs.store import ReadingNotes, StoredRecord
from results.schema import Record, Status, Telemetry
from results.schema.enums import SUSPECT
from results.stats import nested_estimate
from results.table.columns import (
    CASE_COLUMNS,
    COLUMNS,
    OF_REPEAT,
    REPEAT_COLUMNS,
    SOFTWARE_COLUMNS,
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
            tables of throughput; see `results.report.comparison`.
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
    repeats = networks[networks["samples_per_second"].notna()].reset_index(drop=True)
    rows = _rows(networks, repeats)
    problems = [
        *(f"{row.place}: {row.suspects} suspect, in no mean: {row.cause}" for row in rows if row.suspects),
        *_changed_prices(networks, rows),
        *unusual_repeats(rows, repeats),
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


def _rows(frame: pd.DataFrame, repeats: pd.DataFrame) -> list[Row]:
    """Summarise records by row.

    Args:
        frame: The records, sorted by `row`.
        repeats: Those with a number.

    Returns:
        Their attributes are the columns of the table, those of `OF_RUNS` (values of the repeats of each run), the
        `interval` of the throughput, and the number of `suspects`.
    """
    groups = frame.groupby("row")
    first = dict.fromkeys(("place", "software", "unit", "input_size"), "first")
    rows = groups.agg(first | {name: COLUMNS[name].over for name in OF_REPEAT})
    rows["repeats"], rows["repeats_ok"] = groups.size(), groups["samples_per_second"].count()
    for name, column in OF_RUNS.items():
        rows[name] = _by_run(repeats, column, len(rows))
    estimates = [nested_estimate({"": rates}) if rates else None for rates in rows["rates"]]
    intervals = pd.Series([known and known.interval() for known in estimates], rows.index, dtype=object)
    value, low, high = (
        intervals.dropna().map(operator.attrgetter(name)).astype(float).reindex(rows.index)
        for name in ("value", "low", "high")
    )
    ok, failed = rows["repeats_ok"] > 0, frame[frame["status"] != Status.OK]
    status = failed.groupby("row")["status"].agg(lambda statuses: Counter(statuses).most_common(1)[0][0])
    invalid = rows.index.isin(failed.loc[failed["status"] == Status.INVALID, "row"])
    latest = frame.sort_values("started_at", kind="stable").groupby("row")
    rows = rows.assign(
        interval=intervals,
        samples_per_second=value.fillna(rows["samples_per_second"]),  # of one repeat there is no interval
        ci95_low=low,
        ci95_high=high,
        runs=groups["run"].nunique(),
        suspects=groups["suspect"].sum(),
        status=status.reindex(rows.index).mask(ok, str(Status.OK)),
        cause=_causes(frame),
        valid=pd.Series(None, rows.index, dtype=object).mask(invalid, False).mask(ok, True),
        warnings=_warnings(frame, rows["repeats"]),
        last_started_at=latest["started_at"].last(),
        usd_per_gpu_hour=latest["usd_per_gpu_hour"].last(),
        input_size=rows["input_size"].astype("Int64"),
        global_batch=[place.case.global_batch for place in rows["place"]],
    )
    software = pd.DataFrame([vars(of) for of in rows["software"]], rows.index, SOFTWARE_COLUMNS, dtype=object)
    rows = _with_settings(rows.join(software)).astype(object)
    return [*rows.where(rows.notna(), None).itertuples(index=False, name="Row")]


def _by_run(repeats: pd.DataFrame, column: str, rows: int) -> pd.Series:
    """Return the known values of a column of the repeats for each of `rows` rows, as lists by run."""
    found: list[Any] = [{} for _ in range(rows)]
    for row, run, value in repeats[["row", "run", column]].dropna().itertuples(index=False):
        found[row].setdefault(run, []).append(value)
    return pd.Series(found, dtype=object)


def _with_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """Add columns of the fleet, the host, the case and its settings."""
    places = pd.DataFrame([*frame["place"]], frame.index, CaseOnHost._fields, dtype=object)
    settings = pd.DataFrame([vars(case) for case in places["case"]], frame.index, CASE_COLUMNS, dtype=object)
    return frame.join([places, settings])


def _causes(frame: pd.DataFrame) -> pd.Series:
    """Return the distinct causes of failure by row."""
    why = frame["cause"].where(frame["suspect"], frame["status"] + ": " + frame["cause"])
    causes = frame.assign(why=why).dropna(subset=["why"]).drop_duplicates(["row", "why"])
    return causes.groupby("row")["why"].agg("; ".join)


def _warnings(frame: pd.DataFrame, repeats: pd.Series) -> pd.Series:
    """Return the codes of warnings by row, with a count if only some of its `repeats` have them."""
    records = zip(frame["row"], frame["warnings"], frame["suspect"], strict=True)
    found = Counter((row, code) for row, codes, suspect in records for code in {*codes, *[SUSPECT] * suspect})
    texts = grouped(
        (row, printable(code) + ("" if count == repeats[row] else f" ({count} of {repeats[row]})"))
        for (row, code), count in sorted(found.items())
    )
    return pd.Series({row: ", ".join(of_row) for row, of_row in texts.items()}, dtype=object)


def _changed_prices(frame: pd.DataFrame, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each row whose runs have different prices."""
    prices = frame[["row", "usd_per_gpu_hour"]].dropna().drop_duplicates()
    several = prices[prices.duplicated("row", keep=False)].groupby("row")["usd_per_gpu_hour"].agg(sorted)
    for row, of_row in zip(several.index, several, strict=True):
        asked = ", ".join(f"{price:g}" for price in of_row)
        yield f"{rows[row].place}: prices differ between runs ({asked} USD per GPU-hour); the latest is used"

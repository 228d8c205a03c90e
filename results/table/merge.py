"""Merges the records of any number of runs: a frame with a row per record, then a row per host, case and software.

If all repeats of a row failed, it has a status and a cause instead of numbers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from results.runs.store import ReadingNotes, StoredRecord
from results.schema import Record, Status, Telemetry
from results.schema.enums import SUSPECT
from results.stats import Nested, host_means, nested_estimate
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
from results.table.fleets import FleetRate, fleet_rates, nested_values
from results.table.suspects import highest_rate, own_doubt, step_times, suspicions, unusual_repeats
from results.text import path_text, printable

_TYPES = {
    **dict.fromkeys(("path", "place", "number", "software", "alone", "kind", "record", "run", "repeat"), "object"),
    **dict.fromkeys(("started_at", "status", "cause", "warnings", "usd_per_gpu_hour", "unit"), "object"),
    **dict.fromkeys(("input_size", "doubt", "steps", *OF_REPEAT), "object"),
    **{"number": "int64", "repeat": "int64", "alone": "bool"},
    **dict.fromkeys(("usd_per_gpu_hour", "input_size", *OF_REPEAT), "float64"),
}
"""Columns of `Merged.records`: `number` identifies a `place`, `alone` is a record without an orchestrator, `kind` says
what was measured, `record` is that of a device, `doubt` says why a repeat is suspect, `steps` is a hash of its step
times."""

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
        return pd.DataFrame({name: of.array([getattr(row, name) for row in self.rows]) for name, of in COLUMNS.items()})

    @cached_property
    def all_repeats(self) -> pd.DataFrame:
        """One row per record with the columns `REPEAT_COLUMNS`."""
        cells = _with_settings(self.records)
        return pd.DataFrame({name: of.array(cells[name].tolist()) for name, of in REPEAT_COLUMNS.items()})

    @cached_property
    def rates(self) -> list[FleetRate]:
        """Throughput of each fleet, case and software, in the order of the table."""
        return self.rates_by()

    def rates_by(self, apart: Collection[str] = ()) -> list[FleetRate]:
        """Return `rates`, but keep hosts separate by these columns."""
        return fleet_rates(self.rows, self.repeats, apart)


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
    problems = [
        f"{path_text(path)}: same run, job and repeat as {path_text(earlier)}, excluded"
        for path, earlier in zip(frame["path"][again], first[again], strict=True)
    ]
    frame = frame[~again]
    of_devices, without = frame[frame["kind"] == "device"], frame[frame["kind"] == "no all-reduce"]
    merged, apart = _merged(frame[frame["kind"] == "network"]), None if without.empty else _merged(without)
    return replace(
        merged,
        records=pd.concat([merged.records, *([apart.records] if apart else []), of_devices]).sort_index(),
        problems=list(dict.fromkeys([*notes.lines(), *problems, *merged.problems])),
        devices=of_devices["record"].tolist(),
        apart=apart,
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
    ok = record.status is Status.OK and software is not None
    kind = "device" if ok and record.device_results else "network" if place.case.all_reduce else "no all-reduce"
    cells: list[Any] = [path, place, number, software, origin is None, kind, record if kind == "device" else None]
    cells += [origin.run_id, origin.repeat] if origin else [path_text(path), 1]
    cells += [record.started_at, str(record.status), record.cause and printable(record.cause)]
    cells += [tuple({warning.code for warning in record.warnings}), origin and origin.usd_per_gpu_hour]
    measured = record.measurement if ok and kind != "device" else None
    if measured is None:
        return (*cells, *[None] * (len(_TYPES) - len(cells)))
    if (number, software) not in limits:  # one case and hardware
        limits[number, software] = highest_rate(record)
    doubt = own_doubt(record, measured, limits[number, software])
    cells += [printable(measured.unit), measured.image_size or measured.sequence_length]
    cells += [doubt and printable(doubt), step_times(measured)]
    return (*cells, *values_of_repeat(measured, record.telemetry or _NOTHING))


def _merged(frame: pd.DataFrame) -> Merged:
    """Return the rows of records of networks."""
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
    frame = frame.sort_values("row", kind="stable")
    repeats = frame[frame["samples_per_second"].notna()].reset_index(drop=True)
    rows = _rows(frame, repeats)
    problems = [
        *(f"{row.place}: {row.suspects} suspect, in no mean: {row.cause}" for row in rows if row.suspects),
        *_changed_prices(frame, rows),
        *unusual_repeats(rows, repeats),
    ]
    return Merged(frame, rows, repeats, problems, suspects=len(found))


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
        repeats: See `Merged.repeats`.
    """
    groups = frame.groupby("row")
    first = groups[["place", "software", "unit", "input_size"]].first()
    by_over = ([name for name in OF_REPEAT if COLUMNS[name].over == over] for over in ("mean", "median"))
    means, medians = (groups[names] for names in by_over)
    rows = pd.concat([first, means.mean(), medians.median()], axis=1)
    rows["repeats"], rows["repeats_ok"] = groups.size(), groups["samples_per_second"].count()
    values = nested_values(repeats, "samples_per_second", {row: (row, "") for row in rows.index})
    figures = [_mean_and_interval(values[row]) for row in rows.index]
    rates = ["samples_per_second", "ci95_low", "ci95_high"]
    rows[rates] = pd.DataFrame(figures, rows.index, rates, dtype=float)
    ok, failed = rows["repeats_ok"] > 0, frame[frame["status"] != Status.OK]
    status = failed.groupby("row")["status"].agg(lambda statuses: Counter(statuses).most_common(1)[0][0])
    invalid = rows.index.isin(failed.loc[failed["status"] == Status.INVALID, "row"])
    latest = frame.sort_values("started_at", kind="stable").groupby("row")
    rows = rows.assign(
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


def _mean_and_interval(of_host: Nested) -> tuple[float, float, float]:
    """Return the mean over runs and the ends of its interval; NaN where unknown."""
    known = nested_estimate(of_host)
    if known is None:
        return next(iter(host_means(of_host).values()), math.nan), math.nan, math.nan
    interval = known.interval()
    return interval.value, interval.low, interval.high


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
    codes = frame[["row", "warnings"]].explode("warnings").dropna()
    suspects = frame.loc[frame["suspect"], ["row"]].assign(warnings=SUSPECT)
    distinct = pd.concat([codes, suspects]).reset_index().drop_duplicates()
    counts = distinct.groupby(["row", "warnings"], as_index=False).size()
    texts = [
        printable(code) + ("" if count == repeats[row] else f" ({count} of {repeats[row]})")
        for row, code, count in counts.itertuples(index=False)
    ]
    return pd.Series(texts, dtype=object).groupby(counts["row"]).agg(", ".join)


def _changed_prices(frame: pd.DataFrame, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each row whose runs have different prices."""
    prices = frame[["row", "usd_per_gpu_hour"]].dropna().drop_duplicates()
    several = prices[prices.duplicated("row", keep=False)].groupby("row")["usd_per_gpu_hour"].agg(sorted)
    for row, of_row in zip(several.index, several, strict=True):
        asked = ", ".join(f"{price:g}" for price in of_row)
        yield f"{rows[row].place}: prices differ between runs ({asked} USD per GPU-hour); the latest is used"

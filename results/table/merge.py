"""Any number of records, of any number of runs, in one table.

One row per fleet, host, GPU, case and software identity: numbers of different identities never share a row.
A group that failed is a row with its status and cause, never a 0. What is left out is named in
`Merged.problems`.
"""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.runs.store import StoredRecord
from results.schema import Environment, Measurement, Record, Status, Telemetry
from results.table.columns import CASE_COLUMNS, LEARNED_LATE, SOFTWARE_COLUMNS
from results.text import path_text, printable

if TYPE_CHECKING:
    import pandas as pd

NO_ORIGIN = "-"
"""Fleet and host of a record that no orchestrator has placed."""

_case_key = attrgetter(*CASE_COLUMNS)
_gpu_key = attrgetter("name", "power_limit_watts")
_environment_key = attrgetter(
    "tensorflow", "keras", "cuda", "cudnn", "nccl", "cublas", "driver", "tf32_enabled", "cpu", "cpu_limit"
)
_known_early = itemgetter(*(index for index, name in enumerate(SOFTWARE_COLUMNS) if name not in LEARNED_LATE))
"""The part of an identity that a failed repeat has, too."""


@dataclass(frozen=True)
class Merged:
    """Records in one table.

    Attributes:
        table: One row per fleet, host, GPU, case and software identity; columns as `docs/table.md` says.
        repeats: One row per record with a number: `row` (index in `table`), `run`, `repeat`, `started_at`,
            `samples_per_second`, and the columns of `aggregate.REPEAT_TYPES` that follow.
        problems: One line for each thing that is not in the table, or that its reader should know.
        devices: Records of the devices themselves: they have no throughput, and a table of their own.
        apart: Records without all-reduce, merged likewise; None: there are none. They trained nothing, so that they
            are in no table of speed: see `results.render.communication`.
    """

    table: pd.DataFrame
    repeats: pd.DataFrame
    problems: list[str]
    devices: list[Record] = field(default_factory=list)
    apart: Merged | None = None


def merge_records(stored: Iterable[StoredRecord]) -> Merged:
    """Merge records into one table.

    Args:
        stored: Records as the store found them; may come from several runs.
    """
    collector, apart = _Collector(), _Collector()
    for item in stored:
        if item.record is None:
            why = "; ".join(item.error.problems[:3]) if item.error else "no reason given"
            collector.problems.append(f"{item.where}: not a record, left out: {why}")
        else:
            (collector if item.record.case.all_reduce else apart).add(item.record, item.path)
    merged = collector.merged()
    return merged if not apart.found else replace(merged, apart=apart.merged())


Place = tuple[Hashable, ...]  # fleet, host and case
Identity = tuple[Hashable, ...]  # SOFTWARE_COLUMNS


@dataclass(slots=True)
class _Group:
    """What becomes a row."""

    place: Place
    identity: Identity
    statuses: Counter[Status] = field(default_factory=Counter)
    causes: dict[str, None] = field(default_factory=dict)  # in the order they came
    warnings: Counter[str] = field(default_factory=Counter)
    runs: set[str] = field(default_factory=set)
    prices: dict[float, str] = field(default_factory=dict)  # price → latest time it was asked
    last_started_at: str = ""
    measurement: Measurement | None = None


@dataclass(slots=True)
class _Run:
    """What is known of a run.

    Attributes:
        taken: Where each repeat was found, by place and number.
        rows: Rows with numbers, by place.
    """

    taken: dict[tuple[int, int], Path] = field(default_factory=dict)
    rows: defaultdict[int, set[int]] = field(default_factory=lambda: defaultdict(set))


@dataclass
class _Collector:
    """Takes records one by one and keeps only what the table needs of them.

    A million records must not take a minute: places and identities are long, so they are hashed once per record and
    numbered; what follows goes by these numbers.
    """

    problems: list[str] = field(default_factory=list)
    devices: list[Record] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)
    measured: list[Any] = field(default_factory=list)  # values of REPEAT_TYPES, record after record
    _runs: defaultdict[str, _Run] = field(default_factory=lambda: defaultdict(_Run))
    _places: dict[Place, int] = field(default_factory=dict)
    _rows: dict[tuple[int, Identity], int] = field(default_factory=dict)
    _by_environment: defaultdict[Hashable, set[int]] = field(default_factory=lambda: defaultdict(set))
    _failed: list[tuple[str, Place, Identity | None, Record]] = field(default_factory=list)

    @property
    def found(self) -> bool:
        """Whether anything was taken."""
        return bool(self._places)

    def add(self, record: Record, path: Path) -> None:
        """Take one record; one that was taken before is named and left out."""
        origin = record.origin
        if origin is None:
            run, repeat, place = path_text(path), 1, (NO_ORIGIN, NO_ORIGIN, *_case_key(record.case))
        else:
            run, repeat = origin.run_id, origin.repeat
            place = (origin.fleet, origin.host, *_case_key(record.case))
        number = self._places.setdefault(place, len(self._places))
        known = self._runs[run]
        before = len(known.taken)
        earlier = known.taken.setdefault((number, repeat), path)
        if len(known.taken) == before:
            self.problems.append(f"{path_text(path)}: same run, job and repeat as {path_text(earlier)}, left out")
            return
        if record.status is Status.OK and record.device_results:
            self.devices.append(record)
            return
        identity = _identity(record)
        measurement = record.measurement
        if record.status is not Status.OK or measurement is None or identity is None:
            self._failed.append((run, place, identity, record))
            return
        row = self._row(place, number, identity)
        known.rows[number].add(row)
        group = self.groups[row]
        group.measurement = measurement
        self._note(group, run, record)
        self.measured += (
            row,
            run,
            repeat,
            record.started_at,
            measurement.samples_per_second,
            measurement.step_p50_seconds,
            measurement.step_p95_seconds,
            measurement.step_cv,
            *_latency(measurement),
            *_power(record.telemetry, measurement),
            measurement.all_reduce_bytes_per_second,
        )

    def merged(self) -> Merged:
        """Return the table of all that was taken."""
        from results.table.aggregate import repeats_frame, table_frame

        for group in self.groups:
            self._by_environment[(group.place, _known_early(group.identity))].add(
                self._rows[self._places[group.place], group.identity]
            )
        for run, place, identity, record in self._failed:
            self._note(self.groups[self._row_of_failure(run, place, identity)], run, record)
        self._failed.clear()
        rows = [self._describe(group) for group in self.groups]
        table, repeats = table_frame(rows, repeats_frame(self.measured))
        return Merged(table, repeats, list(dict.fromkeys(self.problems)), self.devices)

    def _row(self, place: Place, number: int, identity: Identity) -> int:
        row = self._rows.setdefault((number, identity), len(self.groups))
        if row == len(self.groups):
            self.groups.append(_Group(place, identity))
        return row

    def _row_of_failure(self, run: str, place: Place, identity: Identity | None) -> int:
        """Find the row that a failed repeat belongs to.

        A repeat that never started knows nothing of its software, and one that failed nothing of its network's size. It
        belongs to the repeats that did work, of its own software or else of its own run, where these are of one
        identity; else it is a row of its own.
        """
        number = self._places[place]
        if identity is not None:
            rows = self._by_environment.get((place, _known_early(identity)), set())
        else:
            rows = self._runs[run].rows.get(number, set())
        if len(rows) == 1:
            return next(iter(rows))
        return self._row(place, number, identity or (None,) * len(SOFTWARE_COLUMNS))

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

    def _describe(self, group: _Group) -> dict[str, Any]:
        """Return the cells of a row that are not statistics."""
        fleet, host, *case = group.place
        repeats = group.statuses.total()
        repeats_ok = group.statuses[Status.OK]
        failures = [status for status, _ in group.statuses.most_common() if status is not Status.OK]
        cells: dict[str, Any] = dict(zip(CASE_COLUMNS, case, strict=True))
        cells |= dict(zip(SOFTWARE_COLUMNS, group.identity, strict=True))
        cells |= {
            "fleet": fleet,
            "host": host,
            "status": str(Status.OK if repeats_ok else failures[0]),
            "cause": "; ".join(group.causes) or None,
            "repeats_ok": repeats_ok,
            "repeats": repeats,
            "valid": True if repeats_ok else (False if Status.INVALID in group.statuses else None),
            "warnings": _counted(group.warnings, repeats),
            "runs": len(group.runs),
            "last_started_at": group.last_started_at,
            "usd_per_gpu_hour": max(group.prices, key=group.prices.__getitem__) if group.prices else None,
            "global_batch": cells["batch_per_gpu"] * cells["num_gpus"] * cells["num_hosts"] * cells["accumulate"],
        }
        if group.measurement is not None:
            cells["unit"] = group.measurement.unit
            cells["input_size"] = group.measurement.image_size or group.measurement.sequence_length
        if len(group.prices) > 1:
            asked = ", ".join(f"{price:g}" for price in sorted(group.prices))
            self.problems.append(
                f"{fleet}/{host}: prices differ between runs ({asked} USD per GPU-hour), the latest is used"
            )
        return {name: printable(str(cell)) if isinstance(cell, str) else cell for name, cell in cells.items()}


def _counted(warnings: Counter[str], repeats: int) -> str | None:
    """Write warnings by code, with a count where not every repeat has it."""
    texts = [code if count == repeats else f"{code} ({count} of {repeats})" for code, count in sorted(warnings.items())]
    return ", ".join(texts) or None


def _identity(record: Record) -> Identity | None:
    """Return the values of SOFTWARE_COLUMNS, the network's size last; None without an environment."""
    environment = record.environment
    if environment is None:
        return None
    origin, measurement = record.origin, record.measurement
    return (
        *_gpus(environment, record.case.num_gpus if record.case.device == "gpu" else 0),
        *_environment_key(environment),
        _variables(environment) if environment.variables else None,
        origin.launcher if origin else None,
        origin.image_digest if origin else None,
        record.method_version,
        measurement.parameters_trainable if measurement else None,
    )


def _latency(measurement: Measurement) -> tuple[float | None, float | None, float | None]:
    """Return p50, p95 and p99 in seconds; None for training."""
    latency = measurement.latency
    if latency is None:
        return None, None, None
    return latency.p50_seconds, latency.p95_seconds, latency.p99_seconds


def _power(telemetry: Telemetry | None, measurement: Measurement) -> tuple[float | None, float | None, float | None]:
    """Return samples per joule, watts and degrees Celsius; None for what was not measured."""
    if telemetry is None:
        return None, None, None
    joules = telemetry.energy_joules
    return (
        measurement.samples / joules if joules else None,
        telemetry.power_mean_watts,
        telemetry.temperature_steady_celsius,
    )


def _variables(environment: Environment) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(environment.variables.items()))


def _gpus(environment: Environment, count: int) -> tuple[str | None, float | None]:
    """Return the names of the first `count` GPUs, each once, and their lowest power limit in watts."""
    return _names_and_limit(tuple(map(_gpu_key, environment.gpus[:count])))


@functools.lru_cache(maxsize=1024)  # a fleet has few kinds of hosts, and many records
def _names_and_limit(gpus: tuple[tuple[str, float | None], ...]) -> tuple[str | None, float | None]:
    limits = [limit for _, limit in gpus if limit is not None]
    return " + ".join(dict.fromkeys(name for name, _ in gpus)) or None, min(limits, default=None)

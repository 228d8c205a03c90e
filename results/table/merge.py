"""Merges the records of any number of runs: a repeat for each, then a row per host, case and software.

If all repeats of a row failed, it has a status and a cause instead of numbers. Records come from hosts, which may be
broken or hostile. Suspect ones contradict their own hardware or other records; they are in no mean, and their row has
the reason. A repeat may also be unusual, because a process may choose another algorithm than its siblings: cuDNN did in
one of five processes of ResNet50 in FP32 on an H100, which was 3.4 % slower, while the steps of each process varied by
0.1 %. Such a repeat is named and remains in the mean.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pandas as pd

from results.reference.gpus import CLOCK_MARGIN, PEAKS, specifications, specified_gpus
from results.reference.networks import WINOGRAD, work_of
from results.runs.store import StoredRecord, problem_lines
from results.schema import Device, Record, Status
from results.schema.enums import SUSPECT
from results.stats import estimate_of_runs, t_quantile
from results.table.columns import CASE_COLUMNS, COLUMNS, OF_REPEAT, WHOLE, Column, Row, Software, place_of, software_of
from results.table.comparable import case_labels, grouped
from results.table.fleets import FleetRate, fleet_rates
from results.text import counted, path_text, printable, significant

REPEAT_COLUMNS: dict[str, Column] = {
    **{name: COLUMNS[name] for name in ("fleet", "host")},
    "run": Column("The run, or the file of a record without an orchestrator."),
    "repeat": Column("Number of the repeat, from 1.", dtype=WHOLE),
    "started_at": Column("ISO 8601.", "UTC"),
    **{name: COLUMNS[name] for name in ("status", "cause", *CASE_COLUMNS, "unit", *OF_REPEAT)},
}
"""Columns of the table of repeats, where numbers are those of one repeat."""

Repeat = Any
"""A record in tables: attributes of `_Repeat`. `number` identifies its `place`, `device` is the record if it is that of
a device, `doubt` says why it is suspect, `steps` is a hash of its step times; `OF_REPEAT` are None without a number."""

_OF_RECORD = ("place", "number", "software", "run", "repeat", "started_at", "status", "cause", "codes", "device")

_OF_NUMBER = [(name, Any, None) for name in ("usd", "unit", "input_size", "doubt", "steps", *OF_REPEAT)]

_Repeat = make_dataclass("_Repeat", [*_OF_RECORD, *_OF_NUMBER], slots=True)


@dataclass(frozen=True)
class Merged:
    """Records in tables.

    Attributes:
        repeats: One per record, duplicates excluded; numbers only of those that succeeded and are not suspect.
        rows: One per fleet, host, GPU, case and software, in the order of the table.
        without_all_reduce: Likewise of records without all-reduce. They are not training, so they are excluded from
            tables of throughput, and stand in a note.
        problems: One line for each exclusion or other problem.
        unread: Number of files that are not records.
    """

    repeats: list[Repeat]
    rows: list[Row]
    without_all_reduce: list[Row]
    problems: list[str]
    unread: int

    @property
    def devices(self) -> list[Record]:
        """Records of devices, which have no throughput and a table of their own."""
        return [one.device for one in self.repeats if one.device]

    @property
    def suspects(self) -> int:
        """Number of suspect repeats."""
        return sum(one.doubt is not None for one in self.repeats)

    @cached_property
    def table(self) -> pd.DataFrame:
        """The table as exported; columns as in `COLUMNS`."""
        return _frame(self.rows, COLUMNS)

    @cached_property
    def all_repeats(self) -> pd.DataFrame:
        """One row per record with the columns `REPEAT_COLUMNS`."""
        return _frame(self.repeats, REPEAT_COLUMNS)

    @cached_property
    def rates(self) -> list[FleetRate]:
        """Throughput of each fleet, case and software, in the order of the table."""
        return fleet_rates(self.rows)


_PATHS = {"fleet": "place.fleet", "host": "place.host", **{name: f"place.case.{name}" for name in CASE_COLUMNS}}


def _frame(items: Sequence[Any], columns: Mapping[str, Column]) -> pd.DataFrame:
    """Return a row for each repeat or row of the table."""
    cells = {name: [*map(operator.attrgetter(_PATHS.get(name, name)), items)] for name in columns}
    return pd.DataFrame({name: pd.array(cells[name], dtype=cast(Any, of.dtype)) for name, of in columns.items()})


def merge_records(stored: Iterable[StoredRecord]) -> Merged:
    """Merge records into one table.

    Args:
        stored: Records of any number of runs.
    """
    unread, doubles, repeats = list[tuple[Path, str]](), list[str](), list[Repeat]()
    paths, numbers, alone, limits = dict[Any, Path](), dict[Any, int](), Counter[int](), dict[Any, float]()
    for item in stored:
        if item.record is None:
            unread += [item.problem] if item.problem else []
            continue
        one = _repeat(item.path, item.record, numbers, limits)
        earlier = paths.setdefault((one.run, one.number, one.repeat), item.path)
        if earlier is not item.path:
            doubles.append(f"{path_text(item.path)}: same run, job and repeat as {path_text(earlier)}, excluded")
            continue
        if item.record.origin is None:  # the first record of each case is repeat 1, and so on
            alone[one.number] += 1
            one.repeat = alone[one.number]
        repeats.append(one)
    rows = _rows([one for one in repeats if not one.device])
    prices = [(row.place, ", ".join(f"{usd:g}" for usd in row.prices)) for row in rows if len(row.prices) > 1]
    problems = [
        *(f"{row.place}: {row.suspects} suspect, in no mean: {row.cause}" for row in rows if row.suspects),
        *(f"{place}: prices differ between runs ({usd} USD per GPU-hour); the latest is used" for place, usd in prices),
        *unusual_repeats(rows),
    ]
    speeds, others = ([row for row in rows if row.case.all_reduce is trains] for trains in (True, False))
    return Merged(repeats, speeds, others, [*dict.fromkeys([*problem_lines(unread), *doubles, *problems])], len(unread))


FEWEST_DISTINCT_STEPS = 3
"""Two records with equal step times are copies if at least this many of the times are distinct."""


def _repeat(path: Path, record: Record, numbers: dict[Any, int], limits: dict[Any, float]) -> Repeat:
    """Return a record in tables.

    Args:
        path: Its file.
        record: The record.
        numbers: Numbers of places.
        limits: The largest possible rate by number and software.
    """
    origin, place, software = record.origin, place_of(record), software_of(record)
    number = numbers.setdefault(place, len(numbers))
    run, repeat = (origin.run_id, origin.repeat) if origin else (path_text(path), 1)
    cause, codes = record.cause and printable(record.cause), {warning.code for warning in record.warnings}
    measured = record.measurement if record.status is Status.OK and software is not None else None
    device = record if record.status is Status.OK and record.device_results else None
    one = _Repeat(place, number, software, run, repeat, record.started_at, str(record.status), cause, codes, device)
    one.usd = origin and origin.usd_per_gpu_hour
    if measured is None or device:
        return one
    if (number, software) not in limits:  # one case and hardware
        limits[number, software] = highest_rate(record)
    one.unit, one.input_size = printable(measured.unit), measured.image_size or measured.sequence_length
    one.doubt = next((printable(of.message) for of in record.warnings if of.code == SUSPECT), None)
    if one.doubt is None and measured.samples_per_second > (most := limits[number, software]):
        rate = f"{measured.samples_per_second:.3g} {one.unit}/s"
        one.doubt = f"{rate}, but its hardware can compute at most {most:.3g}"
    if len({*measured.step_seconds}) >= FEWEST_DISTINCT_STEPS:
        one.steps = hash(tuple(measured.step_seconds))
    for name in OF_REPEAT:  # most are fields of that name
        setattr(one, name, getattr(measured, name, getattr(record.telemetry, name, None)))
    if latency := measured.latency:
        quantiles = latency.p50_seconds, latency.p95_seconds, latency.p99_seconds
        one.latency_p50_seconds, one.latency_p95_seconds, one.latency_p99_seconds = quantiles
    if record.telemetry and record.telemetry.energy_joules:
        one.samples_per_joule = measured.samples / record.telemetry.energy_joules
    return one


def highest_rate(record: Record) -> float:
    """Return the samples per second that the peak arithmetic of a record's GPUs allows; infinite if unknown."""
    case, measured, environment = record.case, record.measurement, record.environment
    work = work_of(case)
    if case.device is Device.CPU or not work or not work[0] or measured is None or environment is None:
        return math.inf
    named = [gpu for device in environment.gpus for gpu in specified_gpus(device.name)]
    peaks = [specifications()[gpu].get(PEAKS[case.precision][0], 0.0) for gpu in named or specifications()]
    peak = max(peaks) * 1e12 or math.inf  # 0: the reference lacks this arithmetic
    return peak * CLOCK_MARGIN * WINOGRAD / work[0] * measured.samples / measured.num_steps


FLEET_FACTOR = 10.0
"""A host this many times as fast as the median of its fleet's hosts (at least three) is suspect."""


def _doubt(measured: Sequence[Repeat]) -> None:
    """Find the suspect ones of repeats with a number, and take their numbers away."""
    copies = Counter(one.steps for one in measured if one.steps is not None)
    for one in measured:
        if one.doubt is None and copies[one.steps] > 1:
            one.doubt = "another repeat has exactly the same step times"
    hosts = grouped((one.number, one) for one in measured if one.doubt is None)
    medians = {number: statistics.median(one.samples_per_second for one in of) for number, of in hosts.items()}
    fleets = grouped(((of[0].place.fleet, of[0].place.case), number) for number, of in hosts.items())
    for numbers in fleets.values():
        usual = statistics.median_low(medians[number] for number in numbers)
        for number in numbers if len(numbers) > 2 else ():
            if (factor := medians[number] / usual) > FLEET_FACTOR:
                for one in hosts[number]:
                    one.doubt = f"{factor:.3g} × the median of the fleet's other hosts"
    for one in (one for one in measured if one.doubt is not None):
        one.status, one.cause = str(Status.INVALID), f"{SUSPECT}: {one.doubt}"
        for name in ("unit", "input_size", *OF_REPEAT):
            setattr(one, name, None)


def _rows(repeats: Sequence[Repeat]) -> list[Row]:
    """Return the rows of repeats of networks: by place, and first what has a number.

    The software of a failed repeat is unknown (it never started) or incomplete. It is taken from the successful repeats
    with the same known software, or of the same run, if these have one; else the repeat has a row of its own.
    """
    measured = [one for one in repeats if one.samples_per_second is not None]
    likely = defaultdict[Any, set[Software]](set)
    for number, run, software in {(one.number, one.run, one.software) for one in measured}:
        for known in (run, software.known_early):
            likely[number, known].add(software)
    for one in (one for one in repeats if one.samples_per_second is None):
        softwares = likely[one.number, one.run if one.software is None else one.software.known_early]
        one.software = next(iter(softwares)) if len(softwares) == 1 else one.software or Software()
    _doubt(measured)
    groups = grouped(((one.number, one.software), one) for one in repeats).values()
    rows = [(group[0].place.sort_key, _row(group)) for group in groups]
    return [row for _, row in sorted(rows, key=lambda keyed: (*keyed[0], not keyed[1].repeats_ok))]


_EXTRA = ("place", "case", "software", "interval", "suspects", "codes", "over", "measured", "prices")
"""Attributes of a row that are no columns: `codes` are those of its warnings, `over` is what the interval is over,
`measured` are the repeats with a number, `prices` are the distinct ones of its repeats."""

_Row = make_dataclass("_Row", (*COLUMNS, *_EXTRA), slots=True)

_OVER: dict[str, Callable[[Sequence[float]], float]] = {"mean": statistics.fmean, "median": statistics.median}


def _row(repeats: Sequence[Repeat]) -> Row:
    """Summarise the repeats of a host, case and software."""
    place, software = repeats[0].place, repeats[0].software
    ok = [one for one in repeats if one.samples_per_second is not None]
    of_runs = grouped((one.run, one.samples_per_second) for one in ok)
    estimate = estimate_of_runs([*of_runs.values()]) if ok else None
    interval = None if estimate is None else estimate.interval()
    numbers = {name: _OVER[COLUMNS[name].over](values) if (values := _known(ok, name)) else None for name in OF_REPEAT}
    failed = [one.status for one in repeats if one.status != Status.OK]
    causes = (one.cause if one.doubt else f"{one.status}: {one.cause}" for one in repeats if one.cause)
    codes = Counter(code for one in repeats for code in one.codes | ({SUSPECT} if one.doubt else set()))
    some = {code: "" if count == len(repeats) else f" ({count} of {len(repeats)})" for code, count in codes.items()}
    latest = sorted(repeats, key=operator.attrgetter("started_at"))
    prices = _known(latest, "usd")
    return _Row(
        **place._asdict(),
        **{name: getattr(place.case, name) for name in (*CASE_COLUMNS, "global_batch")},
        **vars(software),
        **(numbers if interval is None else numbers | {"samples_per_second": interval.value}),
        place=place,
        software=software,
        measured=ok,
        over=estimate and estimate.over,
        interval=interval,
        ci95_low=interval and interval.low,
        ci95_high=interval and interval.high,
        unit=next(iter(_known(ok, "unit")), None),
        input_size=next(iter(_known(ok, "input_size")), None),
        repeats=len(repeats),
        repeats_ok=len(ok),
        status=str(Status.OK) if ok else Counter(failed).most_common(1)[0][0],
        cause="; ".join(dict.fromkeys(causes)) or None,
        valid=True if ok else False if Status.INVALID in failed else None,
        warnings=", ".join(printable(code) + some[code] for code in sorted(codes)) or None,
        runs=len({one.run for one in repeats}),
        suspects=sum(one.doubt is not None for one in repeats),
        last_started_at=latest[-1].started_at,
        usd_per_gpu_hour=prices[-1] if prices else None,
        prices=sorted({*prices}),
        codes=sorted(map(printable, codes)),
    )


def _known(repeats: Iterable[Repeat], name: str) -> list[Any]:
    """Return the values of an attribute that are not missing."""
    return [value for one in repeats if (value := getattr(one, name)) is not None]


SMALLEST = 0.02
"""Smallest relative difference that is named."""

STEADY = 5.0
"""Smallest difference that is named, in coefficients of variation of the steps: noisy machines vary anyhow."""

USUAL, USUAL_DEGREES = 0.004, 10
"""Usual standard deviation between repeats, as a share of their mean, and its weight in degrees of freedom.

Source: 22 cases on an H100 and an H200 (results/reference/measured), 0.03 to 0.53 %.
"""

FALSE_ALARMS = 0.001
"""Share of tables of equal repeats in which a repeat is named, by the t-test."""

NAMED = 3
"""Number of repeats that are named; the others are counted."""


def unusual_repeats(rows: Sequence[Row]) -> list[str]:
    """Return a line for each row with an unusual repeat, the largest difference first.

    The difference from the mean of the row's other repeats must be significant, above `SMALLEST`, and above `STEADY`
    coefficients of variation of the row's steps. The noise is that of the other repeats, if larger the median of all
    other rows, together with `USUAL`: three repeats alone say little.

    Source: moderated t-test, Smyth 2004; Bonferroni's correction for the number of repeats.
    """
    from scipy.special import chdtri  # type: ignore[import-untyped]

    several, noises, large = [row for row in rows if row.repeats_ok > 1], list[tuple[int, float]](), []
    for row in several:
        logs, steps = [math.log(one.samples_per_second) for one in row.measured], _known(row.measured, "step_cv")
        count, mean = len(logs), statistics.fmean(logs)
        squares = math.fsum((log - mean) ** 2 for log in logs)
        noises.append((count - 1, squares / float(chdtri(count - 1, 0.5))))  # as likely too low as too high
        log, one = max(zip(logs, row.measured, strict=True), key=lambda pair: abs(pair[0] - mean))
        difference = (log - mean) * count / (count - 1)  # from the mean of the others
        if abs(difference) > max(SMALLEST, STEADY * max(steps, default=math.inf)):
            large.append((difference, squares, one, len(noises) - 1))
    lines, labels = [], case_labels(row.case for row in rows) if large else {}
    level = 1 - FALSE_ALARMS / max(1, sum(row.repeats_ok for row in rows))
    for difference, squares, one, place in sorted(large, key=lambda found: -abs(found[0]))[: 10 * NAMED]:
        row, count, others = several[place], several[place].repeats_ok, noises[:place] + noises[place + 1 :]
        degrees, variance = USUAL_DEGREES + sum(own for own, _ in others), USUAL**2
        if others:
            typical = statistics.median(noise for _, noise in others)
            variance += (typical - variance) * (1 - USUAL_DEGREES / degrees)
        if count > 2:
            variance = max(variance, (squares - difference**2 * (count - 1) / count) / (count - 2))
        if abs(difference) <= t_quantile(degrees, level) * math.sqrt(variance * (1 + 1 / (count - 1))):
            continue
        of = f" of {one.run}" if row.runs > 1 else ""
        rate = f"{significant(one.samples_per_second, 4)} {row.unit}/s"
        differs = f"differs by {math.expm1(difference):+.1%} from the {counted(count - 1, 'other')}"
        lines.append(
            f"{row.place}, {labels[row.case]}: repeat {one.repeat}{of} ({rate}) {differs}, though its steps vary by "
            f"{one.step_cv:.1%}: perhaps another algorithm. Measure more repeats"
        )
    more = len(lines) - NAMED
    return lines if more <= 0 else [*lines[:NAMED], f"and {counted(more, 'more case')} with such a repeat"]

"""Builds the tables of a run: a row per host and case, the wide table, device benchmarks, explanations of warnings."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict

from results.reference import names
from results.report.comparison import fleet_pairs, ratio_grids, repeated, scaling_grid
from results.runs.store import StoredRecord
from results.schema import SETTINGS, Case, Device, DeviceResult, Mode, Record
from results.stats import estimate
from results.table.columns import CASE_COLUMNS, COLUMNS, SOFTWARE_COLUMNS, Row, identity_text, place_of, software_of
from results.table.comparable import CLUSTER_COLUMNS, ambiguous, cluster_name, cluster_names, differing, grouped
from results.table.fleets import FleetRate, fleet_notes, missing_hosts, rate_text, warning_notes
from results.table.merge import Merged
from results.text import GROUP_SPACE, counted, enumerated, printable, significant, spreadsheet_text, value_text
from results.text_table import Grid, grid_of, markdown, pivoted

CASES_NAMED = 4
"""Cases that a line on a failure names at most."""

ONE_REPEAT = "from one repeat each, so without an interval"


def all_grids(merged: Merged, *, brief: bool = False) -> list[Grid]:
    """Return the non-empty tables of merged runs.

    Args:
        merged: The records.
        brief: Only what a person reads after a run, each figure once: see `results_grid` and `wide_grids`. Ratios are
            what `compare` prints. If nothing was measured, only the reasons are left.
    """
    if brief and merged.rows and not merged.devices and not any(row.repeats_ok for row in merged.rows):
        return [Grid("No repeat gave a number", [], [], failure_lines(merged.rows))]
    ratios = [] if brief else ratio_grids(fleet_pairs(merged.rates))
    grids = [*result_grids(merged, brief=brief), *wide_grids(merged, brief=brief), *ratios, scaling_grid(merged.rates)]
    return list(filter(None, grids))


def result_grids(merged: Merged, *, brief: bool = False) -> list[Grid]:
    """Return the non-empty ones of the tables of cases and of devices."""
    devices = device_grid(merged.devices)
    cases = results_grid(merged, brief=brief) if merged.rows or devices is None else None
    return list(filter(None, (cases, devices)))


_HEADED = {"model", "precision", "batch_per_gpu", "num_gpus", "num_hosts", "communication", "all_reduce", "deep_check"}
"""Settings that have their own column or are not shown."""

_SETTINGS = tuple(name for name in COLUMNS if name in SETTINGS and name not in _HEADED)

_NUMBERS = {
    "p50 ms>": ("step_p50_seconds", 1000),
    "CV %>": ("step_cv", 100),
    "b1 p50 ms>": ("latency_p50_seconds", 1000),
    "b1 p95 ms>": ("latency_p95_seconds", 1000),
    "b1 p99 ms>": ("latency_p99_seconds", 1000),
}
"""Numeric columns: the row's number and its factor; `b1`: latency at batch 1, inference only."""


def results_grid(merged: Merged, *, brief: bool = False) -> Grid:
    """Return one row per fleet, host, case and identity; notes list what all rows share.

    Args:
        merged: The records.
        brief: Omit settings that are the default, variables, and software that says little about a GPU.
    """
    rows = merged.rows
    varying = [name for name in _SETTINGS if ambiguous((row.case.model, getattr(row, name)) for row in rows)]
    software = [name for name in SOFTWARE_COLUMNS if ambiguous((row.place, getattr(row, name)) for row in rows)]
    hosts = list(dict.fromkeys(str(row.place) for row in rows))
    cells = [
        {
            "host": str(row.place) if len(hosts) > 1 else "",
            "network": row.case.model,
            "precision": str(row.case.precision),
            "batch>": str(row.case.batch_per_gpu),
            "GPUs>": _cluster(row.case),
            **{name: "" if (value := getattr(row, name)) is None else str(value) for name in (*varying, *software)},
            "samples/s>": value_text(row.samples_per_second, row.interval),
            "repeats>": str(row.repeats) if row.repeats_ok == row.repeats else f"{row.repeats_ok} of {row.repeats}",
            **{heading: _scaled(getattr(row, name), factor) for heading, (name, factor) in _NUMBERS.items()},
            "status": row.status,
            "warnings": row.warnings or "",
        }
        for row in rows
    ]
    notes = _common_notes(merged, varying, software, brief=brief) if rows else ["no records"]
    notes += [
        f"{row.place}, {row.case.name}: {value_text(row.samples_per_second, row.interval)} {row.unit}/s, trains nothing"
        for row in merged.without_all_reduce
        if row.repeats_ok
    ]
    notes += [*warning_notes(rows), *failure_lines(rows)]
    optional = ("CV %", "p50 ms", "b1 p99 ms", "b1 p95 ms", "b1 p50 ms", "repeats")
    return grid_of(f"Results of {hosts[0]}" if len(hosts) == 1 else "Results", cells, notes, optional)


def _cluster(case: Case) -> str:
    return counted(cluster_name(case), "CPU") if case.device is Device.CPU else cluster_name(case)


def _scaled(value: float | None, factor: float) -> str:
    return "" if value is None else significant(value * factor)


def failure_lines(rows: Sequence[Row]) -> list[str]:
    """Return a line per cause of failure and host, with the affected cases."""
    hit = grouped(
        ((str(row.place), row.cause), f"{row.case.model} {row.case.precision} ×{_cluster(row.case)}")
        for row in rows
        if row.cause
    )
    return [f"{place}, {enumerated(cases, CASES_NAMED)}: {cause}" for (place, cause), cases in hit.items()]


def _common_notes(merged: Merged, varying: Sequence[str], software: Sequence[str], *, brief: bool) -> list[str]:
    """Return what all rows share, and the software of each fleet."""
    rows, shared = merged.rows, []
    for name in _SETTINGS:
        values = {row.case.model: getattr(row, name) for row in rows}  # by network
        usual = all(value == getattr(Case(model=model), name) for model, value in values.items())
        if name in varying or (usual and (brief or SETTINGS[name].tuning)):
            continue
        networks = grouped((value, model) for model, value in values.items())
        known = {value: "" if len(networks) == 1 else f" ({', '.join(of)})" for value, of in networks.items()}
        texts = [f"{value}{where}" for value, where in known.items() if value is not None]
        shared += [f"{name.replace('_', ' ')} {', '.join(texts)}"] if texts else []
    units = sorted({row.unit for row in rows if row.unit})
    over = " or ".join(dict.fromkeys(row.over for row in rows if row.over))
    figures = f"{', '.join(units)} per second {f'± 95 % over {over}' if over else ONE_REPEAT}"
    notes = ["; ".join(filter(None, (figures if units else "no repeat gave a number", ", ".join(shared))))]
    return [*notes, *software_lines(rows, software, brief=brief)]


def software_lines(rows: Sequence[Row], without: Collection[str] = (), *, brief: bool = False) -> list[str]:
    """Return the distinct identities of each fleet, without some columns, a line each."""
    started = [row for row in rows if row.software.tensorflow is not None]
    lines = (f"{row.fleet}: {row.software.text(without, brief=brief)}" for row in started)
    return list(dict.fromkeys(lines))


def wide_grids(merged: Merged, *, brief: bool = False) -> list[Grid]:
    """Return a table for each fleet: a row per network and precision, a column per GPU count.

    A cell is the mean over the fleet's hosts; different settings or software have separate rows.

    Args:
        merged: The records.
        brief: Omit a table that shows no more than the rows: one of a single host and number of GPUs.
    """
    fleets = grouped((rate.fleet, rate) for rate in merged.rates).values()
    return [_wide_grid(rates) for rates in fleets if not brief or _is_wide(rates)]


def _is_wide(rates: Sequence[FleetRate]) -> bool:
    return len(cluster_names(rate.case for rate in rates)) > 1 or any(len(rate.rates) > 1 for rate in rates)


_OF_THE_CASE = ("variables", "parameters", "tf32")
"""Columns that a case may determine: a difference between two cases alone is not shown."""


def _wide_grid(rates: Sequence[FleetRate]) -> Grid:
    clusters, units = cluster_names(rate.case for rate in rates), sorted({rate.unit for rate in rates if rate.unit})
    device = "CPU" if all(rate.case.device is Device.CPU for rate in rates) else "GPU"
    headed = {"network": "model", "precision": "precision", "batch>": "batch_per_gpu"}
    settings = [name for name in CASE_COLUMNS if name not in CLUSTER_COLUMNS]
    split = differing([rate.case for rate in rates], [name for name in settings if name not in headed.values()])
    known = [rate for rate in rates if rate.rates]
    for name in differing([rate.software for rate in known], SOFTWARE_COLUMNS):  # so that no cell mixes two identities
        lines = ((tuple(map(rate.named, settings)), rate.named(name)) for rate in known)
        split += [name] if name not in _OF_THE_CASE or ambiguous(lines) else []
    unit_of = {rate.case.model: f"{rate.unit}/s" for rate in rates if rate.unit}
    cells = []
    for rate in rates:
        values = {
            heading: rate.named(name) for heading, name in (headed | dict(zip(split, split, strict=True))).items()
        }
        label = {name: "" if value is None else identity_text(name, value) for name, value in values.items()}
        label["unit"] = unit_of.get(rate.case.model, "") if len(units) > 1 else ""
        cells.append((label, f"{counted(cluster_name(rate.case), device)}>", rate_text(rate)))
    columns = [f"{counted(name, device)}>" for name in clusters]
    hosts = list(dict.fromkeys(row.host for rate in rates for row in rate.rows if str(row.place) != row.fleet))
    over = repeated(rates)
    figures = f" ± 95 % over {over}" if over else f" {ONE_REPEAT}" if units else ""
    where = f"; host{'' if len(hosts) == 1 else 's'} {', '.join(hosts)}" if hosts else ""
    notes = [f"batch is per {device}{where}", *missing_hosts(rates), *fleet_notes(rates), *_not_usual(rates)]
    if any("×" in name for name in clusters):
        notes.append(f"H×N {device}s: N on each of H hosts that train together")
    title = f"{rates[0].fleet}: {', '.join(units) or 'samples'} per second{figures}"
    return grid_of(title, pivoted(cells, columns), notes)


def _not_usual(rates: Sequence[FleetRate]) -> list[str]:
    """Return settings that all cells share and that are not the default: inference, image size."""
    modes, sizes = {rate.case.mode for rate in rates}, {rate.case.image_size for rate in rates}
    shared = [f"mode {mode}" for mode in modes if len(modes) == 1 and mode is not Mode.TRAIN]
    shared += [f"image size {size}" for size in sizes if len(sizes) == 1 and size is not None]
    return [", ".join(shared)] if shared else []


def readings_grid(records: Iterable[StoredRecord]) -> Grid | None:
    """Return what records have beside the columns of the table: a row per host and case; None: there is nothing.

    Numbers are medians over the repeats, in the units that their names end with; of other values each is listed.
    """
    values = grouped(_readings(item.record for item in records if item.record is not None))
    cells = (
        ({"host": host, "case": case}, heading, _reading(of_place))
        for ((host, case), heading), of_place in values.items()
    )
    return grid_of("Readings", pivoted(cells)) if values else None


def _readings(records: Iterable[Record]) -> Iterator[tuple[tuple[tuple[str, str], str], object]]:
    """Yield the values of records that no column has, each with its host and case and its name."""
    for record in records:
        if (measured := record.measurement) is None or record.environment is None:
            continue
        place = str(place_of(record)), record.case.name
        for part in (record.environment, measured, record.telemetry, measured.input_limit):
            for name, value in vars(part).items() if part is not None else ():
                heading = name if part is measured or not hasattr(measured, name) else f"readings of {name}"
                if name not in COLUMNS and isinstance(value, str | int | float):
                    yield (place, heading.replace("_", " ")), value
        for phase in record.phases:
            yield (place, f"cpu seconds of {phase.name}"), phase.cpu_seconds
        for capability in record.environment.wheel_compute_capabilities:
            yield (place, "wheel compute capabilities"), capability


def _reading(values: Sequence[object]) -> str:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers:
        median = statistics.median(numbers)
        return significant(median) if median % 1 else f"{median:,.0f}".replace(",", GROUP_SPACE)
    texts = [("no", "yes")[value] if isinstance(value, bool) else printable(str(value)) for value in values]
    return ", ".join(dict.fromkeys(texts))


TABLE_VERSION = 1
"""Incremented when a column is removed or changes its meaning."""


def exported(merged: Merged, form: str) -> str:
    """Return merged runs as a text.

    Args:
        merged: The records.
        form: `csv`: the table, without texts that a spreadsheet would run as a formula; `json`: rows as objects, empty
            cells as null, device results and problems; `markdown`: all tables; `wide`: each fleet's table as Markdown,
            a row per network and precision, a column per GPU count.
    """
    if form == "csv":
        texts = merged.table.select_dtypes(include=["string", "object"]).columns
        safe = {name: merged.table[name].map(spreadsheet_text, na_action="ignore") for name in texts}
        return merged.table.assign(**safe).to_csv(index=False, lineterminator="\n")
    if form != "json":
        return "\n".join(map(markdown, wide_grids(merged) if form == "wide" else all_grids(merged)))
    devices = []
    for record in merged.devices:
        origin = record.origin
        place = {"fleet": origin.fleet, "host": origin.host, "repeat": origin.repeat} if origin else {}
        devices += [{**place, **asdict(result)} for result in record.device_results]
    rows = json.loads(merged.table.to_json(orient="records", double_precision=15))
    document = {"table_version": TABLE_VERSION, "problems": merged.problems, "rows": rows, "devices": devices}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


UNITS = {"FLOP/s": (1e12, "TFLOP/s"), "B/s": (1e9, "GB/s")}
"""Factor and name of the unit that is shown, by that of the records."""


def device_grid(records: Sequence[Record]) -> Grid | None:
    """Return the table of the device micro-benchmarks in the order of their measurement; None: there are none.

    A cell is the mean over the best round of each repeat, with its 95 % interval. Different software on a host has
    separate columns.

    Args:
        records: Records with `device_results`.
    """
    columns = grouped(
        ((str(place_of(record)), software.text(brief=True) if software else ""), result)
        for record, software in ((record, software_of(record)) for record in records)
        for result in record.device_results
    )
    softwares = grouped(columns)
    headings = [
        f"{place} ({softwares[place].index(of) + 1})" if len(softwares[place]) > 1 else place for place, of in columns
    ]
    cells, reasons = [], dict[tuple[str, str | None], dict[str, None]]()
    for heading, results in zip(headings, columns.values(), strict=True):
        for (name, unit), of_metric in grouped((_metric(result), result) for result in results).items():
            factor, _ = UNITS.get(of_metric[0].unit, (1.0, ""))
            known = [result.value / factor for result in of_metric if result.value is not None]
            interval = estimate(known).interval() if len(known) > 1 else None
            text = value_text(statistics.fmean(known), interval) if known else "not measured"
            cells.append(({"metric": name, "unit": unit}, f"{heading}>", text))
            if not known:
                reasons.setdefault((name, of_metric[0].reason), {})[heading] = None
    notes = [
        "best round of each repeat, mean ± 95 % over repeats; for one device, except the all-reduce",
        "all-reduce: bus bandwidth, bytes × 2 (n − 1) / n over seconds, as nccl-tests define it",
        *(f"{heading}: {software}" for heading, (_, software) in zip(headings, columns, strict=True)),
        *(f"{name} on {', '.join(hosts)}: {reason}" for (name, reason), hosts in reasons.items()),
    ]
    return grid_of("Devices", pivoted(cells, [f"{heading}>" for heading in headings]), notes) if cells else None


def _metric(result: DeviceResult) -> tuple[str, str]:
    """Return the display name of a metric and its unit; the size distinguishes only all-reduces."""
    name = f"{dict(names('metric')).get(result.metric, result.metric)} {result.arithmetic or ''}".strip()
    if result.metric == "all_reduce":
        name = f"{name} ×{result.devices}, {(result.size or 0) / 2**20:g} MiB"
    return name, UNITS.get(result.unit, (1, result.unit))[1]

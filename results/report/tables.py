"""Builds the tables of a run: a row per host and case, the wide table, device benchmarks, explanations of warnings."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict

from results.compare.comparison import fleets_of
from results.report.comparison import communication_grid, fleet_pairs, ratio_grids, repeated, scaling_grid
from results.runs.store import StoredRecord
from results.schema import SETTINGS, TUNING, Case, Device, DeviceResult, Mode, Record
from results.stats import Interval, estimate
from results.table.cell_text import (
    fleet_notes,
    identity_text,
    missing_hosts,
    rate_text,
    table_csv,
    value_text,
    warning_notes,
)
from results.table.columns import CASE_COLUMNS, COLUMNS, NO_ORIGIN, SOFTWARE_COLUMNS, Row, Software, Value, place_of
from results.table.comparable import CLUSTER_COLUMNS, IMPLIED, cluster_name, cluster_names, differing
from results.table.fleets import FleetRate
from results.table.merge import Merged
from results.text import GROUP_SPACE, counted, printable, significant
from results.text_table import Grid, markdown, pivoted

SOFTWARE_NAMES = {
    "gpu": "",
    "power_limit_watts": "power limit ",
    "tensorflow": "TensorFlow ",
    "keras": "Keras ",
    "cuda": "CUDA ",
    "cudnn": "cuDNN ",
    "nccl": "NCCL ",
    "cublas": "cuBLAS ",
    "driver": "driver ",
    "cuda_compat": "compatibility package ",
    "cpu": "",
    "image_digest": "image ",
    "variables": "",
    "launcher": "",
}
"""Columns of an identity shown in notes, with their prefix."""

BRIEF = ("gpu", "power_limit_watts", "tensorflow", "cuda", "driver")
"""Those of a brief note; without a GPU the processor, too."""

ONE_REPEAT = "from one repeat each, so without an interval"


def all_grids(merged: Merged, *, brief: bool = False) -> list[Grid]:
    """Return the non-empty tables of merged runs.

    Args:
        merged: The records.
        brief: Only what a person reads after a run, each figure once: see `results_grid` and `wide_grids`. Ratios are
            what `compare` prints. If nothing was measured, only the reasons are left.
    """
    if brief and merged.rows and not merged.devices and not any(row.repeats_ok for row in merged.rows):
        return [Grid("No repeat gave a number", [], [], _causes(merged.rows))]
    ratios = [] if brief else ratio_grids(fleet_pairs(merged.rates))
    more = [grid for grid in (scaling_grid(merged.rates), communication_grid(merged)) if grid is not None]
    return [*result_grids(merged, brief=brief), *wide_grids(merged, brief=brief), *ratios, *more]


def result_grids(merged: Merged, *, brief: bool = False) -> list[Grid]:
    """Return the non-empty ones of the tables of cases and of devices."""
    devices = device_grid(merged.devices)
    cases = [results_grid(merged, brief=brief)] if merged.rows or devices is None else []
    return [*cases, *([devices] if devices else [])]


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
    varying = [name for name in _SETTINGS if _ambiguous((row.case.model, getattr(row, name)) for row in rows)]
    software = [name for name in SOFTWARE_COLUMNS if _ambiguous((row.place, getattr(row, name)) for row in rows)]
    hosts = list(dict.fromkeys(str(row.place) for row in rows))
    cells = [
        [
            str(row.place) if len(hosts) > 1 else "",
            *(row.case.model, str(row.case.precision), str(row.case.batch_per_gpu)),
            _cluster(row.case),
            *("" if value is None else str(value) for value in (getattr(row, name) for name in (*varying, *software))),
            _rate(row),
            str(row.repeats) if row.repeats_ok == row.repeats else f"{row.repeats_ok} of {row.repeats}",
            *(_scaled(getattr(row, name), factor) for name, factor in _NUMBERS.values()),
            row.status,
            row.warnings or "",
        ]
        for row in rows
    ]
    columns = ["host", "network", "precision", "batch>", "GPUs>", *varying, *software]
    columns += ["samples/s>", "repeats>", *_NUMBERS, "status", "warnings"]
    notes = _common_notes(merged, varying, software, brief=brief) if rows else ["no records"]
    notes += [*warning_notes(row.warnings for row in rows), *_causes(rows)]
    title = f"Results of {hosts[0]}" if len(hosts) == 1 else "Results"
    optional = ("CV %", "p50 ms", "b1 p99 ms", "b1 p95 ms", "b1 p50 ms", "repeats")
    return Grid(title, columns, cells, notes, optional).without_empty_columns()


def _ambiguous(pairs: Iterable[tuple[Hashable, Value]]) -> bool:
    """Return whether a key has two values, which must then be shown."""
    seen: dict[Hashable, Value] = {}
    return any(seen.setdefault(key, value) != value for key, value in pairs)


def _cluster(case: Case) -> str:
    return counted(cluster_name(case), "CPU") if case.device is Device.CPU else cluster_name(case)


def _rate(row: Row) -> str:
    mean, low, high = row.samples_per_second, row.ci95_low, row.ci95_high
    if mean is None or low is None or high is None:
        return value_text(mean)
    return value_text(mean, Interval(mean, low, high))


def _scaled(value: float | None, factor: float) -> str:
    return "" if value is None else significant(value * factor)


def _causes(rows: Sequence[Row]) -> list[str]:
    """Return a line per cause of failure and host, with the affected cases."""
    hit: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.cause:
            case = f"{row.case.model} {row.case.precision} ×{_cluster(row.case)}"
            hit.setdefault((str(row.place), row.cause), []).append(case)
    return [
        f"{host}, {', '.join(cases) if len(cases) <= 3 else f'{cases[0]} and {len(cases) - 1} more cases'}: {cause}"
        for (host, cause), cases in hit.items()
    ]


def _common_notes(merged: Merged, varying: Sequence[str], software: Sequence[str], *, brief: bool) -> list[str]:
    """Return what all rows share, and the software of each fleet."""
    rows, shared = merged.rows, []
    for name in _SETTINGS:
        values = {row.case.model: getattr(row, name) for row in rows}  # by network
        usual = all(value == getattr(Case(model=model), name) for model, value in values.items())
        if name in varying or (usual and (brief or name in TUNING)):
            continue
        networks: dict[Value, list[str]] = {}
        for model, value in values.items():
            networks.setdefault(value, []).append(model)
        known = {value: "" if len(networks) == 1 else f" ({', '.join(of)})" for value, of in networks.items()}
        texts = [f"{value}{where}" for value, where in known.items() if value is not None]
        shared += [f"{name.replace('_', ' ')} {', '.join(texts)}"] if texts else []
    units = sorted({row.unit for row in rows if row.unit})
    runs = merged.repeats.groupby("row")["run"].nunique()
    repeated = [index for index, row in enumerate(rows) if row.ci95_high is not None]
    over = " or ".join(dict.fromkeys("runs" if runs[index] > 1 else "repeats" for index in repeated))
    figures = f"{', '.join(units)} per second {f'± 95 % over {over}' if over else ONE_REPEAT}"
    notes = ["; ".join(filter(None, (figures if units else "no repeat gave a number", ", ".join(shared))))]
    started = [row for row in rows if row.software.tensorflow is not None]
    lines = {(row.fleet, _software_line(row.software, software, brief=brief)): None for row in started}
    return [*notes, *(f"{fleet}: {line}" for fleet, line in lines)]


def _software_line(item: Software, varying: Sequence[str], *, brief: bool) -> str:
    """Return the values of an identity, without columns that have their own."""
    names = [name for name in SOFTWARE_NAMES if not brief or name in BRIEF or (name == "cpu" and item.gpu is None)]
    known = {name: value for name in names if name not in varying and (value := getattr(item, name)) is not None}
    return ", ".join(f"{SOFTWARE_NAMES[name]}{identity_text(name, value)}" for name, value in known.items())


def wide_grids(merged: Merged, *, brief: bool = False) -> list[Grid]:
    """Return a table for each fleet: a row per network and precision, a column per GPU count.

    A cell is the mean over the fleet's hosts; different settings or software have separate rows.

    Args:
        merged: The records.
        brief: Omit a table that shows no more than the rows: one of a single host and number of GPUs.
    """
    fleets = [[rate for rate in merged.rates if rate.fleet == fleet] for fleet in fleets_of(merged.rates)]
    return [_wide_grid(rates) for rates in fleets if not brief or _is_wide(rates)]


def _is_wide(rates: Sequence[FleetRate]) -> bool:
    return len(cluster_names(rate.case for rate in rates)) > 1 or any(len(rate.rates) > 1 for rate in rates)


_OF_THE_CASE = {"variables", *itertools.chain.from_iterable(IMPLIED.values())}
"""Columns that a case may determine: a difference between two cases alone is not shown."""


def _wide_grid(rates: Sequence[FleetRate]) -> Grid:
    clusters, units = cluster_names(rate.case for rate in rates), sorted({rate.unit for rate in rates if rate.unit})
    device = "CPU" if all(rate.case.device is Device.CPU for rate in rates) else "GPU"
    headed = ("model", "precision", "batch_per_gpu")
    settings = [name for name in CASE_COLUMNS if name not in CLUSTER_COLUMNS]
    split = differing(rates, [name for name in settings if name not in headed])
    known = [rate for rate in rates if rate.rates]
    for name in differing(known, SOFTWARE_COLUMNS):  # so that no cell mixes two identities
        lines = ((tuple(map(rate.named, settings)), rate.named(name)) for rate in known)
        split += [name] if name not in _OF_THE_CASE or _ambiguous(lines) else []
    unit_of = {rate.case.model: f"{rate.unit}/s" for rate in rates if rate.unit}
    cells = []
    for rate in rates:
        values = {name: rate.named(name) for name in (*headed, *split)}
        label = ["" if value is None else identity_text(name, value) for name, value in values.items()]
        label += [unit_of.get(rate.case.model, "")] if len(units) > 1 else []
        cells.append((tuple(label), cluster_name(rate.case), rate_text(rate)))
    columns = ["network", "precision", "batch>", *split, *(["unit"] if len(units) > 1 else [])]
    columns += [f"{counted(name, device)}>" for name in clusters]
    hosts = list(dict.fromkeys(host for rate in rates for host in (*rate.rates, *rate.failures) if host != NO_ORIGIN))
    over = repeated(rates)
    figures = f" ± 95 % over {over}" if over else f" {ONE_REPEAT}" if units else ""
    where = f"; host{'' if len(hosts) == 1 else 's'} {', '.join(hosts)}" if hosts else ""
    notes = [f"batch is per {device}{where}", *missing_hosts(rates), *fleet_notes(rates), *_not_usual(rates)]
    if any("×" in name for name in clusters):
        notes.append(f"H×N {device}s: N on each of H hosts that train together")
    title = f"{rates[0].fleet}: {', '.join(units) or 'samples'} per second{figures}"
    return Grid(title, columns, pivoted(cells, clusters), notes)


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
    found: dict[tuple[str, str], dict[str, list[object]]] = {}
    for item in records:
        if (record := item.record) is None or (measured := record.measurement) is None:
            continue
        values = found.setdefault((str(place_of(record)), record.case.name), {})
        for part in (record.environment, measured, record.telemetry, measured.input_limit):
            for name, value in vars(part).items() if part is not None else ():
                heading = name if part is measured or not hasattr(measured, name) else f"readings of {name}"
                if name not in COLUMNS and isinstance(value, str | int | float):
                    values.setdefault(heading, []).append(value)
        for phase in record.phases:
            values.setdefault(f"cpu_seconds of {phase.name}", []).append(phase.cpu_seconds)
        if record.environment is not None:
            wheel = record.environment.wheel_compute_capabilities
            values.setdefault("wheel_compute_capabilities", []).extend(wheel)
    names = dict.fromkeys(name for values in found.values() for name in values)
    if not names:
        return None
    rows = [[*of, *(_reading(values.get(name, ())) for name in names)] for of, values in found.items()]
    headings = ["host", "case", *(name.replace("_", " ") for name in names)]
    return Grid("Readings", headings, rows).without_empty_columns()


def _reading(values: Sequence[object]) -> str:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers:
        median = statistics.median(numbers)
        return significant(median) if median % 1 else f"{median:,.0f}".replace(",", GROUP_SPACE)
    texts = [("no", "yes")[value] if isinstance(value, bool) else printable(str(value)) for value in values]
    return ", ".join(dict.fromkeys(texts))


TABLE_VERSION = 1
"""Incremented when a column is removed or changes its meaning."""

FORMATS = ("csv", "json", "markdown", "wide")
"""Formats of `exported`."""


def exported(merged: Merged, form: str) -> str:
    """Return merged runs as a text.

    Args:
        merged: The records.
        form: `csv`: the table, without texts that a spreadsheet would run as a formula; `json`: rows as objects, empty
            cells as null, device results and problems; `markdown`: all tables; `wide`: each fleet's table as Markdown,
            a row per network and precision, a column per GPU count.
    """
    if form == "csv":
        return table_csv(merged.table)
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


METRICS = {
    "matrix_product": "matrix product",
    "memory_add": "memory a += b",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "all_reduce": "all-reduce, bus",
}
"""Display names of metrics, in order; unknown metrics follow under their own name."""

ARITHMETIC = ("fp64", "fp32", "tf32", "fp16", "bf16")

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))

BINARY_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


Metric = tuple[int, int, int, int, str, str]
"""Sort key of a metric, arithmetic, number of devices and size, which ends with the display name and the unit."""


def device_grid(records: Sequence[Record]) -> Grid | None:
    """Return the table of the device micro-benchmarks; None: there are none.

    A cell is the mean over the best round of each repeat, with its 95 % interval. Different software on a host has
    separate columns.

    Args:
        records: Records with `device_results`.
    """
    columns = defaultdict[tuple[str, str], defaultdict[Metric, list[DeviceResult]]](lambda: defaultdict(list))
    for record in records:
        for result in record.device_results:
            columns[str(place_of(record)), _software(record)][_metric(result)].append(result)
    if not columns:
        return None
    places = [place for place, _ in columns]
    headings = [
        f"{place} ({places[: at + 1].count(place)})" if places.count(place) > 1 else place
        for at, place in enumerate(places)
    ]
    rows, reasons = [], dict[str | None, tuple[dict[str, None], dict[str, None]]]()
    for metric in sorted({metric for results in columns.values() for metric in results}):
        *_, name, unit = metric
        found = [results[metric] for results in columns.values()]
        values = [[result.value for result in of_host if result.value is not None] for of_host in found]
        largest = max((statistics.fmean(of_host) for of_host in values if of_host), default=0.0)
        factor, prefix = next((step for step in PREFIXES if largest >= step[0]), (1.0, ""))
        missing = ["not measured" if of_host else "" for of_host in found]
        texts = [_text(of_host, factor) if of_host else text for of_host, text in zip(values, missing, strict=True)]
        rows.append([name, f"{prefix}{unit}", *texts])
        for heading, of_host, known in zip(headings, found, values, strict=True):
            for result in [] if known else of_host:
                names, hosts = reasons.setdefault(result.reason, ({}, {}))
                names[name] = hosts[heading] = None
    notes = [
        "best round of each repeat, mean ± 95 % over repeats; for one device, except the all-reduce",
        "all-reduce: bus bandwidth, bytes × 2 (n − 1) / n over seconds, as nccl-tests define it",
        *(f"{heading}: {software}" for heading, (_, software) in zip(headings, columns, strict=True)),
        *(f"{', '.join(names)} on {', '.join(hosts)}: {reason}" for reason, (names, hosts) in reasons.items()),
    ]
    return Grid("Devices", ["metric", "unit", *(f"{heading}>" for heading in headings)], rows, notes)


def _software(record: Record) -> str:
    """Return the device and the software of a record."""
    environment = record.environment
    if environment is None:
        return ""
    gpus = dict.fromkeys(gpu.name for gpu in environment.gpus)
    on_gpu = record.case.device is Device.GPU
    hardware = " + ".join(gpus) if on_gpu and gpus else f"{environment.cpu}, {environment.cpu_limit:g} CPUs"
    versions = {"TensorFlow": environment.tensorflow, "CUDA": environment.cuda, "driver": environment.driver}
    return ", ".join([hardware, *(f"{name} {version}" for name, version in versions.items() if version)])


def _metric(result: DeviceResult) -> Metric:
    metric, arithmetic = result.metric, result.arithmetic
    size = result.size or 0 if metric == "all_reduce" else 0  # of other metrics it distinguishes no results
    name = f"{METRICS.get(metric, metric)} {arithmetic or ''}".strip()
    if size:
        step, unit = next((step, unit) for step, unit in BINARY_SIZES if size >= step)
        name = f"{name} ×{result.devices}, {size / step:g} {unit}"
    kinds = [*METRICS, metric].index(metric), [*ARITHMETIC, arithmetic].index(arithmetic)
    return *kinds, result.devices, size, name, result.unit


def _text(values: Sequence[float], factor: float) -> str:
    scaled = [value / factor for value in values]
    return value_text(statistics.fmean(scaled), estimate(scaled).interval() if len(scaled) > 1 else None)

"""Builds the tables of a run: a row per host and case, the wide table, and explanations of warnings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from results.compare.comparison import fleets_of
from results.number_format import significant, with_error
from results.report.comparison import communication_grid, fleet_pairs, ratio_grids, scaling_grid
from results.report.device_table import device_grid
from results.schema import SETTINGS, TUNING, Case, Device, DeviceResult, Mode, Record
from results.table.cell_text import fleet_notes, identity_text, missing_hosts, rate_text, table_csv, warning_notes
from results.table.columns import CASE_COLUMNS, COLUMNS, NO_ORIGIN, SOFTWARE_COLUMNS, Row, Software, Value
from results.table.comparable import CLUSTER_COLUMNS, IMPLIED, cluster_name, cluster_names, differing
from results.table.fleets import FleetRate
from results.table.merge import Merged
from results.text import counted
from results.text_table import Grid, markdown, print_grid, print_line

if TYPE_CHECKING:
    from rich.console import Console

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


ONE_REPEAT = "from one repeat each, so without an interval"


def show_tables(merged: Merged, console: Console, *, verbose: bool = False) -> None:
    """Print the tables of merged runs, then the problems; see `brief_grids`."""
    for grid in all_grids(merged) if verbose else brief_grids(merged):
        print_grid(grid, console)
    for problem in merged.problems:
        print_line(f"! {problem}", console)


def brief_grids(merged: Merged) -> list[Grid]:
    """Return the tables that a person reads after a run, each figure once.

    Ratios are what `compare` prints. A fleet's wide table follows if it shows more than the rows: several hosts, or
    numbers of GPUs. If nothing was measured, only the reasons are left.
    """
    if merged.rows and not merged.devices and not any(row.repeats_ok for row in merged.rows):
        return [Grid("No repeat gave a number", [], [], _causes(merged.rows))]
    fleets = [[rate for rate in merged.rates if rate.fleet == fleet] for fleet in fleets_of(merged.rates)]
    wide = [of for of in fleets if len(cluster_names(r.case for r in of)) > 1 or any(len(r.rates) > 1 for r in of)]
    more = (scaling_grid(merged.rates), communication_grid(merged))
    return [
        *result_grids(merged, brief=True),
        *(_wide_grid(rates) for rates in wide),
        *(grid for grid in more if grid is not None),
    ]


def all_grids(merged: Merged) -> list[Grid]:
    """Return all non-empty tables of merged runs."""
    more = (scaling_grid(merged.rates), communication_grid(merged))
    ratios = ratio_grids(fleet_pairs(merged.rates))
    return [*result_grids(merged), *wide_grids(merged), *ratios, *(grid for grid in more if grid is not None)]


def result_grids(merged: Merged, *, brief: bool = False) -> list[Grid]:
    """Return the non-empty ones of the tables of cases and of devices."""
    devices = device_grid(merged.devices)
    cases = [results_grid(merged, brief=brief)] if merged.rows or devices is None else []
    return [*cases, *([devices] if devices else [])]


def results_grid(merged: Merged, *, brief: bool = False) -> Grid:
    """Return one row per fleet, host, case and identity; notes list what all rows share.

    Args:
        merged: The records.
        brief: Omit settings that are the default, variables, and software that says little about a GPU.
    """
    rows = merged.rows
    varying = [name for name in _SETTINGS if any(len(values) > 1 for values in _by_network(rows, name).values())]
    software = [name for name in SOFTWARE_COLUMNS if _varies_within_case(rows, name)]
    hosts = list(dict.fromkeys(str(row.place) for row in rows))
    columns = ["host", "network", "precision", "batch>", "GPUs>", *varying, *software]
    columns += ["samples/s>", "repeats>", *_NUMBERS, "status", "warnings"]
    cells = [
        [
            str(row.place) if len(hosts) > 1 else "",
            *(row.case.model, str(row.case.precision), str(row.case.batch_per_gpu)),
            _cluster(row.case),
            *(_cell(getattr(row, name)) for name in [*varying, *software]),
            _rate(row),
            _repeats(row),
            *(_scaled(getattr(row, name), factor) for name, factor in _NUMBERS.values()),
            row.status,
            row.warnings or "",
        ]
        for row in rows
    ]
    explained = warning_notes(row.warnings for row in rows)
    notes = [*_common_notes(merged, varying, software, brief=brief), *explained, *_causes(rows)]
    title = f"Results of {hosts[0]}" if len(hosts) == 1 else "Results"
    optional = ("CV %", "p50 ms", "b1 p99 ms", "b1 p95 ms", "b1 p50 ms", "repeats")
    return Grid(title, columns, cells, notes, optional).without_empty_columns()


def _by_network(rows: Sequence[Row], column: str) -> dict[str, dict[Value, None]]:
    """Return the values of a setting that each network was measured with."""
    values: dict[str, dict[Value, None]] = {}
    for row in rows:
        values.setdefault(row.case.model, {})[getattr(row, column)] = None
    return values


def wide_grids(merged: Merged) -> list[Grid]:
    """Return a table for each fleet: a row per network and precision, a column per GPU count.

    A cell is the mean over the fleet's hosts; different settings or software have separate rows.
    """
    rates = merged.rates
    return [_wide_grid([rate for rate in rates if rate.fleet == fleet]) for fleet in fleets_of(rates)]


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


def _varies_within_case(rows: Sequence[Row], column: str) -> bool:
    """Return whether two rows of one fleet, host and case differ in a column, which must then be shown."""
    return _ambiguous((row.place, getattr(row, column)) for row in rows)


def _ambiguous(pairs: Iterable[tuple[Hashable, Value]]) -> bool:
    """Return whether a key has two values."""
    seen: dict[Hashable, Value] = {}
    return any(seen.setdefault(key, value) != value for key, value in pairs)


def _cluster(case: Case) -> str:
    return counted(cluster_name(case), "CPU") if case.device is Device.CPU else cluster_name(case)


def _cell(value: Value) -> str:
    return "" if value is None else str(value)


def _scaled(value: float | None, factor: float) -> str:
    return "" if value is None else significant(value * factor)


def _repeats(row: Row) -> str:
    """Format the number of successful repeats: `3`, or `2 of 3` if some failed."""
    return str(row.repeats) if row.repeats_ok == row.repeats else f"{row.repeats_ok} of {row.repeats}"


def _causes(rows: Sequence[Row]) -> list[str]:
    """Return a line per cause of failure and host, with the affected cases."""
    hit: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.cause:
            case = f"{row.case.model} {row.case.precision} ×{_cluster(row.case)}"
            hit.setdefault((str(row.place), row.cause), []).append(case)
    return [f"{host}, {_listed(cases)}: {cause}" for (host, cause), cases in hit.items()]


def _listed(cases: Sequence[str]) -> str:
    return ", ".join(cases) if len(cases) <= 3 else f"{cases[0]} and {counted(len(cases) - 1, 'more case')}"


def _rate(row: Row) -> str:
    mean, high = row.samples_per_second, row.ci95_high
    if mean is None:
        return ""
    return with_error(mean, None if high is None else high - mean)


BRIEF = ("gpu", "power_limit_watts", "tensorflow", "cuda", "driver")
"""Software columns of a brief note; without a GPU the processor, too."""


def _common_notes(merged: Merged, varying: Sequence[str], software: Sequence[str], *, brief: bool) -> list[str]:
    """Return what all rows share, and the software of each fleet."""
    rows = merged.rows
    if not rows:
        return ["no records"]
    shared = []
    for name in _SETTINGS:
        networks: dict[Value, list[str]] = {}
        for network, values in _by_network(rows, name).items():
            networks.setdefault(next(iter(values)), []).append(network)
        usual = name in TUNING and set(networks) == {getattr(Case, name)}
        if brief:
            usual = all(value == getattr(Case(model=of), name) for value, at in networks.items() for of in at)
        if name not in varying and not usual:
            known = {value: names for value, names in networks.items() if value is not None}
            texts = [f"{value} ({', '.join(at)})" if len(networks) > 1 else str(value) for value, at in known.items()]
            shared += [f"{name.replace('_', ' ')} {', '.join(texts)}"] if texts else []
    units = sorted({row.unit for row in rows if row.unit})
    runs = merged.repeats.groupby("row")["run"].nunique()
    repeated = [index for index, row in enumerate(rows) if row.ci95_high is not None]
    over = " or ".join(dict.fromkeys("runs" if runs[index] > 1 else "repeats" for index in repeated))
    figures = f"{', '.join(units)} per second {f'± 95 % over {over}' if over else ONE_REPEAT}"
    notes = ["; ".join(filter(None, (figures if units else "no repeat gave a number", ", ".join(shared))))]
    for fleet in dict.fromkeys(row.fleet for row in rows):
        started = [row.software for row in rows if row.fleet == fleet and row.software.tensorflow is not None]
        shown = [
            name for name in SOFTWARE_NAMES if not brief or name in BRIEF or (name == "cpu" and not _has_gpu(started))
        ]
        lines = dict.fromkeys(_software_line(item, shown, software) for item in started)
        notes.extend(f"{fleet}: {line}" for line in lines)
    return notes


def _has_gpu(found: Sequence[Software]) -> bool:
    return any(item.gpu is not None for item in found)


def _software_line(item: Software, names: Sequence[str], without: Sequence[str]) -> str:
    values = {name: getattr(item, name) for name in names if name not in without}
    shown = {name: value for name, value in values.items() if value is not None}
    return ", ".join(f"{SOFTWARE_NAMES[name]}{identity_text(name, value)}" for name, value in shown.items())


def _wide_grid(rates: Sequence[FleetRate]) -> Grid:
    clusters = cluster_names(rate.case for rate in rates)
    device = "CPU" if all(rate.case.device is Device.CPU for rate in rates) else "GPU"
    always = ["model", "precision", "batch_per_gpu"]
    setting_names = [name for name in CASE_COLUMNS if name not in (*CLUSTER_COLUMNS, *always)]
    settings = differing(rates, setting_names)
    split = [*settings, *_differing_software(rates)]
    units = sorted({rate.unit for rate in rates if rate.unit})
    unit_of = {rate.case.model: f"{rate.unit}/s" for rate in rates if rate.unit}
    names = [*always, *split]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for rate in rates:
        label = tuple(_wide_label(name, rate.named(name)) for name in names)
        lines.setdefault(label, {})[cluster_name(rate.case)] = rate_text(rate)
    unit = ["unit"] if len(units) > 1 else []
    columns = ["network", "precision", "batch>", *split, *unit, *(f"{counted(name, device)}>" for name in clusters)]
    rows = [
        [*label, *(unit_of.get(label[0], "") for _ in unit), *(cells.get(name, "") for name in clusters)]
        for label, cells in lines.items()
    ]
    hosts = list(dict.fromkeys(host for rate in rates for host in (*rate.rates, *rate.failures) if host != NO_ORIGIN))
    repeated = [
        name
        for name in ("hosts", "runs", "repeats")
        if any(rate.repeated == name for rate in rates if rate.interval is not None)
    ]
    over = f" ± 95 % over {' or '.join(repeated)}" if repeated else f" {ONE_REPEAT}" if units else ""
    title = f"{rates[0].fleet}: {', '.join(units) or 'samples'} per second{over}"
    where = f"; host{'' if len(hosts) == 1 else 's'} {', '.join(hosts)}" if hosts else ""
    notes = [f"batch is per {device}{where}", *missing_hosts(rates), *fleet_notes(rates)]
    notes += _not_usual(rates)
    if any("×" in name for name in clusters):
        notes.append(f"H×N {device}s: N on each of H hosts that train together")
    return Grid(title, columns, rows, notes)


def _not_usual(rates: Sequence[FleetRate]) -> list[str]:
    """Return settings that all cells share and that are not the default: inference, image size."""
    modes, sizes = {rate.case.mode for rate in rates}, {rate.case.image_size for rate in rates}
    shared = [f"mode {mode}" for mode in modes if len(modes) == 1 and mode is not Mode.TRAIN]
    shared += [f"image size {size}" for size in sizes if len(sizes) == 1 and size is not None]
    return [", ".join(shared)] if shared else []


_OF_THE_CASE = {"variables", *itertools.chain.from_iterable(IMPLIED.values())}
"""Columns that a case may determine: a difference between two cases alone is not shown."""


def _differing_software(rates: Sequence[FleetRate]) -> list[str]:
    """Return the software columns that must be shown so that no cell mixes two identities."""
    known = [rate for rate in rates if rate.rates]
    return [
        name for name in differing(known, SOFTWARE_COLUMNS) if name not in _OF_THE_CASE or _cases_differ(known, name)
    ]


def _cases_differ(rates: Sequence[FleetRate], column: str) -> bool:
    """Return whether rates of one line of a table, which differ in the number of GPUs only, differ in a column."""
    settings = [name for name in CASE_COLUMNS if name not in CLUSTER_COLUMNS]
    return _ambiguous((tuple(rate.named(name) for name in settings), rate.named(column)) for rate in rates)


def _wide_label(column: str, value: Value) -> str:
    return "" if value is None else identity_text(column, value)


TABLE_VERSION = 1
"""Incremented when a column is removed or changes its meaning."""


def to_csv(merged: Merged) -> str:
    """Return the table as CSV without texts that a spreadsheet would run as a formula."""
    return table_csv(merged.table)


def to_json(merged: Merged) -> str:
    """Return the table as JSON: rows as objects, empty cells as null, device results and problems."""
    rows = json.loads(merged.table.to_json(orient="records", double_precision=15))
    devices = [_placed(record, result) for record in merged.devices for result in record.device_results]
    document = {"table_version": TABLE_VERSION, "problems": merged.problems, "rows": rows, "devices": devices}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _placed(record: Record, result: DeviceResult) -> dict[str, Any]:
    """Return a device's result with its fleet, host and repeat."""
    origin = record.origin
    place = {"fleet": origin.fleet, "host": origin.host, "repeat": origin.repeat} if origin else {}
    return {**place, **asdict(result)}


def to_markdown(merged: Merged) -> str:
    """Return all tables as Markdown."""
    return "\n".join(map(markdown, all_grids(merged)))


def to_wide_markdown(merged: Merged) -> str:
    """Return each fleet's table as Markdown: a row per network and precision, a column per GPU count."""
    return "\n".join(map(markdown, wide_grids(merged)))


WRITERS: dict[str, Callable[[Merged], str]] = {
    "csv": to_csv,
    "json": to_json,
    "markdown": to_markdown,
    "wide": to_wide_markdown,
}
"""By value of `--format`."""

"""What the devices themselves reach (`--model=device`): a row for each metric, a column for each host."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from results.grid import Grid
from results.schema import Device, DeviceResult, Record
from results.stats import estimate
from results.table.cells import value_text

METRICS = {
    "matrix_product": "matrix product",
    "memory_add": "memory a += b",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "all_reduce": "all-reduce, bus",
}
"""Metrics in their order, as they are written; others come after them, as they are named."""

ARITHMETIC = ("fp64", "fp32", "tf32", "fp16", "bf16")

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))

BINARY_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))

NO_ORIGIN = "this machine"

MetricKey = tuple[str, str | None, int, int | None, str]
"""Metric, arithmetic, devices, size if it distinguishes results, unit."""


@dataclass
class _Cell:
    """What the repeats of one host gave for one metric."""

    values: list[float] = field(default_factory=list)
    reasons: dict[str, None] = field(default_factory=dict)


def device_grid(records: Sequence[Record]) -> Grid | None:
    """Return the table of the device micro-benchmarks; None without any.

    A cell is the mean over repeats with its 95 % interval; each repeat gives its best round. Software that differs
    within a host makes columns of their own.

    Args:
        records: Those with `device_results`.
    """
    columns: dict[tuple[str, str], dict[MetricKey, _Cell]] = defaultdict(lambda: defaultdict(_Cell))
    for record in records:
        cells = columns[_column(record)]
        for result in record.device_results:
            cell = cells[_key(result)]
            if result.value is not None:
                cell.values.append(result.value)
            elif result.reason:
                cell.reasons[result.reason] = None
    if not columns:
        return None
    keys = sorted({key for cells in columns.values() for key in cells}, key=_order)
    headings = _headings(list(columns))
    rows = [_row(key, [cells.get(key) for cells in columns.values()]) for key in keys]
    notes = ["best round of each repeat, mean ± 95 % over repeats; for one device, except the all-reduce"]
    notes += ["all-reduce: bus bandwidth, bytes × 2 (n − 1) / n over seconds, as nccl-tests define it"]
    notes += [f"{heading}: {software}" for heading, (_, software) in zip(headings, columns, strict=True)]
    notes += _reasons(columns, headings)
    return Grid("Devices", ["metric", "unit", *(f"{heading}>" for heading in headings)], rows, notes)


def _column(record: Record) -> tuple[str, str]:
    """Return host and software of a record."""
    origin, environment = record.origin, record.environment
    place = f"{origin.fleet}/{origin.host}" if origin else NO_ORIGIN
    if environment is None:
        return place, ""
    gpus = dict.fromkeys(gpu.name for gpu in environment.gpus)
    on_gpu = record.case.device is Device.GPU
    hardware = " + ".join(gpus) if on_gpu and gpus else f"{environment.cpu}, {environment.cpu_limit:g} CPUs"
    versions = {"TensorFlow": environment.tensorflow, "CUDA": environment.cuda, "driver": environment.driver}
    return place, ", ".join([hardware, *(f"{name} {version}" for name, version in versions.items() if version)])


def _headings(columns: Sequence[tuple[str, str]]) -> list[str]:
    """Name each column by its host, numbered where one host has several."""
    places = [place for place, _ in columns]
    seen: dict[str, int] = defaultdict(int)
    headings = []
    for place in places:
        seen[place] += 1
        headings.append(f"{place} ({seen[place]})" if places.count(place) > 1 else place)
    return headings


def _key(result: DeviceResult) -> MetricKey:
    size = result.size if result.metric == "all_reduce" else None
    return result.metric, result.arithmetic, result.devices, size, result.unit


def _order(key: MetricKey) -> tuple[int, str, int, int, int]:
    metric, arithmetic, devices, size, _ = key
    known = list(METRICS)
    kind = ARITHMETIC.index(arithmetic) if arithmetic in ARITHMETIC else len(ARITHMETIC)
    return known.index(metric) if metric in known else len(known), metric, kind, devices, size or 0


def _row(key: MetricKey, cells: Sequence[_Cell | None]) -> list[str]:
    means = [statistics.fmean(cell.values) for cell in cells if cell and cell.values]
    factor, prefix = next(((f, p) for f, p in PREFIXES if means and max(means) >= f), (1.0, ""))
    return [_name(key), f"{prefix}{key[-1]}", *(_text(cell, factor) for cell in cells)]


def _name(key: MetricKey) -> str:
    metric, arithmetic, devices, size, _ = key
    name = " ".join([METRICS.get(metric, metric), *([arithmetic] if arithmetic else [])])
    if metric == "all_reduce" and size:
        step, unit = next((step, unit) for step, unit in BINARY_SIZES if size >= step)
        return f"{name} ×{devices}, {size / step:g} {unit}"
    return name


def _text(cell: _Cell | None, factor: float) -> str:
    if cell is None:
        return ""
    if not cell.values:
        return "not measured"
    values = [value / factor for value in cell.values]
    return value_text(statistics.fmean(values), estimate(values).interval() if len(values) > 1 else None)


def _reasons(columns: dict[tuple[str, str], dict[MetricKey, _Cell]], headings: Sequence[str]) -> list[str]:
    """State each reason why something was not measured once, with all its metrics and hosts."""
    hit: dict[str, dict[str, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for heading, cells in zip(headings, columns.values(), strict=True):
        for key in sorted(cells, key=_order):
            if not cells[key].values:
                for reason in cells[key].reasons:
                    hit[reason][heading][_name(key)] = None
    lines = []
    for reason, hosts in hit.items():
        names = dict.fromkeys(name for of_host in hosts.values() for name in of_host)
        lines.append(f"{', '.join(names)} on {', '.join(hosts)}: {reason}")
    return lines

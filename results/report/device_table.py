"""Builds the table of device micro-benchmarks (`--model=device`): a row per metric, a column per host."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from results.schema import Device, DeviceResult, Record
from results.stats import estimate
from results.table.cell_text import value_text
from results.text_table import Grid

METRICS = {
    "matrix_product": "matrix product",
    "memory_add": "memory a += b",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "all_reduce": "all-reduce, bus",
}
"""Display names of metrics, in order; unknown metrics follow under their own name."""

ARITHMETIC = ("fp64", "fp32", "tf32", "fp16", "bf16")

PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1.0, ""))

BINARY_SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))

NO_ORIGIN = "this machine"

MetricKey = tuple[str, str | None, int, int | None, str]
"""Metric, arithmetic, devices, size if it distinguishes results, unit."""


Cells = Mapping[MetricKey, Sequence[DeviceResult]]
"""Results of one host's repeats, by metric."""


def device_grid(records: Sequence[Record]) -> Grid | None:
    """Return the table of the device micro-benchmarks; None: there are none.

    A cell is the mean over the best round of each repeat, with its 95 % interval. Different software on a host has
    separate columns.

    Args:
        records: Records with `device_results`.
    """
    columns = defaultdict[tuple[str, str], dict[MetricKey, list[DeviceResult]]](dict)
    for record in records:
        for result in record.device_results:
            columns[_column(record)].setdefault(_key(result), []).append(result)
    if not columns:
        return None
    keys = sorted({key for cells in columns.values() for key in cells}, key=_order)
    headings = _headings(list(columns))
    rows = [_row(key, [cells.get(key, ()) for cells in columns.values()]) for key in keys]
    notes = ["best round of each repeat, mean ± 95 % over repeats; for one device, except the all-reduce"]
    notes += ["all-reduce: bus bandwidth, bytes × 2 (n − 1) / n over seconds, as nccl-tests define it"]
    notes += [f"{heading}: {software}" for heading, (_, software) in zip(headings, columns, strict=True)]
    notes += _reasons(keys, dict(zip(headings, columns.values(), strict=True)))
    return Grid("Devices", ["metric", "unit", *(f"{heading}>" for heading in headings)], rows, notes)


def _column(record: Record) -> tuple[str, str]:
    """Return the host and the software of a record."""
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
    """Return the host of each column, numbered if it has several."""
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


def _row(key: MetricKey, cells: Sequence[Sequence[DeviceResult]]) -> list[str]:
    values = [[result.value for result in cell if result.value is not None] for cell in cells]
    means = [statistics.fmean(of) for of in values if of]
    factor, prefix = next(((f, p) for f, p in PREFIXES if means and max(means) >= f), (1.0, ""))
    texts = [_text(of, factor) if of or not cell else "not measured" for cell, of in zip(cells, values, strict=True)]
    return [_name(key), f"{prefix}{key[-1]}", *texts]


def _name(key: MetricKey) -> str:
    metric, arithmetic, devices, size, _ = key
    name = " ".join([METRICS.get(metric, metric), *([arithmetic] if arithmetic else [])])
    if metric == "all_reduce" and size:
        step, unit = next((step, unit) for step, unit in BINARY_SIZES if size >= step)
        return f"{name} ×{devices}, {size / step:g} {unit}"
    return name


def _text(values: Sequence[float], factor: float) -> str:
    if not values:
        return ""
    scaled = [value / factor for value in values]
    return value_text(statistics.fmean(scaled), estimate(scaled).interval() if len(scaled) > 1 else None)


def _reasons(keys: Sequence[MetricKey], hosts: Mapping[str, Cells]) -> list[str]:
    """Return each reason for a missing result once, with its metrics and hosts."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for host, cells in hosts.items():
        for key in keys:
            for result in cells.get(key, ()):
                if result.reason and all(other.value is None for other in cells[key]):
                    names, places = found.setdefault(result.reason, ({}, {}))
                    names[_name(key)] = places[host] = None
    return [f"{', '.join(names)} on {', '.join(places)}: {reason}" for reason, (names, places) in found.items()]

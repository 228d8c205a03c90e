"""Builds the table of device micro-benchmarks (`--model=device`): a row per metric, a column per host."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence

from results.schema import Device, DeviceResult, Record
from results.stats import estimate
from results.table.cell_text import value_text
from results.table.columns import place_of
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

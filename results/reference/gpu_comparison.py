"""GPUs side by side, by specification: what a comparison begins with, and what follows from it for training.

Everything here is arithmetic on `reference/`; nothing is measured. `compare_gpus` returns data, so that a report or a
recommendation can include it; `gpu_grids` makes tables of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from results.digits import grouped
from results.errors import BadQuestion
from results.grid import Grid
from results.reference.gpus import (
    PEAKS,
    Roofline,
    contradictions,
    roofline,
    specification_rows,
    specifications,
    specified_gpus,
    unknown_gpu,
)
from results.reference.networks import networks

QUANTITIES = {
    "compute_capability": ("compute capability", ""),
    "memory": ("memory", "GB"),
    "memory_bandwidth": ("memory bandwidth", "GB/s"),
    "memory_bus": ("memory bus", "bit"),
    "multiprocessors": ("multiprocessors", ""),
    "cores": ("FP32 cores", ""),
    "tensor_cores": ("tensor cores", ""),
    "fp32": ("FP32 peak", "TFLOP/s"),
    "tf32_tensor": ("TF32 tensor peak, dense", "TFLOP/s"),
    "fp16_tensor_fp32_accumulate": ("FP16 tensor peak, dense, FP32 sums", "TFLOP/s"),
    "fp16_tensor_fp16_accumulate": ("FP16 tensor peak, dense, FP16 sums", "TFLOP/s"),
    "boost_clock": ("boost clock", "MHz"),
    "tensor_clock": ("clock of the tensor peaks", "MHz"),
    "power": ("power", "W"),
    "nvlink_both_directions": ("NVLink, both directions", "GB/s"),
}
"""Rows of the table in their order: name and unit of each quantity of `gpu_specs.csv`."""


@dataclass(frozen=True)
class GpuFigure:
    """One figure of one GPU; `value` is None where it is not a number, `text` is how it is written."""

    gpu: str
    text: str
    value: float | None
    source: str
    note: str = ""


@dataclass(frozen=True)
class GpuRow:
    """One quantity of all GPUs, in their order; a GPU without it has None."""

    quantity: str
    name: str
    unit: str
    figures: list[GpuFigure | None]


@dataclass(frozen=True)
class BoundRow:
    """What each GPU cannot exceed in training one network; None where that is not known."""

    model: str
    precision: str
    lines: list[Roofline | None]


@dataclass(frozen=True)
class GpuComparison:
    """GPUs side by side.

    Attributes:
        gpus: Names in `reference/gpu_specs.csv`.
        rows: Figures with their sources.
        bounds: Of training, by network and precision.
        contradictions: What other sources state of these GPUs.
    """

    gpus: list[str]
    rows: list[GpuRow]
    bounds: list[BoundRow]
    contradictions: list[dict[str, str]]


def named_gpus(names: Sequence[str]) -> list[str]:
    """Return the GPUs that names mean; a family (`A100`) means all its members.

    Raises:
        BadQuestion: A name fits none; suggests similar ones.
    """
    found: dict[str, None] = {}
    for name in (part.strip() for text in names for part in text.split(",")):
        members = specified_gpus(name)
        if not members:
            raise BadQuestion(unknown_gpu(name))
        found.update(dict.fromkeys(members))
    return list(found)


def compare_gpus(gpus: Sequence[str]) -> GpuComparison:
    """Put GPUs side by side.

    Args:
        gpus: Names in `reference/gpu_specs.csv`.
    """
    table = specification_rows()
    rows = [
        GpuRow(quantity, name, unit, [_figure(gpu, table[gpu].get(quantity)) for gpu in gpus])
        for quantity, (name, unit) in QUANTITIES.items()
    ]
    rows = [row for row in rows if any(row.figures)]
    costs = [network for network in networks().values() if network.elements_fused]
    figures = [specifications()[gpu] for gpu in gpus]
    bounds = [
        BoundRow(cost.model, precision, [roofline(of_gpu, cost, precision) for of_gpu in figures])
        for precision in PEAKS
        if precision != "bf16"
        for cost in costs
    ]
    bounds = [row for row in bounds if any(row.lines)]
    known = [row for row in contradictions() if row["gpu"] in gpus]
    return GpuComparison(list(gpus), rows, bounds, known)


def gpu_grids(comparison: GpuComparison) -> list[Grid]:
    """Return the tables of a comparison: figures, bounds of training, sources, contradictions."""
    gpus = comparison.gpus
    ratio = [f"{gpus[1]} / {gpus[0]}>"] if len(gpus) == 2 else []
    figures = []
    for row in comparison.rows:
        texts = [figure.text if figure else "-" for figure in row.figures]
        figures.append([row.name, row.unit, *texts, *([_ratio(row)] if ratio else [])])
    notes = [
        "peaks are dense, by arithmetic: multiprocessors × FLOP per cycle × clock; sparsity doubles none of them here",
        "-: the GPU has none, or the reference has no figure",
    ]
    grids = [
        Grid("Specifications, not measurements", ["", "unit", *(f"{gpu}>" for gpu in gpus), *ratio], figures, notes),
        _bounds_grid(comparison),
        _sources_grid(comparison),
    ]
    if comparison.contradictions:
        rows = [list(row.values()) for row in comparison.contradictions]
        grids.append(Grid("Sources that contradict these figures", ["GPU", "quantity", "stated", "by", "here"], rows))
    return grids


def comparison_lines(comparison: GpuComparison) -> list[str]:
    """Return what follows for training: the bottleneck of each network, and how far the GPUs are apart there."""
    lines = []
    for precision in dict.fromkeys(row.precision for row in comparison.bounds):
        for place, gpu in enumerate(comparison.gpus):
            of_gpu = {row.model: row.lines[place] for row in comparison.bounds if row.precision == precision}
            limits = {model: line.limit for model, line in of_gpu.items() if line}
            models = ", ".join(model for model, limit in limits.items() if limit == "arithmetic")
            if models:
                lines.append(
                    f"{gpu} {precision}: arithmetic is the bottleneck of {models}, memory bandwidth that of all others"
                )
            elif limits:
                lines.append(f"{gpu} {precision}: memory bandwidth is the bottleneck of every network here")
    if len(comparison.gpus) == 2:
        first, second = comparison.gpus
        bounds = [
            (_ratio(_row(comparison.rows, "memory_bandwidth")), "memory bandwidth"),
            (_ratio(_row(comparison.rows, "fp16_tensor_fp32_accumulate")), "FP16 arithmetic"),
        ]
        (low, why_low), (high, why_high) = sorted(bounds, key=lambda bound: float(bound[0] or 0))
        lines.append(
            f"by specification {second} / {first} is {low} ({why_low}) to {high} ({why_high}); measure before you rent"
        )
    return lines


def comparison_json(comparison: GpuComparison) -> str:
    """Return the data as JSON."""
    document = {**dataclasses.asdict(comparison), "conclusions": comparison_lines(comparison)}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _figure(gpu: str, row: Mapping[str, str] | None) -> GpuFigure | None:
    if row is None:
        return None
    try:
        value: float | None = float(row["value"])
    except ValueError:
        value = None
    return GpuFigure(gpu, row["value"], value, row["source"], row["note"])


def _row(rows: Sequence[GpuRow], quantity: str) -> GpuRow:
    return next((row for row in rows if row.quantity == quantity), GpuRow(quantity, "", "", []))


def _ratio(row: GpuRow) -> str:
    """Write the second GPU's figure over the first's."""
    if len(row.figures) != 2:
        return ""
    first, second = row.figures
    if first is None or second is None or not first.value or not second.value or row.quantity == "compute_capability":
        return ""
    return f"{second.value / first.value:.2f}"


def _bounds_grid(comparison: GpuComparison) -> Grid:
    rows = [
        [row.model, row.precision, *(text for line in row.lines for text in _bound_cells(line))]
        for row in comparison.bounds
    ]
    columns = ["network", "precision"]
    for gpu in comparison.gpus:
        columns += [f"{gpu} at most>", "bottleneck", "batch>"]
    notes = [
        "at most: samples per second of one GPU in training, each layer by itself; fused kernels pass a bound of "
        "bandwidth (up to 1.9 times), nothing passes one of arithmetic",
        "batch: the largest whose saved activations fit into 80 % of the memory",
    ]
    return Grid("Bottleneck of each network in training, by arithmetic", columns, rows, notes)


def _bound_cells(bound: Roofline | None) -> tuple[str, str, str]:
    if bound is None:
        return "", "", ""
    batch = "" if bound.largest_batch is None else str(bound.largest_batch)
    return grouped(min(bound.unfused, bound.arithmetic)), bound.limit, batch


def _sources_grid(comparison: GpuComparison) -> Grid:
    """Name the source of each figure; quantities of one GPU and source share a row."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in comparison.rows:
        for figure in row.figures:
            if figure is not None:
                found.setdefault((figure.gpu, figure.source, figure.note), []).append(row.name)
    order = sorted(found.items(), key=lambda item: comparison.gpus.index(item[0][0]))
    rows = [[gpu, ", ".join(names), source, note] for (gpu, source, note), names in order]
    return Grid("Sources", ["GPU", "figures", "source", "note"], rows)

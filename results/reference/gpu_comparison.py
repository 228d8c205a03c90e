"""Compares GPUs by specification, and derives their rooflines for training; nothing is measured."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence

from results.errors import BadQuestion
from results.reference import names, read_rows
from results.reference.gpus import (
    PEAKS,
    Roofline,
    roofline,
    specification_rows,
    specifications,
    specified_gpus,
    unknown_gpu,
)
from results.reference.networks import networks
from results.text import grouped
from results.text_table import Grid

SENTENCES_FROM = 2
"""Index of the first table of `gpu_grids` with sentences in its cells."""


def named_gpus(texts: Sequence[str]) -> list[str]:
    """Resolve names to GPUs; a family (`A100`) resolves to all its members.

    Args:
        texts: Names, each text one or several separated by commas.

    Raises:
        BadQuestion: A name is unknown; the message suggests similar ones.
    """
    listed = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    if unknown := [name for name in listed if not specified_gpus(name)]:
        raise BadQuestion(unknown_gpu(unknown[0]))
    return list(dict.fromkeys(gpu for name in listed for gpu in specified_gpus(name)))


def figures_of(gpus: Sequence[str]) -> dict[str, list[Mapping[str, str] | None]]:
    """Return by quantity the row of `gpu_specs.csv` of each GPU; None: it has none."""
    table = specification_rows()
    found = {quantity: [table[gpu].get(quantity) for gpu in gpus] for quantity, _ in names("quantity")}
    return {quantity: figures for quantity, figures in found.items() if any(figures)}


def bounds_of(gpus: Sequence[str]) -> dict[tuple[str, str], list[Roofline | None]]:
    """Return by network and precision each GPU's roofline for training; None: unknown."""
    costs = [network for network in networks().values() if network.elements_fused]
    found = {
        (cost.model, precision): [roofline(specifications()[gpu], cost, precision) for gpu in gpus]
        for precision in PEAKS
        if precision != "bf16"
        for cost in costs
    }
    return {case: lines for case, lines in found.items() if any(lines)}


def contradictions_of(gpus: Sequence[str]) -> list[dict[str, str]]:
    """Return contradicting figures of other sources, and why another figure is used."""
    return [row for row in read_rows("contradictions.csv") if row["gpu"] in gpus]


def gpu_grids(gpus: Sequence[str]) -> list[Grid]:
    """Return tables that compare GPUs: figures, rooflines for training, sources, contradictions."""
    ratio = [f"{gpus[1]} / {gpus[0]}>"] if len(gpus) == 2 else []
    texts, figures = dict(names("quantity")), []
    for name, rows in figures_of(gpus).items():
        unit = next(row["unit"] for row in rows if row).strip("-")
        values = [row["value"] if row else "-" for row in rows]
        figures.append([texts[name], unit, *values, *(_ratio(gpus, name) for _ in ratio)])
    notes = [
        "peaks are dense, by arithmetic: multiprocessors × FLOP per cycle × clock; without sparsity",
        "-: the GPU has none, or the reference has no figure",
    ]
    columns = ["", "unit", *(f"{gpu}>" for gpu in gpus), *ratio]
    stated = [list(row.values()) for row in contradictions_of(gpus)]
    contradictions = Grid("Sources that contradict these figures", ["GPU", "quantity", "stated", "by", "here"], stated)
    grids = [Grid("Specifications, not measurements", columns, figures, notes), _bounds_grid(gpus), _sources_grid(gpus)]
    return [*grids, contradictions] if stated else grids


EVERYWHERE = "memory bandwidth is the bottleneck of every network here"


def comparison_lines(gpus: Sequence[str]) -> list[str]:
    """Return conclusions for training: the ratios of two GPUs, and the bottleneck of each network."""
    lines = []
    if len(gpus) == 2:
        quantities = {"memory_bandwidth": "memory bandwidth", "fp16_tensor_fp32_accumulate": "FP16 arithmetic"}
        ratios = [(_ratio(gpus, name), text) for name, text in quantities.items()]
        low, high = (f"{value} ({text})" for value, text in sorted(ratios, key=lambda ratio: float(ratio[0] or 0)))
        lines.append(f"by specification {gpus[1]} / {gpus[0]} is {low} to {high}; measure before you rent")
    # Precisions by GPU, by the networks that are limited by arithmetic.
    limited: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    bounds = bounds_of(gpus)
    for place, gpu in enumerate(gpus):
        for precision in dict.fromkeys(precision for _, precision in bounds):
            rooflines = {model: row[place] for (model, name), row in bounds.items() if name == precision}
            models = [model for model, line in rooflines.items() if line and line.limit == "arithmetic"]
            if any(rooflines.values()):
                limited[", ".join(models)][gpu].append(precision)
    for models_text, of_gpus in limited.items():
        precisions = {gpu: ", ".join(kinds) for gpu, kinds in of_gpus.items()}
        alike = len(precisions) == len(gpus) > 1 and len({*precisions.values()}) == 1
        where = precisions[gpus[0]] if alike else "; ".join(map(" ".join, precisions.items()))
        others = f"arithmetic is the bottleneck of {models_text}, memory bandwidth of all others"
        lines.append(
            f"{where}: {others if models_text else 'memory bandwidth is the bottleneck of every network here'}"
        )
    return lines


def as_lines(grid: Grid) -> list[str]:
    """Return a table of sentences as lines of text, with the cells of a row one after the other."""
    return [grid.title, *(": ".join(filter(None, row)) for row in grid.rows)]


def comparison_json(gpus: Sequence[str]) -> str:
    """Return the comparison as JSON; figures are in the order of `gpus`."""
    document = {
        "gpus": gpus,
        "figures": figures_of(gpus),
        "bounds": [
            {"model": model, "precision": precision, "of_gpus": [line and dataclasses.asdict(line) for line in lines]}
            for (model, precision), lines in bounds_of(gpus).items()
        ],
        "contradictions": contradictions_of(gpus),
        "conclusions": comparison_lines(gpus),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _ratio(gpus: Sequence[str], quantity: str) -> str:
    """Format the second GPU's figure over the first's."""
    first, second = (specifications()[gpu].get(quantity) for gpu in gpus)
    return f"{second / first:.2f}" if first and second and quantity != "compute_capability" else ""


def _bounds_grid(gpus: Sequence[str]) -> Grid:
    rows = [
        [model, precision, *(text for line in lines for text in _bound_cells(line))]
        for (model, precision), lines in bounds_of(gpus).items()
    ]
    columns = ["network", "precision", *(name for gpu in gpus for name in (f"{gpu} at most>", "bottleneck", "batch>"))]
    notes = [
        "at most: samples per second of one GPU in training, each layer by itself; fused kernels exceed a bound of "
        "bandwidth (up to 1.9 times), nothing exceeds one of arithmetic",
        "batch: the largest whose saved activations fit into 80 % of the memory",
    ]
    return Grid("Bottleneck of each network in training, by arithmetic", columns, rows, notes, ("bottleneck",))


def _bound_cells(bound: Roofline | None) -> tuple[str, str, str]:
    if bound is None:
        return "", "", ""
    batch = "" if bound.largest_batch is None else str(bound.largest_batch)
    return grouped(min(bound.unfused, bound.arithmetic)), bound.limit, batch


def _sources_grid(gpus: Sequence[str]) -> Grid:
    """Return the source of each figure; quantities of one GPU and source share a row."""
    texts, found = dict(names("quantity")), defaultdict[tuple[str, str, str], list[str]](list)
    for gpu in gpus:
        for quantity, row in specification_rows()[gpu].items():
            if quantity in texts:
                found[gpu, row["source"], row["note"]].append(texts[quantity])
    rows = [[gpu, ", ".join(listed), source, note] for (gpu, source, note), listed in found.items()]
    return Grid("Sources", ["GPU", "figures", "source", "note"], rows)

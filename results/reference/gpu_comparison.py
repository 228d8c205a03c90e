"""Compares GPUs by specification; nothing is measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from results.errors import BadQuestion
from results.reference import names, read_rows
from results.reference.gpus import specification_rows, specifications, specified_gpus, unknown_gpu
from results.text_table import Grid


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
    found = {quantity: [specification_rows()[gpu].get(quantity) for gpu in gpus] for quantity, _ in names("quantity")}
    return {quantity: figures for quantity, figures in found.items() if any(figures)}


def comparison_document(gpus: Sequence[str]) -> dict[str, object]:
    """Return the comparison as a JSON object; figures are in the order of `gpus`."""
    stated, conclusions = contradictions_of(gpus), comparison_lines(gpus)
    return {"gpus": gpus, "figures": figures_of(gpus), "contradictions": stated, "conclusions": conclusions}


def contradictions_of(gpus: Sequence[str]) -> list[dict[str, str]]:
    """Return contradicting figures of other sources, and why another figure is used."""
    return [row for row in read_rows("contradictions.csv") if row["gpu"] in gpus]


def gpu_grids(gpus: Sequence[str]) -> list[Grid]:
    """Return tables that compare GPUs: figures, and in sentences their sources and contradictions."""
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
    quantities = defaultdict[tuple[str, str, str], list[str]](list)
    for gpu in gpus:
        for quantity, row in specification_rows()[gpu].items():
            if quantity in texts:
                quantities[gpu, row["source"], row["note"]].append(texts[quantity])
    sources = [[gpu, ", ".join(listed), source, note] for (gpu, source, note), listed in quantities.items()]
    stated = [list(row.values()) for row in contradictions_of(gpus)]
    grids = [
        Grid("Specifications, not measurements", ["", "unit", *(f"{gpu}>" for gpu in gpus), *ratio], figures, notes),
        Grid("Sources", ["GPU", "figures", "source", "note"], sources),
        Grid("Sources that contradict these figures", ["GPU", "quantity", "stated", "by", "here"], stated),
    ]
    return [grid for grid in grids if grid.rows]


def comparison_lines(gpus: Sequence[str]) -> list[str]:
    """Return how much faster the second of two GPUs may be; of other numbers nothing."""
    if len(gpus) != 2:
        return []
    quantities = {"memory_bandwidth": "memory bandwidth", "fp16_tensor_fp32_accumulate": "FP16 arithmetic"}
    ratios = [(_ratio(gpus, name), text) for name, text in quantities.items()]
    low, high = (f"{value} ({text})" for value, text in sorted(ratios, key=lambda ratio: float(ratio[0] or 0)))
    return [f"by specification {gpus[1]} / {gpus[0]} is {low} to {high}; measure before you rent"]


def as_lines(grid: Grid) -> list[str]:
    """Return a table of sentences as lines of text, with the cells of a row one after the other."""
    return [grid.title, *(": ".join(filter(None, row)) for row in grid.rows)]


def _ratio(gpus: Sequence[str], quantity: str) -> str:
    """Format the second GPU's figure over the first's."""
    first, second = (specifications()[gpu].get(quantity) for gpu in gpus)
    return f"{second / first:.2f}" if first and second and quantity != "compute_capability" else ""

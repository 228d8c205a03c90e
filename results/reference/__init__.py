"""Reference data from other sources: GPUs, networks, published throughput and prices.

`gpus` resolves names of GPUs and has their specifications; `networks` the cost per sample and the names of networks;
`prices` the prices per GPU-hour; `gpu_comparison` compares specifications.

The data are the CSV files in this folder; `README.md` documents sources and resolved contradictions. Only
`measured.csv` was measured by tfbench.
"""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent

MIBI, GIBI = 1024**2, 1024**3


def read_rows(name: str | Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file; a name is relative to this folder."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def figures_in(row: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers of a row by column; empty cells and texts are left out."""
    return {name: float(text) for name, text in row.items() if re.fullmatch(r"[\d.]+", text)}


@functools.cache
def names(kind: str) -> tuple[tuple[str, str], ...]:
    """Return the names of a kind in `names.csv`, each with its meaning.

    Args:
        kind: `gpu`: names whose words differ from the reference's (`H200` is a family, but the driver's `NVIDIA H200`
            is the SXM); those without a meaning are real GPUs without figures, not misspellings of others. `network`:
            aliases, reduced to letters, digits and dots. `price file`: headings and their roles, the preferred ones
            first (source: SkyPilot's and gpuhunt's catalogs; the answers of Vast's, RunPod's and Lambda's APIs).
            `quantity`: names of the quantities of `gpu_specs.csv`, in the order of tables. `warning`: codes of
            warnings, each with its meaning and remedy. `metric`: metrics of devices; others have their own name.
    """
    return tuple((row["name"], row["meaning"]) for row in read_rows("names.csv") if row["kind"] == kind)


@functools.cache
def all_published() -> tuple[Mapping[str, str], ...]:
    """Return the published throughputs; `suspect` is `yes` if the source cannot be trusted.

    The last ones are of one software on nine GPUs, from A6000 to H100.
    """
    return (*read_rows("published.csv"), *read_rows("published_pytorch.csv"))

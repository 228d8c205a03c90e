"""Figures of others: GPUs, networks, published throughput and prices, each with its source.

`gpus` resolves names of GPUs and has their specifications, peaks and rooflines; `networks` what a sample of each
network costs, and which names networks go by; `prices` what a GPU-hour costs; `gpu_comparison` puts GPUs side by side.

The CSV files in this folder are the data; `README.md` has where they come from, which contradictions were found, and
how they were resolved. A figure of ours never comes from here.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent

MIBI, GIBI = 1024**2, 1024**3


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of this folder."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published() -> list[dict[str, str]]:
    """Return the published throughputs, row by row; `suspect` is `yes` where the source cannot be trusted."""
    return read_rows("published.csv")


@functools.cache
def all_published() -> tuple[Mapping[str, str], ...]:
    """Return those rows and the ones of `published_pytorch.csv`: one software on nine GPUs, from A6000 to H100."""
    return (*published(), *read_rows("published_pytorch.csv"))

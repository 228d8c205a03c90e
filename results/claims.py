"""A throughput table of whatever origin, read into claims: our merged table, a published CSV, long or wide.

gpu,model,precision,batch_per_gpu,gpus,images_per_s         Network,Precision,1 GPU,2 GPUs,4 GPUs,8 GPUs
RTX A4000,ResNet50,fp16,256,1,453                           ResNet50,FP16,453,892,1777,3524
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.errors import NotATable
from results.reference import gpu_key, model_key
from results.schema import TUNING

ALIASES = {
    "gpu": ("gpu", "gpu_name", "gpu_model", "card", "device_name"),
    "model": ("model", "network", "neural_network", "net"),
    "precision": ("precision", "dtype", "prec"),
    "batch": ("batch_per_gpu", "batch_size", "batch"),
    "count": ("num_gpus", "gpus", "gpu_count", "n_gpus", "number_of_gpus"),
    "rate": (
        "samples_per_second",
        "images_per_s",
        "images_per_second",
        "images_per_sec",
        "images_sec",
        "images_s",
        "img_s",
        "imgs_s",
        "throughput",
    ),
    "settings": (
        *("fleet", "host", "source", "framework", "xla", "batch_norm", "data", "mode", "unit", "image_size", "device"),
        *("sequence_length", "optimizer", "accumulate"),
        *("tensorflow", "keras", "cuda", "driver", "image_digest", "method_version", "variables", "launcher"),
        *("power_limit_watts", "cpu", "cpu_limit", "parameters", "warmup_steps", "num_steps"),
        *TUNING,
    ),
}
"""Headings by what they mean; compared in lower case with `_` for everything that is not a letter or digit."""

WIDE_HEADING = re.compile(r"(?:x|×)?(\d{1,4})(?:x|×)?_?(?:gpus?|cpus?)?")
"""Headings of a wide table: `1 GPU`, `8 GPUs`, `4`, `2x`."""


@dataclass(frozen=True)
class Claim:
    """One throughput that a table claims.

    Attributes:
        row: 0-based data row of the file.
        group: What table it belongs to: source, GPU and everything that is not in the other attributes.
        gpu: Name in `reference/gpu_specs.csv`; None when unknown there.
        gpu_text: Name as it came; empty without a column.
        model: Our name of the network.
        precision: `fp32`, `tf32`, `fp16`, `bf16`, or what came.
        strict: Whether fp32 surely means IEEE arithmetic, without TF32.
        batch: Samples per GPU and step; None when not told.
        count: Number of GPUs.
        rate: Samples per second over all GPUs.
        last_place: Unit of the last digit that was written.
    """

    row: int
    group: tuple[str, ...]
    gpu: str | None
    gpu_text: str
    model: str
    precision: str
    strict: bool
    batch: int | None
    count: int
    rate: float
    last_place: float

    @property
    def name(self) -> str:
        """The claim in words."""
        return f"{self.model} {self.precision} ×{self.count}"

    @property
    def rounding(self) -> float:
        """How far the written number may be from the measured one, relative to it."""
        return self.last_place / 2 / self.rate


def read_rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """Read a CSV file into its headings and rows of texts.

    Raises:
        NotATable: It cannot be read or has no heading.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotATable(f"{path}: cannot be read as CSV: {error}. Give a CSV file with a heading.") from error
    if not lines:
        raise NotATable(f"{path}: empty. Give a CSV file with a heading.")
    return [_heading(text) for text in lines[0]], lines[1:]


def read_claims(path: Path) -> list[Claim]:
    """Read the throughputs that a table claims; rows without a number are passed over.

    Raises:
        NotATable: No column of networks, or none of throughputs.
    """
    headings, rows = read_rows(path)
    columns = {name: _find(headings, aliases) for name, aliases in ALIASES.items()}
    wide = {i: int(m[1]) for i, h in enumerate(headings) if (m := WIDE_HEADING.fullmatch(h))}
    if not columns["model"] or not (columns["rate"] or wide):
        raise NotATable(
            f"{path}: needs a column 'model' and 'samples_per_second', or a column per GPU count ('1 GPU', '2 GPUs'). "
            f"Received: {', '.join(headings)}"
        )
    claims: list[Claim] = []
    above = ""
    for number, cells in enumerate(rows):
        cells = [*cells, *[""] * (len(headings) - len(cells))]
        above = _plain(cells[columns["model"][0]]) or above
        counts = {columns["rate"][0]: _whole(_first(cells, columns["count"])) or 1} if columns["rate"] else wide
        for column, count in counts.items():
            claim = _claim(number, above, count, cells[column], cells, headings, columns)
            claims += [claim] if claim else []
    return claims


def _claim(
    row: int,
    model: str,
    count: int,
    rate_text: str,
    cells: Sequence[str],
    headings: Sequence[str],
    columns: dict[str, list[int]],
) -> Claim | None:
    text = _plain(rate_text).replace(",", "")
    if not re.fullmatch(r"\d+(\.\d+)?([eE][-+]?\d+)?", text) or not math.isfinite(float(text)) or float(text) <= 0:
        return None
    precision_text = _first(cells, columns["precision"]).lower()
    gpu_text = _first(cells, columns["gpu"])
    settings = [f"{headings[i]}={cells[i].strip()}" for i in columns["settings"] if cells[i].strip()]
    return Claim(
        row=row,
        group=(gpu_text, *settings),
        gpu=gpu_key(gpu_text) if gpu_text else None,
        gpu_text=gpu_text,
        model=model_key(model),
        precision=_precision(precision_text),
        strict="tf32 off" in precision_text or _is_false(headings, cells, "tf32"),
        batch=_whole(_first(cells, columns["batch"])),
        count=count,
        rate=float(text),
        last_place=10.0 ** -len(text.partition(".")[2].partition("e")[0]),
    )


def _heading(text: str) -> str:
    return re.sub(r"[^a-z0-9×]+", "_", _plain(text).lower()).strip("_")


def _plain(text: str) -> str:
    """Take a cell out of its Markdown."""
    return text.replace("*", "").strip()


def _find(headings: Sequence[str], aliases: Iterable[str]) -> list[int]:
    return [headings.index(alias) for alias in aliases if alias in headings]


def _first(cells: Sequence[str], columns: Sequence[int]) -> str:
    return _plain(cells[columns[0]]) if columns else ""


def _whole(text: str) -> int | None:
    return int(float(text)) if re.fullmatch(r"\d{1,9}(\.0*)?", text) else None


def _precision(text: str) -> str:
    """Read a precision: `amp fp16` is fp16, `tf32 (default on in this build)` is tf32."""
    for name in ("tf32", "bf16", "fp16", "fp32"):
        if re.search(rf"\b{name}\b", text.replace("tf32 off", "")):
            return name
    return text


def _is_false(headings: Sequence[str], cells: Sequence[str], column: str) -> bool:
    return column in headings and cells[headings.index(column)].strip().lower() == "false"

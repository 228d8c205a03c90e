"""Old tables continued: the printed output of `tf_cnn_benchmarks`, read into rows of the published kind.

What it prints says nothing about validity, precision, GPU or repeats, so it never becomes a record: its rows are marked
foreign, stand beside measured ones (`show --foreign`), can be audited, and never share a cell with them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.errors import NotATable
from results.reference.gpus import gpu_key
from results.reference.networks import model_key

HEADINGS = (
    *("gpu", "model", "precision", "batch_per_gpu", "xla", "num_gpus", "samples_per_second", "unit", "framework"),
    *("suspect", "source", "url", "licence", "note"),
)
"""Columns of `reference/published.csv`, and of what `adopt` writes."""

FOREIGN = "foreign: validity unknown, printed by tf_cnn_benchmarks"

_FIELD = re.compile(r"^(TensorFlow|Model|Mode|Num batches|Devices|Variables):\s+(.*?)\s*$")
_GLOBAL_BATCH = re.compile(r"^Batch size:\s+(\d+)(?:\.0)? global")
_DEVICE_BATCH = re.compile(r"^\s+(\d+)(?:\.0)? per device")
_STEP = re.compile(r"^\d+\s+images/sec: [\d.]+ \+/- [\d.]+ \(jitter = [\d.]+\)\s+(\S+)")
_TOTAL = re.compile(r"^total images/sec: ([\d.]+)\s*$")


@dataclass
class _Run:
    """What one run has printed so far."""

    fields: dict[str, str]
    batch_per_gpu: str = ""
    global_batch: str = ""
    last_loss: str = ""


def adopt(paths: Sequence[Path], gpu: str, precision: str) -> str:
    """Return the runs found in files as CSV.

    Args:
        paths: What runs of `tf_cnn_benchmarks` printed; several runs in one file are kept apart.
        gpu: What they ran on: it is not printed.
        precision: `fp32`, `tf32` or `fp16`: neither is that.

    Raises:
        NotATable: A file cannot be read, or holds no finished run.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, HEADINGS, lineterminator="\n", restval="")
    writer.writeheader()
    for path in paths:
        rows = list(_rows(path))
        if not rows:
            raise NotATable(
                f"{path}: no finished run of tf_cnn_benchmarks: no line 'total images/sec: …' after 'Model: …'"
            )
        for row in rows:
            writer.writerow({**row, "gpu": gpu_key(gpu) or gpu, "precision": precision, "source": path.name})
    return text.getvalue()


def read_foreign(path: Path) -> list[dict[str, str]]:
    """Read what `adopt` has written.

    Raises:
        NotATable: It cannot be read, or is something else.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise NotATable(f"{path}: cannot be read as CSV: {error}") from error
    if tuple(reader.fieldnames or ()) != HEADINGS:
        raise NotATable(f"{path}: needs the columns {', '.join(HEADINGS)}, as `adopt` writes them")
    return rows


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise NotATable(f"{path}: cannot be read: {error.strerror}") from error
    run = _Run({})
    for line in lines:
        if match := _FIELD.match(line):
            # A new run begins with its TensorFlow version; what an unfinished one left is dropped with it.
            run = _Run({}) if match[1] == "TensorFlow" else run
            run.fields[match[1]] = match[2]
        elif match := _GLOBAL_BATCH.match(line):
            run.global_batch = match[1]
        elif match := _DEVICE_BATCH.match(line):
            run.batch_per_gpu = match[1]
        elif match := _STEP.match(line):
            run.last_loss = match[1]
        elif (match := _TOTAL.match(line)) and "Model" in run.fields:
            yield _row(run, match[1])
            run = _Run({})


def _row(run: _Run, total: str) -> dict[str, str]:
    fields = run.fields
    devices = re.findall(r"'([^']+)'", fields.get("Devices", ""))
    doubts = []
    if run.last_loss.lower() in ("nan", "inf", "-inf"):
        doubts.append(f"the loss was {run.last_loss}")
    if any("job:worker" in device for device in devices):
        doubts.append("one worker of several: its total is neither its own nor the sum")
    if fields.get("Mode", "training") != "training":
        doubts.append(f"mode {fields['Mode']}, not training")
    details = [
        FOREIGN,
        *doubts,
        f"{fields.get('Num batches', '?')} batches",
        f"variables {fields.get('Variables', '?')}",
    ]
    return {
        "model": model_key(fields["Model"]),
        "batch_per_gpu": run.batch_per_gpu,
        "num_gpus": str(len(devices) or 1),
        "samples_per_second": total,
        "unit": "images",
        "framework": f"tf_cnn_benchmarks, TensorFlow {fields.get('TensorFlow', '?')}",
        "suspect": "yes" if doubts else "",
        "note": "; ".join(details),
    }

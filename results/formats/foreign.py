"""Figures of others beside measured ones: always in a table of their own, always labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from results.grid import Grid
from results.reference.gpus import gpu_key
from results.table.merge import Merged


def foreign_grid(title: str, rows: Sequence[Mapping[str, str]], merged: Merged) -> Grid:
    """Return figures of others for the networks and precisions that were measured.

    Args:
        title: What they are; the label that they are not measured here is added.
        rows: As `reference/published.csv` has them.
        merged: What was measured. Where it has GPUs that the rows know, only these are shown.
    """
    networks = {row.case.model for row in merged.rows}
    models = networks | {f"{model}_v1.5" for model in networks}
    measured = {gpu_key(row.software.gpu) or row.software.gpu for row in merged.rows if row.software.gpu is not None}
    gpus = measured & {row["gpu"] for row in rows} or {row["gpu"] for row in rows}
    fitting = [row for row in rows if row["model"] in models and row["gpu"] in gpus]
    counts = sorted({int(row["num_gpus"]) for row in fitting})
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for row in fitting:
        xla = f", xla {row['xla']}" if row["xla"] else ""
        key = (
            row["gpu"],
            row["model"],
            row["precision"],
            row["batch_per_gpu"],
            f"{row['framework']}{xla}",
            row["source"],
        )
        mark = " ?" if row["suspect"] else ""
        lines.setdefault(key, {})[int(row["num_gpus"])] = f"{row['samples_per_second']}{mark}"
    cells = [[*key, *(of_counts.get(count, "") for count in counts)] for key, of_counts in sorted(lines.items())]
    columns = ["GPU", "network", "precision", "batch>", "software", "source", *(f"{count} GPU>" for count in counts)]
    notes = ["not measured by tfbench: one run each, no interval, other software; ? is suspect, see the audit"]
    return Grid(f"{title} - NOT MEASURED HERE", columns, cells, notes).without_empty_columns()

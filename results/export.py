"""The merged table as a text in one of several formats; columns as in `docs/table.md`, in their order."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from results.grid import markdown
from results.report.comparison import ratio_grids
from results.report.tables import result_grids, wide_grids
from results.schema import DeviceResult, Record
from results.table.cells import table_csv
from results.table.merge import Merged

TABLE_VERSION = 1
"""Changes when a column is removed or changes its meaning."""


def to_csv(merged: Merged) -> str:
    """Return the table as CSV, in which no text is a formula to a spreadsheet."""
    return table_csv(merged.table)


def to_json(merged: Merged) -> str:
    """Return the table as JSON: rows as objects, empty cells as null, and what is not in the table."""
    rows = json.loads(merged.table.to_json(orient="records", double_precision=15))
    devices = [_placed(record, result) for record in merged.devices for result in record.device_results]
    document = {"table_version": TABLE_VERSION, "problems": merged.problems, "rows": rows, "devices": devices}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _placed(record: Record, result: DeviceResult) -> dict[str, Any]:
    """Return a device's result with where it was measured."""
    origin = record.origin
    place = {"fleet": origin.fleet, "host": origin.host, "repeat": origin.repeat} if origin else {}
    return {**place, **asdict(result)}


def to_markdown(merged: Merged) -> str:
    """Return the results, each fleet's table and the ratios as Markdown."""
    grids = [*result_grids(merged), *wide_grids(merged), *ratio_grids(merged)]
    return "\n".join(markdown(grid) for grid in grids)


def to_wide_markdown(merged: Merged) -> str:
    """Return each fleet's table as Markdown: a row per network and precision, a column per GPU count."""
    return "\n".join(markdown(grid) for grid in wide_grids(merged))


WRITERS: dict[str, Callable[[Merged], str]] = {
    "csv": to_csv,
    "json": to_json,
    "markdown": to_markdown,
    "wide": to_wide_markdown,
}
"""What is text, by the name that `--format` takes."""

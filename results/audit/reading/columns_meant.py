"""Which column of a published table is what: by its heading, else by what its cells look like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from results.audit.reading.headings import (
    ALIASES,
    Facets,
    find_gpus,
    heading_key,
    is_metric,
    is_rate_heading,
    known_model,
    plain,
    read_count,
    read_facets,
)
from results.audit.reading.numerals import Refusal, read_number
from results.audit.reading.raw_tables import RawTable

MOST_GPUS = 4096
"""A heading that is a larger number is no number of GPUs."""

LOOKS_LIKE = 0.5
"""Share of a column's cells that must be networks, or GPUs, to make it one of them without a heading that says so."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a table mean.

    Attributes:
        roles: Column by `gpu`, `model`, `precision`, `batch`, `count`, `hosts` or `label` (several in one cell).
        settings: Column by the name of a setting.
        values: What the heading says of each column of throughputs.
        ignored: Headings of the columns that are none of these.
        long: Whether one column holds all throughputs.
    """

    roles: dict[str, int]
    settings: dict[str, int]
    values: dict[int, Facets]
    ignored: list[str]
    long: bool


def meant_columns(table: RawTable, context: Facets) -> Columns | None:
    """Return what the columns of a table mean; None when it has no throughputs of networks."""
    roles = _roles_by_heading(table)
    settings = {key: i for i, text in enumerate(table.headings) if (key := heading_key(text)) in ALIASES["settings"]}
    left = [i for i in range(len(table.headings)) if i not in {*roles.values(), *settings.values()}]
    values = _values(table, left)
    for column in left:
        role = _role_by_cells(table, column) if column not in values else None
        if role and role not in roles:
            roles[role] = column
    rates = [i for i in left if i not in roles.values() and is_rate_heading(table.headings[i])]
    if rates:
        values = {rates[0]: Facets()}
    named = "model" in roles or context.model or any(facets.model for facets in values.values())
    if not values or not (named or "label" in roles):
        return None
    known = {*roles.values(), *settings.values(), *values}
    ignored = [plain(text) for i, text in enumerate(table.headings) if i not in known and text.strip()]
    return Columns(roles, settings, values, ignored, long=list(values.values()) == [Facets()])


def _roles_by_heading(table: RawTable) -> dict[str, int]:
    roles: dict[str, int] = {}
    for i, heading in enumerate(table.headings):
        key = heading_key(heading)
        for role in ("gpu", "count"):
            if key in ALIASES[role]:
                # `GPUs` may head names or numbers, and either may be called just `GPU`.
                counts = _share(table, i, lambda cell: read_count(cell) is not None)
                looks_like = "count" if counts >= LOOKS_LIKE and not _share(table, i, _is_gpu) else role
                if role == "count" and counts < LOOKS_LIKE and _share(table, i, _is_gpu) >= LOOKS_LIKE:
                    looks_like = "gpu"
                roles.setdefault(looks_like, i)
                break
        for role in ("model", "precision", "batch", "hosts"):
            if key in ALIASES[role]:
                roles.setdefault(role, i)
    return roles


def _values(table: RawTable, columns: Sequence[int]) -> dict[int, Facets]:
    """Return the columns whose headings say which throughputs stand below them."""
    bare = [i for i in columns if _bare_count(table.headings[i])]
    found = {}
    for i in columns:
        heading = table.headings[i]
        count = _bare_count(heading) if len(bare) > 1 else None
        facets = Facets(count=count) if count else read_facets(heading)
        measured = not is_metric(heading) and not facets.rest and _share(table, i, _is_numeric) > 0
        if facets.says_something and measured and (count or not _is_text(table, i)):
            found[i] = facets
    return found


def _bare_count(heading: str) -> int | None:
    """Read a heading that is a number of GPUs and nothing else: `1`, `8`, `2x`, `2×4 GPU`."""
    count = read_count(heading)
    return count if count and count <= MOST_GPUS else None


def _role_by_cells(table: RawTable, column: int) -> str | None:
    """Say what a column is by its cells: networks, GPUs, precisions, or several of them in one cell."""
    if is_metric(table.headings[column]) or is_rate_heading(table.headings[column]):
        return None
    facets = [read_facets(row[column]) for row in table.rows if row[column].strip()]
    if not facets:
        return None
    shares = {
        "model": sum(known_model(found.model) or bool(found.model) for found in facets) / len(facets),
        "gpu": sum(bool(found.gpu) for found in facets) / len(facets),
        "precision": sum(bool(found.precision) for found in facets) / len(facets),
    }
    said = [role for role, share in shares.items() if share >= LOOKS_LIKE]
    if len(said) > 1:
        return "label"
    if said:
        return said[0]
    counts = sum(found.count is not None and not found.rest for found in facets) / len(facets)
    return "count" if counts >= LOOKS_LIKE else None


def _share(table: RawTable, column: int, test: Callable[[str], bool]) -> float:
    cells = [row[column] for row in table.rows if row[column].strip()]
    return sum(map(test, cells)) / len(cells) if cells else 0.0


def _is_gpu(cell: str) -> bool:
    return bool(find_gpus(cell)) or bool(read_facets(cell).gpu)


def _is_numeric(cell: str) -> bool:
    """Return whether a cell has a digit, so that it is a number or should have been one."""
    return any(character.isdigit() for character in cell)


def _is_text(table: RawTable, column: int) -> bool:
    """Return whether most cells of a column are names rather than numbers: then it is a label, whatever its heading."""
    cells = [row[column] for row in table.rows if row[column].strip()]
    named = [
        cell for cell in cells if isinstance(read_number(cell, None), Refusal) and read_facets(cell).says_something
    ]
    return len(named) > len(cells) / 2

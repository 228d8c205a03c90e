"""Reads tables of files as texts, for audits and prices: CSV of any delimiter, Markdown, boxes, aligned columns."""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from results.errors import NotATable

DELIMITERS = ",;\t|"

MOST_BYTES = 32 * 1024 * 1024
"""Maximum size of a file; published tables are smaller."""

LINES_ABOVE, LINES_BELOW = 3, 6
"""Number of lines around a Markdown table that belong to its context."""

TITLES = ("#", "**", "<details", "</details")
"""Starts of a Markdown line that is a title, or begins or ends a collapsed part."""

_RULE = re.compile(r"(?=.*[-=─━═])[-+=|:\s\u2500-\u257f]+")
_VERTICALS = str.maketrans(dict.fromkeys("│┃║┆┇┊┋╎╏", "|"))
_TYPES = re.compile(r"-{3}|str|bool|cat|[fiu]\d{1,2}|object|float64|int64|text|numeric")
"""Cells of a row that has the types of columns, as polars prints it."""


Texts = Sequence[str]


class RawTable(NamedTuple):
    """One table as texts.

    Attributes:
        headings: Headings as in the file.
        rows: Rows padded to the width of the headings.
        title: Text above it.
        context: Text around it.
        commas: Whether its delimiter is a comma.
    """

    headings: Texts
    rows: Sequence[Texts]
    title: str = ""
    context: str = ""
    commas: bool = False


def tables_of(text: str, path: Path) -> list[RawTable]:
    """Return all tables of the text of a file; `path` names it in messages.

    Raises:
        NotATable: It has no table.
    """
    lines = text.splitlines(keepends=True)
    found = [*_piped(lines)]
    if not found and re.search(r"<table[\s>]", text, re.IGNORECASE):
        raise NotATable(f"{path}: HTML. Copy the table in a browser and paste it into a text file.")
    found = [table for table in found or _delimited(lines, path) if table.rows]
    if not found:
        raise NotATable(f"{path}: no table in it. Give CSV, TSV or Markdown with a heading.")
    return found


def read_text(path: Path) -> str:
    """Read a text in any usual encoding.

    Raises:
        NotATable: It cannot be read, or is not a text.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise NotATable(f"{path}: cannot be read: {error.strerror}. Give a file with a table.") from error
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", errors="replace")
    if "\0" in text or len(data) > MOST_BYTES:
        raise NotATable(f"{path}: not a text of at most {MOST_BYTES >> 20} MiB. Give CSV, TSV or Markdown.")
    return text


def heading_key(text: str) -> str:
    """Normalise a heading: `AcceleratorName` becomes `accelerator_name`, `$/GPU hr` becomes `usd_gpu_hr`."""
    for sign, name in (("$", " usd "), ("€", " eur "), ("£", " gbp ")):
        text = text.replace(sign, name)
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return re.sub(r"[^a-z0-9]+", "_", split.lower()).strip("_")


def _table(rows: Sequence[Texts], title: Texts, notes: Texts = (), commas: bool = False) -> RawTable:
    """Build a table, padding short rows, and headings if rows are longer, without empty rows and those of types."""
    width = max(map(len, rows))
    headings, *filled = [(*row, *[""] * (width - len(row))) for row in rows]
    used = [row for row in filled if not all(not cell.strip() or _TYPES.fullmatch(cell.strip()) for cell in row)]
    return RawTable(headings, used, "\n".join(title), "\n".join([*title, *notes]), commas)


def _piped(lines: Sequence[str]) -> Iterator[RawTable]:
    """Yield tables of Markdown, and drawn ones: rows with `|` or `│`, and a rule below the headings."""
    tables: list[list[list[str]]] = []
    texts: list[list[str]] = [[]]  # above, between and below the tables
    drawn = (line.translate(_VERTICALS) for line in lines)
    for in_table, part in itertools.groupby(drawn, lambda line: "|" in line or _RULE.fullmatch(line) is not None):
        block = [*part]
        rules = [_RULE.fullmatch(line) is not None for line in block]
        below = next((i for i in range(1, len(block)) if rules[i] and not rules[i - 1]), 0) if in_table else 0
        rows = [i for i, line in enumerate(block) if line.strip() and not rules[i]]
        texts[-1] += [block[i] for i in rows if not below or i < below - 1]
        if below:
            tables.append([_pipe_cells(block[i]) for i in rows if i >= below - 1])
            texts.append([])
    for rows_of, above, under in zip(tables, texts, texts[1:], strict=False):
        heading = next((i for i, line in enumerate(above) if line.startswith(TITLES)), 0)
        notes = itertools.takewhile(lambda line: not line.startswith(TITLES), under[:LINES_BELOW])
        yield _table(rows_of, above[heading:][-LINES_ABOVE:], [*notes])


def _pipe_cells(line: str) -> list[str]:
    text = line.strip().removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith("\\|") else text
    return [re.sub(r"\\([\\|<>*_`\[\]])", r"\1", cell).strip() for cell in re.split(r"(?<!\\)\|", text)]


def _delimited(lines: Sequence[str], path: Path) -> list[RawTable]:
    """Parse with the delimiter, or runs of spaces, that gives the most rows of equal width."""
    data = [line for line in lines if line.strip() and not line.startswith("#") and not _RULE.fullmatch(line)]
    csv.field_size_limit(MOST_BYTES)
    choices = {mark: [row for row in csv.reader(data, delimiter=mark) if any(row)] for mark in DELIMITERS}
    choices["  "] = [re.split(r"\s{2,}", line.strip()) for line in data]
    mark, records = max(choices.items(), key=lambda choice: _regularity(choice[1]))
    usual = Counter(map(len, records)).most_common(1)[0][0] if records else 0
    wide = [i for i, record in enumerate(records) if sum(map(bool, record)) > 1]
    start = next((i for i in wide if len(records[i]) >= usual - 1), wide[0] if wide else 0)
    title = [" ".join(filter(None, record)) for record in records[:start]]
    for number, record in enumerate(records[start + 1 :]):
        if mark == "," and any(record[len(records[start]) :]):
            raise NotATable(
                f"{path}: row {number} has {len(record)} cells, but there are {len(records[start])} headings. "
                f'Put numbers with commas in quotes ("1,029"). Received: {",".join(record)[:100]}'
            )
    if mark == "  " and records and len(records[start]) == usual - 1:
        records[start] = ["", *records[start]]  # pandas prints row labels without a heading
    return [_table(records[start:], title, commas=mark == ",")] if records else []


def _regularity(records: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Return the share of records with the most common width (0 if that is 1), and the width."""
    widths = Counter(map(len, records))
    width = max(widths, key=lambda width: (widths[width], width), default=0)
    return (widths[width] / len(records), width) if width > 1 else (0.0, 0)

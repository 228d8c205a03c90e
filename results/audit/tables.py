"""Reads the tables of a file as texts: CSV with any delimiter, Markdown, or columns separated by spaces."""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from results.errors import NotATable

DELIMITERS = ",;\t|"

MOST_BYTES = 32 * 1024 * 1024
"""Maximum size of a file; published tables are smaller."""

LINES_ABOVE, LINES_BELOW = 3, 6
"""Number of lines around a Markdown table that belong to its context."""

TITLES = ("#", "**", "<details", "</details")
"""Starts of a Markdown line that is a title, or begins or ends a collapsed part."""

_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")


@dataclass(frozen=True)
class RawTable:
    """One table as texts.

    Attributes:
        headings: Headings as in the file.
        rows: Rows padded to the width of the headings.
        context: Text around it: title, notes.
        commas: Whether its delimiter is a comma.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    context: str = ""
    commas: bool = False


def read_tables(path: Path) -> list[RawTable]:
    """Read all tables of a file.

    Raises:
        NotATable: It cannot be read, is not a text file, or has no table.
    """
    text = _read_text(path)
    lines = text.splitlines(keepends=True)
    found = [*_markdown(lines)]
    if not found and re.search(r"<table[\s>]", text, re.IGNORECASE):
        raise NotATable(f"{path}: HTML. Copy the table in a browser and paste it into a text file.")
    try:
        found = [table for table in found or _delimited(lines) if table.rows]
    except csv.Error as error:
        raise NotATable(f"{path}: cannot be read as CSV: {error}") from error
    if not found:
        raise NotATable(f"{path}: no table in it. Give CSV, TSV or Markdown with a heading.")
    return found


def _read_text(path: Path) -> str:
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


def _table(rows: Sequence[Sequence[str]], context: Sequence[str], *, commas: bool = False) -> RawTable:
    """Build a table, padding short rows, and headings if rows are longer."""
    width = max(map(len, rows))
    headings, *filled = [(*row, *[""] * (width - len(row))) for row in rows]
    return RawTable(headings, tuple(row for row in filled if any(map(str.strip, row))), "\n".join(context), commas)


def _markdown(lines: Sequence[str]) -> Iterator[RawTable]:
    """Yield the pipe tables of GitHub Markdown. Source: GitHub Flavored Markdown Spec 0.29, section 4.10."""
    starts = [i for i, (line, rule) in enumerate(itertools.pairwise(lines)) if "|" in line and _is_rule(rule)]
    above = 0
    for start in starts:
        if start < above:
            continue  # a rule within the previous table
        end = next((i for i in range(start + 2, len(lines)) if "|" not in lines[i]), len(lines))
        rows = [_pipe_cells(line) for line in (lines[start], *lines[start + 2 : end])]
        title = [line for line in lines[above:start] if line.strip()]
        heading = next((i for i, line in enumerate(title) if above and line.startswith(TITLES)), 0)
        title = title[heading:][-LINES_ABOVE:]  # what precedes a title are the notes of the table above
        yield _table(rows, [*title, *_notes(lines[end:])])
        above = end


def _notes(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines below a table until another title or table starts."""
    for number, line in enumerate([line for line in lines if line.strip()][:LINES_BELOW]):
        if line.startswith((*TITLES, "|")) or (number and "|" in line):
            return
        yield line


def _is_rule(line: str) -> bool:
    return "-" in line and _RULE.fullmatch(line) is not None


def _pipe_cells(line: str) -> list[str]:
    text = line.strip().removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith("\\|") else text
    return [re.sub(r"\\([\\|<>*_`\[\]])", r"\1", cell).strip() for cell in re.split(r"(?<!\\)\|", text)]


def _delimited(lines: Sequence[str]) -> list[RawTable]:
    """Parse with the delimiter, or runs of spaces, that gives the most rows of equal width."""
    data = [line for line in lines if line.strip() and not line.startswith("#")]
    choices = {mark: [row for row in csv.reader(data, delimiter=mark) if any(row)] for mark in DELIMITERS}
    choices["  "] = [re.split(r"\s{2,}", line.strip()) for line in data]
    mark, records = max(choices.items(), key=lambda choice: _regularity(choice[1]))
    start = next((i for i, record in enumerate(records) if sum(map(bool, record)) > 1), 0)
    title = [cell for record in records[:start] for cell in record if cell]
    return [_table(records[start:], title, commas=mark == ",")] if records else []


def _regularity(records: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Return the share of records with the most common width (0 if that is 1), and the width."""
    widths = Counter(map(len, records))
    width = max(widths, key=lambda width: (widths[width], width), default=0)
    return (widths[width] / len(records), width) if width > 1 else (0.0, 0)

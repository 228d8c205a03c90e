"""Reads the tables of a file as texts: CSV of any delimiter, Markdown, drawn boxes, columns aligned by spaces."""

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
_DRAWN_RULE = re.compile(r"(?=.*[-=─━═]{3})[-+=|:\s\u2500-\u257f]+")
_VERTICALS = str.maketrans(dict.fromkeys("│┃║┆┇┊┋╎╏", "|"))
_ROW_COUNT = re.compile(r"[(\[]\d+ rows?\b.*[)\]]\s*")
_TYPES = re.compile(r"-{3}|str|bool|cat|[fiu]\d{1,2}|object|float64|int64|text|numeric")
"""Cells of a row that has the types of columns, as polars prints it."""
_FOR_EXCEL = re.compile(r"sep=.\s*", re.IGNORECASE)
"""First line of a CSV file that names its delimiter to Excel."""


@dataclass(frozen=True)
class RawTable:
    """One table as texts.

    Attributes:
        headings: Headings as in the file.
        rows: Rows padded to the width of the headings.
        title: Text above it.
        notes: Text below it.
        commas: Whether its delimiter is a comma.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    notes: str = ""
    commas: bool = False

    @property
    def context(self) -> str:
        """Text around it."""
        return f"{self.title}\n{self.notes}".strip("\n")


def read_tables(path: Path) -> list[RawTable]:
    """Read all tables of a file.

    Raises:
        NotATable: It cannot be read, is not a text file, or has no table.
    """
    text = _read_text(path)
    lines = text.splitlines(keepends=True)
    found = [*_markdown([*_with_rules_of_markdown(lines)])]
    if not found and re.search(r"<table[\s>]", text, re.IGNORECASE):
        raise NotATable(f"{path}: HTML. Copy the table in a browser and paste it into a text file.")
    try:
        found = [table for table in found or _delimited(lines, path) if table.rows]
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


def _table(
    rows: Sequence[Sequence[str]],
    title: Sequence[str],
    notes: Sequence[str] = (),
    *,
    commas: bool = False,
    aligned: bool = False,
) -> RawTable:
    """Build a table, padding short rows, and headings if rows are longer."""
    headings, *cells = rows
    width = max(map(len, rows))
    numbers = [str(number) for number in range(len(cells) + 1)]
    numbered = [row[0] for row in cells] in (numbers[:-1], numbers[1:])
    if {len(row) for row in cells} == {len(headings) + 1} and (aligned or numbered):
        headings = ["", *headings]  # pandas and R print row labels without a heading
    filled = [(*row, *[""] * (width - len(row))) for row in (headings, *cells)]
    used = tuple(
        row for row in filled[1:] if not all(not cell.strip() or _TYPES.fullmatch(cell.strip()) for cell in row)
    )
    return RawTable(filled[0], used, "\n".join(title), "\n".join(notes), commas)


def _with_rules_of_markdown(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines with tables drawn with `+---+`, `│` or `━` as Markdown: one rule, below the headings."""
    before, below_rule = "", False
    for line in lines:
        text = line.translate(_VERTICALS)
        if not _DRAWN_RULE.fullmatch(text):
            below_rule &= "|" in text
            before = text
            yield text
        elif "|" in before.strip(" |\n") and not below_rule:
            below_rule = True
            yield "|---|\n"
        elif _is_rule(text):
            yield text


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
        yield _table(rows, title, [*_notes(lines[end:])])
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


def _delimited(lines: Sequence[str], path: Path) -> list[RawTable]:
    """Parse with the delimiter, or runs of spaces, that gives the most rows of equal width."""
    data = [
        line
        for line in lines
        if line.strip() and not line.startswith("#") and not (_DRAWN_RULE.fullmatch(line) or _ROW_COUNT.fullmatch(line))
    ]
    data = data[1:] if data and _FOR_EXCEL.fullmatch(data[0]) else data
    choices = {mark: [row for row in csv.reader(data, delimiter=mark) if any(row)] for mark in DELIMITERS}
    choices["  "] = [re.split(r"\s{2,}", line.strip()) for line in data]
    mark, records = max(choices.items(), key=lambda choice: _regularity(choice[1]))
    usual = Counter(map(len, records)).most_common(1)[0][0] if records else 0
    wide = [i for i, record in enumerate(records) if sum(map(bool, record)) > 1]
    start = next((i for i in wide if len(records[i]) >= usual - 1), wide[0] if wide else 0)
    title = [" ".join(filter(None, record)) for record in records[:start]]
    if mark == ",":
        _refuse_cells_without_heading(records[start:], path)
    return [_table(records[start:], title, commas=mark == ",", aligned=mark == "  ")] if records else []


def _refuse_cells_without_heading(records: Sequence[Sequence[str]], path: Path) -> None:
    """Refuse rows with more cells than headings, as of numbers with commas that are not in quotes."""
    for number, record in enumerate(records[1:]):
        if any(record[len(records[0]) :]):
            raise NotATable(
                f"{path}: row {number} has {len(record)} cells, but there are {len(records[0])} headings. "
                f'Put numbers with commas in quotes ("1,029"). Received: {",".join(record)[:100]}'
            )


def _regularity(records: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Return the share of records with the most common width (0 if that is 1), and the width."""
    widths = Counter(map(len, records))
    width = max(widths, key=lambda width: (widths[width], width), default=0)
    return (widths[width] / len(records), width) if width > 1 else (0.0, 0)

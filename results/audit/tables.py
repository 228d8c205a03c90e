"""The tables of a file as texts, whatever it is: CSV of any delimiter and encoding, Markdown, HTML, aligned columns."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from results.errors import NotATable

CONTEXT_TEXTS = 3
"""Headings and paragraphs above a table that may speak of it."""

MOST_SPANNED = 64
"""Cells that one cell may span; HTML allows 1000, and a page must not fill the memory."""

_AROUND = ("h1", "h2", "h3", "h4", "h5", "h6", "p", "caption", "figcaption", "title")


@dataclass
class HtmlTable:
    """One table: rows of texts, the heading first, with spans repeated into every cell they cover."""

    rows: list[list[str]]
    context: str


@dataclass
class _Open:
    """A table that is being read."""

    rows: list[list[str]] = field(default_factory=list)
    header_rows: int = 0
    row: list[str] | None = None
    row_is_header: bool = True
    spans: dict[int, tuple[int, str]] = field(default_factory=dict)  # column → rows left, text
    cell: list[str] | None = None
    size: tuple[int, int] = (1, 1)  # columns and rows that the open cell covers


def html_tables(text: str) -> list[HtmlTable]:
    """Return the tables of a page; a nested table is read by itself.

    Several heading rows (a GPU above its GPU counts) become one, their texts joined from top to bottom.
    """
    parser = _Tables()
    parser.feed(text)
    parser.close()
    return parser.finished()


class _Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[_Open] = []
        self._found: list[HtmlTable] = []
        self._around: deque[str] = deque(maxlen=CONTEXT_TEXTS)
        self._text: list[str] | None = None
        self._skipped = 0

    def finished(self) -> list[HtmlTable]:
        while self._open:
            self._end_table()
        return self._found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "sup"):
            self._skipped += 1
        elif tag == "table":
            self._open.append(_Open())
        elif tag in _AROUND and (not self._open or tag == "caption"):
            self._text = []
        elif tag == "br":
            self.handle_data(" ")
        elif self._open and tag == "tr":
            self._end_row()
            self._open[-1].row, self._open[-1].row_is_header = [], True
        elif self._open and tag in ("td", "th"):
            self._end_cell()
            table = self._open[-1]
            table.row = [] if table.row is None else table.row
            table.row_is_header = table.row_is_header and tag == "th"
            values = dict(attrs)
            table.cell, table.size = [], (_span(values.get("colspan")), _span(values.get("rowspan")))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "sup"):
            self._skipped = max(0, self._skipped - 1)
        elif tag == "table" and self._open:
            self._end_table()
        elif tag in _AROUND and self._text is not None:
            self._around.append(" ".join("".join(self._text).split()))
            self._text = None
        elif self._open and tag in ("td", "th"):
            self._end_cell()
        elif self._open and tag in ("tr", "thead", "tbody"):
            self._end_row()

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return  # a footnote mark in <sup> is no digit of the number before it
        if self._open and self._open[-1].cell is not None:
            self._open[-1].cell.append(data)
        elif self._text is not None:
            self._text.append(data)

    def _end_cell(self) -> None:
        table = self._open[-1]
        if table.cell is None or table.row is None:
            return
        text = " ".join("".join(table.cell).split())
        _fill_spans(table)
        columns, rows = table.size
        for _ in range(columns):
            if rows > 1:
                table.spans[len(table.row)] = (rows - 1, text)
            table.row.append(text)
        table.cell = None

    def _end_row(self) -> None:
        self._end_cell()
        table = self._open[-1]
        if table.row is None:
            return
        _fill_spans(table)
        if table.row:
            if table.row_is_header and table.header_rows == len(table.rows):
                table.header_rows += 1
            table.rows.append(table.row)
        table.row = None

    def _end_table(self) -> None:
        self._end_row()
        table = self._open.pop()
        heads = table.rows[: table.header_rows] if table.header_rows < len(table.rows) else table.rows[:1]
        width = max((len(row) for row in heads), default=0)
        columns = [[row[i] for row in heads if i < len(row)] for i in range(width)]
        heading = [" ".join(dict.fromkeys(text for text in column if text)) for column in columns]
        context = "\n".join(text for text in self._around if text)
        self._found.append(HtmlTable([heading, *table.rows[len(heads) :]], context))


def _fill_spans(table: _Open) -> None:
    """Put the cells in that rows above reach down into."""
    row = table.row
    while row is not None and len(row) in table.spans:
        column = len(row)
        left, text = table.spans.pop(column)
        if left > 1:
            table.spans[column] = (left - 1, text)
        row.append(text)


def _span(text: str | None) -> int:
    return min(int(text), MOST_SPANNED) if text and text.strip().isdigit() and int(text) > 0 else 1


DELIMITERS = ",;\t|"

MOST_BYTES = 32 * 1024 * 1024
"""A table that people publish is smaller; what is larger is some other file."""

BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

NOTES_BELOW = 6
"""Lines below a Markdown table that may speak of it."""

_RULE = re.compile(r"\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*")


@dataclass(frozen=True)
class RawTable:
    r"""One table as texts.

    Attributes:
        kind: `csv,`, `csv;`, `csv\t`, `csv|`, `markdown`, `html` or `aligned`.
        headings: As they stand in the file.
        rows: As wide as the headings, filled up with empty texts.
        context: What stands around it: caption, title, notes.
    """

    kind: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    context: str = ""


def read_tables(path: Path) -> list[RawTable]:
    """Read all tables of a file.

    Raises:
        NotATable: It cannot be read, is no text, or holds no table.
    """
    try:
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise NotATable(f"{path}: larger than {MOST_BYTES >> 20} MiB. Give a table of throughputs.")
        data = path.read_bytes()
    except OSError as error:
        raise NotATable(f"{path}: cannot be read: {error.strerror}. Give a file with a table.") from error
    text = _decoded(data, path)
    try:
        tables = _tables(text)
    except csv.Error as error:
        raise NotATable(f"{path}: cannot be read as CSV: {error}") from error
    found = [table for table in tables if len(table.headings) > 1 or table.rows]
    if not found:
        raise NotATable(f"{path}: no table in it. Give CSV, TSV, Markdown or HTML with a heading.")
    return found


def _decoded(data: bytes, path: Path) -> str:
    encoding = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if encoding is None and data.count(0) > len(data) // 4:
        encoding = "utf-16-le" if data[1:2] == b"\0" else "utf-16-be"
    try:
        text = data.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        if encoding is not None:
            raise NotATable(f"{path}: not valid {encoding}: {error.reason}. Save it as UTF-8.") from error
        text = data.decode("cp1252", errors="replace")
    if "\0" in text:
        raise NotATable(f"{path}: not a text file. Give CSV, TSV, Markdown or HTML.")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _tables(text: str) -> list[RawTable]:
    if re.search(r"<table[\s>]", text, re.IGNORECASE):
        return [
            _table("html", found.rows[0], found.rows[1:], found.context) for found in html_tables(text) if found.rows
        ]
    lines = text.split("\n")
    if any("|" in lines[i] and _is_rule(lines[i + 1]) for i in range(len(lines) - 1)):
        return list(_markdown(lines))
    return _delimited(text)


def _table(kind: str, headings: Sequence[str], rows: Sequence[Sequence[str]], context: str = "") -> RawTable:
    """Fill up rows that are too short; what a row has beyond the headings gets a column without a heading."""
    width = max([len(headings), *(len(row) for row in rows)])
    filled = [(*row, *[""] * (width - len(row))) for row in rows if any(cell.strip() for cell in row)]
    return RawTable(kind, (*headings, *[""] * (width - len(headings))), tuple(filled), context)


def _markdown(lines: Sequence[str]) -> Iterator[RawTable]:
    """Yield the pipe tables of GitHub Markdown. Source: GitHub Flavored Markdown Spec 0.29, section 4.10."""
    above: list[str] = []
    number = 0
    while number < len(lines):
        is_table = "|" in lines[number] and number + 1 < len(lines) and _is_rule(lines[number + 1])
        if not is_table:
            above.append(lines[number])
            number += 1
            continue
        end = number + 2
        while end < len(lines) and "|" in lines[end]:
            end += 1
        rows = [_pipe_cells(line) for line in lines[number + 2 : end]]
        context = [line for line in above if line.strip()][-3:] + list(_notes(lines[end:]))
        yield _table("markdown", _pipe_cells(lines[number]), rows, "\n".join(context))
        above, number = [], end


def _notes(lines: Sequence[str]) -> Iterator[str]:
    """Yield what stands below a table until another title or table begins."""
    for number, line in enumerate([line for line in lines if line.strip()][:NOTES_BELOW]):
        if line.startswith(("#", "**", "|")) or (number and "|" in line):
            return
        yield line


def _is_rule(line: str) -> bool:
    return "-" in line and _RULE.fullmatch(line) is not None


def _pipe_cells(line: str) -> list[str]:
    text = line.strip().removeprefix("|")
    text = text[:-1] if text.endswith("|") and not text.endswith("\\|") else text
    return [re.sub(r"\\([\\|<>*_`\[\]])", r"\1", cell).strip() for cell in re.split(r"(?<!\\)\|", text)]


def _delimited(text: str) -> list[RawTable]:
    """Read CSV with the delimiter that gives the most rows of one width; without one, columns set apart by spaces."""
    choices = [(delimiter, _records(text, delimiter)) for delimiter in DELIMITERS]
    delimiter, records = max(choices, key=lambda choice: _regularity(choice[1]))
    kind = f"csv{delimiter}"
    if _regularity(records)[0] == 0:
        aligned = [re.split(r"\s{2,}", line.strip()) for line in text.split("\n") if line.strip()]
        kind, records = ("aligned", aligned) if _regularity(aligned)[0] else (kind, records)
    width = _usual_width(records)
    start = next((i for i, record in enumerate(records) if sum(map(bool, record)) >= min(2, width)), 0)
    if not records:
        return []
    context = "\n".join(cell for record in records[:start] for cell in record if cell)
    return [_table(kind, records[start], records[start + 1 :], context)]


def _records(text: str, delimiter: str) -> list[list[str]]:
    lines = io.StringIO("\n".join(line for line in text.split("\n") if not line.startswith("#")), newline="")
    return [record for record in csv.reader(lines, delimiter=delimiter) if any(cell.strip() for cell in record)]


def _usual_width(records: Sequence[Sequence[str]]) -> int:
    widths = Counter(len(record) for record in records)
    return max(widths, key=lambda width: (widths[width], width), default=0)


def _regularity(records: Sequence[Sequence[str]]) -> tuple[float, int]:
    """Return the share of records of the usual width, 0 where that is 1, and the width."""
    width = _usual_width(records)
    if width < 2:
        return 0.0, 0
    return sum(len(record) == width for record in records) / len(records), width

"""The tables of an HTML page, as texts, with what stands around them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from html.parser import HTMLParser

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

"""A table of texts, before it is written: for a terminal, in Markdown, in LaTeX."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from results.text import printable as printable


@dataclass(frozen=True)
class Grid:
    """A table ready to be written; all cells are texts, some empty.

    Attributes:
        columns: Headings; one that ends in `>` is of numbers, set to the right.
        notes: Lines below the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def headings(self) -> list[str]:
        """Headings without their alignment."""
        return [name.removesuffix(">") for name in self.columns]

    def without_empty_columns(self) -> Grid:
        """Leave out the columns in which no row has a text."""
        kept = [i for i, _ in enumerate(self.columns) if any(row[i] for row in self.rows)]
        return Grid(
            self.title,
            [self.columns[i] for i in kept],
            [[row[i] for i in kept] for row in self.rows],
            self.notes,
        )


@contextlib.contextmanager
def _wide_enough(console: Console, table: Table) -> Iterator[None]:
    """Let a table be as wide as it needs where no terminal limits it: a pipe has no width."""
    width = console.width
    if not console.is_terminal:
        unlimited = console.options.update(max_width=10_000)
        console.width = max(width, Measurement.get(console, unlimited, table).maximum)
    try:
        yield
    finally:
        console.width = width


def new_table() -> Table:
    """Return an empty table in the style of all tables on a terminal: one rule below the headings."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table on a terminal or into a pipe; nothing in a cell is read as markup."""
    if grid.title:
        print_line(grid.title, console, style="bold")
    table = new_table()
    for name in grid.columns:
        numeric = name.endswith(">")
        table.add_column(
            Text(printable(name.removesuffix(">"))),
            justify="right" if numeric else "left",
            no_wrap=numeric,
            overflow="fold",
        )
    for row in grid.rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # markup would be parsed, cell by cell
    with _wide_enough(console, table):
        console.print(table)
    for note in grid.notes:
        print_line(note, console, style="dim")
    console.print()


def print_line(text: str, console: Console, style: str | None = None) -> None:
    """Print a sentence, wrapped on a terminal only: a pipe has no width; nothing in it is read as markup."""
    console.print(Text(printable(text)), style=style, soft_wrap=not console.is_terminal)


def markdown(grid: Grid) -> str:
    """Write a table as GitHub Markdown."""
    rules = ["---:" if name.endswith(">") else "---" for name in grid.columns]
    lines = [grid.headings, rules, *grid.rows]
    text = f"**{markdown_text(grid.title)}**\n\n" if grid.title else ""
    text += "".join(f"| {' | '.join(markdown_text(cell) for cell in line)} |\n" for line in lines)
    return text + "".join(f"\n{_paragraph(note)}\n" for note in grid.notes)


def _paragraph(text: str) -> str:
    """Keep a text from being read as an item of a list, as the legend `- slower` would be."""
    escaped = markdown_text(text)
    return f"\\{escaped}" if escaped.startswith(("- ", "+ ", "# ")) else escaped


def markdown_text(text: str) -> str:
    """Keep a text within its cell or line, and its characters from being read as markup."""
    for character in "\\|<>*_`[]":
        text = text.replace(character, f"\\{character}")
    return printable(text)

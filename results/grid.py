"""A table of texts, and how it is written for a terminal and in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.text import printable as printable

READABLE_LETTERS = 24
"""Narrowest that a column of sentences is made, unless leaving out optional columns does not help."""


@dataclass(frozen=True)
class Grid:
    """A table ready to be written; all cells are texts, some empty.

    Attributes:
        columns: Headings; one that ends in `>` is of numbers, set to the right.
        notes: Lines below the table.
        optional: Headings that a narrow terminal does without, the first one first.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=tuple)
    optional: Sequence[str] = ()

    @property
    def headings(self) -> list[str]:
        """Headings without their alignment."""
        return [name.removesuffix(">") for name in self.columns]

    def without_empty_columns(self) -> Grid:
        """Return the table without columns in which no row has a text."""
        return self.only([i for i, _ in enumerate(self.columns) if any(row[i] for row in self.rows)])

    def only(self, kept: Sequence[int]) -> Grid:
        """Return the table with the columns at some places."""
        return replace(
            self, columns=[self.columns[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows]
        )


def new_table() -> Table:
    """Return an empty table in the style of all tables on a terminal: one rule below the headings."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table on a terminal or into a pipe; nothing in a cell is read as markup.

    A pipe has no width. On a terminal no name and no number is ever split: sentences wrap between words, then optional
    columns are excluded, then the first column becomes headings, and at last each row becomes a block of lines.
    """
    if grid.title:
        print_line(grid.title, console, style="bold")
    shown = replace(grid, rows=[[printable(cell) for cell in row] for row in grid.rows])
    groups = dict.fromkeys(row[0] for row in shown.rows)
    rest = shown.only(range(1, len(grid.columns)))
    if fit := _fitting(shown, console):
        _print_table(shown, *fit, console)
    elif len(groups) < len(grid.rows) and (fit := _fitting(rest, console)):
        for group in groups:
            print_line(group, console)
            rows = [row[1:] for row in shown.rows if row[0] == group]
            _print_table(replace(rest, rows=rows), *fit, console)
    elif grid.columns:
        _print_blocks(shown, console)
    excluded = [name for name in grid.optional if fit and name in grid.headings and name not in fit[0]]
    if excluded:
        print_line(f"not shown at this width: {', '.join(excluded)}; all columns: | less -S", console, style="dim")
    for note in grid.notes:
        print_line(note, console, style="dim")
    console.print()


def _fitting(grid: Grid, console: Console) -> tuple[list[str], list[int]] | None:
    """Return which columns of a table fit side by side, and their widths; None: a name or a number would be split."""
    hidden = [name for name in grid.optional if name in grid.headings]
    for count in range(len(hidden) + 1):
        kept = [name for name in grid.headings if name not in hidden[:count]]
        shown = grid.only([place for place, name in enumerate(grid.headings) if name in kept])
        fewest = [READABLE_LETTERS] if count < len(hidden) else [READABLE_LETTERS, READABLE_LETTERS // 2]
        for letters in fewest:
            if widths := _widths(shown, console, letters):
                return kept, widths
    return None


def _widths(grid: Grid, console: Console, fewest: int) -> list[int] | None:
    """Return the width of each column so that all fit side by side; None where they do not.

    Args:
        grid: The table.
        console: On a pipe, everything fits.
        fewest: Letters that a column keeps, if its texts have as many.
    """
    wanted, least = [], []
    for place, name in enumerate(grid.columns):
        heading, cells = name.removesuffix(">"), [row[place] for row in grid.rows]
        wanted.append(max(map(cell_len, [heading, *cells])))
        # Only ASCII spaces separate words: a no-break space holds a number together.
        words = [*heading.split(" "), *(cells if name.endswith(">") else " ".join(cells).split(" "))]
        kept = 0 if name.endswith(">") else min(wanted[-1], fewest)
        least.append(max(kept, *map(cell_len, words)))
    room = console.width - 2 * len(wanted)  # two spaces between columns, one around them
    for most in range(max(wanted, default=0), 0, -1):
        widths = [max(low, min(high, most)) for low, high in zip(least, wanted, strict=True)]
        if sum(widths) <= room or not console.is_terminal:
            return widths
    return None


def _print_table(grid: Grid, names: Sequence[str], widths: Sequence[int], console: Console) -> None:
    grid, table = grid.only([place for place, name in enumerate(grid.headings) if name in names]), new_table()
    for name, width in zip(grid.columns, widths, strict=True):
        heading = Text(_wrapped(printable(name.removesuffix(">")), width))
        table.add_column(heading, justify="right" if name.endswith(">") else "left", no_wrap=True, width=width)
    for row in grid.rows:
        # Text: markup would be parsed, cell by cell.
        table.add_row(*(Text(_wrapped(cell, width)) for cell, width in zip(row, widths, strict=True)))
    before = console.width
    console.width = max(before, sum(widths) + 2 * len(widths))  # a pipe's is whatever rich assumes
    console.print(table)
    console.width = before


def _print_blocks(grid: Grid, console: Console) -> None:
    width = max(map(cell_len, grid.headings))
    for row in grid.rows:
        console.print()
        for name, column, cell in zip(grid.headings, grid.columns, row, strict=True):
            if cell:
                lines = [cell] if column.endswith(">") else _wrapped(cell, console.width - width - 3).splitlines()
                console.print(Text(f" {name:{width}}  " + f"\n{' ' * (width + 3)}".join(lines)), soft_wrap=True)
    console.print()


def print_line(text: str, console: Console, style: str | None = None) -> None:
    """Print a sentence, wrapped between words on a terminal only: a pipe has no width; nothing in it is markup."""
    line = printable(text)
    lines = _wrapped(line, console.width) if console.is_terminal else line
    console.print(Text(lines), style=style, soft_wrap=True)


def _wrapped(text: str, width: int) -> str:
    """Break a text between words; a word that is longer than the width stays whole."""
    if cell_len(text) <= width:
        return text
    lines = textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


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

"""Tables of texts, printed on a terminal or formatted as Markdown."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from results.text import counted
from results.text import printable as printable

READABLE_LETTERS = 24
"""Smallest width of a column of sentences, halved if the table is too wide without its optional columns."""


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    Attributes:
        columns: Headings; a suffix `>` marks a right-aligned column of numbers.
        notes: Lines below the table.
        optional: Headings of columns hidden on a narrow terminal, in this order.
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

    def without_empty_columns(self) -> Self:
        """Return the table without its empty columns."""
        return self.only([i for i, _ in enumerate(self.columns) if any(row[i] for row in self.rows)])

    def first(self, count: int) -> Self:
        """Return the table with its first rows, and a note on the others."""
        more = [f"{counted(len(self.rows) - count, 'more row')} in results.csv"] if len(self.rows) > count else []
        return replace(self, rows=self.rows[:count], notes=[*self.notes, *more])

    def only(self, kept: Sequence[int]) -> Self:
        """Return the table with only the columns at these indices."""
        return replace(
            self, columns=[self.columns[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows]
        )


def grid_of(
    title: str, rows: Iterable[Mapping[str, str]], notes: Sequence[str] = (), optional: Sequence[str] = ()
) -> Grid:
    """Return rows, each a text by heading, as a table without empty columns."""
    rows = list(rows)
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    cells = [[row.get(name, "") for name in columns] for row in rows]
    return Grid(title, columns, cells, notes, optional).without_empty_columns()


def pivoted(
    cells: Iterable[tuple[Mapping[str, str], str, str]], columns: Iterable[str] = ()
) -> Iterable[Mapping[str, str]]:
    """Return a row per label, with a text in each of its columns.

    Args:
        cells: Label of the row (texts by heading), column and text.
        columns: Columns that come first, in order.
    """
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for label, column, text in cells:
        row = rows.setdefault((*label.values(),), {**label, **dict.fromkeys(columns, "")})
        row[column] = text
    return rows.values()


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table to a terminal or a pipe; cells are never parsed as markup.

    Width is limited only on a terminal, where names and numbers are never split: sentences wrap between words, then
    optional columns are hidden, then the first column becomes headings, and finally each row becomes a block of lines.
    """
    if grid.title:
        print_line(grid.title, console, style="bold")
    grid = replace(grid, rows=[[printable(cell) for cell in row] for row in grid.rows])
    groups = dict.fromkeys(row[0] for row in grid.rows)
    fit = fitting(grid, console)
    if fit:
        _print_table(*fit, console)
    elif len(groups) < len(grid.rows) and (fit := fitting(grid.only(range(1, len(grid.columns))), console)):
        rest, widths = fit
        for group in groups:
            print_line(group, console)
            rows = [cells for row, cells in zip(grid.rows, rest.rows, strict=True) if row[0] == group]
            _print_table(replace(rest, rows=rows), widths, console)
    elif grid.columns:
        _print_blocks(grid, console)
    if fit and (hidden := [name for name in grid.optional if name in {*grid.headings} - {*fit[0].headings}]):
        print_line(f"not shown at this width: {', '.join(hidden)}; all columns: | less -S", console, style="dim")
    for note in grid.notes:
        print_line(note, console, style="dim")
    console.print()


def fitting(grid: Grid, console: Console) -> tuple[Grid, list[int]] | None:
    """Return the columns that fit side by side and their widths; None: a name or number would be split."""
    counts = range(len(grid.optional) + 1)
    for hidden, letters in [*((count, READABLE_LETTERS) for count in counts), (len(counts), READABLE_LETTERS // 2)]:
        kept = [place for place, name in enumerate(grid.headings) if name not in grid.optional[:hidden]]
        if widths := _widths(shown := grid.only(kept), console, letters):
            return shown, widths
    return None


def _widths(grid: Grid, console: Console, fewest: int) -> list[int] | None:
    """Return widths with which all columns fit side by side; None: they do not fit.

    Args:
        grid: The table.
        console: If it is a pipe, everything fits.
        fewest: Smallest width of a column whose texts are at least as long.
    """
    wanted, least = [], []
    for place, name in enumerate(grid.columns):
        heading, cells = name.removesuffix(">"), [row[place] for row in grid.rows]
        wanted.append(max(map(cell_len, [heading, *cells])))
        # Only ASCII spaces separate words: numbers contain no-break spaces.
        words = [*heading.split(" "), *(cells if name.endswith(">") else _unbroken(" ".join(cells)).split(" "))]
        kept = 0 if name.endswith(">") else min(wanted[-1], fewest)
        least.append(max(kept, *map(cell_len, words)))
    room = console.width - 2 * len(wanted)  # two spaces between columns, one around them
    for most in range(max(wanted, default=0), 0, -1):
        widths = [max(low, min(high, most)) for low, high in zip(least, wanted, strict=True)]
        if sum(widths) <= room or not console.is_terminal:
            return widths
    return None


def table_of(grid: Grid, widths: Sequence[int]) -> Table:
    """Return a table for rich; texts are never parsed as markup."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)  # one rule below the headings
    for name, width in zip(grid.columns, widths, strict=True):
        heading = Text(_wrapped(printable(name.removesuffix(">")), width))
        table.add_column(heading, justify="right" if name.endswith(">") else "left", no_wrap=True, width=width)
    for row in grid.rows:
        # `Text`, because rich parses the markup of a str.
        table.add_row(*(Text(_wrapped(cell, width)) for cell, width in zip(row, widths, strict=True)))
    return table


def _print_table(grid: Grid, widths: Sequence[int], console: Console) -> None:
    before = console.width
    console.width = max(before, sum(widths) + 2 * len(widths))  # rich assumes a width for pipes
    console.print(table_of(grid, widths))
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
    """Print a sentence without parsing markup; wrapped between words on a terminal, not in a pipe."""
    line = printable(text)
    lines = _wrapped(line, console.width) if console.is_terminal else line
    console.print(Text(lines), style=style, soft_wrap=True)


_FLAG = r"--[a-z][a-z-]*(?:[ =](?:'[^']*'|(?!(?:or|and|to|for|if|in|is|splits)\b)[^\s;:()]*[^\s;:(),.]))?"
_COMMAND = re.compile(rf"(?:\S*tfbench [a-z]+(?: [^\s;:(),]+)?|{_FLAG})(?: {_FLAG})*|\| less -S")
"""A command, or flags, that can be pasted only if they are in one line."""

_SPACE = "\u2007"
"""Stands for a space at which no line may break."""


def _unbroken(text: str) -> str:
    """Mark the spaces in commands, at which no line may break."""
    return _COMMAND.sub(lambda command: command[0].replace(" ", _SPACE), text)


def _wrapped(text: str, width: int) -> str:
    """Wrap a text between words, but never within a command; words longer than the width are not split."""
    if cell_len(text) <= width:
        return text
    lines = textwrap.wrap(_unbroken(text), max(1, width), break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(_SPACE, " ")


def markdown(grid: Grid) -> str:
    """Format a table as GitHub Markdown."""
    rules = ["---:" if name.endswith(">") else "---" for name in grid.columns]
    lines = [grid.headings, rules, *grid.rows]
    text = f"**{markdown_text(grid.title)}**\n\n" if grid.title else ""
    text += "".join(f"| {' | '.join(markdown_text(cell) for cell in line)} |\n" for line in lines)
    for note in grid.notes:
        mark = "\\" if note.startswith(("- ", "+ ", "# ")) else ""  # no list or heading, such as the legend `- slower`
        text += f"\n{mark}{markdown_text(note)}\n"
    return text


def markdown_text(text: str) -> str:
    """Escape Markdown characters and line breaks."""
    for character in "\\|<>*_`[]":
        text = text.replace(character, f"\\{character}")
    return printable(text)

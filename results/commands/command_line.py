"""Code shared by the commands of `python -m results`: arguments, reading runs, and printing.

Data goes to stdout, everything else to stderr. Imports are within the commands, so that `--help` is immediate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from results.errors import UserError, is_disk_full
from results.program import flag, positional

if TYPE_CHECKING:
    from results.table.merge import Merged
    from results.text_table import Grid

RUNS_HELP = "run folder, run id under --runs-dir or record file; default: latest run"

SPELLINGS = {"md": "markdown", "table": "text"}
"""Aliases accepted by every `--format`."""

FORMAT = flag("default: %(default)s", type=lambda text: SPELLINGS.get(text, text))

Runs = Annotated[list[str], positional(RUNS_HELP, metavar="RUN")]

RunsDir = Annotated[Path | None, flag("where runs are kept (default: TFBENCH_RUNS_DIR or runs)", metavar="FOLDER")]

Prices = Annotated[
    list[str],
    flag(
        "price of a GPU-hour; like --prices, it overrides hosts.yml, which overrides the shipped examples",
        metavar="GPU=USD",
    ),
]

PriceFiles = Annotated[list[Path], flag("your prices, or a list of a cloud or catalog, as CSV or JSON", metavar="FILE")]

TextOrJSON = Annotated[Literal["text", "json"], FORMAT]

Format = Annotated[Literal["text", "json", "markdown"], FORMAT]


def placed(names: Sequence[str], folder: Path | None, *, latest: bool = True) -> list[str]:
    """Resolve run ids in `--runs-dir`; other names remain unchanged.

    Args:
        names: Run folders, run ids, record files, or names of fleets.
        folder: Value of `--runs-dir`; None: not given, so `results.runs.store` uses its default.
        latest: Whether to add the latest run if no name is a run.

    Raises:
        NotARun: No name is a run, and the folder has none.
    """
    from results.runs.store import is_run, latest_run

    if folder is None:
        return list(names)
    found = [str(folder / name) if is_run(str(folder / name)) else name for name in names]
    return found if not latest or any(map(is_run, found)) else [*found, str(latest_run(folder))]


def read(runs: Sequence[str], runs_dir: Path | None = None, *, quiet: bool = False) -> Merged:
    """Read and merge the records of runs, with their problems on stderr unless `quiet`."""
    from results.runs.store import stored_records
    from results.table.merge import merge_records

    merged = merge_records(stored_records(placed(runs, runs_dir)))
    if not quiet:
        warn(merged.problems)
    return merged


def put(text: str, path: Path | None) -> None:
    """Write a text to a file and its path to stderr, or the text to stdout without a path.

    Raises:
        UserError: the file cannot be written.
        OSError: the disk is full.
    """
    from results.runs.store import write_file

    if path is None:
        sys.stdout.write(text)
        return
    try:
        write_file(path, text)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise UserError(f"{path}: cannot be written: {error.strerror}. Choose another file.") from error
    print(path, file=sys.stderr)


def warn(problems: Sequence[str]) -> None:
    """Print problems with the data to stderr."""
    for problem in problems:
        print(f"! {problem}", file=sys.stderr)


def print_lines(lines: Sequence[str], style: str, *, strong: bool = False) -> None:
    """Print sentences, one per line."""
    from rich.console import Console

    from results.text_table import markdown_text, print_line

    console = Console()
    for number, line in enumerate(lines):
        first = strong and not number
        if style == "markdown":
            print(f"* **{markdown_text(line)}**" if first else f"* {markdown_text(line)}")
        else:
            print_line(line, console, "bold" if first else None)
    if lines:
        print()


def print_grids(grids: Sequence[Grid], style: str = "text") -> None:
    """Print tables as text or Markdown."""
    from rich.console import Console

    from results.text_table import markdown, print_grid

    if style == "markdown":
        print("\n".join(map(markdown, grids)))
        return
    console = Console()
    for grid in grids:
        print_grid(grid, console)

"""Code shared by the commands of `python -m results`: arguments, reading runs, and printing.

Data goes to stdout, everything else to stderr. Imports are within the commands, so that `--help` is immediate.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from results.errors import UserError, is_disk_full
from results.program import call

if TYPE_CHECKING:
    from results.grid import Grid
    from results.table.fleets import FleetRate

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

RUNS_HELP = "run folder, run id under --runs-dir or record file; default: latest run"

SPELLINGS = {"md": "markdown", "table": "text"}
"""Aliases accepted by every `--format`."""


def add_command(
    commands: Commands,
    name: str,
    function: Callable[..., int],
    what: str,
) -> argparse.ArgumentParser:
    """Add a command; `what` is its line in the list of commands and its description."""
    parser = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
    parser.set_defaults(command=functools.partial(_printed, function))
    return parser


def _printed(function: Callable[..., int], parsed: argparse.Namespace) -> int:
    """Call a command that prints data, and raise OSError if a full disk cut it: it might look complete."""
    code = call(function, parsed)
    sys.stdout.flush()
    lost = getattr(sys.stdout, "lost", None)
    if isinstance(lost, OSError) and is_disk_full(lost):
        raise OSError(lost.errno, "the output is incomplete") from lost
    return code


def add_runs(parser: argparse.ArgumentParser, *, name: str = "runs", metavar: str = "RUN", text: str = "") -> None:
    """Add the names of runs, and `--runs-dir`.

    Args:
        parser: Parser of the command.
        name: Name of the parsed argument.
        metavar: Name in `--help`.
        text: Help text; empty: the default.
    """
    parser.add_argument(name, metavar=metavar, nargs="*", help=text or RUNS_HELP)
    parser.add_argument(
        "--runs-dir", metavar="FOLDER", type=Path, help="where runs are kept (default: TFBENCH_RUNS_DIR or runs)"
    )


def add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    """Add `--format`; the first format is the default."""
    parser.add_argument(
        "--format",
        type=lambda text: SPELLINGS.get(text, text),
        choices=formats,
        default=formats[0],
        help="default: %(default)s",
    )


def add_output(parser: argparse.ArgumentParser, text: str = "write here; default: standard output") -> None:
    """Add `--output`."""
    parser.add_argument("--output", metavar="FILE", type=Path, help=text)


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


def rates_and_unread(runs: Sequence[str], *, apart: Sequence[str] = ()) -> tuple[list[FleetRate], int]:
    """Read the rates of runs, see `fleet_rates`, and the number of files that are not records."""
    from results.runs.store import stored_records
    from results.table.fleets import fleet_rates
    from results.table.merge import merge_records

    merged = merge_records(stored_records(runs))
    warn(merged.problems)
    return fleet_rates(merged, apart=apart), merged.unread


def put(text: str, path: Path | None) -> None:
    """Write a text to a file, or to stdout without a path."""
    if path is None:
        sys.stdout.write(text)
    else:
        write_text(path, text)


def write_text(path: Path, text: str) -> None:
    """Write a file and print its path to stderr.

    Raises:
        UserError: the file cannot be written.
        OSError: the disk is full.
    """
    from results.runs.store import write_file

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

    from results.grid import markdown_text, print_line

    console = Console()
    for number, line in enumerate(lines):
        if style == "markdown":
            text = markdown_text(line)
            print(f"* **{text}**" if strong and not number else f"* {text}")
        else:
            bold = "bold" if strong and not number else None
            print_line(line, console, bold)
    if lines:
        print()


def print_grids(grids: Sequence[Grid], style: str) -> None:
    """Print tables as text or Markdown."""
    from rich.console import Console

    from results.grid import markdown, print_grid

    if style == "markdown":
        print("\n".join(markdown(grid) for grid in grids))
        return
    console = Console()
    for grid in grids:
        print_grid(grid, console)

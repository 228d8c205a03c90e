"""Read what runs have measured: `python -m results COMMAND`.

Data goes to stdout, everything else to stderr. pandas and scipy are imported inside the commands, so that
`--help` answers at once.
"""

from __future__ import annotations

import argparse
import functools
import io
import os
import sys
from collections.abc import Callable, Sequence

from absl import app
from absl.flags import argparse_flags

from results.commands.runs import add_commands
from results.errors import UserError, write_traceback

EXIT_OK, EXIT_BUG, EXIT_USAGE = 0, 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: As in `sys.argv`, the program's name first.
    """
    return _run(_parse(arguments))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    return _parser().parse_args(list(arguments[1:]))


def _run(parsed: argparse.Namespace) -> int:
    command: Callable[[argparse.Namespace], int] = parsed.command
    for stream in (sys.stdout, sys.stderr):  # file names hold any bytes, and not every terminal all of Unicode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return command(parsed)
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader went away (`… | head`): there is no one left to tell, and Python must not try at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except Exception as error:  # the last place that can catch a bug
        if os.environ.get("TFBENCH_DEBUG"):
            raise
        print(f"A bug in tfbench: {error!r}. Traceback: {write_traceback()}", file=sys.stderr)
        return EXIT_BUG


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = argparse_flags.ArgumentParser(  # type: ignore[no-untyped-call]
        prog="python -m results", description="Read what runs have measured."
    )
    add_commands(parser)
    return parser


if __name__ == "__main__":
    app.run(_run, flags_parser=_parse)

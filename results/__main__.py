"""Read what runs have measured: `python -m results COMMAND`.

Data goes to stdout, everything else to stderr. pandas and scipy are imported inside the commands, so that
`--help` answers at once.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from absl import app
from absl.flags import argparse_flags

from results.commands.runs import COMMANDS
from results.program import hyphenated, run_main


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: As in `sys.argv`, the program's name first.
    """
    return run_main(_parse(arguments))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    return _parser().parse_args(hyphenated(arguments[1:]))


@functools.cache
def _parser() -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = argparse_flags.ArgumentParser(  # type: ignore[no-untyped-call]
        prog="python -m results", description="Read what runs have measured."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS.values():
        add(commands)
    return parser


if __name__ == "__main__":
    app.run(run_main, flags_parser=_parse)

"""Plan, launch, follow and collect benchmarks: `python -m orchestrate COMMAND --hosts hosts.yml`.

Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from absl import app
from absl.flags import argparse_flags

from orchestrate.command_line import COMMANDS
from results.program import hyphenated, run_main


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; mistakes end the program with exit code 2.

    Args:
        arguments: As in `sys.argv`, the program's name first.
    """
    return _parser().parse_args(hyphenated(arguments[1:]))


def _parser() -> argparse.ArgumentParser:
    """Describe the command line; commands stand in the order of work."""
    parser: argparse.ArgumentParser = argparse_flags.ArgumentParser(  # type: ignore[no-untyped-call]
        prog="python -m orchestrate",
        description="Measure GPU hosts with TensorFlow training and merge one table.",
        epilog="Exit codes: 0 all measured, 1 a bug, 2 bad flags or file, 3 some repeats failed (the rest is "
        "written), 4 no usable host, 130 stopped.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS.values():
        add(commands)
    return parser


if __name__ == "__main__":
    app.run(run_main, flags_parser=parse)

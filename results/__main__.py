"""Evaluates the records of runs: `python -m results COMMAND`.

Data goes to stdout, everything else to stderr. pandas and scipy are imported within the commands, so that `--help` is
immediate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from results.commands import COMMANDS
from results.program import Parser, add_command, exit_code_text, respelled, run_main


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: As `sys.argv`, starting with the program's name.
    """
    parser = Parser(prog="python -m results", description="Read what runs have measured.", epilog=exit_code_text())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for function in COMMANDS:
        add_command(commands, function, parser.prog)
    return run_main(parser.parse_args(respelled(arguments[1:], "_", "-")))


if __name__ == "__main__":
    sys.exit(main(sys.argv))

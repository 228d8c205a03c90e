"""Evaluates the records of runs: `python -m results COMMAND`.

Data goes to stdout, everything else to stderr. pandas and scipy are imported within the commands, so that `--help` is
immediate.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from results.commands import COMMANDS
from results.program import Described, help_line, parse, run_main


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: As `sys.argv`, starting with the program's name.
    """
    commands: dict[str, Described] = {function.__name__: function for function in COMMANDS}
    lines = [help_line(name, function) for name, function in commands.items()]
    return run_main(parse("python -m results", lines, commands, arguments[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv))

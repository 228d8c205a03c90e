"""What may stand at the cursor, for the Tab key.

Bash, zsh and fish start the program with the line so far in `COMP_LINE`, and take a candidate from each line it prints.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrate.inventory.hosts import read_hosts
from orchestrate.suites import suite_names
from results.errors import UserError
from results.program import PROGRAM, Described, command_parser
from results.runs.store import run_folders
from results.schema.networks import NETWORKS


def values_of(argument: str) -> Iterable[str]:
    """Return the values of an argument that has no choices, by its name; none: anything, such as a number or file."""
    if argument in ("limit", "names"):
        with contextlib.suppress(UserError):
            hosts = read_hosts(Path(os.environ.get("TFBENCH_HOSTS") or "hosts.yml"))
            return [*(host.fleet for host in hosts), *(host.name for host in hosts)]
    if argument in ("run", "runs"):
        return sorted((path.name for path in run_folders()), reverse=True)
    if argument in ("suite", "name"):
        return suite_names()
    return NETWORKS if argument == "model" else ()


def candidates(commands: Mapping[str, Described], line: str) -> list[str]:
    """Return the candidates for the last word of a line, which may be empty; none: the shell offers files.

    Args:
        commands: Those of the program, by name.
        line: From the program's name to the cursor.
    """
    _, *before, last = re.split(" +", line)
    if not before:
        return [name for name in commands if name.startswith(last)]
    if not callable(command := commands.get(before[0])):
        return []
    parser = command_parser(command, PROGRAM)
    of_flag = parser._option_string_actions.get(before[-1])
    actions = [of_flag] if of_flag and of_flag.nargs != 0 else parser._get_positional_actions()
    values: Iterable[str] = parser._option_string_actions
    if not last.startswith("-"):
        values = [value for action in actions for value in action.choices or values_of(action.dest)]
    return [value for value in dict.fromkeys(values) if value.startswith(last)]

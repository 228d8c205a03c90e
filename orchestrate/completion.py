"""What may stand at the cursor, for the Tab key.

Bash, zsh and fish start the program with the line so far in `COMP_LINE`, and take a candidate from each line it prints.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrate.inventory.hosts import read_hosts
from orchestrate.suites import suite_names
from results.errors import UserError
from results.runs.store import run_folders, runs_dir
from results.schema.networks import NETWORKS


def _runs() -> list[str]:
    return sorted((path.name for path in run_folders(runs_dir())), reverse=True)


def _places() -> list[str]:
    """Return the fleets and hosts of the hosts file."""
    with contextlib.suppress(UserError):
        hosts = read_hosts(Path(os.environ.get("TFBENCH_HOSTS") or "hosts.yml"), None)
        return [*(host.fleet for host in hosts), *(host.name for host in hosts)]
    return []


KNOWN: dict[str, Callable[[], Iterable[str]]] = {
    "limit": _places,
    "model": lambda: NETWORKS,
    "name": suite_names,
    "names": _places,
    "run": _runs,
    "runs": _runs,
    "suite": suite_names,
}
"""Values of arguments by their names; of others, those with choices have values."""


def candidates(parser: argparse.ArgumentParser, line: str) -> list[str]:
    """Return the candidates for the last word of a line, which may be empty; none: the shell offers files.

    Args:
        parser: Of the whole program.
        line: From the program's name to the cursor.
    """
    _, *before, last = re.split(" +", line)
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    if before and before[0] not in commands.choices:
        return []
    parser = commands.choices[before[0]] if before else parser
    of_flag = parser._option_string_actions.get(before[-1]) if before else None
    actions = [of_flag] if of_flag and of_flag.nargs != 0 else parser._get_positional_actions()
    values: Iterable[str] = parser._option_string_actions
    if not last.startswith("-"):
        values = [value for action in actions for value in action.choices or KNOWN.get(action.dest, list)()]
    return [value for value in dict.fromkeys(values) if value.startswith(last)]

"""Completion by the Tab key: commands, flags and their values, runs, suites, networks, fleets and hosts.

The shell starts the program with `TFBENCH_COMPLETE` set and the words typed so far, the unfinished one last; the
program prints one candidate per line. If it prints none, the shell offers files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from results.errors import UserError
from results.schema import Case

VARIABLE = "TFBENCH_COMPLETE"

SCRIPTS = {
    "bash": """\
_tfbench() {
    local IFS=$'\\n'
    COMPREPLY=($(TFBENCH_COMPLETE=1 "$1" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _tfbench tfbench
""",
    "zsh": """\
#compdef tfbench
_tfbench() {
    local -a found
    found=(${(f)"$(TFBENCH_COMPLETE=1 "${words[1]}" "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -a found; else _files; fi
}
if [ "$funcstack[1]" = "_tfbench" ]; then _tfbench; else compdef _tfbench tfbench; fi
""",
    "fish": """\
function __tfbench
    set -l words (commandline -opc) (commandline -ct)
    set -l found (TFBENCH_COMPLETE=1 $words[1] $words[2..] 2>/dev/null)
    if test (count $found) -gt 0; string join \\n $found; else; __fish_complete_path (commandline -ct); end
end
complete -c tfbench -f -a '(__tfbench)'
""",
}
"""Output of `tfbench completion SHELL`, by shell."""


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the candidates for the last word.

    Args:
        parser: Of the whole program.
        words: As typed after the program's name; the last one is unfinished and may be empty. Bash splits
            `--flag=value` into three words.
    """
    before = [word for word in words[:-1] if word != "="]
    last = "" if words[-1:] in ([], ["="]) else words[-1]
    last_flag, equals, typed = last.partition("=")
    if equals and last_flag.startswith("--"):
        return [f"{last_flag}={value}" for value in _beginning(typed, _flag_values(_at(parser, before), last_flag))]
    if before[:1] == ["measure"]:  # its flags are absl's
        return _beginning(last, [flag.partition("=")[0] for flag in Case(model="resnet50").flags()])
    parser = _at(parser, before)
    if last.startswith("-"):
        shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
        return _beginning(last, [name for action in shown for name in action.option_strings])
    if before and (values := _flag_values(parser, before[-1])) is not None:
        return _beginning(last, values)
    return _beginning(last, [value for action in parser._get_positional_actions() for value in _values(action)])


def _at(parser: argparse.ArgumentParser, words: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser of the command named by the first words."""
    for word in words:
        for action in parser._get_positional_actions():
            if isinstance(action, argparse._SubParsersAction) and word in action.choices:
                parser = action.choices[word]
    return parser


def _flag_values(parser: argparse.ArgumentParser, flag: str) -> list[str] | None:
    """Return the values of a flag; None: it takes no value, or does not exist."""
    action = parser._option_string_actions.get(flag)
    return None if action is None or action.nargs == 0 else _values(action)


def _values(action: argparse.Action) -> list[str]:
    """Return the known values of a flag or an argument; none: files, or free text."""
    if action.choices is not None:
        return list(action.choices)
    known = {
        "limit": _places,
        "model": _networks,
        "name": _suites,
        "names": _places,
        "run": _runs,
        "runs": _runs,
        "suite": _suites,
    }
    return known[action.dest]() if action.dest in known else []


def _beginning(typed: str, values: Iterable[str] | None) -> list[str]:
    return [value for value in dict.fromkeys(values or ()) if value.startswith(typed)]


def _runs() -> list[str]:
    from results.runs.store import run_folders, runs_dir

    return sorted((path.name for path in run_folders(runs_dir())), reverse=True)


def _places() -> list[str]:
    """Return the fleets and hosts of the hosts file."""
    from orchestrate.inventory.hosts import read_hosts

    with contextlib.suppress(UserError):
        hosts = read_hosts(Path(os.environ.get("TFBENCH_HOSTS") or "hosts.yml"), None)
        return [*(host.fleet for host in hosts), *(host.name for host in hosts)]
    return []


def _suites() -> list[str]:
    from orchestrate.suites import suite_names

    return suite_names()


def _networks() -> list[str]:
    from results.schema.networks import NETWORKS

    return list(NETWORKS)

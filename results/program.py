"""Code shared by the command-line programs: running a command, parsing flags, and the program's name."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import shlex
import shutil
import sys
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from results.errors import UserError, is_disk_full, write_traceback
from results.schema.exit_codes import MEANINGS, ExitCode
from results.schema.streams import lasting_streams

PROGRAM = "tfbench"
"""The installed command; `python -m orchestrate` and `python -m results` run without installation."""

PROGRAM_FILES = (PROGRAM, "cli")
"""Names without suffix of the file that runs as `tfbench`: the installed script, or orchestrate/cli.py."""


def run_main(parsed: argparse.Namespace) -> int:
    """Run the parsed command, report an error in one line, and return the exit code.

    Args:
        parsed: Arguments, passed to their `command` attribute.
    """
    command: Callable[[argparse.Namespace], int] = parsed.command
    with lasting_streams():
        return _run(command, parsed)


def _run(command: Callable[[argparse.Namespace], int], parsed: argparse.Namespace) -> int:
    try:
        return command(parsed)
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return ExitCode.STOPPED
    except Exception as error:  # the outermost handler
        if is_disk_full(error):
            print(f"the disk is full. Free space, then try again ({error})", file=sys.stderr)
            return ExitCode.NO_HOST
        if os.environ.get("TFBENCH_DEBUG") or getattr(parsed, "verbose", False):
            raise
        print(f"A bug in tfbench: {error!r}. Traceback: {write_traceback()}", file=sys.stderr)
        return ExitCode.BUG


REMOVED = {
    "--accept": "Run check --deep, and remove the rejected hosts from hosts.yml",
    "--retries": "Run resume: it repeats what failed because of a host",
    "--drop-after": "Run resume: it repeats what a dropped host left",
    "save": "Use docker save, or image_source: transfer",
    "load": "Use docker load, or image_source: transfer",
    "per-fleet": "Write auto, or name a variant",
    "per-host": "Write auto, or name a variant for the host",
    "ansible": "Write each host into hosts.yml: NAME: {ssh: ADDRESS}",
    "ssh-config": "Write each alias into hosts.yml: NAME: {ssh: ALIAS}",
    "--with-published": "Run recommend: it shows published figures next to measured ones",
    "prices": "Pass the catalog to recommend --prices",
    "--trust-new": "In hosts.yml, set host_keys: accept-new",
    "requeue": "Run resume: it repeats what was preempted",
    "docker_via": "On the host, add the user to the group docker: sudo usermod -aG docker USER",
}
"""Removed flags, actions, values and keys of hosts.yml, and what to use instead."""

ELSEWHERE = {
    "--price": "recommend and report have it; compare uses usd_per_gpu_hour of hosts.yml, gpus has no prices",
    "--by": "compare has it; show and export have a row for each software anyway",
}
"""Flags of other commands, and which."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that suggests corrections and has `-v` in every command."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:  # noqa: ANN401 (as its parent)
        super().__init__(*arguments, **settings)
        self._is_intermixed = False
        self.add_argument(
            "-v",
            "--verbose",
            action="store_true",
            default=argparse.SUPPRESS,
            help="print the traceback of an unexpected error",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 (as its parent)
        """Accept flags between the positional arguments: `compare A B --by keras RUN`."""
        if self._subparsers or self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True  # Python 3.11 parses in two passes, each through this method
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False

    def error(self, message: str) -> NoReturn:
        """Print the mistake and a suggestion, and exit with code 2."""
        if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            word, choices = found[1], re.findall(r"[\w-]+", found[2])
            if close := difflib.get_close_matches(word, choices, 1):
                message = f"{message[: found.start()]}{word!r} does not exist. Did you mean {close[0]}?"
        for flag, instead in REMOVED.items():
            if re.search(rf"arguments: (?:.* )?{flag}\b|choice: '{flag}'", message):
                message = f"{flag} was removed. {instead}"
        for flag, where in ELSEWHERE.items():
            if re.search(rf"arguments: (?:.* )?{flag}\b", message):
                message = f"this command has no {flag}: {where}"
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}\nSee: {self.prog} --help\n")


def exit_code_text() -> str:
    """Return the exit codes and their meanings, for `--help`."""
    return f"Exit codes: {', '.join(f'{code} {text}' for code, text in MEANINGS.items())}."


def call(function: Callable[..., int], parsed: argparse.Namespace) -> int:
    """Call a command's function with the parsed arguments of its parameters' names.

    A parameter whose type is a dataclass is built from the arguments of its fields' names.
    """
    given: dict[str, Any] = vars(parsed)
    arguments: dict[str, Any] = {}
    kinds: dict[str, Any] = typing.get_type_hints(function)
    del kinds["return"]
    for name, kind in kinds.items():
        arguments[name] = (
            kind(**{field.name: given[field.name] for field in dataclasses.fields(kind)})
            if dataclasses.is_dataclass(kind) and isinstance(kind, type)
            else given[name]
        )
    return function(**arguments)


def hyphenated(arguments: Sequence[str]) -> list[str]:
    """Spell long flags with hyphens: `--num_gpus=2` of `python -m tfbench` becomes `--num-gpus=2`."""
    return [_spelled(argument, "_", "-") for argument in arguments]


def underscored(arguments: Sequence[str]) -> list[str]:
    """Spell long flags as `python -m tfbench` does: `--num-gpus=2` becomes `--num_gpus=2`."""
    return [_spelled(argument, "-", "_") for argument in arguments]


def _spelled(argument: str, old: str, new: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace(old, new)}{equals}{value}"


def started_as_tfbench() -> bool:
    """Return whether the program was started as `tfbench`, not as `python -m …`."""
    return Path(sys.argv[0]).stem in PROGRAM_FILES


def command_line(package: str, *words: object) -> str:
    """Return a command line that can be pasted: with the program as the user started it.

    Args:
        package: Package of the command: `orchestrate` or `results`.
        words: Its name and arguments, e.g. `show` and a path.
    """
    typed = Path(sys.argv[0])
    on_path = shutil.which(PROGRAM)
    if not started_as_tfbench():
        program = ["python", "-m", package]
    elif typed.name != PROGRAM or (on_path and os.path.realpath(on_path) == os.path.realpath(typed)):
        program = [PROGRAM]
    else:
        program = [str(typed)]
    return shlex.join([*program, *map(str, words)])
